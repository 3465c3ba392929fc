"""An example of data for each model, in the words of a small vocabulary."""

from typing import Any

import numpy as np
from tiny import tiny_config

import bert_tf
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
    bert_tf.BertClassifier: ({"labels": ["bad", "good"]}, TEXTS, LABELS),
    bert_tf.BertMultiLabelClassifier: ({"labels": ["bad", "good", "film"]}, TEXTS, LABEL_SETS),
    bert_tf.BertRegressor: ({}, TEXTS, [1.0, 0.0, 0.5, 0.0] * 2),
    bert_tf.BertTagger: ({"labels": TAG_NAMES}, WORDS, TAGS),
    bert_tf.BertSpanClassifier: ({}, (QUESTIONS, CONTEXTS), ANSWERS),
    bert_tf.BertChooser: ({}, (TEXTS, CHOICES), [0, 1] * 4),
    BertMaskedLanguageModel: ({}, TEXTS, None),
    bert_tf.BertPreTrainer: ({}, (TEXTS, TEXTS[::-1]), [0, 1] * 4),
    bert_tf.BertEncoder: ({}, TEXTS, None),
}


def fit(model, x=TEXTS, y=LABELS, **options):
    return model.fit(x, y, **{"batch_size": 4, "verbose": 0, **options}).history


def arrays(model):
    return [np.array(weight) for weight in model.get_weights()]
