import subprocess
import sys

import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.strategy import check_batch_size, check_jit_compile, make_strategy

# Logical devices must be made before TensorFlow starts, hence a process of its own.
_MIRRORED = """
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from bert_tf.models.config import BertConfig
from bert_tf.models.classifier import BertClassifier
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.strategy import make_strategy

config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=16, hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0)
draw = np.random.default_rng(0)
x = {"token_ids": draw.integers(0, 50, (32, 6)), "segment_ids": np.zeros((32, 6), int),
     "padding_mask": np.ones((32, 6), int)}
y = draw.integers(0, 2, 32)
weights = {}
for name in ("one", "mirrored"):
    strategy = make_strategy(name)
    with strategy.scope():
        model = BertClassifier(config, num_classes=2, seed=0)
        model.compile(AdamWeightDecay(1e-2),
                      keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model.fit(data, epochs=2, verbose=0, shuffle=False)
    weights[name] = model.get_weights()
assert make_strategy("mirrored").num_replicas_in_sync == 2
assert make_strategy("auto").num_replicas_in_sync == 1
for ours, theirs in zip(weights["mirrored"], weights["one"], strict=True):
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
"""


def test_mirrored_over_two_devices_trains_as_one_device_does():
    done = subprocess.run([sys.executable, "-c", _MIRRORED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_auto_is_one_device_on_a_machine_without_accelerators():
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        pytest.skip("this machine has accelerators")
    assert make_strategy("auto") is tf.distribute.get_strategy()


def test_names_and_batches_that_cannot_be_used():
    with pytest.raises(InputError, match="auto, one, mirrored, tpu"):
        make_strategy("two")
    with pytest.raises(InputError, match="positive multiple"):
        check_batch_size(0, make_strategy("one"))
    check_batch_size(7, make_strategy("one"))
    check_jit_compile(True, make_strategy("one"))
    with pytest.raises(InputError, match="--jit_compile does not work under --strategy mirrored"):
        check_jit_compile(True, make_strategy("mirrored"))
