"""Several machines: two processes here, which talk as two machines would."""

import fcntl
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from cluster import code_workers
from preloaded import start_code

from bert_tf.errors import InputError
from bert_tf.training.strategy import distribute_batches, make_strategy

# The strategy comes before all else that runs an op. Workers take their rows of the global batch.
_WORKER = """
import sys

name, path, tests = sys.argv[1:]
from bert_tf.training.strategy import distribute_batches, make_strategy
strategy = make_strategy(name)

sys.path.insert(0, tests)
from small_trainers import *

def rows(size, worker, workers):
    own = slice(worker * size, (worker + 1) * size)
    return dataset([pretraining_batch(number) for number in range(5)]).map(
        lambda *batch: tf.nest.map_structure(lambda values: values[own], batch)
    )

with strategy.scope():
    trainer = pretraining(gradient_accumulation_steps=2)
lines = fit(trainer, distribute_batches(rows, strategy, 8), count=5)
held_out = tf.data.Dataset.from_tensor_slices(pretraining_batch(9)).batch(8)
options = tf.data.Options()
options.autotune.enabled = False
scores = trainer.evaluate(held_out.with_options(options))
print(json.dumps({
    "replicas": strategy.num_replicas_in_sync,
    "chief": strategy.extended.should_checkpoint,
    "lines": lines,
    "scores": scores,
    "rounding": [ROUNDING, CLOSE],
}))
np.savez(path, *trainer.model.get_weights())
""".replace("import sys\n", "import json, sys\n", 1)


@pytest.mark.slow
def test_two_workers_train_as_one_device_does(tmp_path, request):
    tests = str(request.path.parent)
    paths = [tmp_path / f"{name}.npz" for name in ("first", "second", "one")]
    arguments = [("multi_worker", path, tests) for path in paths[:2]]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    results, weights = [], []
    with code_workers(_WORKER, *arguments) as processes:
        one = start_code(_WORKER, ["one", paths[2], tests], env=environment)
        for path, process in zip(paths, [*processes, one], strict=True):
            told, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors[-3000:]
            results.append(json.loads(told.splitlines()[-1]))
            with np.load(path) as arrays:
                weights.append([arrays[name] for name in arrays])
    first, second, one = results
    share, close = one["rounding"]
    assert [each["replicas"] for each in results] == [2, 2, 1]
    assert [each["chief"] for each in results] == [True, False, True]
    assert len(one["lines"]) == 5
    for ours, theirs, expected in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=close)
    for worker in (first, second):
        assert [logs.pop("stop_asked") for logs in worker["lines"]] == [0] * 5
    assert first["lines"] == second["lines"]
    for ours, expected in zip(first["lines"], one["lines"], strict=True):
        assert ours == pytest.approx(expected, rel=share)
    assert first["scores"] == second["scores"] == pytest.approx(one["scores"], rel=share)


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


@pytest.mark.parametrize(
    ("how", "code"), [("done", 0), ("different steps", 2), ("directory held", 2)]
)
def test_no_worker_leaves_before_the_other_has_its_answer(how, code, tmp_path):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arguments = [(how, tmp_path, index) for index in range(2)]
        with code_workers(_LEAVING, *arguments, late=0.2) as processes:
            told = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [code, code], told


WORKERS = {"worker": ["a:1", "b:2"]}


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        (None, "needs the environment variable TF_CONFIG"),
        ("{", "TF_CONFIG cannot be used"),
        ("[]", "TF_CONFIG cannot be used"),
        ({"cluster": WORKERS}, "it has no 'task'"),
        ({"cluster": WORKERS, "task": {"type": "chief", "index": 0}}, "it has no 'chief'"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}, "worker 2, of 2 in the"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": "0"}}, "worker '0', of 2"),
        ({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}, "not host:port"),
        (
            {"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}},
            "has workers and at most a chief",
        ),
    ],
)
def test_a_cluster_that_cannot_be(monkeypatch, config, cause):
    if config is None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    else:
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InputError, match=cause) as error:
        make_strategy("multi_worker")
    assert '"index": 0' in str(error.value)  # an example of one that can


def test_one_process_reads_for_all_its_devices():
    strategy = make_strategy("one")
    asked = []

    def batches(*arguments):
        asked.append(arguments)
        return tf.data.Dataset.range(3)

    assert list(distribute_batches(batches, strategy, 12).as_numpy_iterator()) == [0, 1, 2]
    assert asked == [(12, 0, 1)]
