"""Measures training steps of a few layers and tokens, as steps of large models take minutes."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.config import BertConfig
from bert_tf.models.cost import pretraining_flops
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.paper.architectures import DIRECTIONS
from bert_tf.training.dry_run import step_seconds
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.run import Run
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TrainingOptions

_MEASURED_LAYERS = 2
_MEASURED_TOKENS = 4096
LSTM_SPEED = 0.4  # of a Transformer's operations per second: measured 0.2 to 0.6


class StepSpeed:
    """Operations per second of training steps; `notice` gets a line before each measurement."""

    def __init__(self, notice: Callable[[str], object] = lambda line: None) -> None:
        self._notice = notice
        self._measured: dict[tuple, float] = {}

    def pretraining_rate(
        self, options: PretrainingOptions, config: BertConfig, length: int
    ) -> float:
        batch = max(1, min(options.batch_size, _MEASURED_TOKENS // length))
        layers = min(config.num_hidden_layers, _MEASURED_LAYERS)
        config = replace(config, num_hidden_layers=layers, attention_direction="both")
        width = config.hidden_size
        places = predicted_positions(options, length)
        heads = config.num_attention_heads
        precision = options.precision
        key = (layers, width, heads, batch, length, places, precision)
        if key not in self._measured:
            self._notice(
                f"measuring a step of {batch} x {length} tokens, {layers} layer(s) {width} wide"
            )
            seconds = _pretraining_seconds(config, precision, batch, length, places)
            flops = pretraining_flops(config, instances=batch, length=length, predictions=places)
            self._measured[key] = flops / seconds
        return self._measured[key]


def predicted_positions(options: PretrainingOptions, length: int) -> int:
    """Predicted positions of an instance: all of a language model of one direction."""
    share = 1 if options.objective in DIRECTIONS else options.masked_lm_prob or 0.15
    return math.ceil(share * length - 1e-9)  # 0.15 * 20 is a little more than 3 in floats


def _pretraining_seconds(
    config: BertConfig, precision: Any, batch: int, length: int, predictions: int
) -> float:
    draw = np.random.default_rng(0)
    inputs = {
        "token_ids": draw.integers(0, config.vocab_size, (batch, length)),
        "segment_ids": np.zeros((batch, length)),
        "padding_mask": np.ones((batch, length)),
        "mask_positions": np.tile(np.arange(predictions), (batch, 1)),
    }
    labels = {
        "mlm_logits": draw.integers(0, config.vocab_size, (batch, predictions)),
        "nsp_logits": draw.integers(0, 2, batch),
    }
    weights = {name: np.ones(ids.shape, np.float32) for name, ids in labels.items()}
    inputs, labels = keras.tree.map_structure(lambda ids: ids.astype(np.int32), (inputs, labels))
    losses = dict.fromkeys(labels, cross_entropy)
    with (
        tempfile.TemporaryDirectory() as unused,
        Run(TrainingOptions(output=unused, precision=precision)) as run,
    ):
        with run.strategy.scope():
            model = BertPreTrainer(config, seed=0)
            trainer = Trainer(model, AdamWeightDecay(1e-4), loss=losses)
        batches = tf.data.Dataset.from_tensors((inputs, labels, weights)).repeat()
        return step_seconds(trainer, batches)
