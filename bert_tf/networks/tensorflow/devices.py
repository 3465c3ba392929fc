"""What kind of devices a strategy computes on."""

import tensorflow as tf


def device_type(strategy: tf.distribute.Strategy | None = None) -> str:
    """The kind of a strategy's devices, "CPU", "GPU" or "TPU"; by default of the present strategy.

    Other devices of the machine do not matter: the step of a TPU does not run on its host's CPU.
    """
    strategy = strategy or tf.distribute.get_strategy()
    try:
        device, *_ = strategy.extended.worker_devices
    except RuntimeError:  # TensorFlow's default strategy: the first GPU, or the CPU
        return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return str(tf.DeviceSpec.from_string(device).device_type)
