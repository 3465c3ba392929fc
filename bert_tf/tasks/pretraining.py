"""Pre-training: masked language model and next sentence prediction (paper, section 3.1)."""

import functools
import hashlib
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.errors import InputError
from bert_tf.models.config import BertConfig
from bert_tf.models.cost import pretraining_flops
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.compilation import compile_model, set_precision, start_strategy
from bert_tf.tasks.masked_words import SENTENCES, MaskedWordLog, MaskedWords
from bert_tf.tasks.options import PretrainingOptions, save_config
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.loop import TrainingPlan, TrainingResult, train
from bert_tf.training.monitoring import Histograms, Profile
from bert_tf.training.peak import strategy_peak
from bert_tf.training.state import TrainingState
from bert_tf.training.strategy import (
    check_batch_size,
    check_jit_compile,
    distribute_batches,
    share_batches,
)
from bert_tf.training.trainer import accuracy, cross_entropy
from bert_tf.training.workers import hold_run_directory, is_chief, lost_worker_errors
from pipelines.manifest import FILE_NAME as MANIFEST
from pipelines.pretraining_batches import pretraining_batches
from pipelines.shard_folder import (
    ShardFolder,
    open_shards,
    shard_errors,
    tokenizer_of_shards,
)

# The paper's section A.2 warms up over 10,000 steps; a short run over a tenth of its own.
_LONGEST_WARMUP = 10_000

SCALAR_NAMES = {
    "mlm_logits_loss": "mlm_loss",
    "nsp_logits_loss": "nsp_loss",
    "mlm_logits_accuracy": "mlm_accuracy",
    "nsp_logits_accuracy": "nsp_accuracy",
}


def _config(options: PretrainingOptions, tokenizer: BertTokenizer) -> BertConfig:
    """The config of a new model."""
    size = options.size
    if size.endswith(".json"):
        config = BertConfig.from_json(size)
        if config.vocab_size != tokenizer.vocabulary_size:
            raise InputError(
                f"{size} has vocab_size {config.vocab_size}, the tokenizer "
                f"{tokenizer.vocabulary_size} entries: make them equal"
            )
    else:
        config = BertConfig.named(
            size, vocab_size=tokenizer.vocabulary_size, pad_token_id=tokenizer.pad_token_id
        )
    if options.initializer_range is not None:
        config = replace(config, initializer_range=options.initializer_range)
    return config


def _dropout(options: PretrainingOptions) -> dict[str, Any]:
    """What the options change in the config of a new or a loaded model."""
    if options.dropout is None:
        return {}
    return {
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": options.dropout,
    }


@lost_worker_errors()
def pretrain(
    options: PretrainingOptions,
    report: Callable[[int, str, dict[str, float]], None],
    left_out: Callable[[str, int], None] = lambda shard, records: None,
    notice: Callable[[str], object] = warnings.warn,
) -> TrainingResult:
    """Pre-trains a BERT on shards; the run directory is `options.output`.

    The loss is the mean over the masked positions plus, where instances are pairs, the mean over
    the next-sentence labels. Without pairs the pooler and the next-sentence head are not trained.

    Args:
        options: of the run.
        report: called with (step, "train" or "held_out", scalars) for each line logged.
        left_out: called with (path, records) for each shard that has corrupt records, which are
            not read.
        notice: called with a line about what the user should know and need not do anything about,
            a damaged checkpoint for one.

    Raises:
        InputError: the shards, the model or the options cannot be used; the message says why.
        Preempted: see `train`; or another worker of the run has gone.
    """
    # First of all: several workers have to meet before TensorFlow runs an op.
    strategy = start_strategy(options)
    check_batch_size(options.batch_size, strategy, options.gradient_accumulation_steps)
    check_jit_compile(options.jit_compile, strategy)
    train_shards, held_out_shards = (
        open_shards(options.shards, split, skip_corrupt=options.skip_corrupt)
        for split in ("train", "held_out")
    )
    if train_shards is None:
        raise InputError(f"{options.shards}: has no training shards; make them again")
    tokenizer = tokenizer_of_shards(options.shards, options.tokenizer)
    set_precision(options.precision)
    keras.utils.set_random_seed(options.seed)
    batches = functools.partial(
        pretraining_batches,
        vocabulary_hash=tokenizer.vocabulary_hash,
        tokenizer=tokenizer,
        masked_lm_prob=options.masked_lm_prob,
        whole_word_masking=options.whole_word_masking,
        max_ngram=options.max_ngram,
    )

    def train_batches(step: int) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        return distribute_batches(
            lambda batch_size, worker, num_workers: batches(
                train_shards,
                batch_size,
                worker=worker,
                num_workers=num_workers,
                start_step=step,
                seed=options.seed,
                data_service=options.data_service,
            ),
            strategy,
            options.batch_size,
        )

    train_batches(0)  # fails on what it cannot do before anything is written
    held_out = None
    if held_out_shards is not None:
        held_out = batches(held_out_shards, options.batch_size, shuffle=False, repeat=False)
        assert held_out is not None  # as it has shards
        held_out = share_batches(
            held_out.take(options.evaluation_batches), strategy, options.batch_size
        )
    for shards in (train_shards, held_out_shards) if is_chief(strategy) else ():
        for shard, records in shards.left_out.items() if shards else ():
            left_out(shard, records)
    warmup = options.warmup_steps
    if warmup is None:
        warmup = min(_LONGEST_WARMUP, options.steps // 10)
    with strategy.scope():
        if options.model:
            model = load_model(
                options.model,
                BertPreTrainer,
                allow_new_head=True,
                seed=options.seed,
                **_dropout(options),
            )
        else:
            config = replace(_config(options, tokenizer), **_dropout(options))
            model = BertPreTrainer(config, seed=options.seed)
        # Means over the masked words of the batch, not over the padded slots: the weights are
        # the original's masked_lm_weights.
        losses = {"mlm_logits": cross_entropy}
        if train_shards.has_next_sentences:
            losses["nsp_logits"] = cross_entropy
        else:  # weight decay is not to act on what no gradient reaches
            model.encoder.pooler.trainable = model.next_sentence.trainable = False
        trainer = compile_model(
            model,
            options,
            total_steps=options.steps,
            warmup_steps=warmup,
            loss=losses,
            metrics={name: {"accuracy": accuracy} for name in losses},
        )
    manifest = Path(options.shards) / MANIFEST
    settings = {
        "config": model.encoder.config.to_dict(),
        "data": hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else "",
        "vocabulary": tokenizer.vocabulary_hash,
        **{
            name: getattr(options, name)
            for name in (
                "batch_size", "seed", "precision", "steps", "learning_rate",
                "warmup_steps", "weight_decay", "clip_norm", "evaluate_every",
                "masked_lm_prob", "whole_word_masking", "max_ngram", "optimizer",
                "gradient_accumulation_steps", "freeze_layers",
            )
        },
        # In the last bits of sums it is another run.
        **({"deterministic": True} if options.deterministic else {}),
    }  # fmt: skip
    state = TrainingState(
        trainer,
        Path(options.output) / "checkpoints",
        settings=settings,
        keep=options.keep,
        keep_every=options.keep_every,
        notice=notice if is_chief(strategy) else lambda line: None,
    )
    with hold_run_directory(options.output, strategy), shard_errors(options.shards):
        state.restore(override=options.override)
        if is_chief(strategy):
            save_config(options, options.output)
        return train(
            trainer,
            train_batches,
            held_out,
            state=state,
            directory=options.output,
            plan=TrainingPlan(
                batch_size=options.batch_size,
                total_steps=options.steps,
                evaluate_every=options.evaluate_every,
                save_every=options.save_every,
                log_every=options.log_every,
                monitor="val_loss",
                larger_is_better=False,
                scalar_names=SCALAR_NAMES,
                skip_nonfinite=options.skip_nonfinite,
                rates=_rates(model, train_shards, strategy),
            ),
            save_model=lambda directory: save_model(model, directory, tokenizer=tokenizer),
            report=report,
            callbacks=_watchers(options, model, tokenizer, state, batches(train_shards, 8))
            if is_chief(strategy)
            else (),
        )


def _rates(
    model: BertPreTrainer, shards: ShardFolder, strategy: tf.distribute.Strategy
) -> dict[str, float]:
    """What an example a second is in tokens a second, padding apart, and of the machine's peak."""
    tokens: float = shards.max_seq_length
    if shards.manifest is not None:
        tokens = shards.manifest.statistics[shards.split]["length_mean"]
    rates = {"tokens_per_second": tokens}
    flops = pretraining_flops(
        model.encoder.config,
        instances=1,
        length=shards.max_seq_length,
        predictions=shards.max_predictions_per_seq,
    )
    peak = strategy_peak(strategy, model.encoder.compute_dtype)
    if peak is not None:
        rates["share_of_peak"] = flops / peak
    return rates


def _watchers(
    options: PretrainingOptions,
    model: BertPreTrainer,
    tokenizer: BertTokenizer,
    state: TrainingState,
    batches: tf.data.Dataset,
) -> list[keras.callbacks.Callback]:
    """What else TensorBoard is to show."""
    logs = Path(options.output) / "logs"
    words = MaskedWords(model, tokenizer, options.watch_text or SENTENCES)
    watchers: list[keras.callbacks.Callback] = [MaskedWordLog(logs, state, words)]
    if options.histograms_every is not None:
        inputs, *_ = next(iter(batches))
        inputs.pop("mask_positions")

        def activations() -> dict[str, tf.Tensor]:
            states = model.encoder(inputs, training=False)["hidden_states"]
            return {f"hidden_state_{layer}": values for layer, values in enumerate(states)}

        watchers.append(
            Histograms(
                logs, state, every=options.histograms_every, weights=model, activations=activations
            )
        )
    if options.profile is not None:
        first, last = _steps_to_profile(options.profile)
        watchers.append(Profile(logs, state, first, last))
    return watchers


def _steps_to_profile(given: str) -> tuple[int, int]:
    parsed = re.fullmatch(r"(\d+):(\d+)", given)
    if parsed is None or not 1 <= int(parsed[1]) <= int(parsed[2]):
        raise InputError(f"--profile {given!r} is not FIRST:LAST; give steps such as 10:20")
    return int(parsed[1]), int(parsed[2])
