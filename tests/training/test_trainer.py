from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from small_trainers import (
    BATCHES,
    CLOSE,
    LOSSES,
    METRICS,
    ROUNDING,
    adam,
    assert_close,
    breaking_loss,
    config,
    dataset,
    fit,
    pretraining,
    pretraining_batch,
    small,
    small_batch,
    values_of,
)

from bert_tf import AdamWeightDecay, BertClassifier, BertPreTrainer
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.training.strategy import make_strategy, share_batches
from bert_tf.training.trainer import Trainer


@pytest.fixture(scope="module")
def whole():
    """A trainer that has seen the batches whole, and its logs."""
    trainer = pretraining()
    return trainer, fit(trainer, BATCHES)


@for_each("pieces", 1, slow(2))
def test_trains_as_keras_fit_does(pieces):
    """On one device, where Keras' own fit is right: the same but for the halves' rounding.

    The last batch, of a number of rows that is not known, has one: its second half has none.
    """
    batches = tf.data.Dataset.from_tensor_slices(pretraining_batch(5, rows=7)).batch(3)
    trainer = pretraining(gradient_accumulation_steps=pieces)
    fit(trainer, batches)
    model = BertPreTrainer(config(), seed=3)
    entropy = keras.losses.SparseCategoricalCrossentropy
    masked = entropy(from_logits=True, reduction="mean_with_sample_weight")
    pairs = entropy(from_logits=True)
    model.compile(adam(), loss={"mlm_logits": masked, "nsp_logits": pairs})
    model.fit(batches, shuffle=False, verbose=0)
    for ours, theirs in zip(trainer.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE)


def test_halves_draw_dropout_of_their_own():
    """The same rows in both: their sums cancel out only if the same elements are dropped."""
    layers = [keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(1, kernel_initializer="ones")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    trainer = Trainer(model, AdamWeightDecay(0.0), loss=lambda labels, outputs: labels * outputs)
    signs = np.repeat([[1.0], [-1.0]], 3, 0).astype("float32")
    logs = fit(trainer, [(np.ones((6, 64), "float32"), signs)] * 2)
    sums = [abs(line["loss"]) for line in logs]
    assert min(sums) > 0.1
    assert sums[0] != sums[1]
    scores = trainer.evaluate(dataset([(np.ones((6, 64), "float32"), signs)]))
    assert scores["loss"] == pytest.approx(0)


def test_gradient_norm_is_that_before_clipping():
    """The optimizer's mean after one step is (1 - beta_1) times the clipped gradient."""
    norms = []
    for clip_norm in (None, 1e-3):
        trainer = small(optimizer=AdamWeightDecay(1e-3, clip_norm=clip_norm))
        (logs,) = fit(trainer, [small_batch(0)])
        norms.append(logs["gradient_norm"])
        means = [v.numpy() for v in trainer.optimizer.variables if "mean" in v.path]
        length = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
        assert length == pytest.approx(0.1 * (clip_norm or norms[0]), rel=ROUNDING)
    assert norms[0] == norms[1] > 0.1


def test_pieces_equal_the_whole(whole):
    """Also where they hold different numbers of masked words."""
    trainer = pretraining(gradient_accumulation_steps=4)
    logs = fit(trainer, BATCHES)
    assert_close(trainer, whole[0], atol=CLOSE)
    for ours, theirs in zip(logs, whole[1], strict=True):
        assert ours == pytest.approx(theirs, rel=ROUNDING)
    assert int(trainer.optimizer.iterations) == len(BATCHES)
    trainer = pretraining(gradient_accumulation_steps=3)
    refused("8 per device does not divide into 3 micro-batches", fit, trainer, BATCHES[:1])


@pytest.mark.slow
def test_rows_of_unknown_number_compile_once_padded():
    """XLA, micro-batches and a smaller last batch, as fine-tuning feeds them."""
    inputs, labels, _ = pretraining_batch(7, rows=7)
    del inputs["mask_positions"]
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels["nsp_logits"])).batch(4)
    fixed = share_batches(batches, make_strategy("one"), 4, fixed_rows=True)
    how = {"loss": cross_entropy, "gradient_accumulation_steps": 2}
    models = (BertClassifier(config(), num_classes=2, seed=3) for _ in range(2))
    compiled, plain = (
        Trainer(x, adam(), jit_compile=y, **how) for x, y in zip(models, (True, False), strict=True)
    )
    fit(compiled, fixed)
    fit(plain, batches)
    assert_close(compiled, plain, atol=CLOSE)


def test_evaluation_weighs_words_not_batches(whole):
    inputs, labels, weights = pretraining_batch(9)
    rows = tf.data.Dataset.from_tensor_slices((inputs, labels, weights))
    results = [whole[0].evaluate(rows.batch(size)) for size in (8, 3)]
    assert results[0] == pytest.approx(results[1], rel=ROUNDING)
    both = sum(results[0][f"{name}_loss"] for name in LOSSES)
    assert results[0]["loss"] == pytest.approx(both, rel=1e-6)
    for name, outputs in whole[0].model.predict(inputs, verbose=0).items():
        hits = np.average(outputs.argmax(-1) == labels[name], weights=weights[name])
        assert results[0][f"{name}_accuracy"] == pytest.approx(hits, rel=ROUNDING)


@pytest.mark.slow
def test_evaluation_works_on_micro_batches(whole):
    """Their logits are what takes memory; other rows give a common divisor."""
    shapes = []

    def watched(labels, outputs):
        shapes.append(outputs.shape[0])
        return cross_entropy(labels, outputs)

    model = whole[0].model
    how = {"metrics": METRICS, "gradient_accumulation_steps": 4}
    trainer = Trainer(model, adam(), loss={**LOSSES, "mlm_logits": watched}, **how)
    data = dataset(BATCHES[:2])
    ours = trainer.evaluate(data)
    assert set(shapes) == {1}  # half of 8 / 4
    assert ours == pytest.approx(whole[0].evaluate(data), rel=ROUNDING)
    trainer.accumulate_gradients(3)
    shapes.clear()
    trainer.evaluate(data)
    assert set(shapes) == {4}


def test_several_steps_tell_of_one_that_is_not_finite():
    batches = [small_batch(0), small_batch(1), small_batch(2, np.nan), small_batch(3)]
    assert [x["nonfinite"] for x in fit(small(steps_per_execution=2), batches)] == [0.0, 1.0]


@for_each("break_with", np.inf, np.nan, -1)
def test_a_step_that_is_not_finite_is_left_out(break_with):
    trainer = small()
    fit(trainer, [small_batch(0)])
    before, seeds = values_of(trainer), [v.numpy() for v in trainer.seeds]
    logs = fit(trainer, [small_batch(1, break_with), small_batch(1, break_with)])
    assert [line["nonfinite"] for line in logs] == [1.0, 1.0]
    assert not np.isfinite(logs[0]["gradient_norm"])
    np.testing.assert_equal(values_of(trainer), before)
    assert int(trainer.nonfinite_steps) == 2
    # They count as steps, for the learning rate and for dropout.
    assert int(trainer.optimizer.iterations) == 3
    for variable, value in zip(trainer.seeds, seeds, strict=True):
        np.testing.assert_array_equal(variable, value + np.array([0, 2]))
    # The losses that could be computed are in the mean, the others are not.
    mixed = fit(trainer, [small_batch(2), small_batch(1, break_with)])
    assert [line["nonfinite"] for line in mixed] == [0.0, 1.0]
    assert np.isfinite(mixed[1]["loss"])
    assert (mixed[0]["loss"] == mixed[1]["loss"]) == (break_with != -1)
    assert not all(map(np.array_equal, values_of(trainer), before))


def test_replicas_drop_different_units(monkeypatch):
    trainer, (x, y) = small(), small_batch(0)
    states, sums_of = [seed.numpy() for seed in trainer.seeds], []
    for replica in (0, 1, 0):
        context = SimpleNamespace(replica_id_in_sync_group=replica)
        monkeypatch.setattr(tf.distribute, "get_replica_context", lambda context=context: context)
        for seed, state in zip(trainer.seeds, states, strict=True):
            seed.assign(state)
        sums, _, _ = trainer._gradients((x, y, [tf.ones_like(y)]), tf.reduce_sum)
        sums_of.append(sums.numpy().tolist())
    assert sums_of[0] == sums_of[2] != sums_of[1]


def test_weights_and_losses_of_examples():
    """One weight an example, for labels of another rank; metrics leave out weight 0 alone."""
    x = np.zeros((2, 3), "float32")
    y = np.array([[1.0], [3.0]], "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    values = {"metrics": {"mean": lambda labels, outputs: labels}}
    trainer = Trainer(model, AdamWeightDecay(0.0), loss=lambda labels, outputs: labels, **values)
    (logs,) = fit(trainer, [(x, y, np.array([3.0, 1.0], "float32"))])
    assert logs["loss"] == 1.5
    assert logs["mean"] == 2.0
    (logs,) = fit(trainer, [(x, y, np.array([3.0, 0.0], "float32"))])
    assert logs["mean"] == 1.0
    assert "nonfinite" in logs
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    trainer = Trainer(model, AdamWeightDecay(1e-2), loss=keras.losses.mean_squared_error)
    with pytest.raises(ValueError, match="give one value per label"):
        fit(trainer, [(np.zeros((2, 3), "float32"), np.zeros((2, 1), "float32"))])


@pytest.mark.slow
def test_the_whole_step_is_one_program_of_fixed_shapes():
    """As a TPU takes it: lowered by XLA, without strings, ragged tensors or Python.

    That XLA compiles and runs it is seen in `test_rows_of_unknown_number_compile_once_padded` and,
    for the masked language model, in tests/runs/test_training_options.py.
    """
    trainer = pretraining(dropout=0.1, gradient_accumulation_steps=2)
    batch = tf.nest.map_structure(tf.constant, BATCHES[0])
    specification = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)
    step = tf.function(trainer.train_step, jit_compile=True)
    graph = step.get_concrete_function(specification).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    assert len(nodes) > 500
    for node in nodes:
        assert not any(word in node.op for word in ("Ragged", "String", "PyFunc", "Dataset"))
        for attribute in node.attr.values():
            assert tf.string.as_datatype_enum not in (attribute.type, *attribute.list.type)
    program = step.experimental_get_compiler_ir(batch)(stage="hlo")
    assert "while(" in program  # the pieces
    assert "<=" not in program.split("ENTRY")[1]  # no dimension is dynamic


def test_frozen_layers_stay_and_the_others_move():
    model = BertPreTrainer(config(layers=2), seed=3)
    model.encoder.freeze_layers(1)
    before = {v.path: v.numpy() for v in model.weights}
    trainer = Trainer(model, adam(), loss=LOSSES)
    fit(trainer, BATCHES[:3])
    moved = {v.path for v in model.weights if not np.array_equal(v, before[v.path])}
    frozen = {path for path in before if path.split("/")[0] in ("embeddings", "layer_0")}
    assert moved == before.keys() - frozen
    assert frozen


@pytest.mark.slow
def test_what_the_loss_does_not_depend_on_stays():
    """Not even weight decay acts on it."""
    model = BertPreTrainer(config(), seed=3)
    kernel = model.next_sentence.weights[0]
    before = kernel.numpy()
    for pieces in (1, 2):
        how = {"loss": {"mlm_logits": cross_entropy}, "gradient_accumulation_steps": pieces}
        trainer = Trainer(model, adam(), **how)
        logs = fit(trainer, BATCHES[:2])
        np.testing.assert_array_equal(kernel, before)
        assert logs[-1]["loss"] == logs[-1]["mlm_logits_loss"]


@for_each(
    "layer cause pieces",
    (keras.layers.Dense(1, kernel_regularizer="l2"), "losses of layers", 1),
    (keras.layers.ActivityRegularization(l2=0.1), "losses of layers", 2),
    (keras.layers.BatchNormalization(name="norm"), "norm/moving_mean", 1),
)
def test_layers_whose_losses_or_updates_would_be_dropped_are_refused(layer, cause, pieces):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1), layer])
    own = Trainer(model, AdamWeightDecay(), loss=breaking_loss, gradient_accumulation_steps=pieces)
    with pytest.raises(ValueError, match=cause):
        fit(own, [small_batch(0)])
