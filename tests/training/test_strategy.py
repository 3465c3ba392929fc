import pytest
import tensorflow as tf
from preloaded import run_code

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.graphs import device_type
from bert_tf.training import strategy as strategies
from bert_tf.training.strategy import (
    check_batch_size,
    check_jit_compile,
    compiles_step,
    distribute_batches,
    make_strategy,
    share_batches,
    unseen_gpu,
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
    done = run_code(_DEVICES)
    assert done.returncode == 0, done.stderr


def test_batches_that_cannot_be_used():
    with pytest.raises(InputError, match="give --batch_size a multiple of 2"):
        check_batch_size(7, Devices("GPU", "GPU"))
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
    with pytest.raises(InputError, match="--jit_compile does not work under --strategy tpu"):
        check_jit_compile(True, Devices("TPU"))


def test_a_gpu_that_tensorflow_does_not_see(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(strategies, "_DEVICE_FILES", tmp_path)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    (tmp_path / "nvidiactl").touch()  # the driver's, also without a GPU
    assert unseen_gpu() is None
    (tmp_path / "nvidia0").touch()
    assert "pip install 'tensorflow[and-cuda]" in unseen_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert unseen_gpu() is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["a GPU"])
    assert unseen_gpu() is None


@pytest.mark.parametrize("weights", [False, True])
def test_rows_of_weight_0_fill_a_batch(weights):
    numbers = tf.data.Dataset.range(1, 6)
    rows = tf.data.Dataset.zip(numbers, numbers, *[numbers] * weights).batch(3)
    fixed = share_batches(rows, make_strategy("one"), 3, fixed_rows=True)
    assert {tuple(spec.shape) for spec in fixed.element_spec} == {(3,)}
    last = [values.tolist() for values in list(fixed.as_numpy_iterator())[-1]]
    assert last == [[4, 5, 0], [4, 5, 0], [4, 5, 0] if weights else [1, 1, 0]]


class Hosts(Devices):
    """Stands in for a strategy of two workers of two replicas each."""

    def __init__(self):
        super().__init__("CPU")

    def distribute_datasets_from_function(self, batches):
        return [
            batches(tf.distribute.InputContext(2, worker, num_replicas_in_sync=4))
            for worker in range(2)
        ]


def pairs(*range_arguments):
    numbers = tf.data.Dataset.range(*range_arguments)
    return tf.data.Dataset.zip(numbers, numbers)


def parts(dataset):
    """The rows of each part, the same in both places of a pair."""
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
    endless, _ = distribute_batches(
        lambda size, *_: pairs(4).repeat().batch(size, drop_remainder=True),
        Hosts(),
        8,
    )
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
