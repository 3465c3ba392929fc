from types import SimpleNamespace

import pytest
import tensorflow as tf
from cases import for_each, refused
from preloaded import run_code

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.graphs import device_type
from bert_tf.training import strategy as strategies
from bert_tf.training.strategy import (
    check_batch_size,
    check_jit_compile,
    compiles_step,
    distribute_batches,
    gpu_warning,
    make_strategy,
    share_batches,
)

# Logical devices must be made before TensorFlow starts, hence a process of its own. What training
# on them gives is in test_replicas.py.
_DEVICES = """
import os
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from bert_tf.errors import InputError
from bert_tf.training.strategy import make_strategy

assert make_strategy("mirrored").num_replicas_in_sync == 2
assert make_strategy("auto") is tf.distribute.get_strategy()
os.environ.pop("TPU_NAME", None)
try:
    make_strategy("tpu")
    raise AssertionError("there is no TPU")
except InputError as error:
    assert str(error).startswith("no TPU answers ("), error
"""


def test_devices_by_name():
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        pytest.skip("this machine has accelerators")
    run_code(_DEVICES, check=True)


def test_batches_that_cannot_be_used():
    refused("give --batch_size a multiple of 2", check_batch_size, 7, Devices("GPU", "GPU"))
    check_batch_size(7, make_strategy("one"))
    check_batch_size(6, make_strategy("one"), gradient_accumulation_steps=3)
    with pytest.raises(InputError, match=r"into 4 micro-batches on each of 1 .* a multiple of 4"):
        check_batch_size(6, make_strategy("one"), gradient_accumulation_steps=4)
    check_jit_compile(True, make_strategy("one"))
    with pytest.raises(InputError, match="--jit_compile does not work under --strategy mirrored"):
        check_jit_compile(True, make_strategy("mirrored"))


def test_xla_compiles_fixed_shapes_on_a_gpu(monkeypatch):
    one, fixed = make_strategy("one"), {"fixed_shapes": True}
    monkeypatch.setattr(strategies, "device_type", lambda strategy: "GPU")
    assert compiles_step("auto", one, **fixed)
    assert not compiles_step("auto", one, fixed_shapes=False)
    assert not compiles_step("auto", one, **fixed, deterministic=True)
    assert compiles_step(True, one, fixed_shapes=False)
    assert not compiles_step(False, one, **fixed)
    assert not compiles_step("auto", Devices("GPU", "GPU"), **fixed)
    monkeypatch.setattr(strategies, "device_type", lambda strategy: "CPU")
    assert not compiles_step("auto", one, **fixed)


class Devices:
    """Stands in for a strategy of these devices."""

    def __init__(self, *kinds):
        self.extended = self
        self.num_replicas_in_sync = len(kinds)
        self.worker_devices = tuple(
            f"/job:worker/replica:0/task:0/device:{kind}:{n}" for n, kind in enumerate(kinds)
        )


def test_devices_are_those_of_the_strategy():
    """Not those of the machine: the host of a TPU has CPUs."""
    assert device_type(Devices("TPU", "TPU")) == "TPU"
    assert device_type(Devices("GPU")) == "GPU"
    assert device_type(make_strategy("mirrored")) == device_type(make_strategy("one"))
    refused("jit_compile .* under --strategy tpu", check_jit_compile, True, Devices("TPU"))


def test_a_gpu_that_tensorflow_does_not_see(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(strategies, "_DEVICE_FILES", tmp_path)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    (tmp_path / "nvidiactl").touch()  # the driver's, also without a GPU
    assert gpu_warning() is None
    (tmp_path / "nvidia0").touch()
    assert "pip install 'tensorflow[and-cuda]" in gpu_warning()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpu_warning() is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["a GPU"])
    capability = {"compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: capability)
    assert gpu_warning() is None


def test_xla_is_left_out_where_it_aborts(monkeypatch):
    one = make_strategy("one")
    monkeypatch.setattr(strategies, "device_type", lambda strategy: "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["an RTX 5090"])
    details = {"compute_capability": (12, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert not compiles_step("auto", one, fixed_shapes=True)
    assert "XLA crashes on RTX 50 cards" in gpu_warning()
    refused("--jit_compile: TensorFlow's XLA crashes on RTX 50", check_jit_compile, True, one)


def test_auto_takes_all_of_several_gpus(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", list)
    gpus = [SimpleNamespace(name=f"GPU:{number}") for number in range(2)]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    assert make_strategy("auto") == ["GPU:0", "GPU:1"]
    gpus.pop()
    assert make_strategy("auto") is tf.distribute.get_strategy()


@for_each("weights", False, True)
def test_rows_of_weight_0_fill_a_batch(weights):
    numbers = tf.data.Dataset.range(1, 6)
    rows = tf.data.Dataset.zip(numbers, numbers, *[numbers] * weights).batch(3)
    fixed = share_batches(rows, make_strategy("one"), 3, fixed_rows=True)
    assert {tuple(spec.shape) for spec in fixed.element_spec} == {(3,)}
    wide = rows.map(lambda x, *others: (tf.stack([x, x], 1), *others))
    wide = share_batches(wide, make_strategy("one"), 3, fixed_rows=True)
    assert [*wide.as_numpy_iterator()][-1][0].tolist() == [[4, 4], [5, 5], [0, 0]]
    last = [values.tolist() for values in list(fixed.as_numpy_iterator())[-1]]
    assert last == [[4, 5, 0], [4, 5, 0], [4, 5, 0] if weights else [1, 1, 0]]


class Hosts(Devices):
    """Stands in for a strategy of two workers of two replicas each."""

    def __init__(self):
        super().__init__("CPU")

    def distribute_datasets_from_function(self, batches):
        context = tf.distribute.InputContext
        return [batches(context(2, worker, num_replicas_in_sync=4)) for worker in range(2)]


def pairs(*range_arguments):
    numbers = tf.data.Dataset.range(*range_arguments)
    return tf.data.Dataset.zip(numbers, numbers)


def parts(dataset):
    rows = [(first.tolist(), second.tolist()) for first, second in dataset.as_numpy_iterator()]
    assert all(first == second for first, second in rows)
    return [first for first, _ in rows]


def test_every_row_of_a_shared_batch_is_in_one_part(monkeypatch):
    monkeypatch.setattr(strategies, "_READERS", Hosts)
    first, second = share_batches(pairs(13).batch(8), Hosts(), 8)
    assert parts(first) == [[0, 1], [2, 3], [8, 9], [10, 11]]
    assert parts(second) == [[4, 5], [6, 7], [12], []]


def test_a_workers_batches_are_cut_for_its_replicas(monkeypatch):
    monkeypatch.setattr(strategies, "_READERS", Hosts)

    def batches(size, worker, workers):
        assert (size, workers) == (4, 2)
        return pairs(100 * worker, 100 * worker + 7 - worker).batch(size)

    first, second = distribute_batches(batches, Hosts(), 8)
    assert parts(first) == [[0, 1], [2, 3], [4, 5], [6]]
    assert parts(second) == [[100, 101], [102, 103], [104, 105], []]
    repeated = pairs(4).repeat()
    endless, _ = distribute_batches(lambda x, *_: repeated.batch(x, True), Hosts(), 8)
    # Of an end that may come the workers would have to ask one another before each step.
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert [spec.shape for spec in endless.element_spec] == [[2], [2]]


def test_no_dataset_for_training_tunes_itself(monkeypatch):
    monkeypatch.setattr(strategies, "_READERS", Hosts)
    dataset, strategy_of_one = pairs(8).batch(4), make_strategy("one")
    datasets = [
        share_batches(dataset, strategy_of_one, 4),
        distribute_batches(lambda *_: dataset, strategy_of_one, 4),
        *share_batches(dataset, Hosts(), 4),
        *distribute_batches(lambda *_: dataset, Hosts(), 4),
    ]
    assert [dataset.options().autotune.enabled for dataset in datasets] == [False] * 6
