"""Pre-training: masked words and next sentences (paper, section 3.1), or language models."""

import contextlib
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_tf.checkpoints.formats import content_hash
from bert_tf.checkpoints.model_directory import read_weights
from bert_tf.commands.masked_words import MaskedWordLog, MaskedWords, hide_words
from bert_tf.commands.pretraining_data import PhaseShards, PretrainingData
from bert_tf.commands.pretraining_options import PretrainingOptions
from bert_tf.commands.word_frequencies import METRICS, word_frequency_loss
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.extensions import Architecture
from bert_tf.files.atomic import write_json
from bert_tf.models.cost import pretraining_flops
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.layer_distillation import LayerLoss
from bert_tf.models.loading import about_to_train, load_model, of_trained_model
from bert_tf.models.saving import save_model
from bert_tf.networks.tensorflow.losses import (
    Values,
    accuracy,
    cross_entropy,
    soft_cross_entropy,
)
from bert_tf.pipelines.instances.schemas import row_predictions
from bert_tf.pipelines.shards.folder import shard_errors
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS
from bert_tf.training import distillation
from bert_tf.training.device_speed import strategy_peak
from bert_tf.training.dry_run import dry_run
from bert_tf.training.loop import Phase, TrainingResult, check_steps_per_execution
from bert_tf.training.monitoring import ProjectorLog
from bert_tf.training.run import Run
from bert_tf.training.strategy import check_batch_size
from bert_tf.training.training_options import dropout_settings, save_config
from bert_tf.training.watcher import Watcher

_WATCHED_OPTIONS = (  # beside the identity of a run, what TensorBoard tells runs apart by
    "model",
    "shards",
    "long_shards",
    "long_share",
    "size",
    "dropout",
    "initializer_range",
)


def _model(options: PretrainingOptions, data: PretrainingData) -> Any:
    direction, tokenizer = data.architecture.direction, data.tokenizer
    changed = {"attention_direction": direction, **dropout_settings(options.dropout)}
    model_class = data.architecture.pretraining_class() or BertPreTrainer
    if options.model:
        return load_model(
            options.model, model_class, allow_new_head=True, seed=options.seed, **changed
        )
    if options.initializer_range is not None:
        changed["initializer_range"] = options.initializer_range
    size, entries = options.size or "small", tokenizer.vocabulary_size
    if not size.endswith(".json"):
        config = BertConfig.named(size, vocab_size=entries, pad_token_id=tokenizer.pad_token_id)
    elif (config := BertConfig.from_json(size)).vocab_size != entries:
        raise InputError(
            f"{size} has vocab_size {config.vocab_size}, the tokenizer {entries} entries: make "
            "them equal"
        )
    return model_class(replace(config, **changed), seed=options.seed)


def _teacher(directory: str, student: Any, data: PretrainingData) -> Any:
    """The model to learn from; refuses one that tokenizes otherwise or lacks a head."""
    distillation.check_teacher_tokenizer(
        directory, BertTokenizer.from_directory(directory), data.tokenizer
    )
    is_of_words = data.predicted == ["mlm"]  # then no head of next sentences is needed
    if is_of_words and not read_weights(Path(directory)).has("cls.predictions."):
        raise InputError(f"the teacher {directory} predicts no masked words: give one that does")
    with of_trained_model("the teacher "):
        model = load_model(directory, type(student), allow_new_head=is_of_words)
    data.check_fits(model.encoder.config)
    return model


def run_pretraining(
    options: PretrainingOptions, watcher: Watcher | None = None
) -> TrainingResult | None:
    """Pre-trains a BERT on shards; the run directory is `options.output`.

    The loss is the mean over the words to predict plus, for the objective mlm+nsp, the mean over
    the next-sentence labels. Without these the pooler and the next-sentence head are not trained.
    Returns None for a dry run. Raises InputError if the shards, the model or the options cannot be
    used, Preempted if the run was stopped or another worker has gone.
    """
    inputs = [
        options.shards,
        *options.mixed,
        options.long_shards,
        options.model,
        options.tokenizer,
        options.teacher,
    ]
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(Run(options, watcher, inputs))
        data = PretrainingData(options)
        stack.enter_context(shard_errors(*(x for phase in data.phases for x in phase.opened)))
        return _pretrain(run, data, options)


def _pretrain(
    run: Run, data: PretrainingData, options: PretrainingOptions
) -> TrainingResult | None:
    for phase in data.phases:  # fails on what it cannot do before anything is written
        check_batch_size(phase.batch_size, run.strategy, phase.gradient_accumulation_steps)
        data.train_batches(phase, run.strategy, 0)
        data.check_token_ids(phase)
    check_steps_per_execution(
        options.steps_per_execution, options.evaluate_every, [phase.until for phase in data.phases]
    )
    run.notice(f"{run.devices}: {data.summary}")
    for phase in data.phases:
        for shard, records in phase.left_out.items():
            run.notice(f"skipping {records} record(s) of {shard}: blocks that hold corrupt ones")
        for shards in (phase.train, *(mixed for mixed, _ in phase.mixed)):
            if shards.manifest.unknown_tokens:
                run.notice(f"{shards.directory}: {shards.manifest.unknown_tokens}")
    warmup_steps: int = options.implied()["warmup_steps"]
    if options.warmup_steps is not None:
        warmup_steps = options.warmup_steps
    with run.strategy.scope(), about_to_train():
        model = _model(options, data)
    data.check_fits(model.encoder.config)
    if "nsp" not in data.predicted:  # nothing trains these: weight decay must leave them alone, too
        for encoder in model.encoder.towers():
            if isinstance(encoder, BertEncoder):
                encoder.pooler.trainable = False
        if isinstance(model, BertPreTrainer):
            model.next_sentence.trainable = False
    settings: dict[str, Any] = {
        "config": model.encoder.config.to_dict(),
        "data": data.phases[0].fingerprint,
        "tokenizer": {"vocabulary": data.tokenizer.vocabulary_hash, **data.tokenizer.settings},
    }
    if options.model is not None:
        settings["model_content"] = content_hash(options.model)
    if options.long_shards is not None:
        settings["long"] = {"data": data.phases[1].fingerprint, "share": options.long_share}
    outputs = [f"{name}_logits" for name in data.predicted]
    trained: Any = model
    loss: Values = cross_entropy
    metric: Values = accuracy
    if options.teacher is not None:
        with run.strategy.scope():
            teacher, layers = _teacher(options.teacher, model, data), None
            if options.teacher_layers is not None:
                layers = LayerLoss(options.teacher_layers, model, teacher)
            trained, loss = distillation.taught_by(
                options, model, teacher, cross_entropy, soft_cross_entropy, layers=layers
            )
        metric = distillation.student_metric(accuracy)
        settings["teacher_content"] = content_hash(options.teacher)
    run.make_trainer(
        trained,
        learning_rate=options.learning_rate,
        total_steps=options.steps,
        warmup_steps=warmup_steps,
        loss=dict.fromkeys(outputs, loss),
        metrics={name: {"accuracy": metric} for name in outputs},
        settings=settings,
        examples=data.watched_batches,
        values={
            **{name: getattr(options, name) for name in _WATCHED_OPTIONS},
            "warmup_steps": warmup_steps,
        },
        score="best_loss",
        fixed_shapes=True,
    )
    sample = data.held_out_sample(data.phases[-1]) if run.is_chief else None
    texts = options.watch_text or hide_words(sample or [], data.tokenizer)
    if texts:
        run.watch(MaskedWordLog(run.state, run.logs, MaskedWords(model, data.tokenizer, texts)))
    first, *_ = model.encoder.towers()  # the projector shows one table
    table, pieces = first.embeddings.word_embeddings.embeddings, data.tokenizer.vocabulary
    columns = {"piece": pieces, "id": range(len(pieces)), "kind": [_kind(p) for p in pieces]}
    run.watch(ProjectorLog(run.state, run.logs, "word_embeddings", table, columns))
    phases = [_phase(run, model.encoder, data, phase) for phase in data.phases]
    if options.dry_run:
        for line in dry_run(run.trainer, phases):
            run.notice(line)
        return None

    scores = _HeldOutScores(word_frequency_loss(sample or []))
    run.watch(scores)

    def save(directory: Path) -> None:
        save_model(model, directory, tokenizer=data.tokenizer)
        if directory.name == "best":
            write_json(directory / METRICS, scores.latest)

    run.open()
    if run.is_chief:
        save_config(options, run.directory)
    return run.train(
        phases,
        evaluate_every=options.evaluate_every,
        best_by="loss",
        larger_is_better=False,
        scalar_names={
            f"{name}_logits_{score}": f"{name}_{score}"
            for name in data.predicted
            for score in ("loss", "accuracy")
        },
        save_model=save,
    )


class _HeldOutScores(Watcher):
    """The latest held-out scores, and the loss of word frequencies to compare them with."""

    def __init__(self, word_frequency_loss: float) -> None:
        self.latest: dict[str, float] = {"word_frequency_loss": word_frequency_loss}

    def logged(self, step: int, kind: str, scalars: dict[str, float]) -> None:
        if kind == "held_out":
            self.latest.update(scalars, step=step)


def _kind(piece: str) -> str:
    """What the projector colours a piece by."""
    if piece in SPECIAL_TOKENS:
        return "special"
    if re.fullmatch(r"\[unused\d+\]", piece):  # the spare entries of the published vocabularies
        return "unused"
    return "continuation" if piece.startswith("##") and piece != "##" else "word"


def _phase(run: Run, encoder: Any, data: PretrainingData, phase: PhaseShards) -> Phase:
    shards = phase.train
    length = shards.options.max_seq_length
    places = row_predictions(shards.options) if data.architecture is Architecture else length
    flops = pretraining_flops(encoder.config, instances=1, length=length, predictions=places)
    return Phase(
        until=phase.until,
        batch_size=phase.batch_size,
        batches=functools.partial(data.train_batches, phase, run.strategy),
        first_batch=phase.first_batch,
        held_out=data.held_out_batches(phase, run.strategy),
        tokens=phase.mean_tokens,
        flops=flops,
        peak=strategy_peak(run.strategy, encoder.compute_dtype),
        cost=flops * phase.batch_size,
        gradient_accumulation_steps=phase.gradient_accumulation_steps,
    )
