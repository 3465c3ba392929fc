import keras
import numpy as np
import tensorflow as tf
from tiny import drawn_pretraining, tiny_config

from bert_tf import AdamWeightDecay, BertPreTrainer, WarmupLinearDecay
from bert_tf.networks.tensorflow.losses import accuracy, cross_entropy
from bert_tf.training.trainer import Trainer

V, T, P = 31, 6, 3
LOSSES = {"mlm_logits": cross_entropy, "nsp_logits": cross_entropy}
METRICS = {name: {"accuracy": accuracy} for name in LOSSES}


def config(dropout=0.0, layers=1):
    return tiny_config(V, f"{layers}x8x2", max_position_embeddings=T, dropout=dropout)


# What the 20 products on the way to a gradient, of sums of up to 48 terms (the tokens of a batch),
# round in float32: a share of losses and of their gradients.
ROUNDING = 20 * 48 * 2.0**-24
# How far weights may be apart after the steps of these tests: by that share of their updates, each
# at most 7.3 times its rate, whose sum is below 0.04.
CLOSE = 7.3 * 0.04 * ROUNDING


def adam(**options):
    return AdamWeightDecay(WarmupLinearDecay(1e-2, 2, 20), **options)


def pretraining(dropout=0.0, optimizer=None, **options):
    model = BertPreTrainer(config(dropout), seed=3)
    return Trainer(model, optimizer or adam(), loss=LOSSES, metrics=METRICS, **options)


def pretraining_batch(number, rows=8):
    """The rows have 1 to P masked words, more of them in the later ones."""
    masked = 1 + np.arange(rows) * P // rows
    of_words = (np.arange(P) < masked[:, None]).astype("float32")
    weights = {"mlm_logits": of_words, "nsp_logits": np.ones(rows, "float32")}
    return *drawn_pretraining(number, rows, V, T, P), weights


def dataset(batches):
    stacked = tf.nest.map_structure(lambda *arrays: np.stack(arrays), *batches)
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices(stacked).with_options(options)


def fit(trainer, batches, count=None):
    data = dataset(batches) if isinstance(batches, list) else batches
    iterator, lines = trainer.iterate(data), []
    trainer.reset_means()
    for _ in range((count or int(data.cardinality())) // trainer.steps_per_execution):
        lines.append({name: float(value) for name, value in trainer.train(iterator).items()})
    return lines


def assert_close(ours, theirs, atol):
    for one, two in zip(ours.model.get_weights(), theirs.model.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=atol)


BATCHES = [pretraining_batch(number) for number in range(4)]


# A small model for what does not depend on the large one.


def breaking_loss(labels, outputs):
    """The square error; label inf breaks the loss, label -1 the gradient alone."""
    root = tf.sqrt(tf.where(labels == -1, 0.0, 1.0) * (1 + tf.square(outputs)))  # slope inf at 0
    return tf.square(labels - outputs) + 1e-9 * root


def small(policy="float32", optimizer=None, **options):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(4, dtype=policy)]
    layers.append(keras.layers.Dense(1, dtype="float32"))
    model = keras.Sequential([keras.Input((3,)), *layers])
    return Trainer(model, optimizer or AdamWeightDecay(1e-2), loss=breaking_loss, **options)


def small_batch(number, break_with=None, scale=1.0):
    draw = np.random.default_rng(number)
    x = scale * draw.normal(size=(4, 3)).astype("float32")
    y = x.sum(-1, keepdims=True)
    if break_with is not None:
        y[1] = break_with
    return x, y


def values_of(trainer):
    state = [v for v in trainer.optimizer.variables if "iteration" not in v.path]
    state = [v for v in state if "learning_rate" not in v.path]
    return [v.numpy().copy() for v in (*trainer.model.weights, *state)]
