"""What a process does before it works with TensorFlow."""

import os
import subprocess
import sys

import pytest
from preloaded import run_code

import bert_tf
from bert_tf import startup

THREADS = """
import os, sys
import tensorflow as tf
from bert_tf.startup import share_cores
before, cores, pool = sys.argv[1:]
os.sched_getaffinity = lambda process: set(range(int(cores)))
exec(before)
share_cores()
assert tf.config.threading.get_intra_op_parallelism_threads() == int(pool)
assert int(tf.add(1, 1)) == 2
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "cores", "pool"),
    [
        ("", 1, 1),
        ("", 2, 1),
        ("", 3, 2),
        ("", 16, 14),
        ("share_cores()", 2, 1),
        ("tf.config.threading.set_intra_op_parallelism_threads(5)", 2, 5),
        ("tf.constant(1)", 2, 0),
    ],
)
def test_halves_share_the_cores(before, cores, pool):
    """Unless the user has said how many threads there are, or TensorFlow has started them."""
    run_code(THREADS, [before, cores, pool], check=True)


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({}, []),
        ({"own": "0::/\n", "root/cpu.max": "max 100000\n"}, []),
        ({"own": "0::/\n", "root/cpu.max": "150000 100000\n"}, [1.5]),
        # Of a pod, the limit is of a group around the process's own.
        ({"own": "0::/pod/main\n", "root/pod/cpu.max": "200000 100000\n"}, [2]),
        (
            {
                "own": "5:memory:/a\n4:cpu,cpuacct:/host/path\n",
                "root/cpu/cpu.cfs_quota_us": "300000\n",
                "root/cpu/cpu.cfs_period_us": "100000\n",
            },
            [3],
        ),
        (
            {
                "own": "4:cpu:/\n",
                "root/cpu/cpu.cfs_quota_us": "-1\n",
                "root/cpu/cpu.cfs_period_us": "100000\n",
            },
            [],
        ),
    ],
)
def test_cpu_limits_of_containers(files, limits, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert list(startup._cgroup_limits(tmp_path / "root", tmp_path / "own")) == limits


def test_cores_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(startup, "_cgroup_limits", lambda: [2.5, 9])
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert startup.available_cores() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    assert startup.available_cores() == 2


def test_reading_a_name_changes_nothing_in_the_process(monkeypatch):
    monkeypatch.setattr(startup, "keep_freed_memory", lambda: pytest.fail("malloc"))
    monkeypatch.setattr(startup, "share_cores", lambda: pytest.fail("threads"))
    assert bert_tf.BertClassifier.__name__ == "BertClassifier"


QUIET = """
import bert_tf, sys
bert_tf.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
bert_tf.BertEncoder(bert_tf.BertConfig.named("tiny", vocab_size=6))
print("mine", file=sys.stderr)
"""


COMMAND = """
import sys
from bert_tf.startup import _UNUSED, import_tensorflow
import_tensorflow(for_a_command=True)
assert not _UNUSED & sys.modules.keys(), _UNUSED & sys.modules.keys()
import keras
import matplotlib, scipy.stats, sklearn.metrics
assert keras.utils.to_categorical([1], 2).tolist() == [[0, 1]]
"""


def test_a_command_imports_only_what_it_uses():
    """A process of its own; what was hidden from TensorFlow can be imported afterwards."""
    subprocess.run([sys.executable, "-c", COMMAND], check=True)


@pytest.mark.slow
def test_a_script_hears_nothing_of_tensorflow():
    """A process of its own: TensorFlow writes while it is loaded."""
    given = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", QUIET], env=given, check=True, capture_output=True, text=True
    )
    assert done.stderr == "mine\n"
