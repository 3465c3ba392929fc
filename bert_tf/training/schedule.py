"""The learning rate over the steps."""

from typing import Any

import keras
from keras import ops

from bert_tf.errors import InputError


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then linear decay to 0 (paper, appendix A.2).

    As `create_optimizer` in the original's optimization.py: the decay counts from step 0, and
    the warm-up stands in its place while it lasts. At the end of the warm-up the rate thus
    steps from almost its peak to peak * (1 - warmup_steps / total_steps).

    Args:
        peak_learning_rate: what the warm-up climbs to.
        warmup_steps: its length; 0 for none.
        total_steps: the step at which the rate reaches 0, where it stays.

    Raises:
        InputError: if the rate is not above 0, or the steps are not 0 <= warmup <= total >= 1.
    """

    def __init__(self, peak_learning_rate: float, warmup_steps: int, total_steps: int):
        super().__init__()
        if peak_learning_rate <= 0:
            raise InputError(f"The learning rate is {peak_learning_rate}: give one above 0.")
        if total_steps < 1 or not 0 <= warmup_steps <= total_steps:
            raise InputError(
                f"{warmup_steps} warm-up steps do not fit {total_steps} training steps: "
                "give at least one step, and no more warm-up than that."
            )
        self.peak_learning_rate = peak_learning_rate
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps

    def __call__(self, step: Any) -> Any:
        """The learning rate, float32 [], of the step that comes after `step` others."""
        # Steps are whole numbers: exact in float32 up to 16 million.
        step = ops.cast(step, "float32")
        decayed = 1.0 - ops.minimum(step, float(self.total_steps)) / self.total_steps
        warming = step / max(self.warmup_steps, 1)
        share = ops.where(step < self.warmup_steps, warming, decayed)
        return self.peak_learning_rate * share

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
        }


def learning_rate_of(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """The learning rate of a step, counted from 1; the optimizer's own is that of the next one."""
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(step - 1)
    return float(rate)
