import functools
import itertools
import json
import os
import signal
import threading
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from run_logs import events, logged, scalar_events, without_times
from watchers import Lines

import bert_tf.training.resuming
from bert_tf import AdamWeightDecay, WarmupLinearDecay
from bert_tf.errors import InputError
from bert_tf.training.logs import ScalarLog
from bert_tf.training.loop import TrainingLoop
from bert_tf.training.phases import Phase
from bert_tf.training.preemption import Preempted
from bert_tf.training.resuming import Progress, TrainingState, read_checkpoint
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TrainingOptions


class Killed(Exception):
    """Stands for whatever ends a process in the middle of a run."""


ROWS = np.random.default_rng(0).normal(size=(1200, 4, 4)).astype(np.float32)


def batches(step: int, rows=ROWS) -> tf.data.Dataset:
    """Batch number n is number n of the rows: a model can tell which it has been given."""
    return tf.data.Dataset.from_tensor_slices((rows[step:, :, :3], rows[step:, :, 3:]))


def squared_error(labels, outputs):
    return tf.square(outputs - labels)


def absolute_error(labels, outputs):
    return tf.abs(outputs - labels)


def new_trainer(steps_per_execution=1) -> Trainer:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(1, name="dense")]
    model = keras.Sequential([keras.Input((3,)), *layers], name="model")
    how = {"metrics": {"mae": absolute_error}, "steps_per_execution": steps_per_execution}
    adam = AdamWeightDecay(WarmupLinearDecay(1e-2, 10, 20))
    return Trainer(model, adam, loss=squared_error, **how)


@functools.cache
def traced_trainer(steps_per_execution: int) -> tuple[Trainer, list]:
    """A trainer whose graphs are traced once, and its variables with their first values."""
    trainer = new_trainer(steps_per_execution)
    return trainer, [(variable, variable.numpy()) for variable in trainer.variables]


def trainer_of_a_run(steps_per_execution: int) -> Trainer:
    """`new_trainer` in a tenth of the time."""
    trainer, first_values = traced_trainer(steps_per_execution)
    for variable, value in first_values:
        variable.assign(value)
    trainer.reset_means()
    return trainer


def end_of(trainer: Trainer) -> list[np.ndarray]:
    return [*trainer.model.get_weights(), trainer.optimizer.iterations.numpy()]


def run(
    directory,
    *,
    total_steps=10,
    evaluate_every=4,
    save_every=3,
    log_every=1,
    kill_at=None,
    at_line=None,
    with_held_out=True,
    steps_per_execution=1,
    phases=(),
    skip_nonfinite=0,
):
    """A run of ten steps; `at_line` is called with the step and kind of each line logged.

    Gives the weights, the result (None if it was killed), the lines and the models saved.
    """
    trainer = trainer_of_a_run(steps_per_execution)

    def or_killed(step, kind):
        if at_line is not None:
            at_line(step, kind)
        if kill_at in (step, (step, kind)):
            raise Killed

    watcher = Lines(or_killed)
    every = {"save_every": save_every, "log_every": log_every}
    options = TrainingOptions(output="run", skip_nonfinite=skip_nonfinite, **every)
    state = TrainingState(trainer, directory / "checkpoints", settings={"total_steps": total_steps})
    state.restore()
    held_out = batches(1000).take(2) if with_held_out else None
    phases = phases or [Phase(until=total_steps, batch_size=4, batches=batches, held_out=held_out)]
    saved = []

    def save_model(path):
        path.mkdir(parents=True, exist_ok=True)
        saved.append((path.name, [w.copy() for w in trainer.model.get_weights()]))

    how = {"evaluate_every": evaluate_every, "best_by": "loss", "save_model": save_model}
    how |= {"state": state, "directory": directory, "options": options, "watchers": [watcher]}
    try:
        result = TrainingLoop(phases, **how).run()
    except Killed:
        result = None
    return end_of(trainer), result, watcher.lines, saved


def assert_same_run(directory, end, undisturbed) -> None:
    """Compares the weights, and all that both have logged, to the last bit."""
    expected_directory, expected_end, *_ = undisturbed
    np.testing.assert_equal(end, expected_end)
    for read in (logged, scalar_events):
        assert read(directory) == read(expected_directory)


def test_every_step_is_logged_and_evaluations_are_where_they_belong(undisturbed):
    _, _, result, lines, saved = undisturbed("plain")
    assert [step for step, kind, _ in lines if kind == "train"] == list(range(1, 11))
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 8, 10]
    assert result.started_at == 0
    held_out = [scalars["loss"] for _, kind, scalars in lines if kind == "held_out"]
    assert result.best == min(held_out)
    assert saved[-1][0] == "last"
    bests = [name for name, _ in saved].count("best")
    assert bests == 1 + sum(x < min(held_out[:i]) for i, x in enumerate(held_out) if i)
    assert set(lines[0][2]) == {"loss", "mae", "gradient_norm", "learning_rate"}  # none of time yet


def kept(best_by, *evaluations):
    """Steps whose models are saved as the best, and the state after the evaluations."""
    state, saved = Progress(), []
    loop = SimpleNamespace(state=state, options=SimpleNamespace(patience=None), best_by=best_by)
    loop._save = lambda name: saved.append(state.step)
    for state.step, scores in enumerate(evaluations):
        TrainingLoop._keep_best(loop, scores, None)
    return saved, state


@for_each("best_by sign", ("f1", 1), ("loss", -1))
def test_a_score_that_is_not_finite_or_worse_is_never_the_best(best_by, sign):
    scores = [np.nan, np.inf, 0.2, np.nan, 0.1, None, np.inf, 0.3]
    evaluations = [{} if x is None else {best_by: sign * x} for x in scores]
    saved, state = kept(best_by, *evaluations)
    assert saved == [2, 7]
    assert (state.best, state.best_step, state.evaluations_since_best) == (sign * 0.3, 7, 0)


@for_each(
    "losses saved since_best",
    ([0.7, 0.2, 0.1], [0, 1, 2], 0),
    ([0.7, 0.1, 0.2], [0, 1], 1),
    ([0.1, 0.2, 0.1], [0, 2], 2),  # equal in all: the later one is kept, and nothing learned
    ([None, None, None], [0, 1, 2], 2),  # of answers that tell no loss
    ([np.nan, 0.9, np.nan], [0, 1], 1),
)
def test_of_equal_scores_the_lower_loss_then_the_later_step_is_best(losses, saved, since_best):
    evaluations = [{"f1": 0.9} if x is None else {"f1": 0.9, "loss": x} for x in losses]
    found, state = kept("f1", {"f1": 0.8, "loss": 0.01}, *evaluations)
    assert found == [0, *(1 + step for step in saved)]
    assert (state.tied_steps, state.evaluations_since_best) == ([1, 2, 3], since_best)
    _, state = kept("f1", *evaluations, {"f1": 0.95, "loss": 9.0})
    assert (state.best_step, state.best_loss, state.tied_steps) == (3, 9.0, [3])


def two_phases():
    """Five steps, then five on other batches, of twice the cost, with held-out data of their own.

    The scores of the second are the worse: its labels are larger.
    """

    def larger(step):
        return batches(500 + step).map(lambda x, y: (x, 100 + y))

    return [
        Phase(until=5, batch_size=4, batches=batches, held_out=batches(1000).take(2)),
        Phase(until=10, batch_size=4, batches=larger, held_out=larger(600).take(2), cost=2),
    ]


def options_of(name: str) -> dict:
    return {
        "plain": {},
        "lines of three steps": {"log_every": 3, "save_every": 1},
        "two phases": {"phases": two_phases(), "save_every": 1},
        "no held-out data": {"with_held_out": False},
        "executions of two steps": {
            "total_steps": 12,
            "evaluate_every": 6,
            "steps_per_execution": 2,
            "log_every": 3,
        },
    }[name]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Name of options -> folder, end, result, lines and saved models of a run with them."""

    def of(name):
        directory = tmp_path_factory.mktemp("undisturbed")
        return directory, *run(directory, **options_of(name))

    return functools.cache(of)


@for_each(
    "name kill_at resumed_from",
    ("plain", 1, 0),
    ("plain", 5, 4),
    ("plain", (8, "held_out"), 6),
    ("plain", 10, 9),
    ("lines of three steps", 9, 8),  # the checkpoint holds the means of two steps
    ("two phases", 5, 4),
    ("two phases", (5, "held_out"), 4),
    ("no held-out data", 6, 4),
    ("executions of two steps", 10, 6),
    *(
        slow(*further)
        for further in (("plain", 3, 0), ("plain", (10, "held_out"), 9), ("two phases", 6, 5))
    ),
)
def test_a_killed_run_goes_on_as_if_it_was_not(tmp_path, undisturbed, name, kill_at, resumed_from):
    options = options_of(name)
    assert run(tmp_path, kill_at=kill_at, **options)[1] is None
    continued, result, _, saved = run(tmp_path, **options)
    assert result.started_at == resumed_from
    assert_same_run(tmp_path, continued, undisturbed(name))
    if name == "no held-out data":
        assert result.best is None and [model for model, _ in saved] == ["last"]


def test_a_complete_run_that_has_dropped_its_states_says_what_it_lacks(tmp_path):
    run(tmp_path)
    settings = {"total_steps": 10}
    state = TrainingState(trainer_of_a_run(1), tmp_path / "checkpoints", settings=settings)
    state.restore()
    state.drop()
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert not read_checkpoint(checkpoint)[0]
    _, result, _, saved = run(tmp_path)
    assert (result.started_at, result.step) == (10, 10)
    assert not saved  # the models of the run stay
    longer = TrainingState(state.trainer, state.directory, settings={"total_steps": 20})
    lacks = r"total_steps was 10, is now 20.* state was deleted: .*--model .*last.*--keep_states"
    refused(lacks, longer.restore, override=True)


def test_phases_follow_one_another(undisturbed):
    _, end, result, lines, _ = undisturbed("two phases")
    # The end of a phase has an evaluation, too: its steps of four are counted from the beginning.
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 5, 8, 10]
    held_out = {step: scalars["loss"] for step, kind, scalars in lines if kind == "held_out"}
    assert min(held_out[8], held_out[10]) > max(held_out[4], held_out[5])
    assert result.best == min(held_out[8], held_out[10])
    expected = new_trainer()
    for phase in two_phases():
        iterator = expected.iterate(phase.batches(0))
        for _ in range(5):
            expected.train(iterator)
    np.testing.assert_equal(end, end_of(expected))


def test_the_time_left_counts_dear_steps_for_more(tmp_path, monkeypatch):
    monkeypatch.setattr("time.perf_counter", itertools.count(0.0, 60.0).__next__)
    _, _, lines, _ = run(tmp_path, phases=two_phases(), evaluate_every=100, save_every=100)
    left = {n: x.get("minutes_left") for n, kind, x in lines if kind == "train"}
    # A step takes a minute by this clock; the first of each phase is not timed.
    first, second = [None, *(n + 5 * 2 for n in (3, 2, 1, 0))], [None, 3, 2, 1, 0]
    assert left == dict(enumerate(first + second, 1))


def test_logs_cut_off_in_the_middle_of_a_line_are_mended(tmp_path, undisturbed):
    run(tmp_path, kill_at=6)
    (events,) = (tmp_path / "logs" / "train").iterdir()
    events.write_bytes(events.read_bytes()[:-5])
    with (tmp_path / "logs" / "scalars.jsonl").open("a") as file:
        file.write('{"step": 6, "ki')
    continued, _, _, _ = run(tmp_path)
    assert_same_run(tmp_path, continued, undisturbed("plain"))


def test_what_others_have_begun_to_log_stays(tmp_path):
    # A callback that the caller made, with a writer that is open before the run begins.
    with tf.summary.create_file_writer(str(tmp_path / "logs" / "text")).as_default():
        tf.summary.scalar("before", 1.0, step=0)
        run(tmp_path, total_steps=1)
        tf.summary.scalar("after", 1.0, step=1)
    tags = [value.tag for _, _, value in events(tmp_path / "logs" / "text")]
    assert tags == ["before", "after"]


def test_scalars_that_are_not_finite_are_null_in_the_json(tmp_path):
    run(tmp_path, total_steps=1)
    path = tmp_path / "logs" / "scalars.jsonl"
    state = TrainingState(new_trainer(), tmp_path / "checkpoints", settings={})
    state.step = 2
    log = ScalarLog(tmp_path / "logs", state, [], log_every=1, names={})
    log.held_out({"loss": float("nan")})
    last = path.read_text().splitlines()[-1]
    assert json.loads(last) == {"step": 2, "kind": "held_out", "loss": None}


STOPS = [(2, "train"), (4, "train"), (4, "held_out"), (10, "train")]


def send(number: signal.Signals):
    os.kill(os.getpid(), number)


INTERRUPTED = (signal.SIGINT, KeyboardInterrupt, STOPS[0])


@for_each("number error line", *((signal.SIGTERM, Preempted, x) for x in STOPS), INTERRUPTED)
def test_a_signal_ends_the_step_saves_and_stops(tmp_path, undisturbed, number, error, line):
    before = signal.getsignal(number)
    with pytest.raises(error, match=f"stopped at step {line[0]} and saved"):
        run(tmp_path, save_every=100, at_line=lambda *at: send(number) if at == line else None)
    assert signal.getsignal(number) is before
    continued, result, lines, saved = run(tmp_path, save_every=100)
    assert result.started_at == line[0]
    assert_same_run(tmp_path, continued, undisturbed("plain"))
    # A stretch whose end was cut off before its evaluation ends with it.
    evaluated = [step for step, kind, _ in lines if kind == "held_out"]
    assert evaluated == {2: [4, 8, 10], 4: [4, 8, 10], 10: [10]}[line[0]][line == (4, "held_out") :]
    assert saved[-1][0] == "last"


def test_a_signal_in_an_evaluation_has_it_done_again(tmp_path, undisturbed, monkeypatch):
    evaluate = Trainer.evaluate

    def interrupted(trainer, batches, *, after):
        def signalled(logs):
            if not signal.getsignal(signal.SIGTERM).__self__.received:
                send(signal.SIGTERM)
            after(logs)

        return evaluate(trainer, batches, after=signalled)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", interrupted)
        with pytest.raises(Preempted, match="step 4"):
            run(tmp_path, log_every=3)
        assert [line["step"] for line in logged(tmp_path)] == [3, 4]
        # Once more: the evaluation that the run begins with is cut off, too.
        with pytest.raises(Preempted, match="step 4"):
            run(tmp_path, log_every=3)
    continued, result, lines, _ = run(tmp_path, log_every=3)
    assert result.started_at == 4
    assert lines[0][:2] == (4, "held_out")
    assert_same_run(tmp_path, continued, undisturbed("lines of three steps"))


def test_a_signal_while_a_checkpoint_is_written(tmp_path, undisturbed, monkeypatch):
    write = bert_tf.training.resuming.write_checkpoint
    writes = []

    def signalled(path, *arguments):
        if not writes:
            send(signal.SIGTERM)
            time.sleep(0.2)  # the main thread gets it meanwhile
        write(path, *arguments)
        writes.append(path.name)

    monkeypatch.setattr(bert_tf.training.resuming, "write_checkpoint", signalled)
    with pytest.raises(Preempted):
        run(tmp_path)
    assert writes[0] == "step-00000003.safetensors"
    assert len(writes) == 2
    continued, _, _, _ = run(tmp_path)
    assert_same_run(tmp_path, continued, undisturbed("plain"))


def test_no_signal_is_asked_for_outside_the_main_thread(tmp_path):
    ended = []
    thread = threading.Thread(target=lambda: ended.append(run(tmp_path, total_steps=1)[1]))
    thread.start()
    thread.join()
    assert ended[0].started_at == 0


def test_several_steps_an_execution(tmp_path, undisturbed):
    _, end, _, lines, _ = undisturbed("executions of two steps")
    assert [step for step, kind, _ in lines if kind == "train"] == [4, 6, 10, 12]
    assert end[-1] == 12
    with pytest.raises(InputError, match=r"10 steps .*--steps_per_execution 4"):
        run(tmp_path, total_steps=10, evaluate_every=10, steps_per_execution=4)


def test_a_full_disk_leaves_the_checkpoints_that_are_there(tmp_path, undisturbed, monkeypatch):
    write = bert_tf.training.resuming.write_checkpoint

    def full(path, *arguments):
        if "00000006" in path.name:
            raise OSError(28, "No space left on device", str(path))
        write(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(bert_tf.training.resuming, "write_checkpoint", full)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path)
    continued, result, _, _ = run(tmp_path)
    assert result.started_at == 4
    assert_same_run(tmp_path, continued, undisturbed("plain"))


def test_nothing_that_is_read_tunes_itself(tmp_path, monkeypatch):
    # What stalls is the thread that tunes: it sleeps ever longer, and is waited for.
    read = []
    iterate = Trainer.iterate

    def watched(trainer, dataset):
        read.append(dataset)
        return iterate(trainer, dataset)

    monkeypatch.setattr(Trainer, "iterate", watched)
    run(tmp_path)
    # The steps, and three evaluations.
    assert [dataset.options().autotune.enabled for dataset in read] == [False] * 4


def test_a_line_is_shown_by_time_and_logged_by_step(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.training.logs._SECONDS_BETWEEN_LINES", -1)
    _, _, shown, _ = run(tmp_path, total_steps=4, log_every=3)
    assert [step for step, kind, _ in shown if kind == "train"] == [1, 2, 3, 4]
    assert [line["step"] for line in logged(tmp_path, "train")] == [3, 4]
    # No mean was cut short.
    expected = [{"step": n, "kind": kind, **without_times(x)} for n, kind, x in shown if n > 2]
    assert expected == logged(tmp_path)


def test_no_step_goes_unlogged(tmp_path, undisturbed):
    lines = (logged(undisturbed(x)[0], "train") for x in ("plain", "lines of three steps"))
    losses, means = ({line["step"]: line["loss"] for line in each} for each in lines)
    assert [*means] == [3, 4, 6, 8, 9, 10]
    assert means[4] == pytest.approx(losses[4])
    assert means[6] == pytest.approx((losses[5] + losses[6]) / 2)
    run(tmp_path, log_every=100)
    assert [line["step"] for line in logged(tmp_path, "train")] == [4, 8, 10]


def broken(*numbers: int):
    """Batches, of which those with these numbers, counted from 0, hold infinities."""
    rows = ROWS.copy()
    rows[list(numbers)] = np.inf
    return functools.partial(batches, rows=rows)


def run_on(directory, *phases, **arguments):
    return run(directory, phases=phases, evaluate_every=100, save_every=2, log_every=4, **arguments)


@for_each(
    "first second steps_per_execution message",
    # Six others came before step 7: its rate is 0.01 * 6 / 10, and its batch has number 6.
    ({}, {"batches": broken(6)}, 1, "step 7: .*rate 0.006. .*number 6 .*from 0, instances 24 "),
    ({}, {"batches": broken(4)}, 2, "one of the steps 5 to 6: .*rate 0.004. .* 16 to 23 in "),
    (
        {"until": 3},
        {"batches": broken(4)},
        1,
        "step 8: .* number 4 counted from 0 after step 3, instances 16 to 19 .*start_step=4 ",
    ),
    (  # the second phase reads on
        {"until": 4, "batch_size": 2},
        {"batches": broken(3), "first_batch": 2},
        1,
        "step 8: .* number 5 counted from 0, instances 20 to 23 .*start_step=5 ",
    ),
)
def test_a_divergence_names_the_step_the_rate_and_the_batch(
    tmp_path, first, second, steps_per_execution, message
):
    phases = [Phase(**{"until": 10, "batch_size": 4, "batches": batches, **second})]
    if first:
        phases.insert(0, Phase(**{"batch_size": 4, "batches": batches, **first}))
    with pytest.raises(InputError, match=f"^{message}[^\\n]*--skip_nonfinite N$"):
        run_on(tmp_path, *phases, steps_per_execution=steps_per_execution)


def test_the_last_checkpoint_before_a_divergence_is_kept(tmp_path):
    """Batch 5 is that of step 6, which was to be saved."""
    refused(r"^step 6: ", run_on, tmp_path, Phase(until=10, batch_size=4, batches=broken(5)))
    trainer = new_trainer()
    state = TrainingState(trainer, tmp_path / "checkpoints", settings={"total_steps": 10})
    assert state.restore() and state.step == 4
    assert all(np.isfinite(weight).all() for weight in trainer.model.get_weights())


def test_steps_that_are_not_finite_are_skipped_and_counted_over_the_whole_run(tmp_path):
    phase = Phase(until=10, batch_size=4, batches=broken(2, 5, 8))
    whole, result, lines, _ = run_on(tmp_path / "whole", phase, skip_nonfinite=3)
    assert result.nonfinite_steps == 3
    assert [scalars.get("nonfinite_steps") for _, _, scalars in lines] == [1, 2, 3]
    assert not any("nonfinite" in scalars for _, _, scalars in lines)
    assert all(np.isfinite(scalars["loss"]) for _, _, scalars in lines)
    assert all(np.isfinite(weight).all() for weight in whole)
    assert run_on(tmp_path / "run", phase, skip_nonfinite=3, kill_at=8)[1] is None
    refused(r"^step 9: .* 2 such step", run_on, tmp_path / "run", phase, skip_nonfinite=2)
    continued, result, _, _ = run_on(tmp_path / "run", phase, skip_nonfinite=3)
    assert (result.started_at, result.nonfinite_steps) == (8, 3)
    np.testing.assert_equal(continued, whole)
