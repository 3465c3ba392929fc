import gc
import os
import random
import signal
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from tiny import tiny_config
from watchers import Lines

from bert_tf import AdamWeightDecay, BertClassifier
from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.training import logs, resuming, workers
from bert_tf.training.phases import Phase
from bert_tf.training.preemption import Preempted
from bert_tf.training.run import Run, _layer_factors
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TrainingOptions
from bert_tf.training.watcher import Watcher


def batches(step):
    return tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1]))).repeat()


def new_trainer():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
    return Trainer(model, keras.optimizers.SGD(), loss=lambda labels, outputs: outputs - labels)


def new_run(directory, watcher=None, **options):
    return Run(TrainingOptions(**{"output": str(directory), "strategy": "one", **options}), watcher)


def train(directory, *, evaluate, until=8, phase=None, patience=None):
    """A run of 8 steps, an evaluation every two; the result, and the lines logged."""
    watcher = Lines()
    options = {"save_every": 100, "log_every": 100, "patience": patience}
    with new_run(directory, **options) as run:
        run.keep_state(new_trainer(), settings={})
        run.open()
        run.watch(watcher)
        only = Phase(until=until, batch_size=4, batches=batches, evaluate=evaluate, **phase or {})
        how = {"best_by": "f1", "save_model": lambda path: path.mkdir(exist_ok=True)}
        result = run.train([only], evaluate_every=2, **how)
    return result, watcher.lines


def test_the_share_of_the_peak_is_that_of_the_same_steps(tmp_path):
    """A machine that gets faster with each step; the first one, which compiles, does not count."""
    peaks = iter([1e9, 2e9, 3e9, 4e9, 5e9, 6e9, 7e9])
    amounts = {"tokens": 5.0, "flops": 7.0, "peak": lambda: next(peaks)}
    _, lines = train(tmp_path, evaluate=lambda: {"f1": 1.0}, phase=amounts)
    scalars = [values for _, kind, values in lines if kind == "train"]
    for values, peak in zip(scalars, [1e9, 2.5e9, 4.5e9, 6.5e9], strict=True):
        rate = values["examples_per_second"]
        assert values["tokens_per_second"] == pytest.approx(5 * rate)
        assert values["share_of_peak"] == pytest.approx(7 * rate / peak)


def test_a_resumed_run_keeps_its_precision(tmp_path, monkeypatch):
    """Whatever the machine measures now, and without a new measurement."""

    def run(directory, fast):
        monkeypatch.setattr("bert_tf.training.run.fast_precision", lambda strategy: (fast, "x"))
        watcher = Lines()
        with new_run(directory, watcher, precision="auto") as run:
            run.keep_state(new_trainer(), settings={"precision": run.precision})
            run.open()
            run.state.save()
        assert keras.config.dtype_policy().name == "float32"
        return run, watcher.notices

    first, lines = run(tmp_path, "mixed_bfloat16")
    assert first.devices == "CPU, mixed_bfloat16" and lines == ["precision: mixed_bfloat16 (x)"]
    resumed, lines = run(tmp_path, "float32")
    assert resumed.precision == "mixed_bfloat16" and lines == []
    # Bytes after the header do not matter here: the checksum is verified when it is restored.
    newest = tmp_path / "checkpoints" / "step-00000007.safetensors"
    newest.write_bytes(b"cut")
    assert run(tmp_path, "float32")[0].precision == "mixed_bfloat16"
    assert run(tmp_path / "another", "float32")[0].precision == "float32"


def test_runs_that_end_or_fail_leave_nothing_behind_in_the_process(tmp_path):
    random.seed(7)
    np.random.seed(7)
    expected = random.random(), np.random.random()
    random.seed(7)
    np.random.seed(7)
    for number, precision in enumerate(("mixed_float16", "float32", "mixed_bfloat16")):
        options = {"seed": 1, "strategy": "mirrored", "precision": precision}
        with new_run(tmp_path / str(number), **options, deterministic=True) as run:
            drawn = random.random()
            with run.strategy.scope():
                assert keras.layers.Dense(1).compute_dtype == precision.removeprefix("mixed_")
            assert drawn == random.Random(1).random()
    assert keras.config.dtype_policy().name == "float32"
    assert (random.random(), np.random.random()) == expected
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
    assert not list(tmp_path.iterdir())  # nothing was opened
    with pytest.raises(RuntimeError), new_run(tmp_path, precision="mixed_float16") as run:
        run.keep_state(new_trainer(), settings={})
        run.open()
        raise RuntimeError
    assert keras.config.dtype_policy().name == "float32"
    train(tmp_path, evaluate=dict, until=1)  # its lock is gone, too


def test_one_process_writes(tmp_path, monkeypatch):
    class Never(Watcher):
        def __getattribute__(self, name):
            raise AssertionError("only the process that writes is watched")

    for module in (workers, logs, resuming):
        monkeypatch.setattr(module, "is_chief", lambda strategy: False)
    with new_run(tmp_path) as run:
        run.keep_state(new_trainer(), settings={})
        run.watch(Never())
        how = {"evaluate_every": 1, "best_by": "loss", "save_model": lambda path: path.mkdir()}
        run.train([Phase(until=2, batch_size=4, batches=batches)], **how)
    assert not list(tmp_path.iterdir())


def test_several_workers_report_the_held_out_loss_and_the_scores(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.training.workers.has_workers", lambda strategy: True)
    phase = {"held_out": batches(0).take(1)}
    _, lines = train(tmp_path, evaluate=lambda: {"f1": 1.0}, until=2, phase=phase)
    (scalars,) = [scalars for _, kind, scalars in lines if kind == "held_out"]
    assert scalars.keys() == {"loss", "f1"}


def test_patience_ends_a_run_for_good(tmp_path):
    scores = iter([0.5, 0.4, float("nan"), 0.9])
    result, _ = train(tmp_path, evaluate=lambda: {"f1": next(scores)}, patience=2)
    assert (result.step, result.best_step, result.ended_early) == (6, 2, True)
    result, _ = train(tmp_path, evaluate=lambda: {"f1": next(scores)}, patience=2)
    assert (result.started_at, result.step) == (6, 6)


def test_a_lower_loss_at_an_equal_score_prolongs_a_run_and_a_resumed_one_remembers_it(tmp_path):
    """The run is cut after step 4, and the loss of step 2 is known from its checkpoint."""
    losses = iter([0.3, 0.2, 0.5, 0.1, 0.1, 0.1])

    def evaluate():
        return {"f1": 1.0, "loss": next(losses)}

    train(tmp_path, evaluate=evaluate, until=4, patience=2)
    result, _ = train(tmp_path, evaluate=evaluate, until=20, patience=2)
    assert (result.started_at, result.step, result.ended_early) == (4, 12, True)
    assert (result.best_step, result.best_loss) == (12, 0.1)
    assert result.tied_steps == [2, 4, 6, 8, 10, 12]


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
    """TensorFlow before 2.22 would keep every graph with a custom gradient, and its variables."""

    def traced() -> weakref.ref:
        function = tf.function(tf.custom_gradient(lambda x: (x, lambda up: up)), autograph=False)
        return weakref.ref(function.get_concrete_function(tf.TensorSpec([2])).graph)

    with new_run(tmp_path / "run"):
        graph = traced()
        gc.collect()
        assert graph() is not None or tf.__version__ >= "2.22"
    gc.collect()
    assert graph() is None


def test_too_little_memory_is_said_in_one_line(tmp_path):
    message = "too little memory .*--gradient_accumulation_steps, --rematerialize, a smaller --bat"
    with pytest.raises(InputError, match=message), new_run(tmp_path):
        tf.zeros([2**62])  # more bytes than 64 bits can count: refused without a retry
    with pytest.raises(tf.errors.ResourceExhaustedError), new_run(tmp_path):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")


def test_a_run_takes_no_folder_of_others_and_replaces_no_models_of_other_settings(tmp_path):
    def opened(directory, settings, *, override=False):
        with new_run(directory, override=override) as run:
            run.keep_state(new_trainer(), settings=settings)
            run.open()

    (tmp_path / "project" / "best").mkdir(parents=True)
    (tmp_path / "project" / "best" / "notes.md").touch()
    refused(r"project/best: would be replaced, and no run of", opened, tmp_path / "project", {})
    opened(tmp_path / "run", {"seed": 1})
    opened(tmp_path / "run", {"seed": 2})  # there is nothing to replace yet
    (tmp_path / "run" / "best").mkdir()
    with pytest.raises(InputError, match=r"models of other settings \(seed was 2, is now 3\)"):
        opened(tmp_path / "run", {"seed": 3})
    opened(tmp_path / "run", {"seed": 2})
    opened(tmp_path / "run", {"seed": 3}, override=True)


def classifier(dropout=0.1):
    config = tiny_config(20, "2x8x2", intermediate_size=8, dropout=dropout)
    return BertClassifier(config, num_classes=2, seed=1)


def test_layer_decay_lowers_the_learning_rate_layer_by_layer():
    """As ELECTRA's: d for the last layer, once more for each below, and for the embeddings."""
    model = classifier()
    factors = _layer_factors(2, 0.5)
    how = {"weight_decay_rate": 0.0, "clip_norm": None, "learning_rate_factors": factors}
    optimizer = AdamWeightDecay(0.1, **how)
    before = {v.path: v.numpy() for v in model.trainable_variables}
    weights = model.trainable_variables
    optimizer.apply([tf.ones(x.shape) for x in weights], weights)
    step = 0.1 * 0.1 / np.sqrt(0.001)  # of the first update, without bias correction
    for variable in model.trainable_variables:
        part = variable.path.split("/")[0]
        factor = {"embeddings": 0.125, "layer_0": 0.25, "layer_1": 0.5}.get(part, 1.0)
        moved = before[variable.path] - variable.numpy()
        np.testing.assert_allclose(moved, factor * step, rtol=1e-3, err_msg=variable.path)
    assert {"pooler", "classifier"} & {path.split("/")[0] for path in before}


def resume(folder, *, dropout=0.1, settings=None, begin=False, **values):
    """Begins a run or resumes it, without a step; returns the settings of its checkpoint."""
    shards = {"shards": "s", "long_shards": "l"}
    values = {"model": "m", **shards, "output": str(folder), "strategy": "one", **values}
    options = PretrainingOptions(**values)
    with Run(options, Lines()) as run:
        steps = {"learning_rate": 0.1, "total_steps": 9, "warmup_steps": 0}
        scored = {"loss": cross_entropy, "metrics": {}, "score": "best_accuracy"}
        how = {"settings": settings or {}, "examples": list, "values": {}, "fixed_shapes": False}
        run.make_trainer(classifier(dropout), **steps, **scored, **how)
        run.open()
        if begin:
            run.state.save()
        return run.state.settings


@for_each("dropout", 0.1, slow(0.0))
def test_a_run_is_resumed_as_its_dropout_was_drawn(tmp_path, dropout):
    """The parts of a batch draw for themselves; without dropout, they only round otherwise."""
    resume(tmp_path, dropout=dropout, begin=True)
    changes = {"gradient_accumulation_steps": 2, "long_gradient_accumulation_steps": 2}
    for name, value in {"rematerialize": True, "jit_compile": True, **changes}.items():
        if dropout:
            shown = name.replace("long_", "long.")
            with pytest.raises(InputError, match=rf"{shown} was .*, is now {value}.* --override"):
                resume(tmp_path, dropout=dropout, **{name: value})
        resume(tmp_path, dropout=dropout, override=bool(dropout), **{name: value})


def test_a_run_is_resumed_with_the_same_data_order_and_model(tmp_path, monkeypatch):
    settings = resume(tmp_path, settings={"model_content": "abc"}, begin=True)
    resume(tmp_path, settings={"model_content": "abc"}, model="moved")
    refused("content was 'abc', is now 'def'", resume, tmp_path, settings={"model_content": "def"})
    monkeypatch.setattr("bert_tf.training.run.TRAJECTORY", settings["version"] + 1)
    refused("version was 1, is now 2", resume, tmp_path, settings={"model_content": "abc"})
    monkeypatch.undo()
    monkeypatch.setattr("bert_tf.training.run.reader_count", lambda strategy: 2)
    refused("workers was 1, is now 2", resume, tmp_path, settings={"model_content": "abc"})


def test_xla_and_deterministic_steps_cannot_be_combined():
    with pytest.raises(InputError, match="--jit_compile and --deterministic cannot be combined"):
        TrainingOptions(output="run", jit_compile=True, deterministic=True)
