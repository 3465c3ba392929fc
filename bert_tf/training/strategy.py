"""The devices that a run trains on."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from bert_tf.errors import InputError, pip_install
from bert_tf.files.cluster import is_chief_of_cluster
from bert_tf.networks.tensorflow.graphs import device_type

# Strategies whose processes each read for their own replicas.
_READERS = (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.TPUStrategy)
_DEVICE_FILES = Path("/dev")
_ABORTS_XLA = 12  # compute capability of RTX 50 cards (TensorFlow's issues 89272 and 111958)
_WITHOUT_XLA = "TensorFlow's XLA crashes on RTX 50 cards, which train without it"
Batches: TypeAlias = tf.data.Dataset | tf.distribute.DistributedDataset


def make_strategy(name: str = "auto") -> tf.distribute.Strategy:
    """The tf.distribute strategy called `name`; make models and optimizers under its `scope()`.

    "one" is the first device, "mirrored" every GPU of this machine or its logical CPU devices,
    "tpu" the TPU that TPU_NAME names or that is attached, and "multi_worker" the devices of all
    machines in the environment variable TF_CONFIG: make it before TensorFlow runs its first op.
    "auto" takes the TPU if there is one, all GPUs if there are several, else one device. Raises
    InputError without a valid TF_CONFIG or a TPU.
    """
    if name == "multi_worker":
        is_chief_of_cluster()  # refuses a TF_CONFIG that cannot be used
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "auto":
        if os.environ.get("TPU_NAME") or tf.config.list_physical_devices("TPU"):
            name = "tpu"
        else:
            name = "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one"
    if name == "one":
        # TensorFlow's default: the first GPU, or the CPU, without a wrapper around the step.
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    try:
        # "local": chips attached to this machine. `connect` also starts the TPU system.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(
            os.environ.get("TPU_NAME") or "local"
        )
    except Exception as error:  # the resolver raises whatever its transport does
        raise InputError(
            f"no TPU answers ({str(error).splitlines()[0]}): set TPU_NAME, or train with "
            "--strategy auto"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def device_names(strategy: tf.distribute.Strategy) -> str:
    """The devices of a strategy in a few words, such as "CPU" or "8 x NVIDIA H200"."""
    count = strategy.num_replicas_in_sync
    name = device_type(strategy)
    if name == "GPU":
        gpu, *_ = tf.config.list_physical_devices("GPU")
        name = tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
    return name if count == 1 else f"{count} x {name}"


def distribute_batches(
    batches: Callable[[int, int, int], tf.data.Dataset],
    strategy: tf.distribute.Strategy,
    batch_size: int,
    *,
    fixed_rows: bool = False,
) -> Batches:
    """Global batches of `batch_size`, of which each of several workers reads its share itself.

    `batches` maps (batch size, worker, number of workers) to a worker's batches, as many for each
    worker, some perhaps with fewer rows or none. With `fixed_rows`, and on TPUs, they get rows of
    weight 0 instead: what XLA compiles has fixed shapes.
    """
    if fixed_rows or device_type(strategy) == "TPU":
        uneven_batches = batches

        def batches(size: int, *worker: int) -> tf.data.Dataset:
            return _with_fixed_rows(uneven_batches(size, *worker), size)

    if not isinstance(strategy, _READERS):
        return without_autotuning(batches(batch_size, 0, 1))

    def worker_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        workers = context.num_input_pipelines
        size = batch_size // workers
        dataset = batches(size, context.input_pipeline_id, workers)
        replicas = context.num_replicas_in_sync // workers
        return without_autotuning(_parts(dataset, replicas, size // replicas))

    return strategy.distribute_datasets_from_function(worker_batches)


def reader_count(strategy: tf.distribute.Strategy) -> int:
    """How many processes read batches, each its share: the order of the data depends on it."""
    if not isinstance(strategy, _READERS):
        return 1
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    return max(1, sum(len(cluster.get(job, ())) for job in ("chief", "worker")))


def share_batches(
    dataset: tf.data.Dataset,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    *,
    fixed_rows: bool = False,
) -> Batches:
    """`distribute_batches` of a dataset of tuples, which every worker reads whole."""

    def worker_batches(size: int, worker: int, workers: int) -> tf.data.Dataset:
        rows = functools.partial(_rows, worker * size, size)
        return dataset.map(rows) if workers > 1 else dataset

    return distribute_batches(worker_batches, strategy, batch_size, fixed_rows=fixed_rows)


def _parts(dataset: tf.data.Dataset, replicas: int, size: int) -> tf.data.Dataset:
    """A worker's batches cut into a part of up to `size` rows, perhaps none, for each replica."""
    if replicas == 1:
        return dataset
    numbers = tf.data.Dataset.range(replicas)

    @tf.autograph.experimental.do_not_convert
    def parts(*batch: Any) -> tf.data.Dataset:
        part = tf.autograph.experimental.do_not_convert(lambda n: _rows(n * size, size, *batch))
        return numbers.map(part)

    cut_up = dataset.flat_map(parts)
    batches = int(dataset.cardinality())
    if batches == tf.data.INFINITE_CARDINALITY:  # else workers ask one another each step
        cut_up = cut_up.apply(tf.data.experimental.assert_cardinality(batches))
    return cut_up


def _with_fixed_rows(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Batches (inputs, labels, weights) of up to `size` rows with rows of weight 0 up to `size`."""
    if all(spec.shape[0] == size for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset

    def pad(x: tf.Tensor) -> tf.Tensor:  # [B, ...] -> [size, ...]
        gaps = [[0, size - tf.shape(x)[0]], *[[0, 0]] * (x.shape.rank - 1)]
        return tf.ensure_shape(tf.pad(x, gaps), [size, *x.shape[1:]])

    @tf.autograph.experimental.do_not_convert
    def padded(inputs: Any, labels: Any, weights: Any = None) -> Any:
        if weights is None:
            weights = tf.nest.map_structure(lambda x: tf.ones(tf.shape(x)[:1]), labels)
        return tf.nest.map_structure(pad, (inputs, labels, weights))

    return dataset.map(padded)


@tf.autograph.experimental.do_not_convert
def _rows(first: Any, size: int, *batch: Any) -> Any:
    """Up to `size` rows of a batch."""

    def cut(values: tf.Tensor) -> tf.Tensor:  # [B, ...] -> [size, ...]
        is_full = values.shape[0] is not None
        shape = [size if is_full else None, *values.shape[1:]]
        return tf.ensure_shape(values[first : first + size], shape)

    return tf.nest.map_structure(cut, batch)


def without_autotuning(dataset: Batches) -> Batches:
    """The dataset with tf.data's autotuning off; a distributed one keeps the options of its parts.

    The tuning thread sleeps ever longer, and can stall the end of a run for tens of seconds.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options) if isinstance(dataset, tf.data.Dataset) else dataset


def check_batch_size(
    batch_size: int, strategy: tf.distribute.Strategy, gradient_accumulation_steps: int = 1
) -> None:
    """Raises InputError if replicas and micro-batches cannot share a global batch evenly."""
    replicas = strategy.num_replicas_in_sync
    pieces = replicas * gradient_accumulation_steps
    if batch_size % replicas:
        raise InputError(
            f"a batch of {batch_size} does not divide among {replicas} replica(s): "
            f"give --batch_size a multiple of {replicas}"
        )
    if batch_size % pieces:
        raise InputError(
            f"a batch of {batch_size} does not divide into {gradient_accumulation_steps} "
            f"micro-batches on each of {replicas} replica(s): "
            f"give --batch_size a multiple of {pieces}"
        )


def add_counter(
    path: str, dtype: str = "int64", shape: tuple[int, ...] = (), first: float = 0
) -> keras.Variable:
    """A variable of which every replica writes the same to its own copy."""
    *scope, name = path.split("/")
    with keras.name_scope("/".join(scope)):
        return keras.Variable(
            keras.initializers.Constant(first),
            shape=shape,
            dtype=dtype,
            trainable=False,
            aggregation="none",
            name=name,
        )


def check_jit_compile(jit_compile: bool, strategy: tf.distribute.Strategy) -> None:
    """Raises InputError on XLA for TPUs or mirrored replicas, which communicate outside of it."""
    name = {
        tf.distribute.MirroredStrategy: "mirrored",
        tf.distribute.MultiWorkerMirroredStrategy: "multi_worker",
    }.get(type(strategy))
    if device_type(strategy) == "TPU":
        name = "tpu, which compiles every step"
    if jit_compile and name:
        raise InputError(
            f"--jit_compile does not work under --strategy {name}: leave --jit_compile out"
        )
    if jit_compile and xla_aborts():
        raise InputError(f"--jit_compile: {_WITHOUT_XLA}: leave --jit_compile out")


def compiles_step(
    jit_compile: bool | str,
    strategy: tf.distribute.Strategy,
    *,
    fixed_shapes: bool,
    deterministic: bool = False,
) -> bool:
    """Whether to compile the step with XLA; "auto" does so for fixed shapes on one GPU."""
    if jit_compile != "auto":
        return bool(jit_compile)
    is_one = strategy.num_replicas_in_sync == 1
    is_fit = is_one and device_type(strategy) == "GPU" and fixed_shapes and not deterministic
    return is_fit and not xla_aborts()


def xla_aborts() -> bool:
    """Whether TensorFlow's XLA would abort the process on a GPU of this machine."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return any(x.get("compute_capability", (0,))[0] == _ABORTS_XLA for x in details)


def gpu_warning() -> str | None:
    """A warning, if this machine has an NVIDIA device that TensorFlow cannot use, or not fully."""
    if xla_aborts():
        return f"warning: {_WITHOUT_XLA}; recipes/pretrain_on_jax.py trains faster there"
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    is_there = any(_DEVICE_FILES.glob("nvidia[0-9]*"))
    if is_hidden or not is_there or tf.config.list_physical_devices("GPU"):
        return None
    return (
        "warning: this machine has an NVIDIA GPU that TensorFlow does not see: install its "
        f"libraries ({pip_install('cuda')}) and a recent driver, or set "
        "CUDA_VISIBLE_DEVICES=-1 to train on the CPU"
    )
