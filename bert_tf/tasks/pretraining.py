"""Pre-training: masked language model and next sentence prediction (paper, section 3.1)."""

import contextlib
import functools
import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.errors import InputError
from bert_tf.models.config import BertConfig
from bert_tf.models.cost import pretraining_flops
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.compilation import compile_model, set_precision
from bert_tf.tasks.options import PretrainingOptions, save_config
from bert_tf.tasks.watching import pretraining_watchers, rates
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.loop import (
    Phase,
    TrainingPlan,
    TrainingResult,
    check_steps_per_execution,
    train,
)
from bert_tf.training.state import TrainingState
from bert_tf.training.strategy import (
    check_batch_size,
    check_jit_compile,
    distribute_batches,
    make_strategy,
)
from bert_tf.training.trainer import accuracy, cross_entropy
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

# Instances whose activations are shown.
_WATCHED_EXAMPLES = 8

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


@dataclass(frozen=True)
class _PhaseData:
    """The shards of some of the steps.

    Attributes:
        until: the last of these steps.
        train: shards.
        held_out: shards; None where nothing was held out.
        gradient_accumulation_steps: pieces of a device's batch.
    """

    until: int
    train: ShardFolder
    held_out: ShardFolder | None
    gradient_accumulation_steps: int


def _open(options: PretrainingOptions) -> list[_PhaseData]:
    """The data of one phase, or of two: short sequences, then long ones."""
    steps, pieces = [options.steps], [options.gradient_accumulation_steps]
    folders = [options.shards]
    if options.long_shards is not None:
        until = options.steps - round(options.steps * options.long_share)
        if not 0 < until < options.steps:
            raise InputError(
                f"--long_share {options.long_share} of {options.steps} steps leaves none on "
                f"{options.shards if until <= 0 else options.long_shards}: give a share between 0 "
                "and 1, the paper's is 0.1"
            )
        steps.insert(0, until)
        pieces.append(options.long_gradient_accumulation_steps or pieces[0])
        folders.append(options.long_shards)
    data = []
    for folder, until, number in zip(folders, steps, pieces, strict=True):
        train, held_out = (
            open_shards(folder, split, skip_corrupt=options.skip_corrupt)
            for split in ("train", "held_out")
        )
        if train is None:
            raise InputError(f"{folder}: has no training shards; make them again")
        data.append(_PhaseData(until, train, held_out, number))
    if len({phase.train.has_next_sentences for phase in data}) > 1:
        raise InputError(
            f"only one of {options.shards} and {options.long_shards} holds pairs of sentences: "
            "make both with the same --instances"
        )
    return data


def _check_fits(model: BertPreTrainer, options: PretrainingOptions, data: list[_PhaseData]) -> None:
    """Refuses shards with positions the model lacks, or with ids that are other pieces to it."""
    config = model.encoder.config
    for phase in data:
        length, positions = phase.train.max_seq_length, config.max_position_embeddings
        if length > positions:
            raise InputError(
                f"{phase.train.directory} has sequences of {length} tokens, the model {positions} "
                "positions: make shards with a lower --max_seq_length"
            )
    if options.model is None:
        return
    tokenizer = tokenizer_of_shards(options.shards, options.tokenizer)
    differs = tokenizer.vocabulary_size > config.vocab_size
    if (Path(options.model) / "vocab.txt").is_file():
        own = BertTokenizer.from_directory(options.model)
        differs = own.vocabulary_hash != tokenizer.vocabulary_hash
    if differs:
        raise InputError(
            f"{options.shards} was made with another vocabulary than that of {options.model}: make "
            f"shards with bert-tf shards --tokenizer {options.model}"
        )


def _fingerprint(folder: str) -> str:
    """The hash of the manifest of shards; nothing where they have none."""
    manifest = Path(folder) / MANIFEST
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""


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
    """
    # First of all: several workers have to meet before TensorFlow runs an op.
    strategy = make_strategy(options.strategy)
    check_jit_compile(options.jit_compile, strategy)
    data = _open(options)
    for phase in data:
        check_batch_size(options.batch_size, strategy, phase.gradient_accumulation_steps)
    check_steps_per_execution(
        options.steps_per_execution, options.evaluate_every, [phase.until for phase in data]
    )
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

    def train_batches(
        shards: ShardFolder, step: int
    ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        return distribute_batches(
            lambda batch_size, worker, num_workers: batches(
                shards,
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

    def held_out_batches(shards: ShardFolder | None) -> tf.data.Dataset | None:
        if shards is None:
            return None
        dataset = batches(shards, options.batch_size, shuffle=False, repeat=False)
        assert dataset is not None  # as it has shards
        return dataset.take(options.evaluation_batches)

    def watched_batches() -> tf.data.Dataset:
        dataset = batches(data[0].train, _WATCHED_EXAMPLES)
        assert dataset is not None  # as it has shards
        return dataset

    for phase in data:
        train_batches(phase.train, 0)  # fails on what it cannot do before anything is written
        for shards in (phase.train, phase.held_out):
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
        _check_fits(model, options, data)
        # Means over the masked words of the batch, not over the padded slots: the weights are
        # the original's masked_lm_weights.
        losses = {"mlm_logits": cross_entropy}
        if data[0].train.has_next_sentences:
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
    settings = {
        "config": model.encoder.config.to_dict(),
        "data": _fingerprint(options.shards),
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
    }  # fmt: skip
    if options.long_shards is not None:
        settings["long"] = {
            "data": _fingerprint(options.long_shards),
            "share": options.long_share,
            "gradient_accumulation_steps": options.long_gradient_accumulation_steps,
        }
    state = TrainingState(
        trainer,
        Path(options.output) / "checkpoints",
        settings=settings,
        keep=options.keep,
        keep_every=options.keep_every,
        notice=notice,
    )
    watchers = pretraining_watchers(
        options, model, tokenizer, state, watched_batches, warmup_steps=warmup
    )
    state.restore(override=options.override)
    save_config(options, options.output)
    phases = []
    for phase in data:
        phases.append(
            Phase(
                until=phase.until,
                batches=functools.partial(train_batches, phase.train),
                held_out=held_out_batches(phase.held_out),
                rates=rates(
                    strategy,
                    model.encoder.compute_dtype,
                    tokens=_mean_tokens(phase.train),
                    flops=_flops(model, phase.train),
                ),
                cost=_flops(model, phase.train),
                begin=functools.partial(
                    trainer.accumulate_gradients, phase.gradient_accumulation_steps
                ),
            )
        )
    with contextlib.ExitStack() as stack:
        for phase in data:
            stack.enter_context(shard_errors(phase.train.directory))
        return train(
            trainer,
            phases,
            state=state,
            directory=options.output,
            plan=TrainingPlan(
                batch_size=options.batch_size,
                evaluate_every=options.evaluate_every,
                save_every=options.save_every,
                log_every=options.log_every,
                monitor="val_loss",
                larger_is_better=False,
                scalar_names=SCALAR_NAMES,
                skip_nonfinite=options.skip_nonfinite,
            ),
            save_model=lambda directory: save_model(model, directory, tokenizer=tokenizer),
            report=report,
            callbacks=watchers,
        )


def _flops(model: BertPreTrainer, shards: ShardFolder) -> float:
    """What an instance costs, as the model does it."""
    return pretraining_flops(
        model.encoder.config,
        instances=1,
        length=shards.max_seq_length,
        predictions=shards.max_predictions_per_seq,
    )


def _mean_tokens(shards: ShardFolder) -> float:
    """Tokens of an instance, padding apart where the shards tell."""
    if shards.manifest is None:
        return shards.max_seq_length
    return shards.manifest.statistics[shards.split]["length_mean"]
