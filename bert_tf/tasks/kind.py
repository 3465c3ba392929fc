"""The two levels of a task: a kind is code, a dataset is data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert_tf.atomic import replace_file, write_text
from bert_tf.errors import InputError
from bert_tf.tasks.metrics import Score
from bert_tf.tasks.report import Report
from bert_tf.tokenization.packing import Packer
from bert_tf.training.means import Values, accuracy, cross_entropy, smoothed_cross_entropy
from pipelines.examples.labelled_text import Examples, Format, read_examples
from pipelines.examples.records import is_dataset_name, split_in

Answers = dict[str, np.ndarray]


class Kind(ABC):
    """A kind of task: what the driver asks of classification, regression and others.

    A kind holds settings at most, which never change. The driver hands it what it needs: the
    dataset, the examples, and the label names in the order of the model's outputs (none for kinds
    without labels).
    """

    # The model with this kind's head.
    model_class: ClassVar[type[keras.Model]]
    # Bidirectional LSTM layers that `--features_only` puts between the frozen encoder and the head.
    feature_lstm_layers: ClassVar[int] = 0
    # Inputs that are lists of strings, as many for each example.
    lists: ClassVar[tuple[str, ...]] = ()
    # The loss, and what is logged while training by name, as of `Trainer`.
    loss_function: ClassVar[Any] = staticmethod(cross_entropy)
    metrics: ClassVar[Mapping[str, Values]] = {"accuracy": accuracy}

    def read(self, dataset: "Dataset", path: str | Path, *, labelled: bool = True) -> Examples:
        """Reads examples from a file.

        Raises:
            InputError: the file cannot be used, or a label is blank; the message names the line.
        """
        examples = read_examples(
            path,
            dataset.columns(labelled=labelled),
            format=dataset.format,
            header=dataset.header,
            skip_broken=dataset.skip_broken,
        )
        for index, label in enumerate(examples.columns.get("label", ())):
            if not label.strip():
                raise InputError(
                    f"{examples.place(index)}: the label is blank; give the example a label or "
                    "remove the line"
                )
        return examples

    def inputs(self, dataset: "Dataset") -> list[str]:
        """Names of the strings that the model takes."""
        return list(dataset.columns(labelled=False))

    def signatures(self, dataset: "Dataset") -> dict[str, list[str]]:
        """Signatures of an export, with the names of the strings that each takes."""
        return {"serving_default": self.inputs(dataset)}

    def label_names(self, dataset: "Dataset", examples: Examples) -> list[str]:
        """The labels of a new model; `examples` is the training data."""
        return []

    def doubts(self, examples: Examples) -> list[str]:
        """What looks wrong with training examples, a sentence each."""
        return examples.remarks()

    def head(self, labels: Sequence[str]) -> dict[str, Any]:
        """Arguments of `model_class` for its head."""
        return {"labels": list(labels)} if labels else {}

    def features(self, strings: dict[str, tf.Tensor], tokenizer: Any, max_length: int) -> Any:
        """Model inputs for a batch of strings [B] by input name; runs in graph."""
        ids = [tokenizer.tokenize(strings[name]) for name in ("text", "text_pair")
               if name in strings]  # fmt: skip
        return Packer(tokenizer, max_length)(*ids)

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example, [CLS] and [SEP] included, before it is cut: int64 [E].

        Args:
            columns: a value for each of E examples; those that are strings are tokenized.
            tokenizer: the model's tokenizer.
        """
        texts = [values for values in columns.values() if isinstance(values[0], str)]
        return np.sum([1 + count_pieces(values, tokenizer) for values in texts], axis=0) + 1

    def cut(
        self, columns: Mapping[str, Sequence[Any]], tokenizer: Any, max_length: int
    ) -> tuple[int, str]:
        """How many examples are cut, and a sentence that says so; arguments as of `lengths`."""
        lengths = self.lengths(columns, tokenizer)
        number = int(np.sum(lengths > max_length))
        return number, f"cut at {max_length} tokens: {number} of {len(lengths)} inputs"

    def batch(
        self, strings: dict[str, tf.Tensor], arrays: list[tf.Tensor], tokenizer: Any,
        max_length: int,
    ) -> tuple:  # fmt: skip
        """(inputs, targets, ...) to train on; runs in graph.

        Args:
            strings: a batch of strings by input name.
            arrays: the same examples' targets, and their weights if there are any.
            tokenizer: the model's tokenizer.
            max_length: most tokens of a row. An example may become several rows.
        """
        return (self.features(strings, tokenizer, max_length), *arrays)

    @abstractmethod
    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """The values [E, ...] that the loss compares with the outputs.

        Raises:
            InputError: an example has a label that cannot be used; the message names its line.
        """

    def training_rows(
        self, dataset: "Dataset", examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        """Columns of R rows to train on, for `batch`, and their targets [R, ...].

        An example is a row, unless a kind makes several of it, to be shuffled one by one.
        """
        columns = {name: examples.columns[name] for name in self.inputs(dataset)}
        return columns, self.targets(examples, labels)

    def loss(self, *, label_smoothing: float = 0.0) -> Values:
        """The loss; a share `label_smoothing` of each target is spread over all classes.

        Raises:
            InputError: a share is given for targets that are no classes.
        """
        if label_smoothing and self.loss_function is not cross_entropy:
            raise InputError("--label_smoothing is for tasks with classes: leave it out")
        return smoothed_cross_entropy(label_smoothing) if label_smoothing else self.loss_function

    def weights(self, targets: np.ndarray) -> np.ndarray:
        """Weights float32 [E] that give each class the same total weight; their mean is 1.

        Raises:
            InputError: the targets are not one class for each example.
        """
        if targets.ndim > 1 or targets.dtype.kind != "i":
            raise InputError("--class_weights is for tasks with a class per example: leave it out")
        _, numbers, counts = np.unique(targets, return_inverse=True, return_counts=True)
        return (len(targets) / (len(counts) * counts[numbers])).astype(np.float32)

    @abstractmethod
    def respond(
        self, strings: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """Answers to a batch of strings, the batch first; runs in graph.

        Evaluation, prediction and the exported SavedModel share this function.
        """

    def outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray | None:
        """Outputs [E, ...] with the loss of those that the answers came from; None if unknown."""
        return None

    def in_ensemble(self, kinds: Sequence["Kind"]) -> "Kind":
        """The kind of the models of an ensemble: its answers hold all that `averaged` needs.

        Args:
            kinds: kinds of the models, of one class.
        """
        return self

    def averaged(
        self, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
    ) -> Answers:
        """What several models answer together; of a single model its own answers.

        Args:
            examples: what they answered.
            answers: answers of each model.
            labels: label names of each model, one set in any order. Those of the first name the
                result.

        Raises:
            InputError: the kind has no ensembles.
        """
        raise InputError("models of this task cannot be averaged: give one of them to evaluate")

    @abstractmethod
    def score_names(self, dataset: "Dataset", labels: Sequence[str]) -> list[str]:
        """The names of the scores; the first chooses the best model."""

    @abstractmethod
    def scores(
        self, dataset: "Dataset", examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> dict[str, float | None]:
        """Scores of answers for labelled examples; None for an undefined score."""

    def remarks(
        self, dataset: "Dataset", scores: Mapping[str, float | None], labels: Sequence[str]
    ) -> list[str]:
        """Notes for a reader of the scores, a sentence each."""
        undefined = [name for name, value in scores.items() if value is None]
        return [f"{', '.join(undefined)}: undefined for constant values"] if undefined else []

    def settings(self) -> dict[str, Any]:
        """The settings of the kind that task.json keeps."""
        return {}

    def with_settings(self, settings: Mapping[str, Any]) -> "Kind":
        """The kind with other settings, as `settings` returns them; other keys are ignored."""
        return self

    def tuned(self, examples: Examples, answers: Answers) -> "Kind":
        """The kind with the settings that are best for the validation examples."""
        return self

    @abstractmethod
    def write_predictions(
        self, folder: Path, dataset: "Dataset", examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes the predictions files into a folder, for examples with or without labels."""

    def report(
        self, dataset: "Dataset", examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Report:
        """Tables and pictures of answers to labelled examples, beside the scores."""
        return []

    def write_submission(
        self, folder: Path, dataset: "Dataset", split: str, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes the official files for a split into a folder."""
        self.write_predictions(folder, dataset, examples, answers, labels)


class RowKind(Kind):
    """A kind whose model reads an example as one row, and whose scores are those of the dataset."""

    def respond(
        self, strings: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """Answers from the outputs for `features`."""
        inputs = self.features(strings, tokenizer, max_length)
        return self.answers(model(inputs, training=False), labels)

    @abstractmethod
    def answers(self, outputs: Any, labels: Sequence[str]) -> dict[str, tf.Tensor]:
        """Answers from the model's outputs, in graph."""

    @abstractmethod
    def outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """Outputs [E, ...] with the answers that are given."""

    def averaged(
        self, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
    ) -> Answers:
        """Answers from the mean of the models' outputs."""
        outputs = [self.outputs(each, labels[0]) for each in answers]
        mean = self.mean_output(np.stack(outputs))
        return {name: x.numpy() for name, x in self.answers(tf.constant(mean), labels[0]).items()}

    def mean_output(self, outputs: np.ndarray) -> np.ndarray:
        """The mean [E, ...] of the outputs [M, E, ...] of models."""
        return outputs.mean(axis=0)

    def score_functions(self, dataset: "Dataset", labels: Sequence[str]) -> list[Score]:
        """The functions of true and predicted values to compute."""
        return list(dataset.scores)

    def score_names(self, dataset: "Dataset", labels: Sequence[str]) -> list[str]:
        """The names of the functions."""
        return [score.__name__ for score in self.score_functions(dataset, labels)]

    def scores(
        self, dataset: "Dataset", examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> dict[str, float | None]:
        """The functions of `compared`."""
        values = self.compared(dataset, examples, answers, labels)
        functions = self.score_functions(dataset, labels)
        return {function.__name__: function(*values) for function in functions}

    @abstractmethod
    def compared(
        self, dataset: "Dataset", examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """True and predicted values [E] for the score functions."""

    def write_predictions(
        self, folder: Path, dataset: "Dataset", examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes predictions.tsv."""
        predicted = self.predicted(examples, answers, labels)
        write_table(folder / "predictions.tsv", dataset, examples, predicted)

    @abstractmethod
    def predicted(
        self, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> list[tuple[str, Sequence[object]]]:
        """Columns of predictions.tsv after texts and labels: name and E values each.

        The column "predicted" is among them.
        """

    def write_submission(
        self, folder: Path, dataset: "Dataset", split: str, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes the dataset's official file in GLUE's format, or predictions.tsv without one."""
        if (name := dataset.submissions.get(split)) is None:
            return self.write_predictions(folder, dataset, examples, answers, labels)
        values = [str(value) for value in self.submitted(examples, answers, labels)]
        dataset.check_submission(split, examples, sorted(set(values) if dataset.labels else ()))
        rows = (f"{index}\t{value}" for index, value in enumerate(values))
        lines = ["index\tprediction", *rows]
        write_text(folder / name, "\n".join(lines) + "\n")

    def submitted(
        self, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Sequence[object]:
        """The predictions [E] as official files have them."""
        return dict(self.predicted(examples, answers, labels))["predicted"]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A task as data: how its files look and how it is scored.

    Attributes:
        name: name on the command line.
        kind: kind of the task.
        text: column of the text, or of the first text of a pair; its name, or its number from 0.
        pair: column of the second text of a pair.
        label: column of the label.
        labels: label names in the order of a new model's outputs; empty to take the sorted labels
            of the training data.
        scores: functions of `bert_tf.tasks.metrics`; the first chooses the best model.
        format: file format; None to go by the extension.
        header: whether tables begin with a line of column names.
        skip_broken: skip (and count) table rows with a wrong number of columns.
        files: split ("train", "validation", "test" or others) -> names that its published file may
            have in its folder.
        test_columns: column -> its name in the published test file, where that differs.
        tfds: column or split -> its name in TensorFlow Datasets, where that differs.
        label_aliases: other names of labels -> label.
        submissions: split -> name of the official file of predictions.
        max_length: maximum tokens per example, [CLS] and [SEP] included.
        epochs: passes over the training data; like the next two, the paper's where it names them.
        batch_size: examples per training step.
        learning_rate: peak learning rate.
        paper: test scores of BERT's paper by model size.
        reached: scores of the development set by weights, in the units of `paper`: the first of
            `scores` with all defaults, the mean of several seeds.
    """

    name: str
    kind: Kind
    text: str = "text"
    pair: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()
    format: Format | None = None
    header: bool = True
    skip_broken: bool = False
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    test_columns: Mapping[str, str] = field(default_factory=dict)
    tfds: Mapping[str, str] = field(default_factory=dict)
    label_aliases: Mapping[str, str] = field(default_factory=dict)
    submissions: Mapping[str, str] = field(default_factory=dict)
    max_length: int = 128
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    paper: Mapping[str, float] = field(default_factory=dict)
    reached: Mapping[str, float] = field(default_factory=dict)

    def columns(self, *, labelled: bool = True) -> dict[str, str]:
        """Role -> column."""
        pair = {} if self.pair is None else {"text_pair": self.pair}
        return {"text": self.text, **pair, **({"label": self.label} if labelled else {})}

    def read(self, data: str | Path, split: str, *, labelled: bool = True) -> Examples:
        """Reads a split of the dataset.

        Without labels no row is skipped: each needs a prediction.

        Args:
            data: the folder of the published files; a file of any name; "-" for standard input; or
                a name of TensorFlow Datasets, such as `tfds:glue/mnli`, which may end with a split.
            split: split to read from a folder or from TensorFlow Datasets.
            labelled: whether to read labels.

        Raises:
            InputError: there is no such split, or its file cannot be used.
        """
        path, names = str(data), self.tfds
        if not is_dataset_name(data):
            path = str(self._file(data, split))
            is_test = self.split_of(path).startswith("test")
            names = self.test_columns if is_test and not labelled else {}
        elif split_in(path) is None:
            path = f"{data}:{self.tfds.get(split, split)}"
        columns = (self.text, self.label, self.pair)
        text, label, pair = (column and names.get(column, column) for column in columns)
        there = replace(
            self,
            text=text or self.text,
            label=label or self.label,
            pair=pair,
            header=self.header or text != self.text,
            skip_broken=self.skip_broken and labelled,
        )
        examples = self.kind.read(there, path, labelled=labelled)
        if self.label_aliases and labelled:
            labels = examples.columns["label"]
            examples.columns["label"] = [self.label_aliases.get(label, label) for label in labels]
        return examples

    def check_submission(self, split: str, examples: Examples, labels: Sequence[str]) -> None:
        """Refuses, before the work, what cannot become the official file of a split.

        Raises:
            InputError: rows are missing, or the model has other labels.
        """
        if split not in self.submissions:
            return
        if is_dataset_name(examples.path) and examples.lines != list(range(len(examples))):
            lost = set(range(len(examples))) - set(examples.lines)
            raise InputError(
                f"{examples.path} lacks row {min(lost)}, and {self.submissions[split]} needs every "
                "row: give the folder of the published files"
            )
        if self.labels and set(labels) - set(self.labels):
            raise InputError(
                f"the model's labels are {', '.join(labels)}, those of {self.name} are "
                f"{', '.join(self.labels)}: match them with --label_map"
            )

    def has(self, data: str | Path, split: str) -> bool:
        """Whether `data`, as of `read`, is several splits and this one is among them."""
        names = self.files.get(split, ())
        if is_dataset_name(data):
            return bool(names) and split_in(str(data)) is None
        return any((Path(data) / name).is_file() for name in names)

    def split_of(self, data: str | Path, default: str = "") -> str:
        """The split that the name of a published file or of TensorFlow Datasets says."""
        if is_dataset_name(data):
            named = split_in(str(data)) or default
            # The split "test" of another data set, such as glue/mnli_mismatched, is none of ours.
            return named if named == default or self.tfds.get(named, named) == named else ""
        published = (split for split, names in self.files.items() if Path(data).name in names)
        return next(published, default)

    def _file(self, data: str | Path, split: str) -> Path:
        """The file `data` itself, or the published file of the split in the folder `data`."""
        if not Path(data).is_dir():
            return Path(data)
        names = self.files.get(split, ())
        for name in names:
            if (Path(data) / name).is_file():
                return Path(data) / name
        if not self.files:
            raise InputError(
                f"{data} is a folder, and the task {self.name} knows no file names: give a file"
            )
        if not names:
            known = ", ".join(self.files)
            raise InputError(f"the task {self.name} has no split {split!r}: give one of {known}")
        others = [other for other in self.files if self.has(data, other)]
        cure = f", or --split {' or '.join(others)}" if others else ""
        raise InputError(
            f"{data} lacks {' and '.join(names)}: give the {split} file of the task "
            f"{self.name}{cure}"
        )

    def with_settings(self, settings: Mapping[str, Any]) -> "Dataset":
        """The dataset with other columns, length, format and kind; None keeps a value.

        Args:
            settings: as `settings` returns them; other keys are ignored.
        """
        given = {
            field: settings[name]
            for name, field in _SETTINGS.items()
            if settings.get(name) is not None
        }
        # Column names need a header, even if the published file has none.
        named = any(
            not str(given[field]).isdecimal()
            for field in ("text", "pair", "label")
            if field in given
        )
        header = settings.get("header") is not False and (self.header or named)
        return replace(self, kind=self.kind.with_settings(settings), header=header, **given)

    def settings(self) -> dict[str, Any]:
        """What a model directory's task.json says of the dataset."""
        return {
            "task": self.name,
            **{name: getattr(self, field) for name, field in _SETTINGS.items()},
            "header": self.header,
            **self.kind.settings(),
        }


# Names in options and task.json -> attributes of `Dataset`.
_SETTINGS = {
    "text_column": "text",
    "pair_column": "pair",
    "label_column": "label",
    "max_length": "max_length",
    "format": "format",
}


def none_cut(lengths: np.ndarray, max_length: int) -> tuple[int, str]:
    """What `Kind.cut` returns for a kind that reads long texts in windows."""
    return 0, (
        f"cut: 0 of {len(lengths)} texts; the {np.sum(lengths > max_length)} longer than "
        f"{max_length} tokens are read in windows"
    )


def count_pieces(texts: Sequence[str], tokenizer: Any) -> np.ndarray:
    """Word pieces of each text, int64 [E]."""
    size = 4096  # at once
    counts = [
        tokenizer.tokenize([text.encode(errors="replace") for text in texts[i : i + size]])
        .row_lengths()
        .numpy()
        for i in range(0, len(texts), size)
    ]
    return np.concatenate(counts)


def write_table(
    path: Path,
    dataset: Dataset,
    examples: Examples,
    predicted: Sequence[tuple[str, Sequence[object]]],
) -> None:
    """Writes texts, labels if known, and predicted columns as a TSV that `read_examples` reads.

    Tabs and line ends within a cell become spaces. A column whose name is taken gets a number:
    "label", "label_2".

    Args:
        path: the file.
        dataset: names the text columns.
        examples: E examples.
        predicted: more columns: name and E values each.
    """
    columns: dict[str, Sequence[object]] = {}
    known: list[tuple[str, Sequence[object]]] = []
    for role, column in dataset.columns().items():
        if role in examples.columns:
            by_role = role == "label" or (column.isdecimal() and not dataset.header)
            known.append((role if by_role else column, examples.columns[role]))
    for name, values in [*known, *predicted]:
        cell, number = _cell(name), 1
        while (unique := cell if number == 1 else f"{cell}_{number}") in columns:
            number += 1
        columns[unique] = values
    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        for row in [columns.keys(), *zip(*columns.values(), strict=True)]:
            file.write("\t".join(map(_cell, row)) + "\n")


def _cell(value: object) -> str:
    return str(value).translate({ord(mark): " " for mark in "\t\n\r"})
