import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from tiny import tiny_config

from bert_tf import BertEncoder
from bert_tf.errors import InputError
from bert_tf.networks.bert_layer import choose_kernels, kernels_of
from bert_tf.networks.kernels import Kernels
from bert_tf.networks.tensorflow.inference import InferenceKernels

CONFIG = tiny_config(13, max_position_embeddings=10)
IDS = {name: tf.ones([2, 3], tf.int32) for name in ("token_ids", "segment_ids", "padding_mask")}


class Doubling(Kernels):
    def rows(self, table, ids):
        return 2 * super().rows(table, ids)


@for_each("ended left", ("first", "second"), ("second", "first"))
def test_blocks_may_end_in_any_order(ended, left):
    """As those of replicas do, whose steps are traced in turns."""
    encoder, seen, blocks = BertEncoder(CONFIG), [], {}

    def order():
        seen.clear()
        encoder.kernels(False)
        return [*seen]

    for name in ("first", "second"):
        change = lambda kernels, name=name: seen.append(name) or kernels  # noqa: E731
        blocks[name] = kernels_of(encoder, change)
        blocks[name].__enter__()
    assert order() == ["first", "second"]
    blocks[ended].__exit__(None, None, None)
    assert order() == [left]
    blocks[left].__exit__(None, None, None)
    assert order() == [] and isinstance(encoder.kernels(False), InferenceKernels)
    assert encoder.kernels is choose_kernels


def test_an_encoder_computes_with_the_kernels_that_it_is_given():
    encoder = BertEncoder(CONFIG, seed=1)
    usual = encoder(IDS)["hidden_states"][0]
    encoder.kernels = Doubling
    changed = encoder(IDS)["hidden_states"][0]
    assert np.abs(changed - usual).max() > 0.1
    table = encoder.embeddings.word_embeddings.embeddings
    table.assign(table / 2)
    np.testing.assert_allclose(encoder(IDS)["hidden_states"][0], usual, atol=1e-6)
    with pytest.raises(InputError, match="padding is 'zero': give one of states, zeros"):
        BertEncoder(CONFIG)(IDS, padding="zero")
