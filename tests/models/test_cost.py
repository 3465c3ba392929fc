import math
from dataclasses import replace

import pytest
import tensorflow as tf
from tiny import tiny_config

from bert_tf.models.cost import classification_flops, pretraining_flops
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.task_models import BertClassifier
from bert_tf.paper.language_model import BertLanguageModel

CONFIG = tiny_config(300, "3x32x4", intermediate_size=96, max_position_embeddings=64)
TWO_ENCODERS = replace(CONFIG, attention_direction="left_to_right+right_to_left")
INPUTS = {
    "token_ids": tf.ones([5, 48], tf.int32),
    "segment_ids": tf.zeros([5, 48], tf.int32),
    "padding_mask": tf.ones([5, 48], tf.int32),
}


def matrix_products(model, inputs) -> int:
    """Floating-point operations in the matrix products of TensorFlow's graph of a forward pass."""
    # For XLA: with all positions of the batch, so that shapes are known.
    forward = tf.function(lambda: model(inputs, training=False), jit_compile=True)
    forward = forward.get_concrete_function()
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
    return counted


@pytest.mark.parametrize(
    ("make", "config"), [(BertPreTrainer, CONFIG), (BertLanguageModel, TWO_ENCODERS)]
)
def test_the_forward_pass_of_pre_training_is_a_third_of_what_tensorflow_counts(make, config):
    inputs = {**INPUTS, "mask_positions": tf.ones([5, 7], tf.int32)}
    counted = matrix_products(make(config, seed=1), inputs)
    ours = pretraining_flops(config, instances=5, length=48, predictions=7)
    assert ours / 3 == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("config", [CONFIG, TWO_ENCODERS])
def test_the_forward_pass_of_a_classifier_is_a_third_of_what_tensorflow_counts(config):
    model = BertClassifier(config, num_classes=4, seed=1)
    # The encoder alone computes its last block at all positions.
    counted = matrix_products(model.encoder, INPUTS) + 2 * 5 * config.width * 4
    ours = 5 * classification_flops(config, length=48, classes=4)
    assert ours / 3 == pytest.approx(counted, rel=0.01)
