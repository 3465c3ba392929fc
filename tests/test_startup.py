import mmap
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf
from cases import for_each
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
@for_each(
    "before cores pool",
    ("", 1, 1),
    ("", 2, 1),
    ("", 3, 2),
    ("", 16, 14),
    ("share_cores()", 2, 1),
    ("tf.config.threading.set_intra_op_parallelism_threads(5)", 2, 5),
    ("tf.constant(1)", 2, 0),
)
def test_halves_share_the_cores(before, cores, pool):
    """Unless the user has said how many threads there are, or TensorFlow has started them."""
    run_code(THREADS, [before, cores, pool], check=True)


QUOTA = "root/cpu/cpu.cfs_quota_us"
PERIOD = {"root/cpu/cpu.cfs_period_us": "100000\n"}


@for_each(
    "files limits",
    ({}, []),
    ({"own": "0::/\n", "root/cpu.max": "max 100000\n"}, []),
    ({"own": "0::/\n", "root/cpu.max": "150000 100000\n"}, [1.5]),
    # Of a pod, the limit is of a group around the process's own.
    ({"own": "0::/pod/main\n", "root/pod/cpu.max": "200000 100000\n"}, [2]),
    ({"own": "5:memory:/a\n4:cpu,cpuacct:/host/path\n", QUOTA: "300000\n", **PERIOD}, [3]),
    ({"own": "4:cpu:/\n", QUOTA: "-1\n", **PERIOD}, []),
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


@pytest.mark.slow
def test_a_command_imports_only_what_it_uses():
    """A process of its own; what was hidden from TensorFlow can be imported afterwards."""
    subprocess.run([sys.executable, "-c", COMMAND], check=True)


def test_a_mapped_file_leaves_the_memory(tmp_path):
    def resident():
        """Kilobytes of the mapping."""
        lines = Path("/proc/self/smaps").read_text().splitlines()
        (start,) = (i for i, line in enumerate(lines) if line.endswith(f" {file}"))
        return next(int(line.split()[1]) for line in lines[start:] if line.startswith("Rss:"))

    file = tmp_path / "model 1.bin"
    file.write_bytes(b"weights " * 2**17)
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert mapped[:] == file.read_bytes() and resident() == 1024
        startup.forget_pages(tmp_path / "another.bin")
        assert resident() == 1024
        startup.forget_pages(file)
        assert resident() == 0
        assert mapped[:] == file.read_bytes()


def test_weights_are_packed_in_processes_that_answer(monkeypatch):
    name = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
    monkeypatch.delenv(name, raising=False)
    startup.pack_weights()  # TensorFlow is imported here: a child process may train
    assert name not in os.environ
    monkeypatch.setattr(startup, "sys", SimpleNamespace(modules={}))
    startup.pack_weights()
    assert os.environ[name] == "1"
    monkeypatch.setenv(name, "0")
    startup.pack_weights()
    assert os.environ[name] == "0"


@pytest.mark.slow
def test_a_script_hears_nothing_of_tensorflow():
    """A process of its own: TensorFlow writes while it is loaded."""
    given = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", QUIET], env=given, capture_output=True, text=True)
    assert done.stderr == "mine\n"


XLA = """
import os, sys
from pathlib import Path
import tensorflow as tf
from bert_tf.networks.tensorflow.graphs import compiled_by_xla
given = os.environ.get("XLA_FLAGS")
def largest(x, bias):
    return tf.reduce_max(x + bias, -1, keepdims=True)
x = tf.zeros([256, 8192])
tf.function(compiled_by_xla(largest), autograph=False)(x, x[0])
assert os.environ.get("XLA_FLAGS") == given
users = tf.function(largest, jit_compile=True).experimental_get_compiler_ir(x, x[0])
print("ynn" in users(stage="optimized_hlo"), any(Path(sys.argv[1]).glob("*.txt")))
"""
YNN = "--xla_cpu_experimental_ynn_fusion_type"


@pytest.mark.skipif(not tf.__version__.startswith("2.21."), reason="no other version has the race")
@for_each(
    "flags is_fused is_dumped",
    ("", False, False),
    ("--xla_dump_to={folder}", False, True),
    ("{folder}/flags", False, True),  # a file of flags
    (YNN + "=LIBRARY_FUSION_TYPE_REDUCE", True, False),
)
def test_what_xla_compiles_has_no_race(flags, is_fused, is_dumped, tmp_path):
    """No YNN fusion, which two threads may not be the first to run; the user's flags are kept."""
    (tmp_path / "flags").write_text(f"--xla_dump_to={tmp_path}")
    given = {"XLA_FLAGS": flags.format(folder=tmp_path)} if flags else {}
    done = run_code(XLA, [tmp_path], check=True, env={**os.environ, **given})
    assert done.stdout.split() == [str(is_fused), str(is_dumped)]


def test_all_that_xla_compiles_is_without_the_race():
    """Compiled functions of the package come from one place."""
    package = Path(bert_tf.__file__).parent
    found = {
        str(file.relative_to(package))
        for folder in (package, package / "pipelines")
        for file in folder.rglob("*.py")
        if re.search(r"tf\.function.*jit_compile=True", file.read_text(encoding="utf-8"))
    }
    assert found == {"networks/tensorflow/graphs.py", "serving/export.py", "startup.py"}
