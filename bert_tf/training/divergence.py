"""Steps with a non-finite loss or gradient."""

from collections.abc import Mapping
from typing import Any

from bert_tf.errors import InputError
from bert_tf.training.plan import Phase
from bert_tf.training.schedule import learning_rate_of
from bert_tf.training.state import TrainingState


class DivergedError(InputError):
    """Too many steps had a non-finite loss or gradient."""


def divergence(
    state: TrainingState, phase: Phase, start: int, logs: Mapping[str, Any]
) -> DivergedError:
    """The error for a run whose last execution had one such step too many.

    Args:
        state: state after that execution.
        phase: present phase.
        start: last step before it.
        logs: logs of the execution.
    """
    trainer, step, count = state.trainer, state.step, state.nonfinite_steps
    first = step - trainer.steps_per_execution + 1
    steps = f"step {step}" if first == step else f"one of the steps {first} to {step}"
    allowed = f"; {count - 1} such step(s) before it were skipped" if count > 1 else ""
    batch, last = (phase.first_batch + n - 1 - start for n in (first, step))
    after = f" after step {start}" if start and not phase.first_batch else ""
    size = phase.batch_size
    return DivergedError(
        f"{steps}: non-finite loss or gradient (loss {float(logs['loss']):.4g}, gradient norm "
        f"{float(logs['gradient_norm']):.4g}) at learning rate "
        f"{learning_rate_of(trainer.optimizer, first):.3g}{allowed}. Its batch is number "
        f"{batch} counted from 0{after}, instances {batch * size} to "
        f"{(last + 1) * size - 1} in the order of the run: the reader gives it with "
        f"start_step={batch} (docs/resuming.md shows how). The last checkpoint is kept. Lower "
        "--learning_rate, or skip such steps with --skip_nonfinite N"
    )
