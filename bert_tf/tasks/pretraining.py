"""Pre-training: masked language model and next sentence prediction (paper, section 3.1)."""

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras

from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.cost import pretraining_flops
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.options import PretrainingOptions, save_config
from bert_tf.tasks.pretraining_data import PhaseShards, PretrainingData
from bert_tf.tasks.training_setup import (
    compile_model,
    set_precision,
    start_strategy,
    training_state,
)
from bert_tf.tasks.watching import pretraining_watchers, rates
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.loop import (
    Phase,
    TrainingPlan,
    TrainingResult,
    check_steps_per_execution,
    train,
)
from bert_tf.training.means import accuracy, cross_entropy
from bert_tf.training.strategy import check_batch_size
from bert_tf.training.trainer import Trainer
from bert_tf.training.workers import hold_run_directory, is_chief, lost_worker_errors
from pipelines.shards.folder import shard_errors

# The paper's section A.2 warms up over 10,000 steps; a short run over a tenth of its own.
_LONGEST_WARMUP = 10_000

SCALAR_NAMES = {
    "mlm_logits_loss": "mlm_loss",
    "nsp_logits_loss": "nsp_loss",
    "mlm_logits_accuracy": "mlm_accuracy",
    "nsp_logits_accuracy": "nsp_accuracy",
}


def _model(options: PretrainingOptions, tokenizer: BertTokenizer) -> BertPreTrainer:
    """A new model, or the one to start from."""
    changed: dict[str, Any] = {}
    if options.dropout is not None:
        changed |= dict.fromkeys(
            ("hidden_dropout_prob", "attention_probs_dropout_prob"), options.dropout
        )
    if options.model:
        return load_model(
            options.model, BertPreTrainer, allow_new_head=True, seed=options.seed, **changed
        )
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
        changed["initializer_range"] = options.initializer_range
    return BertPreTrainer(replace(config, **changed), seed=options.seed)


def _compile(
    model: BertPreTrainer, options: PretrainingOptions, data: PretrainingData, warmup_steps: int
) -> Trainer:
    # Means over the masked words of the batch, not over the padded slots: the weights are the
    # original's masked_lm_weights.
    losses = {"mlm_logits": cross_entropy}
    if data.has_next_sentences:
        losses["nsp_logits"] = cross_entropy
    else:  # weight decay is not to act on what no gradient reaches
        model.encoder.pooler.trainable = model.next_sentence.trainable = False
    return compile_model(
        model,
        options,
        total_steps=options.steps,
        warmup_steps=warmup_steps,
        loss=losses,
        metrics={name: {"accuracy": accuracy} for name in losses},
    )


def _settings(
    model: BertPreTrainer, options: PretrainingOptions, data: PretrainingData
) -> dict[str, Any]:
    """What must not change between a run and its continuation, beside `training_state`'s."""
    fingerprint, *long_fingerprint = data.fingerprints
    settings: dict[str, Any] = {
        "config": model.encoder.config.to_dict(),
        "data": fingerprint,
        "vocabulary": data.tokenizer.vocabulary_hash,
        **{
            name: getattr(options, name)
            for name in (
                "steps", "warmup_steps", "evaluate_every",
                "masked_lm_prob", "whole_word_masking", "max_ngram",
            )
        },
    }  # fmt: skip
    if long_fingerprint:
        settings["long"] = {
            "data": long_fingerprint[0],
            "share": options.long_share,
            "gradient_accumulation_steps": options.long_gradient_accumulation_steps,
        }
    return settings


def _flops(model: BertPreTrainer, phase: PhaseShards) -> float:
    """What an instance costs, as the model does it."""
    return pretraining_flops(
        model.encoder.config,
        instances=1,
        length=phase.train.max_seq_length,
        predictions=phase.train.max_predictions_per_seq,
    )


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
    data = PretrainingData(options)
    for phase in data.phases:
        check_batch_size(options.batch_size, strategy, phase.gradient_accumulation_steps)
    check_steps_per_execution(
        options.steps_per_execution, options.evaluate_every, [phase.until for phase in data.phases]
    )
    set_precision(options.precision)
    keras.utils.set_random_seed(options.seed)
    for phase in data.phases:  # fails on what it cannot do before anything is written
        data.train_batches(phase, strategy, 0)
    if is_chief(strategy):
        for shard, records in data.left_out.items():
            left_out(shard, records)
    warmup_steps = options.warmup_steps
    if warmup_steps is None:
        warmup_steps = min(_LONGEST_WARMUP, options.steps // 10)
    with strategy.scope():
        model = _model(options, data.tokenizer)
        data.check_fits(model.encoder.config)
        trainer = _compile(model, options, data, warmup_steps)
    state = training_state(trainer, options, _settings(model, options, data), notice)
    watchers = pretraining_watchers(
        options, model, data.tokenizer, state, data.watched_batches, warmup_steps=warmup_steps
    )
    phases = [
        Phase(
            until=phase.until,
            batches=functools.partial(data.train_batches, phase, strategy),
            held_out=data.held_out_batches(phase, strategy),
            rates=rates(
                strategy,
                model.encoder.compute_dtype,
                tokens=phase.mean_tokens,
                flops=_flops(model, phase),
            ),
            cost=_flops(model, phase),
            begin=functools.partial(
                trainer.accumulate_gradients, phase.gradient_accumulation_steps
            ),
        )
        for phase in data.phases
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_run_directory(options.output, strategy))
        for directory in data.directories:
            stack.enter_context(shard_errors(directory))
        state.restore(override=options.override)
        if is_chief(strategy):
            save_config(options, options.output)
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
            save_model=lambda directory: save_model(model, directory, tokenizer=data.tokenizer),
            report=report,
            callbacks=watchers,
        )
