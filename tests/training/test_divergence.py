import keras
import numpy as np
import pytest
import tensorflow as tf
from watchers import Lines

from bert_tf.errors import InputError
from bert_tf.training.loop import Phase, TrainingLoop
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.resuming import TrainingState
from bert_tf.training.schedule import WarmupLinearDecay
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TrainingOptions


def batches(bad: set[int]):
    """Batches of 4; those numbered in `bad`, counted from 0, hold an infinity."""

    def of(step: int) -> tf.data.Dataset:
        def batch(number):
            x = tf.random.stateless_normal([4, 3], [number, 0])
            is_bad = tf.reduce_any(number == tf.constant(sorted(bad), tf.int64))
            return tf.where(is_bad, np.inf, x), tf.random.stateless_normal([4, 1], [number, 1])

        return tf.data.Dataset.counter(step, dtype=tf.int64).map(batch)

    return of


def squared_error(labels, outputs):
    return tf.square(outputs - labels)


def trainer(learning_rate=1e-2, **arguments) -> Trainer:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    return Trainer(model, AdamWeightDecay(learning_rate), loss=squared_error, **arguments)


def run(directory, model, bad, *, skip_nonfinite=0, kill_at=None, phases=None):
    def at_line(step, kind):
        if step == kill_at:
            raise RuntimeError("killed")

    watcher = Lines(at_line)
    state = TrainingState(model, directory / "checkpoints", settings={})
    state.restore()
    result = TrainingLoop(
        phases or [Phase(until=12, batch_size=4, batches=batches(bad), held_out=None)],
        state=state,
        directory=directory,
        options=TrainingOptions(
            output="run", save_every=2, log_every=4, skip_nonfinite=skip_nonfinite
        ),
        evaluate_every=100,
        best_by="loss",
        larger_is_better=False,
        save_model=lambda path: None,
        watchers=[watcher],
    ).run()
    return result, [(step, scalars) for step, _, scalars in watcher.lines]


def test_the_step_the_rate_and_the_batch_are_named_and_the_last_good_checkpoint_is_kept(tmp_path):
    model = trainer()
    # Batch 5 is that of step 6, which was to be saved.
    with pytest.raises(InputError) as caught:
        run(tmp_path, model, {5})
    message = str(caught.value)
    assert message.startswith("step 6: ")
    assert "learning rate 0.01" in message
    assert "number 5 counted from 0, instances 20 to 23" in message
    assert "start_step=5" in message
    assert "--skip_nonfinite" in message
    assert "\n" not in message
    (bad,) = batches({5})(5).take(1)
    assert np.isinf(bad[0]).all()
    kept = trainer()
    state = TrainingState(kept, tmp_path / "checkpoints", settings={})
    assert state.restore()
    assert state.step == 4
    assert all(np.isfinite(w).all() for w in kept.model.get_weights())


def test_the_batch_is_counted_from_the_beginning_of_its_phase(tmp_path):
    model = trainer()
    phases = [
        Phase(until=3, batch_size=4, batches=batches(set()), held_out=None),
        Phase(until=9, batch_size=4, batches=batches({4}), held_out=None),
    ]
    with pytest.raises(InputError, match=r"^step 8: ") as caught:
        run(tmp_path, model, (), phases=phases)
    assert "number 4 counted from 0 after step 3, instances 16 to 19" in str(caught.value)
    assert "start_step=4" in str(caught.value)


def test_the_batch_is_counted_on_where_a_phase_reads_on(tmp_path):
    phases = [
        Phase(until=4, batch_size=2, batches=batches(set()), held_out=None),
        Phase(until=9, batch_size=4, batches=batches({3}), held_out=None, first_batch=2),
    ]
    with pytest.raises(InputError, match=r"^step 8: ") as caught:
        run(tmp_path, trainer(), (), phases=phases)
    assert "number 5 counted from 0, instances 20 to 23" in str(caught.value)
    assert "start_step=5" in str(caught.value)


def test_so_many_steps_are_left_out_and_counted(tmp_path):
    model = trainer()
    result, lines = run(tmp_path, model, {2, 5}, skip_nonfinite=2)
    assert result.nonfinite_steps == 2
    assert [scalars.get("nonfinite_steps") for _, scalars in lines] == [1, 2, 2]
    assert not any("nonfinite" in scalars for _, scalars in lines)
    assert all(np.isfinite(scalars["loss"]) for _, scalars in lines)
    assert all(np.isfinite(w).all() for w in model.model.get_weights())


def test_they_are_counted_over_the_whole_run_and_not_a_process(tmp_path):
    whole = trainer()
    run(tmp_path / "whole", whole, {2, 5, 8}, skip_nonfinite=3)
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "run", trainer(), {2, 5, 8}, skip_nonfinite=3, kill_at=8)
    with pytest.raises(InputError, match=r"^step 9: .* 2 such step"):
        run(tmp_path / "run", trainer(), {2, 5, 8}, skip_nonfinite=2)
    continued = trainer()
    result, _ = run(tmp_path / "run", continued, {2, 5, 8}, skip_nonfinite=3)
    assert result.started_at == 8
    assert result.nonfinite_steps == 3
    for ours, theirs in zip(continued.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_the_learning_rate_named_is_that_of_the_step(tmp_path, steps_per_execution):
    # Of step 7, which six others came before: 0.1 * 6 / 10. With two steps at a time that is the
    # first of those named.
    model = trainer(WarmupLinearDecay(0.1, 10, 12), steps_per_execution=steps_per_execution)
    with pytest.raises(InputError, match=r"steps? 7.* at learning rate 0\.06\. "):
        run(tmp_path, model, {6})


def test_of_several_steps_an_execution_all_are_named(tmp_path):
    with pytest.raises(InputError, match=r"one of the steps 5 to 6: .* instances 16 to 23 "):
        run(tmp_path, trainer(steps_per_execution=2), {4})
