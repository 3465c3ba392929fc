"""Pre-training: masked language model and next sentence prediction (paper, section 3.1)."""

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.cost import pretraining_flops
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.options import identity
from bert_tf.tasks.options import PretrainingOptions, save_config, steps_to_profile
from bert_tf.tasks.pretraining_data import PhaseShards, PretrainingData
from bert_tf.tasks.training_setup import make_plan, make_run, prepare
from bert_tf.tasks.watching import rates, watch_pretraining, watch_run
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.loop import Phase, TrainingResult, check_steps_per_execution
from bert_tf.training.means import accuracy, cross_entropy
from bert_tf.training.run import Run
from bert_tf.training.strategy import check_batch_size
from pipelines.shards.folder import shard_errors

# The paper warms up over 10,000 steps (section A.2); a short run over a tenth of its steps.
_LONGEST_WARMUP = 10_000

# Beside the identity of a run, what TensorBoard tells runs apart by.
_WATCHED_OPTIONS = (
    "model", "shards", "long_shards", "long_share", "size", "dropout", "initializer_range",
)  # fmt: skip

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
    size = options.size or "small"
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


def _losses(model: BertPreTrainer, data: PretrainingData) -> dict[str, Any]:
    """The losses by output: means over the masked words, not over the padded slots."""
    losses = {"mlm_logits": cross_entropy}
    if data.has_next_sentences:
        losses["nsp_logits"] = cross_entropy
    else:  # nothing trains these: weight decay must leave them alone, too
        model.encoder.pooler.trainable = model.next_sentence.trainable = False
    return losses


def _settings(
    model: BertPreTrainer, options: PretrainingOptions, data: PretrainingData
) -> dict[str, Any]:
    """What must not change when the run is resumed, beside the options' own identity."""
    fingerprint, *long_fingerprint = data.fingerprints
    settings: dict[str, Any] = {
        "config": model.encoder.config.to_dict(),
        "data": fingerprint,
        "tokenizer": {"vocabulary": data.tokenizer.vocabulary_hash, **data.tokenizer.settings},
    }
    if long_fingerprint:
        settings["long"] = {
            "data": long_fingerprint[0],
            "share": options.long_share,
            "gradient_accumulation_steps": options.long_gradient_accumulation_steps,
        }
    return settings


def _flops(model: BertPreTrainer, phase: PhaseShards) -> float:
    """Floating-point operations of a training step per instance."""
    return pretraining_flops(
        model.encoder.config,
        instances=1,
        length=phase.train.max_seq_length,
        predictions=phase.train.max_predictions_per_seq,
    )


def pretrain(
    options: PretrainingOptions,
    report: Callable[[int, str, dict[str, float]], None],
    left_out: Callable[[str, int], None] = lambda shard, records: None,
    notice: Callable[[str], object] = warnings.warn,
    on_step: Callable[[int], object] = lambda step: None,
) -> TrainingResult:
    """Pre-trains a BERT on shards; the run directory is `options.output`.

    The loss is the mean over the masked positions plus, where instances are pairs, the mean over
    the next-sentence labels. Without pairs the pooler and the next-sentence head are not trained.

    Args:
        options: options of the command.
        report: called with (step, "train" or "held_out", scalars) for each line logged.
        left_out: called with (path, records) for each shard with corrupt records, which are
            skipped.
        notice: called with a line for the user, such as a damaged checkpoint.
        on_step: called with the step after each execution.

    Raises:
        InputError: the shards, the model or the options cannot be used; the message says why.
        Preempted: see `train`; or another worker of the run has gone.
    """
    # First of all: several workers have to connect before TensorFlow runs an op.
    with make_run(options, notice) as run:
        return _pretrain(run, options, report, left_out, on_step)


def _pretrain(
    run: Run,
    options: PretrainingOptions,
    report: Callable[[int, str, dict[str, float]], None],
    left_out: Callable[[str, int], None],
    on_step: Callable[[int], object],
) -> TrainingResult:
    data = PretrainingData(options)
    for phase in data.phases:
        check_batch_size(options.batch_size, run.strategy, phase.gradient_accumulation_steps)
    check_steps_per_execution(
        options.steps_per_execution, options.evaluate_every, [phase.until for phase in data.phases]
    )
    for phase in data.phases:  # fails on what it cannot do before anything is written
        data.train_batches(phase, run.strategy, 0)
    if run.is_chief:
        for shard, records in data.left_out.items():
            left_out(shard, records)
    warmup_steps = options.warmup_steps
    if warmup_steps is None:
        warmup_steps = min(_LONGEST_WARMUP, options.steps // 10)
    with run.strategy.scope():
        model = _model(options, data.tokenizer)
    data.check_fits(model.encoder.config)
    losses = _losses(model, data)
    trainer = prepare(
        run,
        model,
        options,
        total_steps=options.steps,
        warmup_steps=warmup_steps,
        loss=losses,
        metrics={name: {"accuracy": accuracy} for name in losses},
        settings=_settings(model, options, data),
    )
    watch_pretraining(run, model, data.tokenizer, options.watch_text)
    watch_run(
        run,
        model,
        data.watched_batches,
        values={
            **identity(options),
            **{name: getattr(options, name) for name in _WATCHED_OPTIONS},
            "warmup_steps": warmup_steps,
        },
        score="best_loss",
        total_steps=options.steps,
        histograms_every=options.histograms_every,
        profile=steps_to_profile(options.profile),
    )
    phases = [
        Phase(
            until=phase.until,
            batches=functools.partial(data.train_batches, phase, run.strategy),
            held_out=data.held_out_batches(phase, run.strategy),
            rates=rates(
                run.strategy,
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
        for directory in data.directories:
            stack.enter_context(shard_errors(directory))
        run.open(override=options.override)
        if run.is_chief:
            save_config(options, options.output)
        return run.train(
            phases,
            plan=make_plan(
                options,
                evaluate_every=options.evaluate_every,
                best_by="loss",
                larger_is_better=False,
                scalar_names=SCALAR_NAMES,
            ),
            save_model=lambda directory: save_model(model, directory, tokenizer=data.tokenizer),
            report=report,
            on_step=on_step,
        )
