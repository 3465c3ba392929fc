"""Kernels that are cast once a step: never older than the variables, with the same gradients."""

import keras
import numpy as np
import tensorflow as tf
from cases import for_each, slow
from tiny import drawn_pretraining, tiny_config

from bert_tf.models.language_model import BertPreTrainer
from bert_tf.networks.tensorflow import graphs
from bert_tf.networks.tensorflow.cast_weights import CastWeights
from bert_tf.networks.tensorflow.kernels import side_by_side
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.training.optimizer import AdamWeightDecay, Lamb
from bert_tf.training.trainer import Trainer

TABLE = "word_embeddings"


CONFIG = tiny_config(31, max_position_embeddings=6, dropout=0.1)


def batches(number, start=0):
    rows = tf.data.Dataset.from_tensor_slices(drawn_pretraining(start, 8 * number, 31, 6, 3))
    return rows.batch(8, drop_remainder=True)


def train(trainer, data):
    iterator = trainer.iterate(data)
    for _ in range(int(data.cardinality()) // trainer.steps_per_execution):
        trainer.train(iterator)


def trained(data, dtype=None, optimizer=None, change=lambda model: None, **options):
    model = BertPreTrainer(CONFIG, seed=3, dtype=dtype)
    change(model)
    losses = dict.fromkeys(("mlm_logits", "nsp_logits"), cross_entropy)
    trainer = Trainer(model, optimizer or keras.optimizers.SGD(1.0), loss=losses, **options)
    train(trainer, data)
    return trainer


@for_each(
    "dtype optimizer options",
    ("mixed_bfloat16", AdamWeightDecay, {"steps_per_execution": 2}),
    slow("mixed_bfloat16", Lamb, {"gradient_accumulation_steps": 2}),
)
def test_steps_use_weights_that_were_set_between_them(dtype, optimizer, options):
    """As by `load_weights` or from a checkpoint: a traced step goes on as the other trainer's."""
    one = trained(batches(2), dtype, optimizer(1e-2), **options)
    other = trained(batches(2, 1), dtype, optimizer(1e-2), **options)
    for own, value in zip(one.variables, other.variables, strict=True):
        own.assign(value)
    for trainer in (one, other):
        train(trainer, batches(2, 2))
    for ours, theirs in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)


def freeze(model):
    model.encoder.embeddings.trainable = model.encoder.blocks[0].attention.trainable = False


def recompute(model):
    model.encoder.rematerialize = True


@for_each(
    "dtype pieces change",
    slow("mixed_bfloat16", 1, lambda model: None),
    ("mixed_bfloat16", 2, lambda model: None),
    slow("float32", 2, lambda model: None),
    slow("mixed_float16", 2, freeze),
    slow("mixed_bfloat16", 1, recompute),
    ids=["half", "half, in pieces", "float32, in pieces", "float16, frozen, in pieces", "again"],
)
def test_gradients_are_those_of_the_variables(dtype, pieces, change, monkeypatch):
    """To the bit; the word table's are summed in another order, see the next test."""

    def after_one_step():
        return trained(
            batches(1), dtype, change=change, gradient_accumulation_steps=pieces
        ).model.weights

    ours = after_one_step()
    monkeypatch.setattr(CastWeights, "under", lambda self, tape: side_by_side)
    for one, other in zip(ours, after_one_step(), strict=True):
        if TABLE not in one.path or change is freeze:
            np.testing.assert_array_equal(one, other, err_msg=one.path)


def test_the_first_of_joined_kernels_has_the_gradient_of_its_scale():
    """As that of the queries, beside keys and values."""
    joined = [keras.Variable(np.ones((3, width)), dtype="float32") for width in (2, 1)]
    slopes = np.arange(9, dtype=np.float32).reshape(3, 3)

    @tf.function(autograph=False)
    def summed():
        cast = CastWeights()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(cast.under(tape)(joined, "float32", 0.25) * slopes)
        return cast.summed([cast.gradients(tape, loss, joined)], joined)

    first, other = summed()
    np.testing.assert_array_equal(first, slopes[:, :2] / 4)
    np.testing.assert_array_equal(other, slopes[:, 2:])


@for_each("compiled", False, True)
def test_gradients_of_a_table_that_is_looked_up_and_multiplied_with(compiled, monkeypatch):
    """Those of both halves, against their terms in float64."""
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 0 if compiled else 2**30)
    draw = np.random.default_rng(3)
    table = keras.Variable(draw.normal(size=(7, 4)), dtype="float32")
    ids = [[1, 5, 5], [5, 0, 1]]
    rows, slopes = draw.normal(size=(2, 3, 4)), draw.normal(size=(2, 7, 4))
    slopes = tf.cast(slopes, tf.bfloat16)

    @tf.function(autograph=False)
    def summed():
        cast, gradients = CastWeights(), []
        for half in range(2):
            with tf.GradientTape() as tape:
                looked_up = tf.gather(tf.convert_to_tensor(table), ids[half])
                product = cast.under(tape)([table], "bfloat16") * slopes[half]
                loss = tf.reduce_sum(looked_up * tf.cast(rows[half], tf.float32))
                loss += tf.reduce_sum(tf.cast(product, tf.float32))
            gradients.append(cast.gradients(tape, loss, [table]))
        return cast.summed(gradients, [table])[0]

    terms = [np.zeros((7, 4)) for _ in range(8)]
    for half in range(2):
        terms[half] = np.asarray(slopes[half], np.float64)
        for position, row in enumerate(ids[half]):
            terms[2 + 3 * half + position][row] = np.float32(rows[half, position])
    # The sum of eight terms rounds seven times, by half a unit of what it has at most.
    tolerance = 7 * 2.0**-24 * np.sum(np.abs(terms), 0).max()
    np.testing.assert_allclose(summed(), np.sum(terms, 0), rtol=0, atol=tolerance)
