"""LAMB against the paper's rule, written in NumPy."""

from contextlib import ExitStack

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.optimizer import Lamb
from bert_tf.training.schedule import WarmupLinearDecay
from bert_tf.training.trainer import Trainer

RATE, DECAY, EPSILON = 0.1, 0.5, 1e-6
SHAPES = {
    "dense/kernel": (4, 3),
    "dense/bias": (3,),
    "layer_norm/gamma": (3,),
    "table/embeddings": (5, 2),
}


def parameters(seed=1):
    draw = np.random.default_rng(seed)
    variables = []
    for path, shape in SHAPES.items():
        *scopes, name = path.split("/")
        with ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            variables.append(keras.Variable(draw.normal(size=shape).astype("float32"), name=name))
        assert variables[-1].path == path
    return variables


class ByHand:
    """Algorithm 2 of the paper, in float64."""

    def __init__(self, values):
        self.values = [np.asarray(v, "float64") for v in values]
        self.means = [np.zeros_like(v) for v in self.values]
        self.squares = [np.zeros_like(v) for v in self.values]
        self.steps = 0

    def step(self, gradients, rate=RATE, clip_norm=None):
        self.steps += 1
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        shrink = min(1.0, clip_norm / norm) if clip_norm else 1.0
        for i, (path, gradient) in enumerate(zip(SHAPES, gradients, strict=True)):
            gradient = gradient * shrink
            self.means[i] = 0.9 * self.means[i] + 0.1 * gradient
            self.squares[i] = 0.999 * self.squares[i] + 0.001 * gradient**2
            mean = self.means[i] / (1 - 0.9**self.steps)
            square = self.squares[i] / (1 - 0.999**self.steps)
            update = mean / (np.sqrt(square) + EPSILON)
            value, ratio = self.values[i], 1.0
            if "bias" not in path and "layer_norm" not in path:
                update = update + DECAY * value
                lengths = np.linalg.norm(value), np.linalg.norm(update)
                ratio = lengths[0] / lengths[1] if all(lengths) else 1.0
            self.values[i] = value - rate * ratio * update


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_papers_rule(clip_norm, compiled):
    variables = parameters()
    expected = ByHand(variables)
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


def test_the_schedule_and_the_training_step():
    """In the training step as alone: with the schedule's rate, and steps left out counted."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    kernel = model.weights[0]
    start = kernel.numpy()
    schedule = WarmupLinearDecay(0.5, 0, 10)
    x = np.eye(3, dtype="float32")
    y = np.array([[1.0], [2.0], [3.0]], "float32")
    trainer = Trainer(
        model,
        Lamb(schedule, weight_decay_rate=0.0, clip_norm=None),
        loss=lambda labels, outputs: tf.square(labels - outputs),
    )
    trainer.train(trainer.iterate(tf.data.Dataset.from_tensors((x, y))))
    gradient = 2 * (start - y) / 3
    update = gradient / (np.abs(gradient) + EPSILON)  # after one step, m and v are unbiased
    expected = start - 0.5 * np.linalg.norm(start) / np.linalg.norm(update) * update
    np.testing.assert_allclose(kernel, expected, rtol=1e-4)
    assert float(trainer.optimizer.learning_rate) == pytest.approx(0.45)


def test_the_bias_correction_counts_the_steps_that_changed_the_means():
    """A first step that was skipped leaves the rule at its beginning."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    trainer = Trainer(
        model, Lamb(0.5, weight_decay_rate=0.0), loss=lambda labels, outputs: labels * outputs
    )
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


def test_config():
    optimizer = Lamb(WarmupLinearDecay(1e-3, 5, 50), weight_decay_rate=0.02, clip_norm=2.0)
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(twin) is Lamb
    assert twin.name == "lamb"
    assert twin.get_config() == optimizer.get_config()
