"""Steps with a non-finite loss or gradient."""

import math
from dataclasses import dataclass

import keras

from bert_tf.errors import InputError
from bert_tf.training.callbacks import RunCallback
from bert_tf.training.plan import Phase, TrainingPlan
from bert_tf.training.schedule import learning_rate_of


class DivergedError(InputError):
    """Too many steps had a non-finite loss or gradient."""


@dataclass(eq=False)
class StopOnDivergence(RunCallback):
    """Counts steps with a non-finite loss or gradient, and stops the run at one too many.

    A model that skips such steps, as `Trainer` does, counts them in a variable `nonfinite_steps`.
    For any other model the logs decide: `nonfinite`, or whether `loss` is finite. The state is not
    saved after the step that stops the run.

    Attributes:
        start: last step before the present phase.
    """

    plan: TrainingPlan
    phase: Phase
    start: int

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Checks the step.

        Raises:
            DivergedError: it is one such step too many.
        """
        logs = logs or {}
        if not logs.get("nonfinite", not math.isfinite(logs.get("loss", 0.0))):
            return
        counter = getattr(self.model, "nonfinite_steps", self.state.nonfinite_steps + 1)
        count = self.state.nonfinite_steps = int(keras.ops.convert_to_numpy(counter))
        if count <= self.plan.skip_nonfinite:
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
        batch, last = (self.phase.first_batch + n - 1 - start for n in (first, step))
        after = f" after step {start}" if start and not self.phase.first_batch else ""
        size = self.phase.batch_size
        raise DivergedError(
            f"{steps}: non-finite loss or gradient ({shown}) at learning rate "
            f"{learning_rate_of(self.model.optimizer, first):.3g}{allowed}. Its batch is number "
            f"{batch} counted from 0{after}, instances {batch * size} to "
            f"{(last + 1) * size - 1} in the order of the run: the reader gives it with "
            f"start_step={batch} (docs/resuming.md shows how). The last checkpoint is kept. Lower "
            "--learning_rate, or skip such steps with --skip_nonfinite N"
        )
