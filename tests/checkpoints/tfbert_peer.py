"""Makes tests/golden/tfbert.tar.xz: what the TFBert* classes save, and what they compute.

    python -m venv peer && peer/bin/pip install transformers==4.57.6 tensorflow-cpu==2.21.0 tf-keras
    peer/bin/python tests/checkpoints/tfbert_peer.py tests/golden/tfbert.tar.xz

A folder for each class: h5/ and safetensors/ (`save_pretrained` without and with
`safe_serialization`; of one class also in several files) and outputs.npz, with inputs under the
names of the arguments and every array that the class returns.
"""

import os
import sys
import tarfile
import tempfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # transformers 4 knows no Keras 3
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import transformers

SIZES = {
    "vocab_size": 23,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
}
LABELS = {0: "no", 1: "perhaps", 2: "yes"}
CLASSES = {
    "TFBertModel": {},
    "TFBertForPreTraining": {},
    "TFBertForMaskedLM": {},
    "TFBertLMHeadModel": {"is_decoder": True},
    "TFBertForNextSentencePrediction": {},
    "TFBertForSequenceClassification": {"id2label": LABELS},
    "TFBertForMultipleChoice": {},
    "TFBertForTokenClassification": {"id2label": LABELS},
    "TFBertForQuestionAnswering": {},
}
INPUTS = {
    "input_ids": np.array([[2, 7, 19, 3, 11, 3, 0, 0], [2, 5, 3, 9, 22, 8, 4, 3]], np.int32),
    "attention_mask": np.array([[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8], np.int32),
    "token_type_ids": np.array([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]], np.int32),
}


def make(root: Path) -> None:
    """Writes the folders."""
    draw = np.random.default_rng(7)
    for name, values in CLASSES.items():
        model = getattr(transformers, name)(transformers.BertConfig(**SIZES, **values))
        model.build()
        for weight in model.weights:
            center = 1.0 if "gamma" in weight.name else 0.0
            weight.assign(draw.normal(size=weight.shape, loc=center, scale=0.4))
        home = root / name
        model.save_pretrained(home / "h5")
        model.save_pretrained(home / "safetensors", safe_serialization=True)
        if name == "TFBertForSequenceClassification":
            model.save_pretrained(home / "several_h5", max_shard_size="2KB")
            model.save_pretrained(
                home / "several_safetensors", max_shard_size="2KB", safe_serialization=True
            )
        inputs = INPUTS
        if name == "TFBertForMultipleChoice":  # one example of two choices
            inputs = {key: value[None] for key, value in INPUTS.items()}
        found = model(inputs, training=False)
        arrays = {key: value.numpy() for key, value in found.items() if hasattr(value, "numpy")}
        np.savez(home / "outputs.npz", **inputs, **arrays)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sys.argv[1], "w:xz") as archive:
        make(Path(folder))
        for each in sorted(Path(folder).iterdir()):
            archive.add(each, each.name)
