"""What kind of devices a strategy computes on."""

import tensorflow as tf


def device_type(strategy: tf.distribute.Strategy | None = None) -> str:
    """The kind of a strategy's devices: "CPU", "GPU" or "TPU".

    By default that is the strategy in whose scope or step the caller is. Other devices of the
    machine do not matter: the host of a TPU has no GPU, but its step does not run on its CPU.
    """
    strategy = strategy or tf.distribute.get_strategy()
    try:
        device, *_ = strategy.extended.worker_devices
    except RuntimeError:  # TensorFlow's default strategy: the first GPU, or the CPU
        return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return str(tf.DeviceSpec.from_string(device).device_type)
