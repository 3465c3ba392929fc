"""Makes tests/golden/tfhub.tar.xz: SavedModels as TF Hub's BERT models are, of random weights.

    python -m venv peer && peer/bin/pip install tf-models-official==2.20.0 tensorflow-hub tf-keras
    peer/bin/python tests/checkpoints/tfhub_peer.py tests/golden/tfhub.tar.xz

- encoder, preprocessor: written by Model Garden's own `export_tfhub_lib`, as the published models
  "bert_en_uncased_..." since version 3 and "bert_en_uncased_preprocess" were.
- version_1: a module whose variables have the names and shapes of the published versions 1 and 2,
  which older code wrote.
- outputs.npz: inputs, and what the encoder returns for them after `hub.load`.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_hub as hub
from golden_models import MODEL_GARDEN_INPUTS, SIZES, write_archive
from official.legacy.bert import configs
from official.nlp.tools import export_tfhub_lib

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopq", "##a"]
CONFIG = configs.BertConfig(**SIZES)


def make_encoder(folder: Path, vocabulary: Path) -> dict[str, np.ndarray]:
    """Exports an encoder with its masked language model; returns its outputs."""
    _, pretrainer = export_tfhub_lib._create_model(bert_config=CONFIG, with_mlm=True)
    draw = np.random.default_rng(7)
    for variable in pretrainer.variables:
        variable.assign(draw.normal(size=variable.shape, scale=0.4))
    items = tf.train.Checkpoint(**pretrainer.checkpoint_items)
    checkpoint = items.save(str(folder / "checkpoint"))
    export_tfhub_lib.export_model(
        str(folder / "encoder"),
        bert_config=CONFIG,
        model_checkpoint_path=checkpoint,
        with_mlm=True,
        vocab_file=str(vocabulary),
        do_lower_case=True,
    )
    for path in folder.glob("checkpoint*"):
        path.unlink()
    model = hub.load(str(folder / "encoder"))
    inputs = {name: tf.constant(value) for name, value in MODEL_GARDEN_INPUTS.items()}
    results = {
        name: value.numpy() for name, value in model(inputs).items() if "outputs" not in name
    }
    positions = np.tile(np.arange(8, dtype=np.int32), (2, 1))
    mlm = model.mlm({**inputs, "masked_lm_positions": tf.constant(positions)})
    return {**results, "mlm_logits": mlm["mlm_logits"].numpy()}


def make_version_1(folder: Path, encoder: Path, vocabulary: Path) -> None:
    """The encoder's values under the older names."""
    replaced = {
        "type_embeddings/embeddings": "embedding_postprocessor/type_embeddings",
        "position_embedding/embeddings": "embedding_postprocessor/position_embeddings",
        "embeddings/layer_norm/": "embedding_postprocessor/layer_norm/",
        "transformer/layer_": "encoder/layer_",
        "self_attention/attention_output/": "self_attention_output/",
    }
    module = tf.Module()
    module.variables_by_number = []
    for variable in hub.load(str(encoder)).trainable_variables:
        name = variable.name.removesuffix(":0")
        for new, old in replaced.items():
            name = name.replace(new, old)
        own = tf.Variable(variable, name=f"bert_model/{name}")
        module.variables_by_number.append(own)
    module.do_lower_case = tf.Variable(True, trainable=False)
    module.vocab_file = tf.saved_model.Asset(str(vocabulary))
    tf.saved_model.save(module, str(folder))


def make(root: Path) -> None:
    """Writes the folders."""
    with tempfile.TemporaryDirectory() as other:
        vocabulary = Path(other) / "vocab.txt"
        vocabulary.write_text("\n".join(PIECES) + "\n")
        outputs = make_encoder(root, vocabulary)
        make_version_1(root / "version_1", root / "encoder", vocabulary)
        export_tfhub_lib.export_preprocessing(
            str(root / "preprocessor"),
            vocab_file=str(vocabulary),
            do_lower_case=True,
            tokenize_with_offsets=False,
            default_seq_length=8,
        )
    np.savez(root / "outputs.npz", **MODEL_GARDEN_INPUTS, **outputs)


if __name__ == "__main__":
    write_archive(sys.argv[1], make)
