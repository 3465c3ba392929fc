"""A run sets up all it needs, and leaves the process as it found it."""

import gc
import os
import random
import signal
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.layers.activations import gelu
from bert_tf.training.plan import Phase, TrainingPlan
from bert_tf.training.preemption import Preempted
from bert_tf.training.run import Run


def batches(step):
    return tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1]))).repeat()


def compiled_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
    model.compile("sgd", "mse")
    return model


def train(directory, *, evaluate, until=8, **plan):
    """A run of 8 steps, an evaluation every two; the result, and the lines logged."""
    lines = []
    with Run(directory, strategy="one") as run:
        run.prepare(compiled_model(), settings={})
        run.open()
        result = run.train(
            [Phase(until=until, batch_size=4, batches=batches, evaluate=evaluate)],
            plan=TrainingPlan(
                evaluate_every=2, save_every=100, log_every=100,
                **{"best_by": "f1", "larger_is_better": True, **plan},
            ),
            save_model=lambda path: path.mkdir(exist_ok=True),
            report=lambda *line: lines.append(line),
        )  # fmt: skip
    return result, lines


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile", "mixed_bfloat16"),
        ("Features\t: fp asimd i8mm bf16", "mixed_bfloat16"),
        ("flags\t\t: fpu avx2 avx512f", "float32"),
        (None, "float32"),
    ],
)
def test_the_fastest_precision_of_the_processor(tmp_path, monkeypatch, flags, precision):
    file = tmp_path / "cpuinfo"
    if flags:
        file.write_text(flags)
    monkeypatch.setattr("bert_tf.training.strategy._CPU_FLAGS", file)
    with Run(tmp_path / "run", strategy="one", precision="auto") as run:
        assert run.precision == keras.config.dtype_policy().name == precision
        assert run.devices == f"CPU, {precision}"


def test_runs_leave_nothing_behind_in_the_process(tmp_path):
    random.seed(7)
    np.random.seed(7)
    expected = random.random(), np.random.random()
    random.seed(7)
    np.random.seed(7)
    for number, precision in enumerate(("mixed_float16", "float32", "mixed_bfloat16")):
        with Run(
            tmp_path / str(number), seed=1, strategy="mirrored", precision=precision,
            deterministic=True,
        ) as run:  # fmt: skip
            drawn = random.random()
            with run.strategy.scope():
                assert keras.layers.Dense(1).compute_dtype == precision.removeprefix("mixed_")
            assert drawn == random.Random(1).random()
    assert keras.config.dtype_policy().name == "float32"
    assert (random.random(), np.random.random()) == expected
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
    assert not list(tmp_path.iterdir())  # nothing was opened


def test_a_run_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(RuntimeError), Run(tmp_path, precision="mixed_float16") as run:
        run.prepare(compiled_model(), settings={})
        run.open()
        raise RuntimeError
    assert keras.config.dtype_policy().name == "float32"
    train(tmp_path, evaluate=dict, until=1)  # its lock is gone, too


def test_any_score_chooses_the_best_model(tmp_path):
    scores = iter([{"f1": 0.5, "loss": 1.0}, {"loss": 2.0}, {"f1": 0.7, "loss": 3.0}, {"f1": 0.6}])
    result, lines = train(tmp_path, evaluate=lambda: next(scores))
    assert (result.best, result.best_step) == (0.7, 6)
    held_out = [(step, scalars) for step, kind, scalars in lines if kind == "held_out"]
    assert held_out[2] == (6, {"f1": 0.7, "loss": 3.0})


def test_patience_ends_a_run_for_good(tmp_path):
    scores = iter([0.5, 0.4, float("nan"), 0.9])
    result, _ = train(tmp_path, evaluate=lambda: {"f1": next(scores)}, patience=2)
    assert (result.step, result.best_step, result.ended_early) == (6, 2, True)
    result, _ = train(tmp_path, evaluate=lambda: {"f1": next(scores)}, patience=2)
    assert (result.started_at, result.step) == (6, 6)


def test_a_signal_cuts_an_evaluation_short(tmp_path):
    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10**9):
            pass
        raise AssertionError("the evaluation went on")

    with pytest.raises(Preempted, match="step 2"):
        train(tmp_path, evaluate=evaluate)
    result, lines = train(tmp_path, evaluate=lambda: {"f1": 0.5}, until=2)
    assert (result.started_at, result.best_step) == (2, 2)
    assert lines == [(2, "held_out", {"f1": 0.5})]


def test_the_graphs_of_a_run_are_freed(tmp_path):
    """TensorFlow would keep every graph with a custom gradient, and its variables."""

    def traced() -> weakref.ref:
        function = tf.function(lambda x: gelu(x), autograph=False)
        return weakref.ref(function.get_concrete_function(tf.TensorSpec([2])).graph)

    with Run(tmp_path / "run", strategy="one"):
        graph = traced()
        gc.collect()
        assert graph() is not None
    gc.collect()
    assert graph() is None


def test_too_little_memory_is_said_in_one_line(tmp_path):
    message = (
        "too little memory .*--gradient_accumulation_steps, --rematerialize, a smaller --batch"
    )
    with pytest.raises(InputError, match=message), Run(tmp_path, strategy="one"):
        tf.zeros([2**50])
    with pytest.raises(tf.errors.ResourceExhaustedError), Run(tmp_path, strategy="one"):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
