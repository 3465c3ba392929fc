import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from kernel_models import batch
from preloaded import run_code
from rounding import half_rounding, rounding
from tiny import tiny_config

from bert_tf import BertEncoder

# Two blocks, forwards and backwards, whose sums have up to 32 terms.
ROUNDING = rounding(80, 32)


def encoder(rematerialize, dtype=None, dropout=0.2):
    config = tiny_config(19, "2x16x4", max_position_embeddings=8, dropout=dropout)
    model = BertEncoder(config, seed=3, dtype=dtype)
    assert not model.rematerialize
    model.rematerialize = rematerialize
    assert model.rematerialize == rematerialize
    return model


def gradients(model, steps=2, **options):
    """Of two passes, dropout on, and where the dropout generators stand after them."""

    def step():
        with tf.GradientTape() as tape:
            outputs = model(batch(), training=True)
            loss = tf.reduce_sum(tf.cast(outputs["pooled_output"], "float32") ** 2)
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_weights)]

    step = tf.function(step, **options) if options else step
    results = [step() for _ in range(steps)]
    seeds = [v for v in model.variables if v.dtype.startswith("int")]
    return [float(loss) for loss, _ in results], results[-1][1], [v.numpy() for v in seeds]


def assert_close(ours, theirs, share=ROUNDING):
    largest = max(np.abs(each).max() for each in theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=share * largest)


@for_each(
    "dtype options",
    (None, {}),
    slow(None, {"jit_compile": True}),
    slow("mixed_bfloat16", {"jit_compile": False}),
)
def test_the_same_numbers(dtype, options):
    """With dropout: the second computation must drop what the first one did."""
    kept, again = (gradients(encoder(r, dtype), **options) for r in (False, True))
    share = ROUNDING if dtype is None else half_rounding(80, "bfloat16")
    assert kept[0] == pytest.approx(again[0], rel=share)
    assert kept[0][0] != kept[0][1]  # dropout goes on from step to step
    assert_close(again[1], kept[1], share)
    np.testing.assert_array_equal(again[2], kept[2])


def test_frozen_blocks():
    models = [encoder(r) for r in (False, True)]
    for model in models:
        model.blocks[0].trainable = False
    kept, again = (gradients(model) for model in models)
    assert len(kept[1]) == len(again[1])
    assert_close(again[1], kept[1])


_MEMORY = """
import json, re
from pathlib import Path
import tensorflow as tf
from bert_tf import BertConfig, BertEncoder

L, B, T, N = 3, 16, 256, 4
config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=L, num_attention_heads=N,
                    intermediate_size=64, max_position_embeddings=T)

def step(rematerialize):
    encoder = BertEncoder(config, seed=1)
    encoder.rematerialize = rematerialize

    @tf.function(input_signature=[tf.TensorSpec([None, T], "int32")])
    def gradients(ids):
        inputs = {name: ids for name in ("token_ids", "segment_ids", "padding_mask")}
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(inputs, training=True)["pooled_output"])
        return tape.gradient(loss, encoder.trainable_variables)

    gradients(tf.ones((1, T), "int32"))  # what graphs take is in neither peak
    return gradients

def peak(gradients):
    gradients(tf.ones((B, T), "int32"))
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])

steps = step(True), step(False)
again, kept = map(peak, steps)  # in this order: a peak never goes down
print(json.dumps({"more": kept - again, "probabilities": 4 * L * B * N * T * T}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak where Linux tells it")
def test_a_step_takes_less_memory():
    """Less than without by more than the attention probabilities of all layers."""
    done = run_code(_MEMORY, check=True)
    told = json.loads(done.stdout)
    assert told["more"] > told["probabilities"]
