"""Products in int8: exact on every x86-64 processor."""

import os

import numpy as np
import pytest

from bert_tf.networks.tensorflow.int8 import quantize_weights
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
@pytest.mark.parametrize("isa", [None, *ISAS])
def test_products_are_exact_on_every_processor(isa):
    env = {**os.environ, **({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})}
    done = run_code(_OF_PRODUCTS, env=env)
    assert done.stdout.strip() == "exact", done.stderr[-2000:]


def test_weights_of_zeros_have_a_scale():
    steps, scale = quantize_weights(np.zeros((3, 2), np.float32))
    assert not steps.any() and (scale > 0).all() and np.isfinite(1 / scale).all()


def test_pairs_of_8_bit_products_fit_in_16_bits():
    """Processors without VNNI add them up there, of inputs from 0 to 255; beyond, they saturate."""
    kernel = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    steps, scale = quantize_weights(kernel)
    assert np.abs(steps).max(0).tolist() == [63] * 3
    assert 2 * 255 * np.abs(steps, dtype=int).max() < 2**15
    # Each is off by half a step.
    np.testing.assert_allclose(steps * scale / 127, kernel, rtol=0, atol=0.51 * scale.max() / 127)
