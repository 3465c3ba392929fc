"""What a plan would cost: time, from a few measured steps, and space on the disk."""

import math
from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.experiments.data_runs import Documentation, Shards
from bert_tf.experiments.plan import BYTES_PER_TOKEN
from bert_tf.experiments.run import Run
from bert_tf.experiments.training_runs import Finetuning, Pretraining
from bert_tf.finetuning.finetune import feature_settings
from bert_tf.fused.devices import device_type
from bert_tf.fused.training import fuse
from bert_tf.layers.lstm import new_lstm
from bert_tf.models.cost import classification_flops, lstm_flops, pretraining_flops
from bert_tf.models.feature_encoder import lstm_units
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.pretraining.data import DIRECTIONS
from bert_tf.pretraining.options import PretrainingOptions
from bert_tf.tasks.kinds.regression import squared_error
from bert_tf.tasks.table import find_task, with_options
from bert_tf.training.dry_run import step_seconds
from bert_tf.training.means import cross_entropy
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.run import Run as TrainingRun
from bert_tf.training.trainer import Trainer

# A step is measured with at most so many layers and tokens, and scaled to the whole by its
# floating-point operations: a step of a large model can take minutes.
_MEASURED_LAYERS = 2
_MEASURED_TOKENS = 4096
_LSTM_STEP = 32, 32  # examples, tokens

# Seconds that every fine-tuning takes beside its steps: loading, tracing, evaluations.
_FINETUNING_SECONDS = 15.0
_TEXT_BYTES_PER_SECOND = {"Vocabulary": 1.5e6, "Shards": 1e6, "Documentation": 3e5}
_INSTANCE_BYTES = 3.5  # of shards with dynamic masks, per token
_BYTES_PER_PARAMETER = {"weights": 4, "checkpoint": 12}  # Adam has two means of each weight
_BLOCK_PARAMETERS = 12  # times the squared width


class Estimate:
    """Times and sizes of runs.

    Args:
        text_bytes: approximate bytes of text to pre-train on.
        vocabulary_size: pieces.
        notice: called with a line before each measurement.
    """

    def __init__(
        self,
        text_bytes: int,
        vocabulary_size: int,
        notice: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._text_bytes = text_bytes
        self._vocabulary_size = vocabulary_size
        self._notice = notice
        self._rates: dict[tuple, float] = {}  # FLOP/s of encoders, measured so far
        self._lstm_rates: dict[tuple, float] = {}

    def steps(self, run: Run) -> int:
        """Training steps of a run."""
        if isinstance(run, Pretraining):
            return run.options.steps
        if isinstance(run, Finetuning):
            options = run.options
            examples = self._examples(run)
            steps = -(-examples // options.batch_size[0]) * options.epochs[0]
            return min(steps, options.max_steps or steps) * _runs(run)
        return 0

    def seconds(self, run: Run) -> float:
        """Time of a run on this machine, from its start."""
        if isinstance(run, Pretraining):
            return self._duration(run, *self._flops(run))
        if isinstance(run, Finetuning):
            options = run.options
            features = feature_settings(options, find_task(run.data.task).kind)
            config = replace(_config(run.pretraining, self._vocabulary_size), **features)
            length = (options.max_length or 128) / 2
            examples = self.steps(run) * options.batch_size[0]
            flops = examples * classification_flops(config, length=length, classes=2)
            in_lstms = examples * lstm_flops(config, length=length)
            seconds = self._duration(run.pretraining, flops, in_lstms, lstm_units(config))
            return seconds + _runs(run) * _FINETUNING_SECONDS
        return self._text_bytes / _TEXT_BYTES_PER_SECOND[type(run).__name__]

    def bytes(self, run: Run) -> float:
        """Largest space on the disk that a run takes."""
        if isinstance(run, Documentation):
            return self._text_bytes
        if isinstance(run, Shards):
            passes = run.options[0].dupe_factor * len(run.options)
            return self._text_bytes / BYTES_PER_TOKEN * _INSTANCE_BYTES * passes
        if not isinstance(run, Pretraining | Finetuning):
            return 0.0
        pretraining = run if isinstance(run, Pretraining) else run.pretraining
        config = _config(pretraining, self._vocabulary_size)
        width, layers = config.hidden_size, config.num_hidden_layers
        parameters = _BLOCK_PARAMETERS * layers * width**2 + width * (config.vocab_size + 512)
        models, checkpoints = 3, 2
        if run is pretraining and run.options.keep_every:
            kept = run.options.steps // run.options.keep_every
            models, checkpoints = 2 + kept, 2 + kept
        return parameters * (
            models * _BYTES_PER_PARAMETER["weights"]
            + checkpoints * _BYTES_PER_PARAMETER["checkpoint"]
        )

    def _examples(self, run: Finetuning) -> int:
        if run.data.run:
            return 1280
        task = with_options(find_task(run.data.task), vars(run.options))
        return len(task.read(run.data.train, "train"))

    def _flops(self, run: Pretraining) -> tuple[float, float, int]:
        """Floating-point operations of all steps, of short sequences and long ones.

        Returns:
            All, those in LSTM layers, and the units of these.
        """
        config, options = _config(run, self._vocabulary_size), run.options
        flops = in_lstms = 0.0
        shares = [1.0] if len(run.shards.options) == 1 else [0.9, 0.1]
        for share, shards in zip(shares, run.shards.options, strict=True):
            length, batch = shards.max_seq_length, round(options.mean_batch_size)
            flops += share * options.steps * _step_flops(options, config, length, batch)
            in_lstms += share * options.steps * batch * lstm_flops(config, length=length)
        return flops, in_lstms, config.hidden_size

    def _duration(self, run: Pretraining, flops: float, in_lstms: float, units: int) -> float:
        """Seconds of so many floating-point operations, some of them in LSTM layers."""
        seconds = (flops - in_lstms) / self._rate(run)
        return seconds + in_lstms / self._lstm_rate(units, run.options) if in_lstms else seconds

    def _lstm_rate(self, units: int, options: PretrainingOptions) -> float:
        """Floating-point operations per second of a training step of a bidirectional LSTM."""
        key = (units, options.precision)
        if key not in self._lstm_rates:
            self._notice(f"measuring an LSTM of {units} units")
            self._lstm_rates[key] = _measured_lstm_rate(units, options)
        return self._lstm_rates[key]

    def _rate(self, run: Pretraining) -> float:
        """Floating-point operations per second of a short step."""
        config = _config(run, self._vocabulary_size)
        length, options = run.shards.options[0].max_seq_length, run.options
        batch = max(1, min(options.batch_size, _MEASURED_TOKENS // length))
        layers = min(config.num_hidden_layers, _MEASURED_LAYERS)
        config = replace(config, num_hidden_layers=layers, attention_direction="both")
        predictions = _predictions(options, length)
        key = (layers, config.hidden_size, config.num_attention_heads, batch, length, predictions,
               options.precision)  # fmt: skip
        if key not in self._rates:
            self._notice(
                f"measuring a step of {batch} x {length} tokens, {layers} layer(s) "
                f"{config.hidden_size} wide"
            )
            flops = _step_flops(options, config, length, batch)
            self._rates[key] = flops / _measured(options, config, length, batch)
        return self._rates[key]


def _runs(run: Finetuning) -> int:
    """Fine-tunings of a run: every rate with one seed, and the further seeds of one."""
    return len(run.options.rates) + run.options.seeds - 1


def _config(run: Pretraining, vocabulary_size: int) -> BertConfig:
    options, dropout = run.options, run.options.dropout
    rates = {} if dropout is None else {
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout
    }  # fmt: skip
    return BertConfig.named(
        options.size or "small",
        vocab_size=vocabulary_size,
        attention_direction=DIRECTIONS.get(options.objective or "", "both"),
        **rates,
    )


def _predictions(options: PretrainingOptions, length: int) -> int:
    """Predicted positions of an instance: all of a language model of one direction."""
    share = 1 if options.objective in DIRECTIONS else options.masked_lm_prob or 0.15
    return math.ceil(share * length - 1e-9)  # 0.15 * 20 is a little more than 3 in floats


def _step_flops(
    options: PretrainingOptions, config: BertConfig, length: int, instances: int
) -> float:
    return pretraining_flops(
        config, instances=instances, length=length, predictions=_predictions(options, length)
    )


def _measured(options: PretrainingOptions, config: BertConfig, length: int, batch: int) -> float:
    """Seconds of a step on tokens drawn at random."""
    predictions = _predictions(options, length)
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
    weights = {name: np.ones(each.shape, np.float32) for name, each in labels.items()}
    inputs = {name: each.astype(np.int32) for name, each in inputs.items()}
    labels = {name: each.astype(np.int32) for name, each in labels.items()}
    with TrainingRun("unused", precision=options.precision) as run:
        with run.strategy.scope():
            model = BertPreTrainer(config, seed=0)
        if device_type(run.strategy) == "CPU":
            fuse(model)
        with run.strategy.scope():
            losses = {"mlm_logits": cross_entropy, "nsp_logits": cross_entropy}
            trainer = Trainer(model, AdamWeightDecay(1e-4), loss=losses)
        batches = tf.data.Dataset.from_tensors((inputs, labels, weights)).repeat()
        return step_seconds(trainer, batches)


def _measured_lstm_rate(units: int, options: PretrainingOptions) -> float:
    """Floating-point operations per second of a step of one bidirectional LSTM, twice as wide."""
    batch, length = _LSTM_STEP
    config = BertConfig(hidden_size=2 * units, num_attention_heads=1, feature_lstm_layers=1)
    states = tf.random.stateless_normal([batch, length, config.hidden_size], [0, 0])
    with TrainingRun("unused", precision=options.precision) as run:
        with run.strategy.scope():
            lstm = keras.layers.Bidirectional(new_lstm(units, 0, None))
            model = keras.Sequential([keras.Input(states.shape[1:]), lstm])
            trainer = Trainer(model, AdamWeightDecay(1e-4), loss=squared_error)
        batches = tf.data.Dataset.from_tensors((states, states)).repeat()
        return batch * lstm_flops(config, length=length) / step_seconds(trainer, batches)
