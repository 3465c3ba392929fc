"""The data of a fine-tuning run: examples to train on and examples to validate on."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.formats import content_hash, read_config
from bert_tf.commands.finetuning_options import FinetuningSetup
from bert_tf.commands.word_frequencies import plateau_notice
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.class_weights import class_weights
from bert_tf.pipelines.examples.batches import example_batches
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.sentence_embedding import SentenceEmbedding
from bert_tf.tasks.remarks import baseline, doubts, label_counts, listed_counts, score_remarks
from bert_tf.tasks.splits import TEXT, hashable, row_keys, split, split_keys
from bert_tf.tasks.task import Task
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.loop import LOSS


@dataclass(frozen=True, eq=False)
class FinetuningData:
    """What a run trains and validates on."""

    task: Task
    tokenizer: BertTokenizer
    config: BertConfig  # of the model to start from
    labels: list[str]  # in the order of the model's outputs
    train: Examples
    validation: Examples
    remarks: list[str]  # on the data and what to compare scores with, a sentence each
    columns: Mapping[str, Sequence[Any]]  # R training rows: the examples, or several rows of each
    arrays: list[np.ndarray]  # targets [R, ...], and weights [R] or [R, ...] if there are any
    # What must be the same when a run is resumed, beside its options.
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, task: Task, options: FinetuningSetup) -> "FinetuningData":
        """Reads the files that the options name, for the model to start from."""
        kind = task.kind
        model = options.model
        train = options.source
        examples = task.read(train, "train")
        remarks = doubts(kind, examples)
        labels = kind.label_names(task, examples)
        config = read_config(Path(model))
        if config.labels and sorted(config.labels) == sorted(labels):
            labels = config.labels  # the model's head is kept, with its order
        validation = options.validation or (train if task.has(train, "validation") else None)
        held_out = task.read(validation, "validation") if validation else None
        splits = {}
        with contextlib.suppress(InputError):  # nothing else depends on the test examples
            if task.has(train, "test"):
                splits["test"] = task.read(train, "test", labelled=False)
        settings: dict[str, Any] = {"labels": labels}
        if held_out is not None:
            remarks += held_out.remarks()
            counts = label_counts(kind.targets(held_out, labels), labels)  # refuses unknown ones
            if missing := [x for x, count in zip(labels, counts, strict=True) if not count]:
                remarks.append(f"{held_out.path}: no example has the label {', '.join(missing)}")
        else:
            unit, keys = split_keys(kind, task, examples)
            targets = kind.targets(examples, labels)
            share = options.validation_share
            kept, aside = split(targets, keys, share, options.seed, unit=unit)
            if not len(kept):
                raise InputError(
                    f"{examples.path}: {len(examples)} examples with {len(set(keys))} different "
                    f"{unit}s are too few to set a share of {share} aside: give "
                    "--validation a file"
                )
            _, one_by_one = split(targets, range(len(targets)), share, options.seed)
            # Absent otherwise: runs from before examples were kept together can be resumed.
            if not np.array_equal(aside, one_by_one):
                settings["validation_share"] = f"by {unit}"
            held_out = examples.take(aside)
            examples = examples.take(kept)
        if isinstance(kind, SentenceEmbedding):
            kind.check_scored(held_out)
        remarks.append(duplicates(task, {"train": examples, "validation": held_out, **splits}))
        tokenizer = BertTokenizer.from_directory(model)
        columns, targets = kind.training_rows(task, examples, labels, tokenizer)
        scored = kind.targets(held_out, labels)
        remarks += baseline(labels, targets, scored, "validation examples")
        remarks += score_remarks(kind, task, labels)
        remarks += filter(None, [plateau_notice(model)])
        arrays = [targets, *([class_weights(targets)] if options.class_weights else [])]
        settings |= {"train": examples.fingerprint(), "validation": held_out.fingerprint()}
        settings |= run_identity(options, task, tokenizer)
        return cls(
            task, tokenizer, config, labels, examples, held_out, remarks, columns, arrays, settings
        )

    @property
    def rows(self) -> int:
        """Number of training rows."""
        return len(self.arrays[0])

    def __str__(self) -> str:
        counts = listed_counts(self.labels, label_counts(self.arrays[0], self.labels))
        labels = f", {len(self.labels)} labels ({counts})" * bool(self.labels)
        count = len(self.train)
        held_out = len(self.validation)
        return f"{count:,} training and {held_out:,} validation examples{labels}"

    def score_to_choose_by(self, name: str | None) -> str:
        """The score of this name, or the loss; by default the task's first score.

        Raises InputError if the task has no score of this name.
        """
        kind = self.task.kind
        names = kind.score_names(self.task, self.labels) + [LOSS] * hasattr(kind, "mean_loss")
        if name is not None and name not in names:
            raise InputError(f"--best_by {name} is no score of this task: give {', '.join(names)}")
        return name or names[0]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each training row, at most `max_length`, int64 [R]."""
        lengths = self.task.kind.lengths(self.columns, self.tokenizer)
        return np.minimum(lengths, self.task.max_length)

    @functools.cached_property
    def _tensors(self) -> dict[str, tf.Tensor]:
        return {name: tf.convert_to_tensor(values) for name, values in self.columns.items()}

    @functools.cached_property
    def _batch(self) -> Callable[..., tuple]:
        """`Kind.batch` for these rows, traced once for all datasets."""
        length = self.task.max_length

        @tf.function(autograph=False)
        def batch(
            strings: dict[str, tf.Tensor], arrays: list[tf.Tensor], fixed_length: bool
        ) -> tuple:
            tensors = self.task.kind.batch(strings, arrays, self.tokenizer, length)
            return tf.nest.map_structure(padded, tensors) if fixed_length else tensors

        def padded(x: tf.Tensor) -> tf.Tensor:
            if x.shape.rank < 2 or x.shape[-1] is not None:  # not [..., T]
                return x
            gaps = [[0, 0]] * (x.shape.rank - 1) + [[0, length - tf.shape(x)[-1]]]
            return tf.ensure_shape(tf.pad(x, gaps), [*x.shape[:-1], length])

        return batch

    def batches(
        self,
        size: int,
        worker: int = 0,
        workers: int = 1,
        *,
        seed: int,
        start_step: int = 0,
        fixed_length: bool = False,
    ) -> tf.data.Dataset:
        """Batches of `size` training rows on this worker; `fixed_length` pads to `max_length`."""
        losses = self.task.kind.losses
        return example_batches(
            self._tensors,
            functools.partial(self._batch, fixed_length=fixed_length),
            size,
            targets=self.arrays,
            lengths=self.lengths if losses.mean_over == "rows" else None,
            seed=seed,
            start_step=start_step,
            worker=worker,
            num_workers=workers,
        )


def run_identity(options: FinetuningSetup, task: Task, tokenizer: BertTokenizer) -> dict[str, Any]:
    """What the runs of a fine-tuning or of a search share, beside the options' own identity.

    They are the content of the models, which options name by path, and the settings of the task,
    which options may leave to the model's task.json.
    """
    identity = {
        "task": task.name,
        "max_length": task.max_length,
        **task.kind.settings(),
        "tokenizer": {"vocabulary": tokenizer.vocabulary_hash, **tokenizer.settings},
        "model_content": content_hash(options.model),
    }
    if options.teacher is not None:
        identity["teacher_content"] = content_hash(options.teacher)
    return identity


def duplicates(task: Task, splits: Mapping[str, Examples]) -> str:
    """A sentence that counts the examples of "train" and "validation" that are in later splits."""
    rows = {}
    labels = {}
    units = {}
    for name, examples in splits.items():
        answers = examples.columns.get("answers", ())  # to questions, which have no labels
        labels[name] = [hashable(value) for value in examples.columns.get("label", answers)]
        rows[name] = row_keys(task, examples)
        units[name] = split_keys(task.kind, task, examples)
    parts = []
    for name, others in {"train": ["validation", "test"], "validation": ["test"]}.items():
        known: dict[Hashable, set[Hashable]] = {}
        for row, label in zip(rows[name], labels[name] or rows[name], strict=True):
            known.setdefault(row, set()).add(label)
        unit = units[name][0]
        keys = set(units[name][1])
        counted = []
        for other in filter(splits.__contains__, others):
            pairs = zip(rows[other], labels[other] or rows[other], strict=True)
            agree = [label in known[row] for row, label in pairs if row in known]
            line = f"{len(agree):,} of {len(rows[other]):,} {other} examples"
            if agree and labels[name] and labels[other]:
                line += f" ({sum(agree):,} with the same label)"
            if unit == units[other][0] != TEXT:
                line += f" and the {unit} of {sum(map(keys.__contains__, units[other][1])):,}"
            counted.append(line)
        parts += [f"also in {name}: {', '.join(counted)}"] * bool(counted)
    return "; ".join(parts)
