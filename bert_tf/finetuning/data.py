"""The data of a fine-tuning run: examples to train on and examples to validate on."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.formats import CONFIG, check_is_model_directory
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.finetuning.options import FinetuningSetup
from bert_tf.tasks.data_split import duplicates, split
from bert_tf.tasks.task import Task
from bert_tf.tokenization.tokenizer import BertTokenizer
from pipelines.examples.batches import example_batches
from pipelines.examples.labelled_text import Examples


@dataclass(frozen=True, eq=False)
class FinetuningData:
    """What a run trains and validates on.

    Attributes:
        task: dataset of the examples.
        tokenizer: tokenizer of the model.
        labels: label names in the order of the model's outputs.
        train: training examples.
        validation: validation examples.
        doubts: duplicates and suspicious findings in both, a sentence each.
        columns: R training rows by column: the examples, or several rows of each.
        arrays: targets [R, ...], and weights [R] if there are any.
        kept_whole: what the split into training and validation left undivided, such as "context";
            None without such a split, or if it is that of single examples.
    """

    task: Task
    tokenizer: BertTokenizer
    labels: list[str]
    train: Examples
    validation: Examples
    doubts: list[str]
    columns: Mapping[str, Sequence[Any]]
    arrays: list[np.ndarray]
    kept_whole: str | None = None

    @classmethod
    def read(
        cls,
        task: Task,
        options: FinetuningSetup,
    ) -> "FinetuningData":
        """Reads the files that the options name, for the model to start from.

        Without a validation file the examples are those of the data set, or a share of a file.

        Raises:
            InputError: the files or the model cannot be used.
        """
        kind, model, train = task.kind, options.model, options.source
        validation = options.validation
        examples = task.read(train, "train")
        doubts = kind.doubts(examples)
        labels = kind.label_names(task, examples)
        check_is_model_directory(Path(model))
        config = BertConfig.from_json(Path(model) / CONFIG)
        if config.labels and sorted(config.labels) == sorted(labels):
            labels = config.labels  # the model's head is kept, with its order
        if not validation and task.has(train, "validation"):
            validation = train
        kept_whole = None
        if validation:
            held_out = task.read(validation, "validation")
            doubts += held_out.remarks()
            found = np.unique(kind.targets(held_out, labels))  # refuses unknown labels
            if missing := [label for number, label in enumerate(labels) if number not in found]:
                doubts.append(f"{held_out.path}: no example has the label {', '.join(missing)}")
        else:
            unit, keys = kind.split_keys(task, examples)
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
            kept_whole = None if np.array_equal(aside, one_by_one) else unit
            examples, held_out = examples.take(kept), examples.take(aside)
        splits = {"train": examples, "validation": held_out}
        with contextlib.suppress(InputError):  # nothing else depends on the test examples
            if task.has(train, "test"):
                splits["test"] = task.read(train, "test", labelled=False)
        doubts.append(duplicates(task, splits))
        tokenizer = BertTokenizer.from_directory(model)
        columns, targets = kind.training_rows(task, examples, labels, tokenizer)
        arrays = [targets, *([_class_weights(targets)] if options.class_weights else [])]
        return cls(task, tokenizer, labels, examples, held_out, doubts, columns, arrays, kept_whole)

    @property
    def rows(self) -> int:
        """Number of training rows."""
        return len(self.arrays[0])

    def __str__(self) -> str:
        labels = f", {len(self.labels)} labels ({', '.join(self.labels)[:60]})" * bool(self.labels)
        count, held_out = len(self.train), len(self.validation)
        return f"{count:,} training and {held_out:,} validation examples{labels}"

    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {
            "labels": self.labels,
            **self.task.kind.settings(),
            "train": self.train.fingerprint(),
            "validation": self.validation.fingerprint(),
            # Absent otherwise: runs from before examples were kept together can be resumed.
            **({"validation_share": f"by {self.kept_whole}"} if self.kept_whole else {}),
            "tokenizer": {
                "vocabulary": self.tokenizer.vocabulary_hash,
                **self.tokenizer.settings,
            },
        }

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each training row, at most `max_length`, int64 [R]."""
        lengths = self.task.kind.lengths(self.columns, self.tokenizer)
        return np.minimum(lengths, self.task.max_length)

    @functools.cached_property
    def _tensors(self) -> dict[str, tf.Tensor]:
        """`columns`, once for all datasets."""
        return {name: tf.convert_to_tensor(values) for name, values in self.columns.items()}

    @functools.cached_property
    def _batch(self) -> Callable[..., tuple]:
        """`Kind.batch` for these rows, traced once for all datasets."""
        length = self.task.max_length

        @tf.function(autograph=False)
        def batch(
            strings: dict[str, tf.Tensor], arrays: list[tf.Tensor], fixed_length: bool
        ) -> tuple:
            made = self.task.kind.batch(strings, arrays, self.tokenizer, length)
            return tf.nest.map_structure(_padded(length), made) if fixed_length else made

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
        """Batches of rows to train on; see `example_batches`.

        Args:
            size: examples in a batch of this worker.
            worker: number of this worker, from 0.
            workers: workers that share the rows.
            seed: shuffling seed.
            start_step: batches to skip.
            fixed_length: pad to `max_length` instead of the longest row of the batch.
        """
        return example_batches(
            self._tensors,
            functools.partial(self._batch, fixed_length=fixed_length),
            size,
            targets=self.arrays,
            lengths=self.lengths if self.task.kind.batches_of_like_length else None,
            seed=seed,
            start_step=start_step,
            worker=worker,
            num_workers=workers,
        )


def _class_weights(targets: np.ndarray) -> np.ndarray:
    """Weights float32 [R] that give each class the same total weight; their mean is 1.

    Raises:
        InputError: the targets are not one class for each row.
    """
    if targets.ndim > 1 or targets.dtype.kind != "i":
        raise InputError("--class_weights is for tasks with a class per example: leave it out")
    _, numbers, counts = np.unique(targets, return_inverse=True, return_counts=True)
    return (len(targets) / (len(counts) * counts[numbers])).astype(np.float32)


def _padded(length: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Pads the axis of tokens, the last one where its size is unknown, to a fixed length."""

    def pad(x: tf.Tensor) -> tf.Tensor:
        if x.shape.rank < 2 or x.shape[-1] is not None:
            return x
        gaps = [[0, 0]] * (x.shape.rank - 1) + [[0, length - tf.shape(x)[-1]]]
        return tf.ensure_shape(tf.pad(x, gaps), [*x.shape[:-1], length])

    return pad
