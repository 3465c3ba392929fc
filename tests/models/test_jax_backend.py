import json
import sys

import numpy as np
import pytest
from command_line import finished
from tiny import tiny_config

from bert_tf import BertPreTrainer, save_model

CONFIG = tiny_config(19, "2x16x4", max_position_embeddings=12, dropout=0.0)
INPUTS = {
    "token_ids": [[2, 5, 6, 7, 3, 0], [2, 8, 3, 9, 10, 3]],
    "segment_ids": [[0] * 6, [0, 0, 0, 1, 1, 1]],
    "padding_mask": [[1, 1, 1, 1, 1, 0], [1] * 6],
    "mask_positions": [[1, 3], [4, 9]],  # the last is outside
}

_CODE = """
import json, sys
import numpy as np
import jax, keras
from bert_tf import BertPreTrainer
from bert_tf.networks.kernels import FusedAttention

assert keras.backend.backend() == "jax"
directory, inputs = sys.argv[1], json.loads(sys.argv[2])
inputs = {name: np.array(value, "int32") for name, value in inputs.items()}
model = BertPreTrainer.from_directory(directory)
trainable = [v.value for v in model.trainable_variables]
others = [v.value for v in model.non_trainable_variables]

def outputs():  # as one program: alone, each operation is compiled for itself
    found = jax.jit(lambda trainable: model.stateless_call(trainable, others, inputs)[0])(trainable)
    return {name: np.asarray(value).tolist() for name, value in found.items()}

layers = outputs()
usual, model.encoder.kernels = model.encoder.kernels, FusedAttention
for name, value in outputs().items():
    np.testing.assert_allclose(value, layers[name], rtol=0, atol=1e-5)
model.encoder.kernels = usual

def loss(trainable):
    found, _ = model.stateless_call(trainable, others, inputs)
    return sum((value ** 2).sum() for value in found.values())

gradients = {
    v.path: float(np.abs(g).sum())
    for v, g in zip(model.trainable_variables, jax.jit(jax.grad(loss))(trainable))
}
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.encoder.rematerialize = True
assert type(model.optimizer).__name__ == "AdamW"  # unless `compile` is given another
model.compile(keras.optimizers.Adam(0.01), {"mlm_logits": entropy, "nsp_logits": entropy})
labels = {"mlm_logits": np.array([[5, 6], [7, 1]]), "nsp_logits": np.array([0, 1])}
losses = model.fit(inputs, labels, epochs=30, verbose=0).history["loss"]
print(json.dumps({"outputs": layers, "gradients": gradients, "losses": losses}))
"""


@pytest.mark.slow
def test_the_jax_backend(tmp_path):
    import tensorflow as tf

    model = BertPreTrainer(CONFIG, seed=1)
    save_model(model, tmp_path)
    on_jax, inputs = {"KERAS_BACKEND": "jax"}, json.dumps(INPUTS)
    done = finished(sys.executable, "-c", _CODE, tmp_path, inputs, env=on_jax)
    theirs = json.loads(done.stdout.splitlines()[-1])
    inputs = {name: tf.constant(value) for name, value in INPUTS.items()}
    with tf.GradientTape() as tape:
        outputs = model(inputs)
        loss = tf.add_n([tf.reduce_sum(value**2) for value in outputs.values()])
    for name, value in outputs.items():
        np.testing.assert_allclose(theirs["outputs"][name], value, rtol=0, atol=1e-5)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        ours = float(tf.reduce_sum(tf.abs(tf.convert_to_tensor(gradient))))
        assert theirs["gradients"][variable.path] == pytest.approx(ours, rel=1e-3, abs=1e-4)
    assert theirs["losses"][-1] < 0.5 * theirs["losses"][0]
