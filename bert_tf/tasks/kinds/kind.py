"""Kinds of tasks: which examples they refuse; how others become inputs, losses, answers, scores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import CLASSES, Values
from bert_tf.options import CheckedOptions
from bert_tf.pipelines.examples.bad_rows import refuse
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.rows import TEXT_ROLES, checked_rows
from bert_tf.tasks.readers import NumberReader, Reader, number_in
from bert_tf.tasks.signatures import DEFAULT, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows

Answers = dict[str, np.ndarray]

_LARGEST = 1e9  # number in a task.json
_AT_ONCE = 4096  # texts tokenized
_IDS = tf.TensorSpec([None, None], tf.int32)
TOKENS = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), _IDS)


@dataclass(frozen=True, eq=False)
class Answered:
    """Examples with a model's answers: what scores, reports and files are made of."""

    task: Task
    examples: Examples  # E
    answers: Answers  # name -> values [E, ...]
    labels: Sequence[str] = ()  # in the order of the outputs; none if a SavedModel tells none


class Kind(Reader, ABC):
    """How models of a kind read, learn and answer; immutable, its fields are its settings."""

    # Options of the commands that set attributes of the same names; their defaults are None.
    options: ClassVar[type[CheckedOptions]] = CheckedOptions
    # Attributes that no option sets -> the score that they change.
    tuned_settings: ClassVar[Mapping[str, str]] = {}
    model_class: ClassVar[Any]  # with this kind's head: a class, or the name of one in `bert_tf`
    is_trained: ClassVar[bool] = True  # by fine-tuning
    evaluated: ClassVar[str] = DEFAULT  # the signature that evaluation asks
    losses: Any = CLASSES  # `Losses`; a property where settings choose them

    def settings(self) -> dict[str, Any]:
        """The settings that task.json keeps: the kind's `options` and tuned values."""
        names = [field.name for field in fields(self.options)]
        return {name: getattr(self, name) for name in (*names, *self.tuned_settings)}

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The kind with other `settings`; None keeps a value, and other keys are ignored."""
        names = self.settings().keys() | {field.name for field in fields(self.options)}
        changed = {n: settings[n] for n in names if settings.get(n) is not None}
        for name in changed.keys() & self.tuned_settings.keys():
            if not _is_alike(changed[name], getattr(self, name)):
                raise InputError(f"{name} is {changed[name]!r:.40}: restore the model's task.json")
        return replace(self, **changed) if changed else self  # type: ignore[type-var]

    @abstractmethod
    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """The labels' numbers [E, ...], for the loss; InputError names the line of a bad label."""

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        """Columns of R rows to train on, which are shuffled, and their targets [R, ...]."""
        columns = {name: examples.columns[name] for name in task.inputs}
        return columns, self.targets(examples, labels)

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example, [CLS] and [SEP] included, before it is truncated: int64 [E]."""
        texts = [values for values in columns.values() if isinstance(values[0], str)]
        return np.sum([1 + count_pieces(values, tokenizer) for values in texts], axis=0) + 1

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """Model inputs for a batch of strings [B] by input name; runs in graph."""
        return Packer(tokenizer, max_length)(*text_pieces(strings, tokenizer))

    def batch(self, strings: Tensors, arrays: list[Any], tokenizer: Any, max_length: int) -> tuple:
        """(inputs, targets, ...) to train on, in graph; `arrays` are targets and any weights."""
        return (self.model_inputs(strings, tokenizer, max_length), *arrays)

    def head(self, labels: Sequence[str]) -> dict[str, Any]:
        """Arguments of `model_class` for its head."""
        return {"labels": list(labels)} if labels else {}

    def signatures(self, task: Task) -> dict[str, Signature]:
        """The kind's own signatures, `serving_default` and `tokens` among them."""
        texts = dict.fromkeys(task.columns(labelled=False), TEXTS)
        return {
            DEFAULT: Signature(texts, self.respond),
            "tokens": Signature(TOKENS, self.respond_to_tokens),
        }

    @abstractmethod
    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        """Answers to strings, in graph; `truncated`, int32 [B], are the pieces that did not fit."""

    def respond_to_tokens(self, tensors: Tensors, answerer: AnswererProtocol) -> Tensors:
        """Answers to rows of tokens, [B, T] or [B, n, T], T at most the model's positions."""
        return self.row_answers(checked_rows(tensors, answerer.model), answerer)

    def row_answers(
        self, rows: Tensors, answerer: AnswererProtocol, apply: Any = map_rows
    ) -> Tensors:
        """Answers to rows of tokens; `apply` calls the model on them, a few at a time or all."""
        return self.answers(apply(answerer.predict, rows), answerer.labels)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        """Answers to rows of tokens from the model's outputs; runs in graph."""
        return {"logits": outputs}

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """The names of the scores, by default the task's; the first chooses the best model."""
        return task.score_names(labels)

    @abstractmethod
    def scores(self, answered: Answered) -> dict[str, float | None]:
        """Scores of answers to labelled examples; None for an undefined score."""

    def tuned(self, answered: Answered) -> "Kind":
        """The kind with the settings that are best for these validation examples."""
        return self


class RowKind(Kind):
    """A kind whose model reads an example as one row. The task names its scores."""

    def pieces(self, strings: Tensors, tokenizer: Any) -> list[tf.RaggedTensor]:
        """Word pieces of each segment of the rows of a batch; runs in graph."""
        return text_pieces(strings, tokenizer)

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        return Packer(tokenizer, max_length)(*self.pieces(strings, tokenizer))

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        segments = self.pieces(strings, answerer.tokenizer)
        pack = Packer(answerer.tokenizer, answerer.max_length)
        answers = self.row_answers(pack(*segments), answerer)
        truncated = pack.truncated(*(ids.row_lengths() for ids in segments))
        return {**answers, "truncated": truncated}

    @abstractmethod
    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        """Answers from the model's outputs, in graph."""

    @abstractmethod
    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """The inverse of `answers`: outputs [E, ...] that have them."""

    def scores(self, answered: Answered) -> dict[str, float | None]:
        functions = answered.task.score_functions(answered.labels)
        values = self.compared(answered)
        return {function.__name__: function(*values) for function in functions}

    def mean_loss(self, answered: Answered, loss: Values) -> float:
        """The mean loss of the answers to labelled examples."""
        outputs = self.to_outputs(answered.answers, answered.labels)
        return float(np.mean(loss(self.targets(answered.examples, answered.labels), outputs)))

    @abstractmethod
    def compared(self, answered: Answered) -> tuple[np.ndarray, np.ndarray]:
        """True and predicted values [E] for the score functions."""


def text_pieces(strings: Tensors, tokenizer: Any) -> list[tf.RaggedTensor]:
    """Word pieces of the text, and of the second text of a pair."""
    return [tokenizer.tokenize(strings[name]) for name in TEXT_ROLES if name in strings]


def count_pieces(texts: Sequence[str], tokenizer: Any) -> np.ndarray:
    """Word pieces of each text, int64 [E]."""
    encoded = [text.encode(errors="replace") for text in texts]
    parts = (encoded[i : i + _AT_ONCE] for i in range(0, len(encoded), _AT_ONCE))
    return np.concatenate([tokenizer.tokenize(part).row_lengths().numpy() for part in parts])


def _is_alike(value: Any, default: Any) -> bool:
    """Whether a value of a file may replace a number, or a mapping to numbers."""
    if not isinstance(default, Mapping | float):
        return True
    if isinstance(value, Mapping) != isinstance(default, Mapping):
        return False
    numbers = value.values() if isinstance(value, Mapping) else [value]
    return all(type(x) in (int, float) and -_LARGEST <= x <= _LARGEST for x in numbers)


def numbers(examples: Examples, reader: type[NumberReader]) -> np.ndarray:
    """The labels as numbers, float32 [E]; InputError names the lines of those that are none."""
    refuse([*reader().label_faults(examples, ()).values()])
    return np.array([number_in(text) for text in examples.columns["label"]], np.float32)
