"""What Model Garden itself does with checkpoints. It runs in a Python that has official.nlp.

python model_garden_peer.py make FOLDER         writes what tests/golden/model_garden holds
python model_garden_peer.py tf1 FOLDER OUT.npz  outputs of the model that bert-tf wrote there for
                                                TensorFlow 1, by Model Garden's converter
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from golden_models import MODEL_GARDEN_INPUTS, SIZES
from official.legacy.bert.configs import BertConfig
from official.nlp.modeling import layers, models, networks
from official.nlp.tools import tf2_bert_encoder_checkpoint_converter as converter

THEIR_NAMES = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "inner_dim",
    "max_position_embeddings": "max_sequence_length",
}
POSITIONS = {"masked_lm_positions": np.array([[1, 4], [3, 6]], np.int32)}
INPUTS = MODEL_GARDEN_INPUTS | POSITIONS


def pretrainer(encoder_class):
    """A pre-trainer as its task builds it (PretrainerConfig's defaults and `next_sentence`)."""
    encoder = encoder_class(**{THEIR_NAMES.get(name, name): x for name, x in SIZES.items()})
    head = layers.ClassificationHead(
        inner_dim=SIZES["hidden_size"], num_classes=2, name="next_sentence"
    )
    gelu = lambda x: tf.nn.gelu(x, approximate=True)  # noqa: E731
    model = models.BertPretrainerV2(encoder, mlm_activation=gelu, classification_heads=[head])
    model(INPUTS)
    return model


def outputs(model):
    """Arrays of a pre-trainer's outputs."""
    results = model(INPUTS)
    return {
        "sequence_output": results["sequence_output"].numpy(),
        "encoder_pooled_output": results["pooled_output"].numpy(),
        "mlm_logits": results["mlm_logits"].numpy(),
        "nsp_logits": results["next_sentence"].numpy(),
    }


def make(folder):
    """Checkpoints of random weights, of both encoders, and their outputs."""
    draw = np.random.default_rng(7)
    for name, kind in (("v2", networks.BertEncoderV2), ("functional", networks.BertEncoder)):
        model = pretrainer(kind)
        for variable in model.variables:
            variable.assign(draw.normal(size=variable.shape, scale=0.4))
        home = folder / name
        home.mkdir(parents=True, exist_ok=True)
        if name == "v2":
            items = {"model": model, **model.checkpoint_items}
        else:
            items = {"encoder": model.encoder_network}
        tf.train.Checkpoint(**items).write(str(home / "bert_model.ckpt"))
        np.savez(home / "outputs.npz", **INPUTS, **outputs(model))


def from_tf1(folder, out):
    """Converts a TensorFlow 1 checkpoint with Model Garden's own converter."""
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    prefix = str(out.with_suffix("")) + ".ckpt"
    converter.convert_checkpoint(
        config, prefix, str(folder / "bert_model.ckpt"), "model", converted_model="pretrainer"
    )
    model = converter._create_bert_pretrainer_model(config)
    status = tf.train.Checkpoint(model=model, **model.checkpoint_items).read(f"{prefix}-1")
    status.assert_existing_objects_matched()
    results = model(INPUTS)
    names = {"sequence_output", "pooled_output", "mlm_logits"}
    np.savez(out, **INPUTS, **{name: results[name].numpy() for name in names})


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"make": make, "tf1": from_tf1}[command](*map(Path, paths))
