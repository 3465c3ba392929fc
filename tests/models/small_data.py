"""An example of data for each model, in the words of a small vocabulary."""

from typing import Any

import numpy as np
import pytest
from tiny import tiny_config

from bert_tf import (
    BertChooser,
    BertClassifier,
    BertEncoder,
    BertMultiLabelClassifier,
    BertPreTrainer,
    BertRegressor,
    BertSpanClassifier,
    BertTagger,
)
from bert_tf.errors import InputError
from bert_tf.models.language_model import BertMaskedLanguageModel

WORD_LIST = "a the good bad film book story very it is was not . ? anna bern lives in who where"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORD_LIST.split()]
CONFIG = tiny_config(len(VOCABULARY), "1x16x2", max_position_embeddings=24)
TEXTS = ["a good film", "the bad book", "it is a very good story", "a bad film ."] * 2
LABELS = ["good", "bad", "good", "bad"] * 2
NUMBERS = [1, 0, 1, 0] * 2
LABEL_SETS = [["good", "film"], ["bad"], [], ["bad", "film"]] * 2
WORDS = [["anna", "lives", "in", "bern"], ["it", "is", "anna"]] * 4
TAGS = [["B-PER", "O", "O", "B-LOC"], ["O", "O", "B-PER"]] * 4
TAG_NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
QUESTIONS = ["who lives in bern ?", "where is anna ?"] * 4
CONTEXTS = ["anna lives in bern .", "anna is in bern ."] * 4
ANSWERS = ["anna", "bern"] * 4
CHOICES = [["it is good", "it is bad"], ["a good book", "a bad book"]] * 4

# Class -> arguments of from_preset, x, y.
DATA: dict[type, tuple[dict[str, Any], Any, Any]] = {
    BertClassifier: ({"labels": ["bad", "good"]}, TEXTS, LABELS),
    BertMultiLabelClassifier: ({"labels": ["bad", "good", "film"]}, TEXTS, LABEL_SETS),
    BertRegressor: ({}, TEXTS, [1.0, 0.0, 0.5, 0.0] * 2),
    BertTagger: ({"labels": TAG_NAMES}, WORDS, TAGS),
    BertSpanClassifier: ({}, (QUESTIONS, CONTEXTS), ANSWERS),
    BertChooser: ({}, (TEXTS, CHOICES), [0, 1] * 4),
    BertMaskedLanguageModel: ({}, TEXTS, None),
    BertPreTrainer: ({}, (TEXTS, TEXTS[::-1]), [0, 1] * 4),
    BertEncoder: ({}, TEXTS, None),
}


def fit(model, x=TEXTS, y=LABELS, **options):
    return model.fit(x, y, **{"batch_size": 4, "verbose": 0, **options}).history


def arrays(model):
    return [np.array(weight) for weight in model.get_weights()]


def refused(ask, message):
    """The call raises an InputError of one line that has the message."""
    with pytest.raises(InputError, match=message) as caught:
        ask()
    assert "\n" not in str(caught.value)
