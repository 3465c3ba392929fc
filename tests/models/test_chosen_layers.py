from dataclasses import replace

import numpy as np
from cases import for_each, refused
from rounding import rounding
from tiny import tiny_config

from bert_tf.models.chosen_layers import CHOICES, check_layers, choose_layers

CONFIG = tiny_config(9)


def test_each_choice_is_what_it_says():
    config = replace(CONFIG, num_hidden_layers=4)
    states = list(np.random.default_rng(1).normal(size=(5, 2, 3, 8)).astype(np.float32))
    expected = {
        "embeddings": states[0],
        "last": states[4],
        "second_to_last": states[3],
        "sum_last_four": states[1] + states[2] + states[3] + states[4],
        "concat_last_four": np.concatenate(states[1:], -1),
        "sum_all": states[1] + states[2] + states[3] + states[4],
        "-4": states[1],  # the first block: -12 of a base model
        "-5": states[0],
        "3": states[3],
    }
    assert expected.keys() >= set(CHOICES)
    for layer, vectors in expected.items():
        found = choose_layers(states, [layer])
        atol = rounding(2, 4, 4 * np.abs(states).max())  # in any order
        np.testing.assert_allclose(found, vectors, rtol=0, atol=atol)
        assert check_layers([layer], config) == vectors.shape[-1]
    several = choose_layers(states, ["-4", "-3", "-2", "-1"])
    np.testing.assert_array_equal(several, expected["concat_last_four"])


@for_each(
    "layer message",
    ("2", "from 0, the embeddings, to 1"),
    ("-3", "-1, the last layer, to -2"),
    ("top", "no layer 'top'"),
    ("concat_last_four", "needs 4 layers, the model has 1"),
)
def test_a_layer_that_is_not_there(layer, message):
    refused(message, check_layers, [layer], CONFIG)
