from dataclasses import replace

import pytest
from cases import for_each
from tiny import tiny_config

from bert_tf.models.cost import classification_flops, pretraining_flops

CONFIG = tiny_config(300, "3x32x4", intermediate_size=96, max_position_embeddings=64)
TWO_ENCODERS = replace(CONFIG, attention_direction="left_to_right+right_to_left")


@for_each(
    "config pretrainer classifier",
    (CONFIG, 19_954_560, 19_211_520),
    (TWO_ENCODERS, 39_907_840, 38_423_040),
)
def test_a_forward_pass_is_a_third_of_the_products_in_the_graph(config, pretrainer, classifier):
    """These were counted in the graphs of five rows of 48 tokens, with all of the last block."""
    ours = pretraining_flops(config, instances=5, length=48, predictions=7)
    assert ours / 3 == pytest.approx(pretrainer, rel=0.01)
    ours = 5 * classification_flops(config, length=48, classes=4)
    assert ours / 3 == pytest.approx(classifier, rel=0.01)
