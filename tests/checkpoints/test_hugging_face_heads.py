"""Logits, loss and gradients of the models for tasks, as Hugging Face's classes have them.

Run it as test_hugging_face_numbers.py says: with BERT_TF_HUGGING_FACE naming a Python that has
torch and transformers. Without, only the directory's names are checked.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from stored_models import LARGER, draw_weights, named_gradients, run_peer

from bert_tf import BertConfig, load_model, save_model
from bert_tf.models.language_model import BertMaskedLanguageModel
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertSpanClassifier,
    BertTagger,
)
from bert_tf.networks.tensorflow.losses import (
    binary_cross_entropy,
    cross_entropy,
    span_cross_entropy,
    squared_error,
)
from bert_tf.paper.language_model import BertLanguageModel

SCRIPT = Path(__file__).with_name("hugging_face_heads_peer.py")
TOLERANCE = 1e-5
CONFIG = replace(LARGER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
LEFT_TO_RIGHT = replace(CONFIG, attention_direction="left_to_right")
DISTILBERT = BertConfig.from_dict(
    {
        "model_type": "distilbert",
        "vocab_size": 41,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 32,
        "max_position_embeddings": 24,
        "activation": "relu",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0,
        "qa_dropout": 0.0,
    }
)
DRAW = np.random.RandomState(3)
LENGTHS = np.array([16, 13, 8, 15])
MASK = (np.arange(16) < LENGTHS[:, None]).astype(np.int64)
INPUTS = {
    "token_ids": DRAW.randint(5, 41, (4, 16)),  # Hugging Face drops the gradient of [PAD], 0
    "segment_ids": (np.arange(16) >= LENGTHS[:, None] // 2) * MASK,
    "padding_mask": MASK,
}
NAMES = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "padding_mask": "attention_mask",
}
SPANS = np.array([[3, 5], [0, 0], [4, 4], [9, 12]])
TAGS = DRAW.randint(0, 3, (4, 16))
MASKED = np.where(DRAW.rand(4, 16) < 0.3, DRAW.randint(0, 41, (4, 16)), -100)  # -100: no loss
NEXT = np.where(MASK, INPUTS["token_ids"], -100)  # Hugging Face compares those one place on
RIGHT = np.array([2])  # choice: the rows are the choices of one example
CLASSES = np.array([2, 0, 1, 1])
MARKS = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]], np.float32)
SCORES = np.array([0.5, -1.25, 3.0, 0.0], np.float32)


def word_loss(labels, logits):
    """The cross entropy at places with a label."""
    return tf.boolean_mask(cross_entropy(np.maximum(labels, 0), logits), labels >= 0)


# Hugging Face's class, and what is special -> our model, its loss, the targets.
HEADS = {
    "BertForSequenceClassification": (
        lambda: BertClassifier(CONFIG, num_classes=3, seed=1),
        cross_entropy,
        CLASSES,
    ),
    "BertForSequenceClassification of many labels": (
        lambda: BertMultiLabelClassifier(CONFIG, num_classes=3, seed=1),
        binary_cross_entropy,
        MARKS,
    ),
    "BertForSequenceClassification of one label": (
        lambda: BertRegressor(CONFIG, seed=1),
        squared_error,
        SCORES,
    ),
    "BertForQuestionAnswering": (
        lambda: BertSpanClassifier(CONFIG, seed=1),
        span_cross_entropy,
        SPANS,
    ),
    "BertForTokenClassification": (
        lambda: BertTagger(CONFIG, num_classes=3, seed=1),
        cross_entropy,
        TAGS,
    ),
    "BertForTokenClassification from left to right": (
        lambda: BertTagger(LEFT_TO_RIGHT, num_classes=3, seed=1),
        cross_entropy,
        TAGS,
    ),
    "BertForMaskedLM": (lambda: BertMaskedLanguageModel(CONFIG, seed=1), word_loss, MASKED),
    "BertLMHeadModel": (
        lambda: BertLanguageModel(LEFT_TO_RIGHT, seed=1),
        lambda labels, logits: word_loss(labels[:, 1:], logits["ltr_logits"][:, :-1]),
        NEXT,
    ),
    "BertForMultipleChoice": (lambda: BertChooser(CONFIG, seed=1), cross_entropy, RIGHT),
}
for _name, _model in {
    "BertForSequenceClassification": lambda: BertClassifier(DISTILBERT, num_classes=3, seed=1),
    "BertForQuestionAnswering": lambda: BertSpanClassifier(DISTILBERT, seed=1),
    "BertForTokenClassification": lambda: BertTagger(DISTILBERT, num_classes=3, seed=1),
    "BertForMaskedLM": lambda: BertMaskedLanguageModel(DISTILBERT, seed=1),
    "BertForMultipleChoice": lambda: BertChooser(DISTILBERT, seed=1),
}.items():
    HEADS[f"Distil{_name}"] = (_model, *HEADS[_name][1:])


def inputs_of(model) -> dict[str, np.ndarray]:
    if isinstance(model, BertMaskedLanguageModel | BertLanguageModel):
        return {**INPUTS, "mask_positions": np.tile(np.arange(16), (4, 1))}  # all, as theirs
    return {k: x[None] if isinstance(model, BertChooser) else x for k, x in INPUTS.items()}


def random_model(name: str):
    """A model with every weight drawn at random."""
    model = HEADS[name][0]()
    draw_weights(model.trainable_variables, scale=0.2)
    return model


def numbers(model, loss, targets) -> dict[str, np.ndarray]:
    with tf.GradientTape() as tape:
        # In training padding is computed, too, as theirs: nothing is dropped.
        logits = model(inputs_of(model), training=True)
        mean = tf.reduce_mean(loss(targets, logits))
    (output,) = tf.nest.flatten(logits)
    gradients = named_gradients(model, tape, mean)
    return {"logits": output.numpy(), "loss": mean.numpy(), **gradients}


# Of DistilBERT test_distilbert.py tests it.
@pytest.mark.parametrize("name", [name for name in HEADS if not name.startswith("Distil")])
def test_the_directory_is_hugging_faces_and_comes_back(name, tmp_path):
    model = random_model(name)
    save_model(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [name.partition(" ")[0]]
    again = load_model(tmp_path)
    assert type(again) is type(model)
    found, wanted = again(inputs_of(model)), model(inputs_of(model))
    tf.nest.map_structure(np.testing.assert_array_equal, found, wanted)


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
@pytest.mark.parametrize("name", HEADS)
def test_numbers_of_hugging_face_now(name, tmp_path):
    model, (_, loss, targets) = random_model(name), HEADS[name]
    ours = numbers(model, loss, targets)
    theirs = {"labels": targets}
    if targets is SPANS:
        theirs = {"start_positions": SPANS[:, 0], "end_positions": SPANS[:, 1]}
    save_model(model, tmp_path / "model")
    np.savez(
        tmp_path / "in.npz",
        **{
            NAMES[key]: x
            for key, x in inputs_of(model).items()
            if key in NAMES and not (model.config.is_distilbert and key == "segment_ids")
        },
        **theirs,
    )
    class_name = name.partition(" ")[0]
    files = [tmp_path / "model", class_name, tmp_path / "in.npz", tmp_path / "out.npz"]
    expected = run_peer("hugging-face", SCRIPT, *files)
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        value = value.reshape(ours[key].shape)  # a single label: theirs is [4, 1]
        # Biases that add a number to all scores of a softmax have gradients of 0, or of rounding.
        weight = expected.get(key.replace(".bias", ".weight"), value)
        scale = max(np.abs(value).max(), np.abs(weight).max())
        assert np.abs(ours[key] - value).max() <= TOLERANCE * scale, key
