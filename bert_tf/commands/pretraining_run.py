"""Pre-training: masked words and next sentences (paper, section 3.1), or language models."""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator
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
from bert_tf.models.loading import about_to_train, load_model, requiring_trained_head
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
from bert_tf.training.loop import LOSS, TrainingResult
from bert_tf.training.monitoring import ProjectorLog
from bert_tf.training.phases import Phase, check_steps_per_execution
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
    tokenizer = data.tokenizer
    changed = {
        "attention_direction": data.architecture.direction,
        **dropout_settings(options.dropout),
    }
    model_class = data.architecture.pretraining_class() or BertPreTrainer
    if options.model:
        return load_model(
            options.model, model_class, allow_new_head=True, seed=options.seed, **changed
        )
    if options.initializer_range is not None:
        changed["initializer_range"] = options.initializer_range
    size = options.size or "small"
    entries = tokenizer.vocabulary_size
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
    with requiring_trained_head("the teacher "):
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
        return _Pretraining(run, data, options).result()


class _Pretraining:
    """A pre-training: its model, what the model learns from, and what happens in order."""

    def __init__(self, run: Run, data: PretrainingData, options: PretrainingOptions) -> None:
        self.run = run
        self.data = data
        self.options = options
        self._check_data()
        run.notice(f"{run.devices}: {data.summary}")
        for line in self._remarks():
            run.notice(line)
        with run.strategy.scope(), about_to_train():
            self.model = _model(options, data)
        data.check_fits(self.model.encoder.config)
        if "nsp" not in data.predicted:
            _freeze_pair_layers(self.model)

    def _check_data(self) -> None:
        """Refuses what the run cannot do before anything is written."""
        options = self.options
        for phase in self.data.phases:
            check_batch_size(phase.batch_size, self.run.strategy, phase.gradient_accumulation_steps)
            self.data.train_batches(phase, self.run.strategy, 0)
            self.data.check_token_ids(phase)
        ends = [phase.until for phase in self.data.phases]
        check_steps_per_execution(options.steps_per_execution, options.evaluate_every, ends)

    def _remarks(self) -> Iterator[str]:
        """Sentences on records that are skipped and words that the tokenizer does not know."""
        for phase in self.data.phases:
            for shard, records in phase.left_out.items():
                yield f"skipping {records} record(s) of {shard}: blocks that hold corrupt ones"
            for shards in (phase.train, *(mixed for mixed, _ in phase.mixed)):
                if shards.manifest.unknown_tokens:
                    yield f"{shards.directory}: {shards.manifest.unknown_tokens}"

    def result(self) -> TrainingResult | None:
        """Trains; returns None for a dry run."""
        run = self.run
        self._make_trainer()
        sample = self.data.held_out_sample(self.data.phases[-1]) if run.is_chief else None
        self._watch_words(sample or [])
        phases = [_phase(run, self.model.encoder, self.data, x) for x in self.data.phases]
        if self.options.dry_run:
            for line in dry_run(run.trainer, phases):
                run.notice(line)
            return None
        scores = _HeldOutScores(word_frequency_loss(sample or []))
        run.watch(scores)

        def save(directory: Path) -> None:
            save_model(self.model, directory, tokenizer=self.data.tokenizer)
            if directory.name == "best":
                write_json(directory / METRICS, scores.latest)

        run.open()
        if run.is_chief:
            save_config(self.options, run.directory)
        return run.train(
            phases,
            evaluate_every=self.options.evaluate_every,
            best_by=LOSS,
            scalar_names={
                f"{name}_logits_{score}": f"{name}_{score}"
                for name in self.data.predicted
                for score in ("loss", "accuracy")
            },
            save_model=save,
        )

    def _make_trainer(self) -> None:
        options = self.options
        warmup_steps: int = options.implied()["warmup_steps"]
        if options.warmup_steps is not None:
            warmup_steps = options.warmup_steps
        trained, loss, metric = self._learnt()
        outputs = [f"{name}_logits" for name in self.data.predicted]
        self.run.make_trainer(
            trained,
            learning_rate=options.learning_rate,
            total_steps=options.steps,
            warmup_steps=warmup_steps,
            loss=dict.fromkeys(outputs, loss),
            metrics={name: {"accuracy": metric} for name in outputs},
            settings=self._identity(),
            examples=self.data.watched_batches,
            values={
                **{name: getattr(options, name) for name in _WATCHED_OPTIONS},
                "warmup_steps": warmup_steps,
            },
            score="best_loss",
            fixed_shapes=True,
        )

    def _learnt(self) -> tuple[Any, Values, Values]:
        """The model to train, its loss and its accuracy; with a teacher, a `Taught` and theirs."""
        options = self.options
        if options.teacher is None:
            return self.model, cross_entropy, accuracy
        with self.run.strategy.scope():
            teacher = _teacher(options.teacher, self.model, self.data)
            layers = None
            if options.teacher_layers is not None:
                layers = LayerLoss(options.teacher_layers, self.model, teacher)
            trained, loss = distillation.taught_by(
                options, self.model, teacher, cross_entropy, soft_cross_entropy, layers=layers
            )
        return trained, loss, distillation.student_metric(accuracy)

    def _identity(self) -> dict[str, Any]:
        """What must be the same when the run is resumed, beside its options."""
        options = self.options
        tokenizer = self.data.tokenizer
        identity: dict[str, Any] = {
            "config": self.model.encoder.config.to_dict(),
            "data": self.data.phases[0].fingerprint,
            "tokenizer": {"vocabulary": tokenizer.vocabulary_hash, **tokenizer.settings},
        }
        if options.model is not None:
            identity["model_content"] = content_hash(options.model)
        if options.long_shards is not None:
            long = {"data": self.data.phases[1].fingerprint, "share": options.long_share}
            identity["long"] = long
        if options.teacher is not None:
            identity["teacher_content"] = content_hash(options.teacher)
        return identity

    def _watch_words(self, sample: Iterable[Any]) -> None:
        """Shows guesses of masked words, and the table of word embeddings, in TensorBoard."""
        run = self.run
        tokenizer = self.data.tokenizer
        texts = self.options.watch_text or hide_words(sample, tokenizer)
        if texts:
            masked_words = MaskedWords(self.model, tokenizer, texts)
            run.watch(MaskedWordLog(run.state, run.logs, masked_words))
        first, *_ = self.model.encoder.towers()  # the projector shows one table
        table = first.embeddings.word_embeddings.embeddings
        pieces = tokenizer.vocabulary
        columns = {"piece": pieces, "id": range(len(pieces)), "kind": [_kind(p) for p in pieces]}
        run.watch(ProjectorLog(run.state, run.logs, "word_embeddings", table, columns))


def _freeze_pair_layers(model: Any) -> None:
    """Freezes what only next sentences train: weight decay must leave it alone, too."""
    for encoder in model.encoder.towers():
        if isinstance(encoder, BertEncoder):
            encoder.pooler.trainable = False
    if isinstance(model, BertPreTrainer):
        model.next_sentence.trainable = False


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
