import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.loop import TrainingPlan, train
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.state import TrainingState


class Killed(Exception):
    """Stands for whatever ends a process in the middle of a run."""


def batches(step: int) -> tf.data.Dataset:
    """Batch number n holds the number n: a model can tell which it has been given."""
    numbers = tf.data.Dataset.counter(step, dtype=tf.int64)
    return numbers.map(
        lambda n: (
            tf.random.stateless_normal([4, 3], [n, 0]),
            tf.random.stateless_normal([4, 1], [n, 1]),
        )
    )


def run(directory, total_steps=10, evaluate_every=4, save_every=3, kill_at=None, log_every=1):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(1)]
    )
    model.compile(AdamWeightDecay(1e-2), "mse")
    lines = []

    def report(step, kind, scalars):
        lines.append((step, kind, {k: v for k, v in scalars.items() if "second" not in k}))
        if step == kill_at and kind == "train":
            raise Killed

    plan = TrainingPlan(
        batch_size=4,
        total_steps=total_steps,
        evaluate_every=evaluate_every,
        save_every=save_every,
        log_every=log_every,
        monitor="val_loss",
        larger_is_better=False,
        scalar_names={},
    )
    state = TrainingState(model, directory / "checkpoints", settings={"total_steps": total_steps})
    state.restore()
    held_out = batches(1000).take(2)
    saved = []

    def save_model(path):
        path.mkdir(parents=True, exist_ok=True)
        saved.append((path.name, [w.copy() for w in model.get_weights()]))

    try:
        result = train(
            model, batches, held_out, state=state, directory=directory, plan=plan,
            save_model=save_model, report=report,
        )  # fmt: skip
    except Killed:
        result = None
    return model, result, lines, saved


def test_every_step_is_logged_and_evaluations_are_where_they_belong(tmp_path):
    _, result, lines, saved = run(tmp_path)
    assert [step for step, kind, _ in lines if kind == "train"] == list(range(1, 11))
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 8, 10]
    assert result.started_at == 0
    held_out = [scalars["loss"] for _, kind, scalars in lines if kind == "held_out"]
    assert result.best == min(held_out)
    assert saved[-1][0] == "last"
    bests = [name for name, _ in saved].count("best")
    assert bests == 1 + sum(x < min(held_out[:i]) for i, x in enumerate(held_out) if i)
    assert set(lines[0][2]) == {"loss", "learning_rate"}


@pytest.mark.parametrize("kill_at", [1, 3, 4, 5, 7, 8, 10])
def test_a_killed_run_continues_on_the_same_trajectory(tmp_path, kill_at):
    undisturbed, _, lines, _ = run(tmp_path / "undisturbed")
    _, result, before, _ = run(tmp_path / "run", kill_at=kill_at)
    assert result is None
    continued, result, after, _ = run(tmp_path / "run")
    assert result.started_at == max((s for s in (3, 4, 6, 8, 9) if s < kill_at), default=0)
    kept = [line for line in before if line[0] <= result.started_at]
    for ours, theirs in zip(continued.get_weights(), undisturbed.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    told = {line[:2]: line[2] for line in kept + after}
    assert told == {line[:2]: line[2] for line in lines}


def test_scalars_are_means_since_the_last_line(tmp_path):
    keras.utils.set_random_seed(3)
    _, _, each, _ = run(tmp_path / "each", total_steps=4)
    losses = [scalars["loss"] for _, kind, scalars in each if kind == "train"]
    assert len(set(losses)) == 4  # not a running mean of one value


def test_no_step_goes_unlogged(tmp_path):
    _, _, lines, _ = run(tmp_path / "three", log_every=3)
    assert [step for step, kind, _ in lines if kind == "train"] == [3, 4, 6, 8, 9, 10]
    _, _, each, _ = run(tmp_path / "one")
    losses = {step: scalars["loss"] for step, kind, scalars in each if kind == "train"}
    told = {step: scalars["loss"] for step, kind, scalars in lines if kind == "train"}
    assert told[4] == pytest.approx(losses[4])
    assert told[6] == pytest.approx((losses[5] + losses[6]) / 2)
    _, _, lines, _ = run(tmp_path / "short", log_every=100)
    assert [step for step, kind, _ in lines if kind == "train"] == [4, 8, 10]
