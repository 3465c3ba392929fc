"""Kinds of tasks: code that the driver of fine-tuning, evaluation and export calls."""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import write_tsv
from bert_tf.networks.tensorflow.losses import (
    Values,
    accuracy,
    cross_entropy,
    smoothed_cross_entropy,
)
from bert_tf.options import CheckedOptions
from bert_tf.pipelines.examples.table import Examples, MissingColumnError
from bert_tf.tasks.encoder_signatures import ENCODER_SIGNATURES
from bert_tf.tasks.reports.report import Report
from bert_tf.tasks.signatures import DEFAULT, LISTS, TEXTS, Signature, Tensors
from bert_tf.tasks.task import Layout, Task
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows
from bert_tf.training.distillation import soft_cross_entropy

if TYPE_CHECKING:
    from bert_tf.models.answerer import Answerer

Answers = dict[str, np.ndarray]
Columns = Sequence[tuple[str, Iterable[object]]]  # of a file: name and values of each

TEXT = "text"  # of `Kind.split_keys`, where only equal examples have to stay together
_AT_ONCE = 4096  # texts tokenized
_LARGEST = 1e9  # number in a task.json
_LOG_TEMPERATURES = (-3.0, 3.0)  # that calibration tries
_IDS = tf.TensorSpec([None, None], tf.int32)


@dataclass(frozen=True, eq=False)
class Answered:
    """Examples with a model's answers: what scores, reports and files are made of."""

    task: Task
    examples: Examples  # E
    answers: Answers  # name -> values [E, ...]
    labels: Sequence[str] = ()  # in the order of the outputs; none if a SavedModel tells none


class Kind(ABC):
    """What the driver asks of a kind of task; immutable, its fields are its settings."""

    # Options of the commands that set attributes of the same names; their defaults are None.
    options: ClassVar[type[CheckedOptions]] = CheckedOptions
    tuned_settings: ClassVar[tuple[str, ...]] = ()  # attributes that no option sets
    decided_score: ClassVar[str | None] = None  # that tuned settings change; None for the first
    model_class: ClassVar[type[keras.Model]]  # with this kind's head
    is_trained: ClassVar[bool] = True  # by fine-tuning
    scores_are_percentages: ClassVar[bool] = False  # as the official scripts print them
    opens: ClassVar[tuple[type[keras.Model], ...]] = ()  # others whose weights include this head
    evaluated: ClassVar[str] = DEFAULT  # the signature that evaluation asks
    # The model's inputs, of the signature `tokens`.
    token_inputs: ClassVar[Mapping[str, tf.TensorSpec]] = {
        "token_ids": _IDS,
        "segment_ids": _IDS,
        "padding_mask": _IDS,
    }
    # Whether training batches hold rows of similar length, which saves padding. Not where the loss
    # is a mean over the words of a batch: words of short sentences would count more.
    batches_of_like_length: ClassVar[bool] = True
    compares_rows: ClassVar[bool] = False  # the loss compares a batch's examples: it cannot be cut
    pair_is_optional: ClassVar[bool] = False  # learns from pairs, and takes single texts, too
    many_labels: ClassVar[bool] = False  # an example has any number of labels, instead of one
    needs_labels: Any = True  # training needs a label for each example
    reads_windows: Any = False  # long texts are read in windows, so that nothing is cut
    undefined: ClassVar[str] = "for constant values"  # where a score has no value
    has_probabilities: ClassVar[bool] = False  # outputs are logits, which a temperature calibrates
    # The loss, and what is logged while training, as of `Trainer`.
    loss_function: ClassVar[Any] = staticmethod(cross_entropy)
    metrics: ClassVar[Mapping[str, Values]] = {"accuracy": accuracy}

    def settings(self) -> dict[str, Any]:
        """The settings that task.json keeps: those of the kind's `options`, and tuned ones."""
        names = [field.name for field in fields(self.options)]
        return {name: getattr(self, name) for name in (*names, *self.tuned_settings)}

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The kind with other `settings`; None keeps a value, and other keys are ignored."""
        names = self.settings().keys() | {field.name for field in fields(self.options)}
        given = {n: settings[n] for n in names if settings.get(n) is not None}
        for name in given.keys() & set(self.tuned_settings):
            if not _is_alike(given[name], getattr(self, name)):
                raise InputError(f"{name} is {given[name]!r:.40}: restore the model's task.json")
        return replace(self, **given) if given else self  # type: ignore[type-var]

    def read(self, layout: Layout, path: str | Path) -> Examples:
        """Reads examples from a file; raises InputError if it cannot be used."""
        examples = layout.read(path)
        for index, label in enumerate(examples.columns.get("label", ())):
            if not label.strip():
                raise MissingColumnError(
                    f"{examples.place(index)}: the label is blank; give the example a label or "
                    "remove the line"
                )
        return examples

    def doubts(self, examples: Examples) -> list[str]:
        """What looks wrong with training examples, a sentence each."""
        return examples.remarks()

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        """The labels of a new model: the task's, or those of the training examples, sorted."""
        return []

    def accepts(self, labels: Sequence[str]) -> bool:
        """Whether a model with these labels may be of this kind, if no task.json says."""
        return True

    @abstractmethod
    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """The values [E, ...] that the loss compares; InputError names the line of a bad label."""

    def check_training(self, options: Any, batch_size: int, validation: Examples) -> None:  # noqa: B027
        """Refuses options of fine-tuning, and validation data, that the kind cannot have."""

    def recorded(self, directory: str | Path) -> dict[str, Any]:
        """Settings of the kind, and `max_length`, that files of others in a directory record."""
        return {}

    def class_weights(self, targets: np.ndarray) -> np.ndarray:
        """Weights float32 [R] that give each class the same total weight; their mean is 1."""
        if targets.ndim > 1 or targets.dtype.kind != "i":
            raise InputError("--class_weights is for tasks with classes: leave it out")
        _, numbers, counts = np.unique(targets, return_inverse=True, return_counts=True)
        return (len(targets) / (len(counts) * counts[numbers])).astype(np.float32)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The kind for labels with other names, old -> new."""
        return self

    def split_keys(self, task: Task, examples: Examples) -> tuple[str, Sequence[Hashable]]:
        """What stays together in splits: its name, and a key for each example. Here equal texts."""
        return TEXT, row_keys(task, examples)

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        """Columns of R rows to train on, which are shuffled, and their targets [R, ...]."""
        columns = {name: examples.columns[name] for name in self.inputs(task)}
        return columns, self.targets(examples, labels)

    def batch(self, strings: Tensors, arrays: list[Any], tokenizer: Any, max_length: int) -> tuple:
        """(inputs, targets, ...) to train on, in graph; `arrays` are targets and any weights."""
        return (self.model_inputs(strings, tokenizer, max_length), *arrays)

    def trained(self, model: Any) -> Any:
        """What a `Trainer` calls on the inputs of `batch`, in place of the model."""
        return model

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """Model inputs for a batch of strings [B] by input name; runs in graph."""
        return Packer(tokenizer, max_length)(*self.pieces(strings, tokenizer))

    def head(self, labels: Sequence[str]) -> dict[str, Any]:
        """Arguments of `model_class` for its head."""
        return {"labels": list(labels)} if labels else {}

    def pieces(self, strings: Tensors, tokenizer: Any) -> list[tf.RaggedTensor]:
        """Word pieces of each segment of the rows of a batch; runs in graph."""
        names = (name for name in ("text", "text_pair", "words") if name in strings)
        return [tokenizer.tokenize(strings[name]) for name in names]

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example, [CLS] and [SEP] included, before it is truncated: int64 [E]."""
        texts = [values for values in columns.values() if isinstance(values[0], str)]
        return np.sum([1 + count_pieces(values, tokenizer) for values in texts], axis=0) + 1

    def loss(self, *, label_smoothing: float = 0.0) -> Values:
        """The loss; a share `label_smoothing` of each target is spread over all classes."""
        if label_smoothing and self.loss_function is not cross_entropy:
            raise InputError("--label_smoothing is for tasks with classes: leave it out")
        return smoothed_cross_entropy(label_smoothing) if label_smoothing else self.loss_function

    def soft_loss(self, temperature: float) -> Values | None:
        """The loss of outputs beside a teacher's, (teacher's, own); None if there is none."""
        return soft_cross_entropy(temperature) if self.loss_function is cross_entropy else None

    def soft_targets(self, outputs: Any, inputs: Any) -> Any:
        """A teacher's outputs as `soft_loss` takes them; runs in graph."""
        return outputs

    def inputs(self, task: Task) -> list[str]:
        """Names of the strings that evaluation asks with."""
        return list(self.signatures(task)[self.evaluated].inputs)

    def signatures(self, task: Task) -> dict[str, Signature]:
        """The kind's own signatures, `serving_default` among them."""
        texts = dict.fromkeys(task.columns(labelled=False), TEXTS)
        return {DEFAULT: Signature(texts, self.respond)}

    def all_signatures(self, task: Task) -> dict[str, Signature]:
        """All signatures of an export: the kind's own, and those that every model has."""
        tokens = Signature(self.token_inputs, self.respond_to_tokens)
        return {**ENCODER_SIGNATURES, "tokens": tokens, **self.signatures(task)}

    def explanation(self, task: Task) -> Signature | None:
        """The signature `explain`, which `export --explanations` adds; None for a kind without."""
        return None

    @abstractmethod
    def respond(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        """Answers to strings, in graph; `truncated`, int32 [B], are the pieces that did not fit."""

    def respond_to_tokens(self, tensors: Tensors, answerer: "Answerer") -> Tensors:
        """Answers to rows of tokens, [B, T] or [B, n, T], T at most the model's positions."""
        inputs = checked_rows(tensors, answerer.model)
        return self.token_answers(map_rows(answerer.predict, inputs), answerer.labels)

    def token_answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        """Answers to rows of tokens from the model's outputs; runs in graph."""
        return {"logits": outputs}

    def truncation(self, number: int, count: int, max_length: int) -> str:
        """A sentence that says how many examples of `count` were truncated."""
        if self.reads_windows:
            return f"cut: 0 of {count} texts; long ones are read in windows"
        return f"cut at {max_length} tokens: {number} of {count} inputs"

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray | None:
        """Outputs [E, ...] that have these answers, or at least their loss; None if unknown."""
        return None

    def in_ensemble(self, kinds: Sequence["Kind"]) -> "Kind":
        """The kind that answers for models of these kinds: in all detail that `averaged` needs.

        Of one kind alone it decides as that kind does; of several, with their mean thresholds.
        """
        return self

    def averaged(
        self, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
    ) -> Answers:
        """The joint answers of models, with the first one's labels; a single one's unchanged."""
        raise InputError("models of this task cannot be averaged: give one of them to evaluate")

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """The names of the scores, by default the task's; the first chooses the best model."""
        return task.score_names(labels)

    @abstractmethod
    def scores(self, given: Answered) -> dict[str, float | None]:
        """Scores of answers to labelled examples; None for an undefined score."""

    def score_remarks(self, task: Task, labels: Sequence[str]) -> list[str]:
        """What the scores of a model with these labels are of, a sentence each."""
        return []

    def remarks(self, given: Answered, scores: Mapping[str, float | None]) -> list[str]:
        """Notes for a reader of the scores, a sentence each."""
        found = self.score_remarks(given.task, given.labels)
        undefined = [name for name, value in scores.items() if value is None]
        if undefined:
            found.append(f"{', '.join(undefined)}: undefined {self.undefined}")
        return found

    def temperature(self, given: Answered) -> float:
        """What to divide the outputs by for the least loss on these examples (Guo et al. 2017)."""
        from scipy.optimize import minimize_scalar

        outputs = self.to_outputs(given.answers, given.labels)
        targets = self.targets(given.examples, given.labels)

        def loss(logarithm: float) -> float:
            scaled = (outputs * np.exp(-logarithm)).astype(np.float32)
            return float(np.mean(self.loss_function(targets, scaled)))

        return float(np.exp(minimize_scalar(loss, bounds=_LOG_TEMPERATURES, method="bounded").x))

    def tuned(self, given: Answered) -> "Kind":
        """The kind with the settings that are best for these validation examples."""
        return self

    def report(self, given: Answered) -> Report:
        """Tables and pictures of answers to labelled examples, beside the scores."""
        return []

    def write_files(self, directory: str | Path) -> None:
        """Writes what other libraries read beside a model; `recorded` reads it."""
        return

    @abstractmethod
    def write_predictions(self, folder: Path, given: Answered) -> None:
        """Writes the predictions files into a folder, for examples with or without labels."""

    def submitted(self, given: Answered) -> Iterable[object] | None:
        """The predictions [E] of an official file in GLUE's format; None for a kind without."""
        return None


class RowKind(Kind):
    """A kind whose model reads an example as one row, and whose scores are those of the task."""

    # A method: scores [R] of pairs from the model's outputs, in graph; None where there are none.
    pair_scores: ClassVar[Any] = None

    def signatures(self, task: Task) -> dict[str, Signature]:
        """Those of every kind; and of models of pairs, `rerank`."""
        own = super().signatures(task)
        if task.pair is not None and self.pair_scores is not None:
            own["rerank"] = Signature({"query": TEXTS, "texts": LISTS}, self.rerank)
        return own

    def respond(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        ids = self.pieces(strings, answerer.tokenizer)
        pack = Packer(answerer.tokenizer, answerer.max_length)
        outputs = map_rows(answerer.predict, pack(*ids))
        truncated = pack.truncated(*(each.row_lengths() for each in ids))
        return {**self.answers(outputs, answerer.labels), "truncated": truncated}

    def token_answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        return self.answers(outputs, labels)

    def rerank(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        """How well each text of a list goes with a query, by a model of pairs: `scores` [B, n]."""
        texts = strings["texts"]
        rows, truncated = paired_rows(
            strings["query"], texts, answerer.tokenizer, answerer.max_length
        )
        scores = self.pair_scores(map_rows(answerer.predict, rows))
        return {"scores": tf.reshape(scores, tf.shape(texts)), "truncated": truncated}

    @abstractmethod
    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        """Answers from the model's outputs, in graph."""

    @abstractmethod
    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """The inverse of `answers`: outputs [E, ...] that have them."""

    def averaged(
        self, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
    ) -> Answers:
        """Answers from the mean of the models' outputs, of classes from their mean probability."""
        outputs = np.stack([self.to_outputs(each, labels[0]) for each in answers])
        is_class = self.loss_function is cross_entropy
        mean = np.log(np.exp(outputs).mean(axis=0)) if is_class else outputs.mean(axis=0)
        return {name: x.numpy() for name, x in self.answers(tf.constant(mean), labels[0]).items()}

    def scores(self, given: Answered) -> dict[str, float | None]:
        functions = given.task.score_functions(given.labels)
        values = self.compared(given)
        return {function.__name__: function(*values) for function in functions}

    @abstractmethod
    def compared(self, given: Answered) -> tuple[np.ndarray, np.ndarray]:
        """True and predicted values [E] for the score functions."""

    @abstractmethod
    def predicted(self, given: Answered) -> Columns:
        """Columns of predictions.tsv after texts and labels, "predicted" among them."""

    def write_predictions(self, folder: Path, given: Answered) -> None:
        write_table(folder, given, self.predicted(given))

    def submitted(self, given: Answered) -> Iterable[object]:
        return dict(self.predicted(given))["predicted"]


def _is_alike(value: Any, default: Any) -> bool:
    """Whether a value of a file may replace a number, or a mapping to numbers."""
    if not isinstance(default, Mapping | float):
        return True
    if isinstance(value, Mapping) != isinstance(default, Mapping):
        return False
    numbers = value.values() if isinstance(value, Mapping) else [value]
    return all(type(x) in (int, float) and -_LARGEST <= x <= _LARGEST for x in numbers)


def row_keys(task: Task, examples: Examples) -> list[Hashable]:
    """What the model reads of each example."""
    columns = [map(hashable, examples.columns[name]) for name in task.kind.inputs(task)]
    return list(zip(*columns, strict=True))


def hashable(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value


def checked_rows(tensors: Tensors, model: Any) -> Tensors:
    """Refuses, in graph, rows of unequal shapes, too long ones, and ids of tokens that none has."""
    longest = model.config.max_position_embeddings
    rows = tf.stack(list(tensors.values()))  # refuses other shapes, where sums would repeat them
    length = tf.shape(rows)[-1]
    told = [f"give 1 to {longest} tokens a row, not", length]
    fits = tf.debugging.Assert((length >= 1) & (length <= longest), told)
    with tf.control_dependencies([fits]):  # or the model might fail first, and say less
        checked = dict(zip(tensors, tf.unstack(rows), strict=True))
    # Some devices would read other ids as vectors of zeros.
    sizes = {"token_ids": model.config.vocab_size, "segment_ids": model.config.type_vocab_size}
    if model.config.is_distilbert:
        del sizes["segment_ids"]  # it reads none
    is_token, checks = checked["padding_mask"] != 0, []
    for name, size in sizes.items():
        ids = tf.boolean_mask(checked[name], is_token)
        wrong = tf.boolean_mask(ids, (ids < 0) | (ids >= size))
        told = [f"give {name} of 0 to {size - 1}, not", wrong]
        checks.append(tf.debugging.Assert(tf.size(wrong) == 0, told, summarize=1))
    with tf.control_dependencies(checks):
        return {name: tf.identity(values) for name, values in checked.items()}


def paired_rows(
    texts: tf.Tensor, lists: tf.Tensor, tokenizer: Any, max_length: int
) -> tuple[Tensors, tf.Tensor]:
    """Rows [B * n, T] of texts [B] with each of their lists [B, n]; pieces that were cut [B, n]."""
    batch, number = tf.unstack(tf.shape(lists))
    one_list_each = (batch == tf.size(texts)) & ((number > 0) | (batch == 0))
    told = ["give a list of one choice or more for each context, not", tf.shape(lists)]
    # Or the gathering below might fail first.
    with tf.control_dependencies([tf.debugging.Assert(one_list_each, told)]):
        of_entry = tf.repeat(tf.range(batch), number)
    firsts = tokenizer.tokenize(texts)
    ids = tokenizer.tokenize(tf.reshape(lists, [-1]))
    pack = Packer(tokenizer, max_length)
    # What cannot fit is cut before the copies are made: a text may be long, its list, too.
    rows = pack(tf.gather(firsts[:, :max_length], of_entry), ids)
    truncated = pack.truncated(tf.gather(firsts.row_lengths(), of_entry), ids.row_lengths())
    return rows, tf.reshape(truncated, [batch, number])


def alone(rows: Tensors) -> Tensors:
    """Rows [R, T] as lists of one row, [R, 1, T]."""
    return {name: x[:, tf.newaxis] for name, x in rows.items()}


def in_lists(rows: Tensors, lists: tf.Tensor) -> Tensors:
    """The rows [B * n, T] of lists [B, n] as [B, n, T]."""
    shape = tf.shape(lists)
    return {n: tf.reshape(x, tf.concat([shape, tf.shape(x)[1:]], 0)) for n, x in rows.items()}


def padded_lists(prefix: str, values: Tensors, row: tf.Tensor, count: tf.Tensor) -> Tensors:
    """Values [N, ...] as lists of `count` rows, padded, and their number; `row` is ascending."""
    lists = tf.RaggedTensor.from_value_rowids(row, row, nrows=count, validate=False)
    padded = {f"{prefix}_{name}": lists.with_values(x).to_tensor() for name, x in values.items()}
    return {f"{prefix}_count": tf.cast(lists.row_lengths(), tf.int32), **padded}


def numbers(examples: Examples, what: str, cure: str) -> np.ndarray:
    """The labels as numbers, float32 [E]; InputError names the line of one that is none."""
    values = np.full(len(examples), np.nan, np.float32)
    for index, text in enumerate(examples.columns["label"]):
        with contextlib.suppress(ValueError):
            values[index] = float(text)
        if not np.isfinite(values[index]):
            raise InputError(
                f"{examples.place(index)}: the {what} {text!r} is not a number; correct the line, "
                f"or {cure}"
            )
    return values


def count_pieces(texts: Sequence[str], tokenizer: Any) -> np.ndarray:
    """Word pieces of each text, int64 [E]."""
    encoded = [text.encode(errors="replace") for text in texts]
    parts = (encoded[i : i + _AT_ONCE] for i in range(0, len(encoded), _AT_ONCE))
    return np.concatenate([tokenizer.tokenize(part).row_lengths().numpy() for part in parts])


def write_table(folder: Path, given: Answered, predicted: Columns) -> None:
    """Writes predictions.tsv with texts and known labels; a name that is taken gets a number."""
    columns: dict[str, Iterable[object]] = {}
    known = []
    for role, column in given.task.columns().items():
        if role in given.examples.columns:
            by_role = role == "label" or (column.isdecimal() and not given.task.header)
            known.append((role if by_role else column, given.examples.columns[role]))
    for name, values in [*known, *predicted]:
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        columns[next(each for each in names if each not in columns)] = values
    rows = itertools.chain([list(columns)], zip(*columns.values(), strict=True))
    write_tsv(folder / "predictions.tsv", rows)
