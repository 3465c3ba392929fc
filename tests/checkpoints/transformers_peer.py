"""Makes tests/golden/tfbert.tar.xz and distilbert.tar.xz: what transformers 4 saves and computes.

    python -m venv peer && peer/bin/pip install transformers==4.57.6 tensorflow-cpu==2.21.0 tf-keras
    peer/bin/pip install torch==2.13.0
    peer/bin/python tests/checkpoints/transformers_peer.py tests/golden

A folder for each class, with outputs.npz: inputs under the names of the arguments, and every array
that the class returns. Of a TFBert* class h5/ and safetensors/ (`save_pretrained` without and with
`safe_serialization`; of one class also in several files); of a DistilBert* class safetensors/, of
PyTorch's class, which computes the outputs, and h5/, of TensorFlow's with the same weights.
"""

import os
import sys
from functools import partial
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # transformers 4 knows no Keras 3
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import torch
import transformers
from golden_models import PADDING_MASK, SEGMENT_IDS, SIZES, TOKEN_IDS, write_archive
from transformers.modeling_tf_pytorch_utils import load_pytorch_model_in_tf2_model

DISTILBERT_SIZES = {
    "vocab_size": 23,
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "max_position_embeddings": 10,
    "seq_classif_dropout": 0.3,
}
LABELS = {0: "no", 1: "perhaps", 2: "yes"}
TFBERT = {
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
DISTILBERT = {
    "DistilBertModel": {},
    "DistilBertForMaskedLM": {"activation": "relu"},
    "DistilBertForSequenceClassification": {"id2label": LABELS},
    "DistilBertForMultipleChoice": {},
    "DistilBertForTokenClassification": {"id2label": LABELS, "sinusoidal_pos_embds": True},
    "DistilBertForQuestionAnswering": {"qa_dropout": 0.25},
}
INPUTS = {"input_ids": TOKEN_IDS, "attention_mask": PADDING_MASK}


def save_outputs(home: Path, compute, inputs: dict) -> None:
    """Saves inputs and outputs; of multiple choice one example of two choices."""
    if "MultipleChoice" in home.name:
        inputs = {name: value[None] for name, value in inputs.items()}
    outputs = {x: y.numpy() for x, y in compute(inputs).items() if hasattr(y, "numpy")}
    np.savez(home / "outputs.npz", **inputs, **outputs)


def make_tfbert(root: Path) -> None:
    draw = np.random.default_rng(7)
    inputs = INPUTS | {"token_type_ids": SEGMENT_IDS}
    for name, values in TFBERT.items():
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
        save_outputs(home, partial(model, training=False), inputs)


@torch.no_grad()
def make_distilbert(root: Path) -> None:
    draw = np.random.default_rng(7)
    for name, values in DISTILBERT.items():
        config = transformers.DistilBertConfig(**DISTILBERT_SIZES, **values)
        model = getattr(transformers, name)(config)
        for key, weight in model.named_parameters():
            is_norm = "norm" in key.lower() and key.endswith("weight")
            array = draw.normal(size=weight.shape, loc=float(is_norm), scale=0.4)
            weight.data = torch.tensor(array, dtype=torch.float32)
        home = root / name
        model.save_pretrained(home / "safetensors")
        tensorflow_model = getattr(transformers, f"TF{name}")(model.config)
        load_pytorch_model_in_tf2_model(tensorflow_model, model).save_pretrained(home / "h5")
        model.eval()
        inputs = {name: value.astype(np.int64) for name, value in INPUTS.items()}
        save_outputs(
            home, lambda x, model=model: model(**{k: torch.tensor(v) for k, v in x.items()}), inputs
        )


if __name__ == "__main__":
    write_archive(Path(sys.argv[1], "tfbert.tar.xz"), make_tfbert)
    write_archive(Path(sys.argv[1], "distilbert.tar.xz"), make_distilbert)
