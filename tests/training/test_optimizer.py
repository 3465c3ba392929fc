"""The optimizers, against the original's and against their formulas; LAMB in NumPy."""

import inspect
from contextlib import ExitStack
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each

from bert_tf.networks.tensorflow import graphs
from bert_tf.training.optimizer import AdamWeightDecay, Lamb
from bert_tf.training.schedule import WarmupLinearDecay
from bert_tf.training.trainer import Trainer

GOLDEN = Path(__file__).parents[1] / "golden" / "adam_weight_decay.npz"


def rounding(value, steps, rate):
    """How far float32 may be off after some steps.

    Each step rounds the parameter, and its update 64 times at most: most of them in the norm of
    the gradients. The update is at most 7.3 times the rate, with betas of 0.9 and 0.999.
    """
    return steps * 2.0**-24 * (np.abs(value).max() + 64 * 7.3 * rate)


def variable_at(path: str, value: np.ndarray) -> keras.Variable:
    """A variable of that path; Keras joins paths from name scopes."""
    *scopes, name = path.split("/")
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(value, name=name)
    assert variable.path == path
    return variable


@for_each("compiled", False, True)
def test_thirty_steps_of_the_original(compiled, monkeypatch):
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 0 if compiled else 2**30)
    golden = np.load(GOLDEN)
    variables = [variable_at(str(x), golden[f"init_{i}"]) for i, x in enumerate(golden["names"])]
    steps = [int(golden[f"num_{name}_steps"]) for name in ("warmup", "train")]
    schedule = WarmupLinearDecay(float(golden["learning_rate"]), *steps)
    optimizer = AdamWeightDecay(schedule)
    optimizer.build(variables)
    apply = tf.function(optimizer.apply) if compiled else optimizer.apply
    for step in range(30):
        apply([tf.constant(golden[f"grads_{i}"][step]) for i in range(len(variables))])
        for i, variable in enumerate(variables):
            expected = golden[f"params_{i}"][step]  # in float32, too
            atol = 2 * rounding(expected, step + 1, float(golden["learning_rate"]))
            np.testing.assert_allclose(variable, expected, rtol=0, atol=atol)


SHAPES = {"dense/kernel": (4, 3), "dense/bias": (3,), "layer_norm/gamma": (3,)}
SHAPES |= {"table/embeddings": (5, 2)}
RATE, DECAY, EPSILON = 0.1, 0.5, 1e-6


def parameters(count=None):
    random = np.random.default_rng(1)
    shapes = list(SHAPES.items())[:count]
    return [variable_at(path, random.normal(size=x).astype("float32")) for path, x in shapes]


class ByHand:
    """Adam with decoupled weight decay, or algorithm 2 of LAMB's paper, in float64."""

    def __init__(self, values, *, lamb, corrected, betas=(0.9, 0.999)):
        self.values = [np.asarray(v, "float64") for v in values]
        self.means = [np.zeros_like(v) for v in self.values]
        self.squares = [np.zeros_like(v) for v in self.values]
        self.lamb, self.corrected, self.betas, self.steps = lamb, corrected, betas, 0

    def step(self, gradients, clip_norm=None):
        self.steps += 1
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        shrink = min(1.0, clip_norm / norm) if clip_norm else 1.0
        left = [1 - self.corrected * beta**self.steps for beta in self.betas]
        for i, (path, gradient) in enumerate(zip(SHAPES, gradients, strict=False)):
            gradient, (one, two) = gradient * shrink, self.betas
            self.means[i] = one * self.means[i] + (1 - one) * gradient
            self.squares[i] = two * self.squares[i] + (1 - two) * gradient**2
            update = self.means[i] / left[0] / (np.sqrt(self.squares[i] / left[1]) + EPSILON)
            value, ratio = self.values[i], 1.0
            if "bias" not in path and "layer_norm" not in path:
                update = update + DECAY * value
                if self.lamb:
                    ratio = np.linalg.norm(value) / np.linalg.norm(update)
            self.values[i] = value - RATE * ratio * update


@for_each("optimizer_class", AdamWeightDecay, Lamb)
def test_keras_exclusion_from_weight_decay(optimizer_class):
    variables = parameters(3)
    values = [variable.numpy().copy() for variable in variables]
    optimizer = optimizer_class(0.1, weight_decay_rate=0.5, exclude_from_weight_decay=())
    optimizer.exclude_from_weight_decay([variables[0]], [f"{variables[1].name}$"])
    optimizer.apply([tf.zeros_like(variable) for variable in variables], variables)
    moved = [(v.numpy() != x).any() for v, x in zip(variables, values, strict=True)]
    assert moved == [False, False, True]


USUAL, OTHER = (0.9, 0.999), ((0.5, 0.9), True, False)


@for_each("betas corrected compiled", (USUAL, False, False), (USUAL, True, True), OTHER)
def test_adams_rule(betas, corrected, compiled, monkeypatch):
    """Algorithm 1 of Kingma and Ba 2015; gradients so small that epsilon matters."""
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 0 if compiled else 2**30)
    variables = parameters()
    how = {"beta_1": betas[0], "beta_2": betas[1], "bias_correction": corrected}
    optimizer = AdamWeightDecay(RATE, weight_decay_rate=DECAY, clip_norm=None, **how)
    expected = ByHand(variables, lamb=False, corrected=corrected, betas=betas)
    random = np.random.default_rng(2)
    for step in range(1, 7):
        gradients = [1e-6 * random.normal(size=shape) for shape in SHAPES.values()]
        optimizer.apply([tf.constant(g, tf.float32) for g in gradients], variables)
        expected.step(gradients)
        for ours, theirs in zip(variables, expected.values, strict=True):
            # What beta_2 is rounded by counts much in 1 - beta_2^t.
            atol = rounding(theirs, step, rate=RATE) + step * 2.0**-24 * RATE / (1 - betas[1])
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def test_clips_by_the_norm_of_all_gradients():
    variables = parameters(2)
    optimizer = AdamWeightDecay(0.1, clip_norm=0.5)
    optimizer.apply([tf.fill((4, 3), 30.0), tf.fill((3,), -40.0)], variables)
    norm = np.sqrt(12 * 30**2 + 3 * 40**2)
    np.testing.assert_allclose(optimizer.variables[2], np.full((4, 3), 1.5 / norm), rtol=1e-5)
    np.testing.assert_allclose(optimizer.variables[3], np.full(3, -2 / norm), rtol=1e-5)
    # As `Trainer` clips.
    assert [float(optimizer.clip_factor(norm)) for norm in (2.0, 0.5, 0.25)] == [0.25, 1, 1]


def test_rows_that_were_looked_up_train_as_the_whole_table_does():
    """A lookup's gradient comes as rows, some twice: their sum counts, in the norm too."""
    (dense,), (sparse,) = parameters(1), parameters(1)
    rows = tf.IndexedSlices(tf.fill((3, 3), 2.0), tf.constant([1, 3, 1]), tf.constant([4, 3]))
    one, two = AdamWeightDecay(0.1), AdamWeightDecay(0.1)
    for _ in range(3):
        one.apply([tf.convert_to_tensor(rows)], [dense])
        two.apply([rows], [sparse])
    np.testing.assert_array_equal(dense, sparse)


@for_each("optimizer_class", AdamWeightDecay, Lamb)
def test_config(optimizer_class):
    schedule = WarmupLinearDecay(1e-3, 5, 50)
    how = {"beta_1": 0.8, "bias_correction": True, "learning_rate_factors": {"layer_0/": 0.5}}
    optimizer = optimizer_class(schedule, weight_decay_rate=0.02, clip_norm=2.0, **how)
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(twin) is optimizer_class
    assert twin.get_config() == optimizer.get_config()
    assert twin.excluded_patterns == ("LayerNorm", "layer_norm", "bias")
    assert twin.learning_rate_factors == {"layer_0/": 0.5}


def test_keras_scales_the_loss_in_float16():
    layers = [keras.layers.Dense(4, dtype="mixed_float16"), keras.layers.Dense(1, dtype="float32")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = AdamWeightDecay(0.05, weight_decay_rate=0.0)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse")
    x = np.random.default_rng(5).normal(size=(8, 3)).astype("float32")
    losses = model.fit(x, x.sum(-1), epochs=40, batch_size=8, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert {v.dtype for v in model.trainable_variables} == {"float32"}


@for_each("name", "weight_decay", "clipnorm", "global_clipnorm", "clipvalue")
def test_keras_own_decay_and_clipping_are_refused(name):
    with pytest.raises(ValueError, match="takes weight_decay_rate and clip_norm"):
        AdamWeightDecay(1e-2, **{name: 0.1})


# Without the private methods of Keras that are overridden and called, clipping and excluded weight
# decay would change in silence.
@for_each(
    "name caller",
    ("_all_reduce_sum_gradients", "_backend_update_step"),
    ("_clip_gradients", "_backend_apply_gradients"),
)
def test_keras_calls_what_is_overridden_and_has_what_is_called(name, caller):
    base = keras.optimizers.Optimizer
    ours, theirs = (inspect.signature(getattr(x, name)) for x in (AdamWeightDecay, base))
    assert list(ours.parameters) == list(theirs.parameters)
    assert f"self.{name}(" in inspect.getsource(getattr(base, caller))
    assert list(inspect.signature(base._use_weight_decay).parameters) == ["self", "variable"]


@for_each("clip_norm compiled", (None, False), (1.0, True))
def test_lambs_rule(clip_norm, compiled):
    variables = parameters()
    expected = ByHand(variables, lamb=True, corrected=True)
    optimizer = Lamb(RATE, weight_decay_rate=DECAY, clip_norm=clip_norm)
    optimizer.build(variables)
    apply = tf.function(optimizer.apply) if compiled else optimizer.apply
    draw = np.random.default_rng(2)
    for _ in range(6):
        gradients = [3 * draw.normal(size=shape) for shape in SHAPES.values()]
        apply([tf.constant(g, tf.float32) for g in gradients])
        expected.step(gradients, clip_norm=clip_norm)
        for ours, theirs in zip(variables, expected.values, strict=True):
            # A step rounds some 64 times; what beta_2 is rounded by counts much in 1 - beta_2^t.
            roundings = expected.steps * (64 + 1 / (1 - 0.999))
            largest = RATE * max(1.0, np.linalg.norm(theirs))  # an update, by the trust ratio
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=roundings * 2.0**-24 * largest)


def test_the_trust_ratio_is_one_without_a_norm():
    """A parameter at 0 must be able to leave it; without gradient and decay it stays."""
    zero, still = keras.Variable(np.zeros((2, 2), "float32")), keras.Variable([[3.0]])
    optimizer = Lamb(RATE, weight_decay_rate=0.0)
    optimizer.apply([tf.fill((2, 2), 0.1), tf.zeros((1, 1))], [zero, still])
    np.testing.assert_allclose(zero, np.full((2, 2), -RATE), rtol=1e-4)
    np.testing.assert_array_equal(still, [[3.0]])


def test_the_bias_correction_counts_the_steps_that_changed_the_means():
    """A first step that was skipped leaves the rule at its beginning."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    lamb = Lamb(0.5, weight_decay_rate=0.0)
    trainer = Trainer(model, lamb, loss=lambda labels, outputs: labels * outputs)
    start = model.weights[0].numpy()
    x = np.eye(3, dtype="float32")
    labels = np.array([[[np.nan]] * 3, [[1.0]] * 3], "float32")
    batches = trainer.iterate(tf.data.Dataset.from_tensor_slices(([x, x], labels)))
    trainer.train(batches)
    trainer.train(batches)
    # An unbiased first update is of ones: the step has half the parameter's length.
    moved = start - model.weights[0].numpy()
    np.testing.assert_allclose(moved, 0.5 * np.linalg.norm(start) / 3**0.5, rtol=1e-4)
    # The trust ratio hides the size of the update: the means themselves show it.
    assert int(trainer.optimizer.skipped) == 1
    update = trainer.optimizer._update(tf.constant(0.19), tf.constant(0.001999))
    np.testing.assert_allclose(update, 1.0, rtol=1e-4)
