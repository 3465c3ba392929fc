"""Several machines: two processes here, which talk as two machines would.

What training on them gives is in tests/runs/test_workers.py.
"""

import fcntl
import json

from cases import for_each, refused, slow
from cluster import code_workers

from bert_tf.training.strategy import make_strategy

_LEAVING = """
import sys
from bert_tf.errors import InputError
from bert_tf.training.run import Run
from bert_tf.training.training_options import TrainingOptions
from bert_tf.training.workers import check_same_step, hold_run_directory

how, path, index = sys.argv[1:]
try:
    with Run(TrainingOptions(output=path, strategy="multi_worker")) as run:
        if how == "different steps":
            check_same_step(run.strategy, int(index))
        if how == "directory held":
            with hold_run_directory(path, run.strategy):
                pass
        run.meet()
except InputError:
    sys.exit(2)
"""


HELD = slow("directory held", 2)


@for_each("how code", ("done", 0), ("different steps", 2), HELD)
def test_no_worker_leaves_before_the_other_has_its_answer(how, code, tmp_path):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arguments = [(how, tmp_path, index) for index in range(2)]
        with code_workers(_LEAVING, *arguments, late=0.2) as processes:
            errors = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [code, code], errors


WORKERS = {"worker": ["a:1", "b:2"]}


@for_each(
    "config cause",
    (None, "needs the environment variable TF_CONFIG"),
    ("{", "TF_CONFIG cannot be used"),
    ("[]", "TF_CONFIG cannot be used"),
    ({"cluster": WORKERS}, "it has no 'task'"),
    ({"cluster": WORKERS, "task": {"type": "chief", "index": 0}}, "it has no 'chief'"),
    ({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}, "worker 2, of 2 in the"),
    ({"cluster": WORKERS, "task": {"type": "worker", "index": "0"}}, "worker '0', of 2"),
    ({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}, "not host:port"),
    ({"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}, "has workers and at most"),
)
def test_a_cluster_that_cannot_be(monkeypatch, config, cause):
    if config is None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    else:
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)
    line = refused(cause, make_strategy, "multi_worker")
    assert '"index": 0' in line  # an example of one that can
