"""Kinds of tasks: code that the driver of fine-tuning, evaluation and export calls."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert_tf.atomic import write_tsv
from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions
from bert_tf.serving.encoder_signatures import ENCODER_SIGNATURES
from bert_tf.serving.signatures import DEFAULT, TEXTS, Signature
from bert_tf.tasks.data_split import TEXT, row_keys
from bert_tf.tasks.reports.report import Report
from bert_tf.tasks.scoring.metrics import Score
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.word_windows import map_rows
from bert_tf.training.means import Values, accuracy, cross_entropy, smoothed_cross_entropy
from pipelines.examples.labelled_text import Examples, MissingColumnError, read_examples

Answers = dict[str, np.ndarray]

_IDS = tf.TensorSpec([None, None], tf.int32)


class Kind(ABC):
    """A kind of task: what the driver asks of classification, regression and others.

    A kind holds settings at most, which never change. The driver hands it what it needs: the
    task, the examples, and the label names in the order of the model's outputs (none for kinds
    without labels).
    """

    # Options of the commands that set attributes of the same names; their defaults are None.
    options: ClassVar[type[CheckedOptions]] = CheckedOptions
    # The model with this kind's head, and whether fine-tuning trains it.
    model_class: ClassVar[type[keras.Model]]
    is_trained: ClassVar[bool] = True
    # Whether scores range from 0 to 100, as the official scripts print them, instead of 0 to 1.
    scores_are_percentages: ClassVar[bool] = False
    # Bidirectional LSTM layers that `--features_only` puts between the frozen encoder and the head.
    feature_lstm_layers: ClassVar[int] = 0
    # Further models whose directories hold this kind's head.
    opens: ClassVar[tuple[type[keras.Model], ...]] = ()
    # The signature that evaluation asks, and the model's inputs, of the signature `tokens`.
    evaluated: ClassVar[str] = DEFAULT
    token_inputs: ClassVar[Mapping[str, tf.TensorSpec]] = {
        "token_ids": _IDS, "segment_ids": _IDS, "padding_mask": _IDS,
    }  # fmt: skip
    # Whether training batches hold rows of like length, which saves padding. Right where each row
    # has one loss: where the loss is a mean over the words of a batch, the words of short sentences
    # would count more than those of long ones.
    batches_of_like_length: ClassVar[bool] = True
    # The loss, and what is logged while training by name, as of `Trainer`.
    loss_function: ClassVar[Any] = staticmethod(cross_entropy)
    metrics: ClassVar[Mapping[str, Values]] = {"accuracy": accuracy}

    def read(self, task: Task, path: str | Path, *, labelled: bool = True) -> Examples:
        """Reads examples from a file.

        Raises:
            InputError: the file cannot be used, or a label is blank; the message names the line.
        """
        examples = read_examples(
            path,
            task.columns(labelled=labelled),
            format=task.format,
            header=task.header,
            skip_broken=task.skip_broken,
        )
        for index, label in enumerate(examples.columns.get("label", ())):
            if not label.strip():
                raise MissingColumnError(
                    f"{examples.place(index)}: the label is blank; give the example a label or "
                    "remove the line"
                )
        return examples

    def inputs(self, task: Task) -> list[str]:
        """Names of the strings that evaluation asks with."""
        return list(self.signatures(task)[self.evaluated].inputs)

    def signatures(self, task: Task) -> dict[str, Signature]:
        """The kind's own signatures, `serving_default` among them.

        Their functions take the arguments of `respond`.
        """
        return {DEFAULT: Signature(dict.fromkeys(task.columns(labelled=False), TEXTS),
                                   self.respond)}  # fmt: skip

    def all_signatures(self, task: Task) -> dict[str, Signature]:
        """All signatures of an export: the kind's own, and those that every model has."""
        tokens = Signature(self.token_inputs, self.respond_to_tokens)
        return {**ENCODER_SIGNATURES, "tokens": tokens, **self.signatures(task)}

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        """The labels of a new model; `examples` is the training data."""
        return []

    def doubts(self, examples: Examples) -> list[str]:
        """What looks wrong with training examples, a sentence each."""
        return examples.remarks()

    def split_keys(self, task: Task, examples: Examples) -> tuple[str, Sequence[Hashable]]:
        """What has to stay together when examples are split: its name, and a key for each example.

        By default the text: equal examples stay on one side.
        """
        return TEXT, row_keys(task, examples)

    def head(self, labels: Sequence[str]) -> dict[str, Any]:
        """Arguments of `model_class` for its head."""
        return {"labels": list(labels)} if labels else {}

    def pieces(self, strings: dict[str, tf.Tensor], tokenizer: Any) -> list[tf.RaggedTensor]:
        """Word pieces of each segment of the rows of a batch; runs in graph."""
        return [tokenizer.tokenize(strings[name]) for name in ("text", "text_pair")
                if name in strings]  # fmt: skip

    def model_inputs(self, strings: dict[str, tf.Tensor], tokenizer: Any, max_length: int) -> Any:
        """Model inputs for a batch of strings [B] by input name; runs in graph."""
        return Packer(tokenizer, max_length)(*self.pieces(strings, tokenizer))

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
        return (self.model_inputs(strings, tokenizer, max_length), *arrays)

    @abstractmethod
    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """The values [E, ...] that the loss compares with the outputs.

        Raises:
            InputError: an example has a label that cannot be used; the message names its line.
        """

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        """Columns of R rows to train on, for `batch`, and their targets [R, ...].

        An example is a row, unless a kind makes several of it, to be shuffled one by one.
        """
        columns = {name: examples.columns[name] for name in self.inputs(task)}
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

    def respond_to_tokens(
        self, tensors: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """Answers to rows of tokens, [B, T] or [B, n, T], T at most the model's positions."""
        inputs = checked_rows(tensors, model)
        outputs = map_rows(lambda part: model(part, training=False), inputs)
        return self.token_answers(outputs, labels)

    def token_answers(self, outputs: Any, labels: Sequence[str]) -> dict[str, tf.Tensor]:
        """Answers to rows of tokens from the model's outputs; runs in graph."""
        return {"logits": outputs}

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
        """The joint answers of several models; those of a single model unchanged.

        Args:
            examples: the examples.
            answers: answers of each model.
            labels: label names of each model, one set in any order. Those of the first name the
                result.

        Raises:
            InputError: the kind has no ensembles.
        """
        raise InputError("models of this task cannot be averaged: give one of them to evaluate")

    @abstractmethod
    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """The names of the scores; the first chooses the best model."""

    @abstractmethod
    def scores(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> dict[str, float | None]:
        """Scores of answers for labelled examples; None for an undefined score."""

    def remarks(
        self, task: Task, scores: Mapping[str, float | None], labels: Sequence[str]
    ) -> list[str]:
        """Notes for a reader of the scores, a sentence each."""
        undefined = [name for name, value in scores.items() if value is None]
        return [f"{', '.join(undefined)}: undefined for constant values"] if undefined else []

    def settings(self) -> dict[str, Any]:
        """The settings of the kind that task.json keeps: by default those of its `options`."""
        return {field.name: getattr(self, field.name) for field in fields(self.options)}

    def with_settings(self, settings: Mapping[str, Any]) -> "Kind":
        """The kind with other settings, as `settings` returns them; None keeps one.

        The kind is a dataclass if it has settings.
        """
        names = [name for name in self.settings() if settings.get(name) is not None]
        given = {name: settings[name] for name in names}
        return replace(self, **given) if given else self  # type: ignore[type-var]

    def tuned(self, examples: Examples, answers: Answers) -> "Kind":
        """The kind with the settings that are best for the validation examples."""
        return self

    @abstractmethod
    def write_predictions(
        self, folder: Path, task: Task, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes the predictions files into a folder, for examples with or without labels."""

    def report(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Report:
        """Tables and pictures of answers to labelled examples, beside the scores."""
        return []

    def write_submission(
        self, folder: Path, task: Task, split: str, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes the official files for a split into a folder."""
        self.write_predictions(folder, task, examples, answers, labels)


class RowKind(Kind):
    """A kind whose model reads an example as one row, and whose scores are those of the dataset."""

    def respond(
        self, strings: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """Answers, and the number of word pieces that did not fit: `truncated`, int32 [B]."""
        ids = self.pieces(strings, tokenizer)
        pack = Packer(tokenizer, max_length)
        outputs = map_rows(lambda part: model(part, training=False), pack(*ids))
        truncated = pack.truncated(*(each.row_lengths() for each in ids))
        return {**self.answers(outputs, labels), "truncated": truncated}

    def token_answers(self, outputs: Any, labels: Sequence[str]) -> dict[str, tf.Tensor]:
        """The same answers as to strings."""
        return self.answers(outputs, labels)

    @abstractmethod
    def answers(self, outputs: Any, labels: Sequence[str]) -> dict[str, tf.Tensor]:
        """Answers from the model's outputs, in graph."""

    @abstractmethod
    def outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """Outputs [E, ...] with the answers that are given."""

    def averaged(
        self, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
    ) -> Answers:
        """Answers from the mean of the models' outputs, of classes from their mean probability."""
        outputs = np.stack([self.outputs(each, labels[0]) for each in answers])
        is_class = self.loss_function is cross_entropy
        mean = np.log(np.exp(outputs).mean(axis=0)) if is_class else outputs.mean(axis=0)
        return {name: x.numpy() for name, x in self.answers(tf.constant(mean), labels[0]).items()}

    def score_functions(self, task: Task, labels: Sequence[str]) -> list[Score]:
        """The functions of true and predicted values to compute."""
        return list(task.scores)

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """The names of the functions."""
        return [score.__name__ for score in self.score_functions(task, labels)]

    def scores(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> dict[str, float | None]:
        """The functions of `compared`."""
        values = self.compared(task, examples, answers, labels)
        functions = self.score_functions(task, labels)
        return {function.__name__: function(*values) for function in functions}

    @abstractmethod
    def compared(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """True and predicted values [E] for the score functions."""

    def write_predictions(
        self, folder: Path, task: Task, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes predictions.tsv."""
        predicted = self.predicted(examples, answers, labels)
        write_table(folder / "predictions.tsv", task, examples, predicted)

    @abstractmethod
    def predicted(
        self, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Sequence[tuple[str, Iterable[object]]]:
        """Columns of predictions.tsv after texts and labels: name and E values each.

        The column "predicted" is among them.
        """

    def write_submission(
        self, folder: Path, task: Task, split: str, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes the dataset's official file in GLUE's format, or predictions.tsv without one."""
        if (name := task.submissions.get(split)) is None:
            return self.write_predictions(folder, task, examples, answers, labels)
        values = [str(value) for value in self.submitted(examples, answers, labels)]
        task.check_submission(split, examples, sorted(set(values) if task.labels else ()))
        write_tsv(folder / name, [("index", "prediction"), *enumerate(values)])

    def submitted(
        self, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Iterable[object]:
        """The predictions [E] as official files have them."""
        return dict(self.predicted(examples, answers, labels))["predicted"]


def checked_rows(tensors: dict[str, tf.Tensor], model: Any) -> dict[str, tf.Tensor]:
    """Rows of tokens as they came. In graph, rows of unequal shapes or lengths are refused.

    An id outside the vocabulary is refused by the processor, and read as a vector of zeros by a
    GPU.
    """
    longest = model.config.max_position_embeddings
    rows = tf.stack(list(tensors.values()))  # refuses other shapes, where sums would repeat them
    fits = tf.debugging.Assert(
        (tf.shape(rows)[-1] >= 1) & (tf.shape(rows)[-1] <= longest),
        [f"give 1 to {longest} tokens a row, not", tf.shape(rows)[-1]],
    )
    with tf.control_dependencies([fits]):  # or the model might fail first, and say less
        return dict(zip(tensors, tf.unstack(rows), strict=True))


def none_cut(lengths: np.ndarray, max_length: int) -> tuple[int, str]:
    """What `Kind.cut` returns for a kind that reads long texts in windows."""
    longer = np.sum(lengths > max_length)
    windows = f"; the {longer} longer than {max_length} tokens are read in windows" * bool(longer)
    return 0, f"cut: 0 of {len(lengths)} texts{windows}"


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
    task: Task,
    examples: Examples,
    predicted: Sequence[tuple[str, Iterable[object]]],
) -> None:
    """Writes texts, labels if known, and predicted columns as a TSV that `read_examples` reads.

    A column whose name is taken gets a number: "label", "label_2".

    Args:
        path: the file.
        task: names the text columns.
        examples: E examples.
        predicted: more columns: name and E values each.
    """
    columns: dict[str, Iterable[object]] = {}
    known: list[tuple[str, Iterable[object]]] = []
    for role, column in task.columns().items():
        if role in examples.columns:
            by_role = role == "label" or (column.isdecimal() and not task.header)
            known.append((role if by_role else column, examples.columns[role]))
    for name, values in [*known, *predicted]:
        unique, number = name, 1
        while unique in columns:
            number += 1
            unique = f"{name}_{number}"
        columns[unique] = values
    rows = zip(*columns.values(), strict=True)
    write_tsv(path, itertools.chain([list(columns)], rows))
