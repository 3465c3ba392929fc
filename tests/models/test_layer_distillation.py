"""Losses of layers, against their formulas."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.layer_distillation import LayerLoss
from bert_tf.models.task_models import BertTagger


@pytest.mark.parametrize(
    ("layers", "width"),
    [
        pytest.param("hidden_states", 16, marks=pytest.mark.slow),
        ("hidden_states", 8),
        pytest.param("attention_relations", 8, marks=pytest.mark.slow),
    ],
)
def test_layers_are_compared_row_by_row(layers, width):
    """As the formulae say, on the encoder's own outputs; without a difference at no cost."""
    large = tiny_config(
        9,
        "4x16x4",
        intermediate_size=16,
        max_position_embeddings=8,
        initializer_range=0.5,
        dropout=0.0,
    )
    small = replace(large, num_hidden_layers=3, num_attention_heads=2, hidden_size=width)
    student, teacher = (
        BertTagger(config, labels=["a", "b"], seed=seed)
        for seed, config in enumerate((small, large))
    )
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
    inputs = {"token_ids": 6 * mask + np.arange(5) % 3, "segment_ids": 0 * mask}
    inputs = {name: x.astype(np.int32) for name, x in {**inputs, "padding_mask": mask}.items()}
    compare = LayerLoss(layers, student, teacher)

    def found(student, teacher, compare):
        call = tf.function(
            lambda rows: compare(
                lambda: student(rows, training=True), lambda: teacher(rows), rows["padding_mask"]
            )
        )
        return call({name: tf.constant(x) for name, x in inputs.items()})

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
                scores = (
                    x @ x.transpose(0, 1, 3, 2) / x.shape[-1] ** 0.5
                    - 1e9 * (mask == 0)[:, None, None]
                )
                logs.append(tf.nn.log_softmax(scores).numpy())
            of_tokens += np.sum(np.exp(logs[1]) * (logs[1] - logs[0]), -1).mean(1) / 3
    outputs, soft, values = found(student, teacher, compare)
    expected = (of_tokens * mask).sum(1) / mask.sum(1)
    assert expected.min() > 0.05  # there is something to compare
    # Four blocks and the comparison, of numbers up to 10 (scores, and squares of states).
    close = {"rtol": 0, "atol": rounding(100, 16, size=10)}
    np.testing.assert_allclose(values, expected, **close)
    np.testing.assert_allclose(outputs[0], student(inputs)[0], **close)
    np.testing.assert_allclose(soft[0], teacher(inputs)[0], **close)
    same = LayerLoss(layers, teacher, teacher)
    np.testing.assert_allclose(found(teacher, teacher, same)[2], 0, **close)


def test_layers_that_cannot_be_compared_are_refused():
    narrow = BertConfig.named("1x8x2", intermediate_size=8, vocab_size=9, max_position_embeddings=8)
    large = BertTagger(replace(narrow, hidden_size=16), labels=["a", "b"])
    sides = replace(narrow, attention_direction="left_to_right+right_to_left")
    with pytest.raises(InputError, match="one Transformer each"):
        LayerLoss("attention_relations", BertTagger(sides, labels=["a", "b"]), large)
