from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertConfig, BertTagger
from bert_tf.errors import InputError
from bert_tf.models.layer_distillation import LayerLoss
from bert_tf.training.distillation import Taught


@for_each(
    "layers width", slow("hidden_states", 16), ("hidden_states", 8), slow("attention_relations", 8)
)
def test_layers_are_compared_row_by_row(layers, width):
    """As the formulae say, on the encoder's own outputs; without a difference at no cost."""
    large = tiny_config(9, "4x16x4", intermediate_size=16, initializer_range=0.5, dropout=0.0)
    small = replace(large, num_hidden_layers=3, num_attention_heads=2, hidden_size=width)
    made = enumerate((small, large))
    student, teacher = (BertTagger(x, labels=["a", "b"], seed=seed) for seed, x in made)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
    inputs = {"token_ids": 6 * mask + np.arange(5) % 3, "segment_ids": 0 * mask}
    inputs = {name: x.astype(np.int32) for name, x in {**inputs, "padding_mask": mask}.items()}
    compare = LayerLoss(layers, student, teacher)

    def found(rows, student, teacher, compare):
        mask = rows["padding_mask"]
        return compare(lambda: student(rows, training=True), lambda: teacher(rows), mask)

    own, taught = (each.encoder(inputs)["hidden_states"] for each in (student, teacher))
    if layers == "hidden_states":
        matrix = compare.variables[0].numpy() if width != 16 else np.eye(16)
        beside = [taught[number] for number in (0, 1, 3, 4)]  # 0, 4 / 3, 8 / 3 and 4, rounded
        pairs = zip(own, beside, strict=True)
        of_tokens = sum(np.mean(np.square(one @ matrix - other), -1) for one, other in pairs)
    else:
        of_tokens = 0.0
        for name in ("query", "key", "value"):
            logs = []
            for model, states in ((student, own), (teacher, taught)):
                x = np.array(getattr(model.encoder.blocks[-1].attention, name)(states[-2]))
                x = x.reshape(2, 5, 4, -1).transpose(0, 2, 1, 3)
                products = x @ x.transpose(0, 1, 3, 2) / x.shape[-1] ** 0.5
                scores = products - 1e9 * (mask == 0)[:, None, None]
                logs.append(tf.nn.log_softmax(scores).numpy())
            of_tokens += np.sum(np.exp(logs[1]) * (logs[1] - logs[0]), -1).mean(1) / 3
    rows = {name: tf.constant(x) for name, x in inputs.items()}
    traced = tf.function(lambda rows: found(rows, student, teacher, compare))
    outputs, soft, values = traced(rows)
    expected = (of_tokens * mask).sum(1) / mask.sum(1)
    assert expected.min() > 0.05  # there is something to compare
    # Four blocks and the comparison, of numbers up to 10 (scores, and squares of states).
    close = {"rtol": 0, "atol": rounding(100, 16, size=10)}
    np.testing.assert_allclose(values, expected, **close)
    np.testing.assert_allclose(outputs[0], student(inputs)[0], **close)
    np.testing.assert_allclose(soft[0], teacher(inputs)[0], **close)
    same = LayerLoss(layers, teacher, teacher)
    np.testing.assert_allclose(found(rows, teacher, teacher, same)[2], 0, **close)


def test_layers_that_cannot_be_compared_are_refused():
    narrow = BertConfig.named("1x8x2", intermediate_size=8, vocab_size=9, max_position_embeddings=8)
    large = BertTagger(replace(narrow, hidden_size=16), labels=["a", "b"])
    sides = replace(narrow, attention_direction="left_to_right+right_to_left")
    with pytest.raises(InputError, match="one Transformer each"):
        LayerLoss("attention_relations", BertTagger(sides, labels=["a", "b"]), large)


def test_a_student_is_taught_in_training_alone():
    student = Mock(side_effect=lambda inputs, training: tf.constant([1.0]))
    teacher = Mock(side_effect=lambda inputs, training: tf.constant([2.0]))
    taught = Taught(student, teacher)
    assert not teacher.trainable
    assert taught({}).numpy() == [1.0]
    teacher.assert_not_called()
    outputs, soft = taught({}, training=True)
    assert (outputs.numpy(), soft.numpy()) == ([1.0], [2.0])
    student.assert_called_with({}, training=True)
    teacher.assert_called_once_with({}, training=False)
