import math

import pytest
import tensorflow as tf

from bert_tf.models.config import BertConfig
from bert_tf.models.cost import pretraining_flops
from bert_tf.models.pretrainer import BertPreTrainer


def test_the_forward_pass_is_a_third_of_what_tensorflow_counts():
    config = BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=64,
    )  # fmt: skip
    model = BertPreTrainer(config, seed=1)
    inputs = {
        "token_ids": tf.ones([5, 48], tf.int32),
        "segment_ids": tf.zeros([5, 48], tf.int32),
        "padding_mask": tf.ones([5, 48], tf.int32),
        "mask_positions": tf.ones([5, 7], tf.int32),
    }
    forward = tf.function(lambda: model(inputs, training=False)).get_concrete_function()
    counted = 0
    products = {"MatMul", "BatchMatMulV2", "Einsum"}
    for operation in forward.graph.get_operations():
        if operation.type not in products:
            continue
        left, right = (tensor.shape.as_list() for tensor in operation.inputs)
        inner = left[-1]
        if operation.type == "MatMul" and operation.get_attr("transpose_a"):
            inner = left[0]
        if operation.type == "Einsum":
            terms, result = operation.get_attr("equation").decode().split("->")
            sizes = dict(zip(terms.replace(",", ""), [*left, *right], strict=True))
            inner = math.prod(size for letter, size in sizes.items() if letter not in result)
        counted += 2 * operation.outputs[0].shape.num_elements() * inner
    ours = pretraining_flops(config, instances=5, length=48, predictions=7)
    assert ours / 3 == pytest.approx(counted, rel=0.01)
