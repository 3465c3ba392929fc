"""The devices a run trains on, by name."""

import tensorflow as tf

from bert_tf.errors import InputError

STRATEGIES = ("auto", "one", "mirrored", "tpu")


def make_strategy(name: str = "auto") -> tf.distribute.Strategy:
    """The tf.distribute strategy called `name`.

    Args:
        name: "one" trains on the first device; "mirrored" on every GPU of this machine, or on
            its logical CPU devices where it has no GPU; "tpu" on the TPU that TPU_NAME names or
            that is attached; "auto" takes the TPU if there is one, all GPUs if there are several,
            else one device.

    Returns:
        A strategy; models and optimizers must be made under its `scope()`.

    Raises:
        InputError: an unknown name, or "tpu" where no TPU answers.
    """
    if name not in STRATEGIES:
        raise InputError(f"no strategy {name!r}: choose one of {', '.join(STRATEGIES)}")
    gpus = tf.config.list_logical_devices("GPU")
    if name == "auto":
        if tf.config.list_physical_devices("TPU"):
            name = "tpu"
        else:
            name = "mirrored" if len(gpus) > 1 else "one"
    if name == "one":
        # TensorFlow's default: the first GPU, or the CPU, without a wrapper around the step.
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = gpus or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    except Exception as error:  # the resolver raises whatever its transport does
        raise InputError(
            f"no TPU answers ({str(error).splitlines()[0]}): set TPU_NAME, or train with "
            "--strategy auto"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def check_batch_size(batch_size: int, strategy: tf.distribute.Strategy) -> None:
    """Refuses a global batch that the replicas of `strategy` cannot share evenly.

    Raises:
        InputError: `batch_size` is no positive multiple of the number of replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if batch_size < 1 or batch_size % replicas:
        raise InputError(
            f"a batch of {batch_size} does not divide among {replicas} replica(s): "
            f"give --batch_size a positive multiple of {replicas}"
        )


def check_jit_compile(jit_compile: bool, strategy: tf.distribute.Strategy) -> None:
    """Refuses XLA under several mirrored replicas, where Keras' compiled step fails.

    Raises:
        InputError: `jit_compile` is asked for there.
    """
    if jit_compile and isinstance(strategy, tf.distribute.MirroredStrategy):
        raise InputError(
            "--jit_compile does not work under --strategy mirrored: leave one of them out"
        )
