"""Learning rate schedules. A new one is a class here and a line in `schedule_table`."""

import math
from typing import Any

import keras
from keras import ops

from bert_tf.errors import InputError
from bert_tf.training.schedule_table import SCHEDULES


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then linear decay to 0 (paper, appendix A.2).

    As in the original's optimization.py, the decay counts from step 0: at the end of the warm-up
    the rate drops from almost its peak to peak * (1 - warmup_steps / total_steps).

    Args:
        peak_learning_rate: above 0, else InputError.
        warmup_steps: 0 for none, at most `total_steps`, else InputError.
        total_steps: step from which on the rate is 0, at least 1, else InputError.
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
        """The learning rate, float32 [], of the step after `step` others."""
        step = ops.cast(step, "float32")  # exact up to 16 million
        warming = step / max(self.warmup_steps, 1)
        share = ops.where(step < self.warmup_steps, warming, self._decayed(step))
        return self.peak_learning_rate * share

    def _decayed(self, step: Any) -> Any:
        """Share of the peak after the warm-up."""
        return 1.0 - ops.minimum(step, float(self.total_steps)) / self.total_steps

    def get_config(self) -> dict[str, Any]:
        names = ("peak_learning_rate", "warmup_steps", "total_steps")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupCosineDecay(WarmupLinearDecay):
    """Linear warm-up from 0, then half a cosine wave from the peak to 0."""

    def _decayed(self, step: Any) -> Any:
        steps = max(self.total_steps - self.warmup_steps, 1)
        done = ops.clip((step - self.warmup_steps) / steps, 0.0, 1.0)
        return 0.5 * (1.0 + ops.cos(math.pi * done))


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupConstant(WarmupLinearDecay):
    """Linear warm-up from 0, then the peak."""

    def _decayed(self, step: Any) -> Any:
        return ops.ones_like(step)


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupStableDecay(WarmupLinearDecay):
    """Linear warm-up from 0, then the peak, then a decay to 0 over the last steps.

    With x the share of the decay that is over, the rate is peak * (1 - sqrt(x)), the best of the
    decays that Hägele et al. 2024 compare (section 3). A tenth of the steps suffices for it
    (MiniCPM, Hu et al. 2024, section 4). `decay_share` of the steps, rounded down to at least one
    step, decay. Raises InputError as `WarmupLinearDecay`, or if warm-up and decay overlap.
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int,
        total_steps: int,
        decay_share: float = 0.1,
    ):
        super().__init__(peak_learning_rate, warmup_steps, total_steps)
        self.decay_share = decay_share
        # 0.29 * 100 is a little less than 29 in floats.
        self.decay_steps = max(1, int(total_steps * decay_share + 1e-9))
        if warmup_steps + self.decay_steps > total_steps:
            raise InputError(
                f"{warmup_steps} warm-up steps and {self.decay_steps} of decay do not fit "
                f"{total_steps} training steps: shorten the warm-up, or lower --decay_share"
            )

    def _decayed(self, step: Any) -> Any:
        done = (step - (self.total_steps - self.decay_steps)) / self.decay_steps
        return 1.0 - ops.sqrt(ops.clip(done, 0.0, 1.0))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "decay_share": self.decay_share}


def named(name: str) -> type[WarmupLinearDecay]:
    """The class of the schedule that options call `name`."""
    return globals()[SCHEDULES[name]]


def learning_rate_of(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """The learning rate of a step counted from 1; the optimizer's own is the next step's."""
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(step - 1)
    return float(rate)
