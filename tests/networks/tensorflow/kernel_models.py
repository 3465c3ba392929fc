"""Small models of every sort, and batches for them, to compare kernels with."""

from dataclasses import replace

import numpy as np
import tensorflow as tf
from tiny import tiny_config

from bert_tf import BertEncoder
from bert_tf.models import task_models
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.kernels import Kernels
from bert_tf.paper.feature_encoder import FeatureEncoder

CONFIG = tiny_config(13, "2x8x2", max_position_embeddings=10, dropout=0.0, layer_norm_eps=0.1)
LEFT_TO_RIGHT = replace(CONFIG, attention_direction="left_to_right")
RIGHT_TO_LEFT = replace(CONFIG, attention_direction="right_to_left")
MASK = (np.arange(7) < np.array([7, 3, 1, 5])[:, np.newaxis]).astype(np.int32)
LABELS = {"labels": ["a", "b", "c"]}


def _frozen_features():
    encoder = FeatureEncoder(BertEncoder(CONFIG, 0), ["sum_all", "-2"], 1, 0)
    return task_models.BertTagger(encoder, **LABELS)


MODELS = {
    "classifier": lambda: task_models.BertClassifier(CONFIG, seed=0, **LABELS),
    "left-to-right classifier": lambda: task_models.BertClassifier(LEFT_TO_RIGHT, seed=0, **LABELS),
    "tagger": lambda: task_models.BertTagger(CONFIG, seed=0, **LABELS),
    "right-to-left tagger": lambda: task_models.BertTagger(RIGHT_TO_LEFT, seed=0, **LABELS),
    "frozen features": _frozen_features,
    "bilstm": lambda: task_models.BertRegressor(replace(CONFIG, feature_lstm_layers=1), seed=0),
    "span": lambda: task_models.BertSpanClassifier(CONFIG, seed=0),
    "choice": lambda: task_models.BertChooser(CONFIG, seed=0),
    "pre-training": lambda: BertPreTrainer(CONFIG, seed=0),
}


def randomize(model, seed=7):
    """Weights that no formula can get right by their being 0 or 1."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(random.normal(size=variable.shape) * 0.5)
    return model


def batch(kind="encoder", mask=MASK):
    random = np.random.default_rng(3)
    mask = mask.reshape(2, -1, mask.shape[-1]) if kind == "choice" else mask
    drawn = {"token_ids": random.integers(0, 13, mask.shape), "padding_mask": mask}
    drawn["segment_ids"] = random.integers(0, 2, mask.shape)
    if kind == "pre-training":
        drawn["mask_positions"] = np.array([[6, 1], [2, 0], [0, 0], [4, 3]])
    return {name: tf.constant(x, tf.int32) for name, x in drawn.items()}


def by_keras_ops(model):
    """Functions that are traced within it compute all positions by keras.ops."""
    return kernels_of(model, lambda usual: Kernels(usual.training))
