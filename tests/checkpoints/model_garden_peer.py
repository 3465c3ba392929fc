"""What Model Garden's converter makes of a TensorFlow 1 checkpoint of bert-tf, and its outputs.

It runs in a Python that has official.nlp:

python model_garden_peer.py FOLDER INPUTS.npz OUT.npz
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from official.legacy.bert.configs import BertConfig
from official.nlp.tools import tf2_bert_encoder_checkpoint_converter as converter


def main(folder, inputs, out):
    names = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")
    inputs = {name: np.load(inputs)[name] for name in names}
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    prefix = str(out.with_suffix("")) + ".ckpt"
    converter.convert_checkpoint(
        config, prefix, str(folder / "bert_model.ckpt"), "model", converted_model="pretrainer"
    )
    model = converter._create_bert_pretrainer_model(config)
    status = tf.train.Checkpoint(model=model, **model.checkpoint_items).read(f"{prefix}-1")
    status.assert_existing_objects_matched()
    results = model(inputs)
    names = {"sequence_output", "pooled_output", "mlm_logits"}
    np.savez(out, **inputs, **{name: results[name].numpy() for name in names})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
