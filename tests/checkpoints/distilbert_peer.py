"""Makes tests/golden/distilbert.tar.xz: what DistilBERT's classes save, and what they compute.

    python -m venv peer && peer/bin/pip install transformers==4.57.6 tensorflow-cpu==2.21.0 tf-keras
    peer/bin/pip install torch==2.13.0
    peer/bin/python tests/checkpoints/distilbert_peer.py tests/golden/distilbert.tar.xz

A folder for each class: safetensors/, of PyTorch's class; h5/, of TensorFlow's with the same
weights; and outputs.npz, with inputs under the names of the arguments and PyTorch's outputs.
"""

import os
import sys
import tarfile
import tempfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # transformers 4 knows no Keras 3
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import torch
import transformers
from transformers.modeling_tf_pytorch_utils import load_pytorch_model_in_tf2_model

SIZES = {
    "vocab_size": 23,
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "max_position_embeddings": 10,
    "seq_classif_dropout": 0.3,
}
LABELS = {0: "no", 1: "perhaps", 2: "yes"}
CLASSES = {
    "DistilBertModel": {},
    "DistilBertForMaskedLM": {"activation": "relu"},
    "DistilBertForSequenceClassification": {"id2label": LABELS},
    "DistilBertForMultipleChoice": {},
    "DistilBertForTokenClassification": {"id2label": LABELS, "sinusoidal_pos_embds": True},
    "DistilBertForQuestionAnswering": {"qa_dropout": 0.25},
}
INPUTS = {
    "input_ids": np.array([[2, 7, 19, 3, 11, 3, 0, 0], [2, 5, 3, 9, 22, 8, 4, 3]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8]),
}


def make(root: Path) -> None:
    """Writes the folders."""
    draw = np.random.default_rng(7)
    for name, values in CLASSES.items():
        model = getattr(transformers, name)(transformers.DistilBertConfig(**SIZES, **values))
        for key, weight in model.named_parameters():
            is_norm = "norm" in key.lower() and key.endswith("weight")
            array = draw.normal(size=weight.shape, loc=float(is_norm), scale=0.4)
            weight.data = torch.tensor(array, dtype=torch.float32)
        home = root / name
        model.save_pretrained(home / "safetensors")
        of_tensorflow = getattr(transformers, f"TF{name}")(model.config)
        load_pytorch_model_in_tf2_model(of_tensorflow, model).save_pretrained(home / "h5")
        inputs = INPUTS
        if name == "DistilBertForMultipleChoice":  # one example of two choices
            inputs = {key: value[None] for key, value in INPUTS.items()}
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        with torch.no_grad():
            found = model.eval()(**tensors)
        np.savez(home / "outputs.npz", **inputs, **{key: found[key].numpy() for key in found})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sys.argv[1], "w:xz") as archive:
        make(Path(folder))
        for each in sorted(Path(folder).iterdir()):
            archive.add(each, each.name)
