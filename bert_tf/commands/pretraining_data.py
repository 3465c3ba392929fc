"""The data of a pre-training run: shards of one length, or short ones and then long ones."""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_tf.commands.pretraining_options import LATE_SHARE, LONG_SHARE, PretrainingOptions
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.extensions import Architecture, added
from bert_tf.files.model_files import CONFIG
from bert_tf.files.storage import open_folder
from bert_tf.pipelines.shards.folder import ShardFolder, open_shards, tokenizer_of_shards
from bert_tf.pipelines.shards.manifest import FILE_NAME as MANIFEST
from bert_tf.pipelines.shards.pretraining_batches import (
    Masking,
    Share,
    check_token_ids,
    held_out_batches,
    pretraining_batches,
)
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.strategy import Batches, distribute_batches, share_batches

_CHECKED_EXAMPLES = 256  # of shards whose vocabulary is not known
_WATCHED_EXAMPLES = 8  # sample batch for histograms of activations

_SAME_IF_MIXED = (  # options of shards
    "max_seq_length",
    "max_predictions_per_seq",
    "masking",
    "instances",
    "instances_per_row",
)


@dataclass(frozen=True)
class PhaseShards:
    """The shards of one phase, up to the step `until`."""

    until: int
    train: ShardFolder
    held_out: ShardFolder | None
    batch_size: int
    gradient_accumulation_steps: int
    mixed: tuple[tuple[ShardFolder, float], ...] = ()  # further shards, and their shares
    first_batch: int = 0  # where an earlier phase has read the same shards, this one reads on

    @property
    def mean_tokens(self) -> float:
        """Mean tokens per record, without padding if bert-tf counted them."""
        manifest = self.train.manifest
        split = self.train.split
        counted = manifest.statistics[split]
        return counted["length_mean"] * counted["instances"] / manifest.instances(split)

    @property
    def fingerprint(self) -> str:
        """Hash of the manifest, or of the names and sizes of shards without one."""
        fingerprint = _fingerprint(self.train)
        if self.mixed:
            mixed = [(_fingerprint(shards), share) for shards, share in self.mixed]
            fingerprint = hashlib.sha256(json.dumps([fingerprint, mixed]).encode()).hexdigest()
        return fingerprint

    @property
    def opened(self) -> list[ShardFolder]:
        """All that the phase reads."""
        opened = [self.train, self.held_out, *(shards for shards, _ in self.mixed)]
        return [shards for shards in opened if shards is not None]

    @property
    def left_out(self) -> dict[str, int]:
        """Path of a shard -> number of records in its damaged blocks, which are skipped."""
        return {path: n for shards in self.opened for path, n in shards.left_out.items()}


class PretrainingData:
    """The phases of a run, and their batches: one phase, or two.

    Two are short sequences, then long ones (paper, section A.2), or small batches, then large ones.
    """

    def __init__(self, options: PretrainingOptions) -> None:
        self._options = options
        self.phases = _open(options)
        self.objective = _objective(options, self.phases[0].train.has_next_sentences)
        self.architecture = _architectures().get(self.objective, Architecture)
        # As in the names of the models' outputs.
        is_other = self.architecture is not Architecture
        self.predicted = [*self.architecture.predicts] if is_other else self.objective.split("+")
        self.tokenizer = tokenizer_of_shards(options.shards, options.tokenizer)
        masking = Masking(**{field.name: getattr(options, field.name) for field in fields(Masking)})
        self._reading: dict[str, Any] = {"tokenizer": self.tokenizer, "masking": masking}
        if is_other:
            self._reading["make_examples"] = self.architecture.make_examples
            reads_packed_rows = self.architecture.reads_packed_rows
            if not reads_packed_rows and any(phase.train.has_rows for phase in self.phases):
                raise InputError(
                    f"--objective {self.objective} reads one instance in a row: make shards "
                    "without --instances_per_row"
                )
            for name in masking.changed:
                raise InputError(
                    f"--{name} is for masked words, and --objective {self.objective} has none: "
                    "leave it out"
                )

    @property
    def summary(self) -> str:
        """Records and steps, such as "12,345 instances of 128 tokens, 1,000 steps of 64"."""
        shards = [
            f"{phase.train.instances:,} {'rows' if phase.train.has_rows else 'instances'} of "
            f"{phase.train.options.max_seq_length} tokens"
            for phase in self.phases
        ]
        first = self.phases[0]
        last = self.phases[-1]
        shards[0] += "".join(
            f", {share:.3g} of the examples from {mixed.instances:,} in {mixed.directory}"
            for mixed, share in first.mixed
        )
        steps = f"{last.until:,} step{'s' * (last.until != 1)} of {first.batch_size}"
        if last.batch_size != first.batch_size:
            steps += f", the last {last.until - first.until:,} of {last.batch_size}"
        return f"{', then '.join(dict.fromkeys(shards))}, {steps}"

    def train_batches(
        self, phase: PhaseShards, strategy: tf.distribute.Strategy, step: int
    ) -> Batches:
        """Endless global batches from a step of the phase on."""

        def worker_batches(size: int, worker: int, workers: int) -> tf.data.Dataset:
            return pretraining_batches(
                phase.train,
                size,
                start_step=phase.first_batch + step,
                seed=self._options.seed,
                data_service=self._options.data_service,
                share=Share(worker, workers),
                mixed=phase.mixed,
                **self._reading,
            )

        return distribute_batches(worker_batches, strategy, phase.batch_size)

    def held_out_batches(
        self, phase: PhaseShards, strategy: tf.distribute.Strategy
    ) -> Batches | None:
        """The held-out batches that each evaluation of the phase uses, spread over all files."""
        sample = self.held_out_sample(phase)
        if sample is None:
            return None
        fixed_rows = self._options.jit_compile is True
        return share_batches(sample, strategy, self._options.batch_size, fixed_rows=fixed_rows)

    def held_out_sample(self, phase: PhaseShards) -> tf.data.Dataset | None:
        """The same batches, whole; None where nothing was held out."""
        if phase.held_out is None:
            return None
        size = self._options.batch_size
        count = self._options.evaluation_batches
        return held_out_batches(phase.held_out, size, count, **self._reading)

    def watched_batches(self) -> tf.data.Dataset:
        """Batches of a few training examples, for histograms."""
        return pretraining_batches(self.phases[0].train, _WATCHED_EXAMPLES, **self._reading)

    def check_token_ids(self, phase: PhaseShards) -> None:
        """Refuses shards of other programs, of no known vocabulary, with ids beyond this one."""
        for shards in phase.opened:
            if shards.manifest.is_foreign:
                sample = pretraining_batches(shards, _CHECKED_EXAMPLES, repeat=False)
                assert sample is not None  # the split exists
                inputs, labels, _ = next(sample.as_numpy_iterator())
                check_token_ids(shards, self.tokenizer, inputs, labels)
                shards.vocabulary_size = self.tokenizer.vocabulary_size  # of all other examples

    def check_fits(self, config: BertConfig) -> None:
        """Refuses shards with longer sequences or another vocabulary than the model's."""
        for phase in self.phases:
            length = phase.train.options.max_seq_length
            positions = config.max_position_embeddings
            if length > positions:
                raise InputError(
                    f"{phase.train.directory} has sequences of {length} tokens, the model "
                    f"{positions} positions: make shards with a lower --max_seq_length"
                )
        config.check_fits(length=1, pairs=True)
        model = self._options.model
        shards = self._options.shards
        if model is None:
            return
        cure = f"make shards with bert-tf shards --tokenizer {model}"
        differs = self.tokenizer.vocabulary_size > config.vocab_size
        if any(Path(model, name).is_file() for name in ("vocab.txt", "tokenizer.json")):
            model_tokenizer = BertTokenizer.from_directory(model)
            differs = model_tokenizer.vocabulary_hash != self.tokenizer.vocabulary_hash
            if switches := model_tokenizer.other_switches(self.tokenizer.settings):
                raise InputError(
                    f"{model} tokenizes in another way than {shards}: {switches}: {cure}"
                )
        if differs:
            raise InputError(
                f"{shards} was made with another vocabulary than that of {model}: {cure}"
            )


def _fingerprint(shards: ShardFolder) -> str:
    content = open_folder(shards.directory).read(MANIFEST)
    if content is None:
        files = [(Path(file).name, Path(file).stat().st_size) for file in shards.files]
        content = json.dumps(files).encode()
    return hashlib.sha256(content).hexdigest()


def _objective(options: PretrainingOptions, has_pairs: bool) -> str:
    """--objective, or what the model to start from was trained with, or what suits the shards."""
    sees = "both"
    config = Path(options.model, CONFIG) if options.model else Path(options.size or "")
    if config.suffix == ".json" and config.is_file():
        sees = BertConfig.from_json(config).attention_direction
    architectures = _architectures()
    implied = next((name for name, x in architectures.items() if x.direction == sees), None)
    objective = options.objective or implied or ("mlm+nsp" if has_pairs else "mlm")
    trained = architectures.get(objective, Architecture).direction
    if trained != sees and (options.model or implied):
        fitting = implied or "mlm+nsp or mlm"
        raise InputError(
            f"{options.model or options.size} has attention_direction {sees}, which --objective "
            f"{objective} cannot train: give --objective {fitting}, or another model"
        )
    if objective == "mlm+nsp" and not has_pairs:
        raise InputError(
            f"--objective mlm+nsp needs pairs of sentences, {options.shards} holds full "
            "sentences: give --objective mlm, or make shards with --instances sentence_pairs"
        )
    return objective


def _architectures() -> dict[str, type[Architecture]]:
    """Architectures other than BERT's, by the objective that trains them."""
    return {architecture.objective: architecture for architecture in added("architectures")}


def _open(options: PretrainingOptions) -> list[PhaseShards]:
    first = _phase(options, options.shards)
    pieces = options.gradient_accumulation_steps
    if options.late_batch_size is not None:
        times = options.late_batch_size // options.batch_size
        until = _steps_before(options, "late_share", options.late_share or LATE_SHARE, times)
        last = replace(
            first,
            batch_size=options.late_batch_size,
            gradient_accumulation_steps=pieces * times,  # of the same size: the memory stays
            first_batch=until // times,
        )
    elif options.long_shards is not None:
        until = _steps_before(options, "long_share", options.long_share or LONG_SHARE)
        pieces = options.long_gradient_accumulation_steps or pieces
        last = replace(_phase(options, options.long_shards), gradient_accumulation_steps=pieces)
        if first.train.has_next_sentences != last.train.has_next_sentences:
            raise InputError(
                f"only one of {options.shards} and {options.long_shards} holds pairs of sentences: "
                "make both with the same --instances"
            )
    else:
        return [first]
    return [replace(first, until=until), last]


def _steps_before(options: PretrainingOptions, name: str, share: float, multiple: int = 1) -> int:
    """The steps before the last `share` of them, rounded down to a multiple."""
    before = options.steps - round(options.steps * share)
    until = before - before % multiple
    if not 0 < until < options.steps:
        left = "none for" if until else f"{before or 'none'} before"
        rule = f", which starts after a multiple of {multiple} steps" * (multiple > 1)
        raise InputError(
            f"--{name} {share:g} of {options.steps} steps leaves {left} the last phase{rule}: "
            "give another share, or more steps"
        )
    return until


def _phase(options: PretrainingOptions, folder: str) -> PhaseShards:
    """The whole run on one folder of shards."""
    held_out = open_shards(folder, "held_out", skip_corrupt=options.skip_corrupt)
    train = _training_shards(options, folder)
    mixed = []
    for other, share in options.mixed.items():
        shards = _training_shards(options, other)
        for name in _SAME_IF_MIXED:
            expected, value = (getattr(part.options, name) for part in (train, shards))
            if value != expected:
                raise InputError(
                    f"--mix_shards {other}: has {name} {value}, and {folder} {expected}: make both "
                    "with the same"
                )
        hashes = {part.manifest.vocabulary["hash"] for part in (train, shards)}
        if len(hashes - {None}) > 1:
            raise InputError(
                f"--mix_shards {other}: was made with another vocabulary than {folder}: make both "
                "with one"
            )
        mixed.append((shards, share))
    pieces = options.gradient_accumulation_steps
    return PhaseShards(options.steps, train, held_out, options.batch_size, pieces, tuple(mixed))


def _training_shards(options: PretrainingOptions, folder: str) -> ShardFolder:
    train = open_shards(folder, skip_corrupt=options.skip_corrupt)
    if train is None:
        raise InputError(f"{folder}: has no training shards; make them again")
    return train
