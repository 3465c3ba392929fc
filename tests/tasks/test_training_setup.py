"""The options of training commands become what they say."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.models.task_models import BertClassifier
from bert_tf.tasks.training_setup import _layer_factors
from bert_tf.training.optimizer import AdamWeightDecay


def classifier():
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8,
    )  # fmt: skip
    return BertClassifier(config, num_classes=2, seed=1)


def test_layer_decay_lowers_the_learning_rate_layer_by_layer():
    """As ELECTRA's: d for the last layer, once more for each below, and for the embeddings."""
    model = classifier()
    optimizer = AdamWeightDecay(
        0.1, weight_decay_rate=0.0, clip_norm=None, learning_rate_factors=_layer_factors(2, 0.5)
    )
    before = {v.path: v.numpy() for v in model.trainable_variables}
    optimizer.apply(
        [tf.ones(v.shape) for v in model.trainable_variables], model.trainable_variables
    )
    step = 0.1 * 0.1 / np.sqrt(0.001)  # of the first update, without bias correction
    for variable in model.trainable_variables:
        part = variable.path.split("/")[0]
        factor = {"embeddings": 0.125, "layer_0": 0.25, "layer_1": 0.5}.get(part, 1.0)
        moved = before[variable.path] - variable.numpy()
        np.testing.assert_allclose(moved, factor * step, rtol=1e-3, err_msg=variable.path)
    assert {"pooler", "classifier"} & {path.split("/")[0] for path in before}


def test_no_layer_decay_leaves_every_rate_alone():
    assert _layer_factors(12, 1.0) == {}
    twin = AdamWeightDecay.from_config(
        AdamWeightDecay(learning_rate_factors={"layer_0/": 0.5}).get_config()
    )
    assert twin.learning_rate_factors == {"layer_0/": 0.5}
    with pytest.raises(ValueError, match="weight_decay"):
        AdamWeightDecay(weight_decay=0.1)
