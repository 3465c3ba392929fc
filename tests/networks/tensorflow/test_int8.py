import os

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from kernel_models import MASK, batch
from tiny import tiny_config

from bert_tf import BertEncoder
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.tensorflow.int8 import Int8, Layers, Recorder, make_plan, quantize_weights
from tests.processes.preloaded import run_code

ISAS = ["AVX512_CORE", "AVX2", "SSE41"]  # without AMX and VNNI, without AVX-512, without AVX2

_OF_PRODUCTS = """
import sys, numpy as np, tensorflow as tf
from bert_tf.networks.tensorflow.int8 import int8_product, quantize, quantize_weights
random = np.random.default_rng(0)
K, M, n = 512, 48, 5
# As large as they can be: where sums of two products overflow in 16 bits, these do.
x = np.sign(random.normal(size=(n, K))) * 3.0
kernel = random.normal(size=(K, M)); kernel = np.sign(kernel) * 0.2
kernel[:, : M // 2] *= random.uniform(size=(K, M // 2))
kernel = kernel.astype("f4")
x[2:] *= random.uniform(size=(n - 2, K))
x, bias = x.astype("f4"), random.normal(size=M).astype("f4")
addend = random.normal(size=(n, M)).astype("f4")
steps, scale = quantize_weights(kernel)
assert np.abs(steps).max() == 63
inputs = np.clip(np.round(x / 3.0 * 127), -127, 127)
wanted = (inputs @ steps.astype("f8")) * (3.0 / 127) * (scale.astype("f8") / 127) + bias
variable, biases = tf.Variable(steps), tf.Variable(bias)

ACTIVATIONS = ("GeluExact", "GeluApproximate", "Relu")

@tf.function(autograph=False)
def run(x, addend):
    given = [quantize(x, 3.0), variable.read_value(), scale, biases.read_value(), 3.0]
    plain = [int8_product(*given), int8_product(*given, addend=addend)]
    plain += [int8_product(*given, activation=name) for name in ACTIVATIONS]
    steps = [int8_product(*given, activation=name, output_limit=20.0) for name in ACTIVATIONS]
    return plain, [tf.bitcast(each, tf.int8) for each in steps]

from scipy.special import erf
gelu = wanted * 0.5 * (1 + erf(wanted / 2**0.5))
inner = (2 / np.pi) ** 0.5 * (wanted + 0.044715 * wanted**3)
activated = [gelu, wanted * 0.5 * (1 + np.tanh(inner)), np.maximum(wanted, 0)]
plain, steps = run(x, addend)
largest = np.abs(wanted).max()
for one, other in zip(plain, [wanted, wanted + addend, *activated], strict=True):
    # Sums of integers are exact; four factors and a sum round in float32, erf and tanh to 1e-6.
    np.testing.assert_allclose(one, other, rtol=0, atol=4e-6 * largest)
for one, other in zip(steps, activated, strict=True):
    rounded = np.clip(other / 20.0 * 127, -128, 127)
    assert np.abs(one.numpy() - rounded).max() <= 0.501
print("exact")
"""


@pytest.mark.slow
@for_each("isa", None, *ISAS)
def test_products_are_exact_on_every_processor(isa):
    env = {**os.environ, **({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})}
    done = run_code(_OF_PRODUCTS, env=env)
    assert done.stdout.strip() == "exact", done.stderr[-2000:]


def test_weights_have_a_scale_and_pairs_of_products_fit_in_16_bits():
    steps, scale = quantize_weights(np.zeros((3, 2), np.float32))
    assert not steps.any() and (scale > 0).all() and np.isfinite(1 / scale).all()
    # Processors without VNNI add them up there, of inputs from 0 to 255; beyond, they saturate.
    kernel = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    steps, scale = quantize_weights(kernel)
    assert np.abs(steps).max(0).tolist() == [63] * 3
    assert 2 * 255 * np.abs(steps, dtype=int).max() < 2**15
    # Each is off by half a step.
    np.testing.assert_allclose(steps * scale / 127, kernel, rtol=0, atol=0.51 * scale.max() / 127)


def test_a_model_in_int8_is_off_by_the_errors_of_its_products():
    config = tiny_config(13, "2x32x4", max_position_embeddings=10, initializer_range=0.3)
    model = BertEncoder(config, seed=0)
    recorder = Recorder(
        Layers(
            (block.attention.query, block.attention.key, block.attention.value),
            block.attention.output_dense,
            block.feed_forward.intermediate,
            block.feed_forward.output_dense,
        )
        for block in model.blocks
    )

    def states(kernels):
        with kernels_of(model, lambda _: kernels):
            answer = tf.function(lambda: model(batch())["sequence_output"], autograph=False)
            return answer()[MASK.astype(bool)].numpy()

    expected = states(recorder)
    plan = make_plan(recorder)
    assert plan.products == len(plan.ranges) == 8
    off = np.linalg.norm(states(Int8(plan)) - expected) / np.linalg.norm(expected)
    # Each product is off by its own error, and no block makes the errors before it larger.
    assert 0 < off < sum(found.error for found in plan.ranges.values())

    # Smoothing moves the same share of smaller inputs.
    for layer, rows in recorder.samples.items():
        recorder.samples[layer] = [x * 1e-6 for x in rows]
        recorder.largest[layer] *= 1e-6
    for layer, found in make_plan(recorder).ranges.items():
        assert found.error == pytest.approx(plan.ranges[layer].error, rel=0.05)
