"""Steps with a non-finite loss or gradient."""

import math

import keras

from bert_tf.errors import InputError
from bert_tf.training.schedule import learning_rate_of
from bert_tf.training.state import TrainingState


class StopOnDivergence(keras.callbacks.Callback):
    """Counts steps with a non-finite loss or gradient, and stops the run at one too many.

    A model that skips such steps, as `Trainer` does, counts them in a variable `nonfinite_steps`.
    For any other model the logs decide: `nonfinite`, or whether `loss` is finite.

    Args:
        state: training state; it is not saved after the step that stops the run.
        batch_size: examples per step, over all replicas.
        allowed: number of such steps allowed in the whole run.

    Attributes:
        start: last step before the present phase, whose batches count from 0.
    """

    def __init__(self, state: TrainingState, *, batch_size: int, allowed: int) -> None:
        super().__init__()
        self.state = state
        self.batch_size = batch_size
        self.allowed = allowed
        self.start = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Checks the step.

        Raises:
            InputError: it is one such step too many.
        """
        logs = logs or {}
        count = self._count(logs)
        if count == self.state.nonfinite_steps:
            return
        self.state.nonfinite_steps = count
        if count <= self.allowed:
            return
        step, start = self.state.step, self.start
        first = step - self.model.steps_per_execution + 1
        steps = f"step {step}" if first == step else f"one of the steps {first} to {step}"
        shown = ", ".join(
            f"{name.replace('_', ' ')} {logs[name]:.4g}"
            for name in ("loss", "gradient_norm")
            if name in logs
        )
        allowed = f"; {count - 1} such step(s) before it were skipped" if count > 1 else ""
        batch = first - 1 - start
        after = f" after step {start}" if start else ""
        last_instance = (step - start) * self.batch_size - 1
        raise InputError(
            f"{steps}: non-finite loss or gradient ({shown}) at learning rate "
            f"{learning_rate_of(self.model.optimizer, first):.3g}{allowed}. Its batch is number "
            f"{batch} counted from 0{after}, instances {batch * self.batch_size} to "
            f"{last_instance} in the order of the run: the reader gives it with start_step={batch} "
            "(docs/resuming.md shows how). The last checkpoint is kept. Lower --learning_rate, or "
            "skip such steps with --skip_nonfinite N"
        )

    def _count(self, logs: dict) -> int:
        if "nonfinite" not in logs:
            return self.state.nonfinite_steps + (not math.isfinite(logs.get("loss", 0.0)))
        if not logs["nonfinite"]:  # the common case fetches nothing from the device
            return self.state.nonfinite_steps
        counter = getattr(self.model, "nonfinite_steps", None)
        if counter is None:
            return self.state.nonfinite_steps + 1
        return int(keras.ops.convert_to_numpy(counter))
