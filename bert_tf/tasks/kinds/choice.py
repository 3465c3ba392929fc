"""Multiple choice: which of several texts goes with a context? (paper, section 4.4)."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.task_models import BertChooser
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds import kind
from bert_tf.tasks.kinds.kind import Answered, Answers, Columns, RowKind
from bert_tf.tasks.reports.report import Report, classes_report
from bert_tf.tasks.signatures import DEFAULT, LISTS, TEXTS, Signature, Tensors
from bert_tf.tasks.task import Layout, Task
from bert_tf.tokenization.windows import map_rows

if TYPE_CHECKING:
    from bert_tf.models.answerer import Answerer


@dataclass(frozen=True)
class Choice(RowKind):
    """One of n texts for each context: each pair gets a score, and softmax runs over the n."""

    model_class = BertChooser
    has_probabilities = True
    token_inputs: ClassVar[Mapping[str, tf.TensorSpec]] = dict.fromkeys(
        RowKind.token_inputs, tf.TensorSpec([None, None, None], tf.int32)
    )
    opening: str | None = None  # column of a text that every choice of the example begins with

    def signatures(self, task: Task) -> dict[str, Signature]:
        return {DEFAULT: Signature({"context": TEXTS, "choices": LISTS}, self.respond)}

    def read(self, layout: Layout, path: str | Path) -> Examples:
        own = layout.columns
        columns = {"context": own["text"], "choices": own.get("text_pair", "choices*")}
        more = {"opening": self.opening, "label": own.get("label")}
        examples = layout.read(path, columns | {role: x for role, x in more.items() if x})
        every = examples.columns["choices"]
        for index, choices in enumerate(every):
            if len(choices) < 2 or len(choices) != len(every[0]):
                raise InputError(
                    f"{examples.place(index)}: {len(choices)} choices where {examples.row(0)} has "
                    f"{len(every[0])}; give all examples the same number, 2 or more"
                )
            empty = [place for place, choice in enumerate(choices) if not choice.strip()]
            if empty:
                raise InputError(
                    f"{examples.place(index)}: choice {empty[0]} is empty; fill it in or remove "
                    "the line"
                )
        for index, opening in enumerate(examples.columns.pop("opening", ())):
            every[index] = [f"{opening} {choice}".strip() for choice in every[index]]
        return examples

    def doubts(self, examples: Examples) -> list[str]:
        found = super().doubts(examples)
        labels = set(examples.columns["label"])
        number = len(examples.columns["choices"][0])
        if labels == {str(place) for place in range(1, number)}:
            found.append(
                f"{examples.path}: no right choice has the number 0; choices are counted from 0: "
                "subtract 1 if these are counted from 1"
            )
        return found

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Numbers of the right choices, int32 [E], which are counted from 0 or called A, B, C."""
        number = len(examples.columns["choices"][0])
        letters = string.ascii_uppercase[:number]
        found = []
        for index, label in enumerate(examples.columns["label"]):
            is_letter = len(label) == 1 and label in letters
            found.append(
                letters.index(label) if is_letter else int(label) if label.isdecimal() else -1
            )
            if not 0 <= found[-1] < number:
                raise InputError(
                    f"{examples.place(index)}: the label {label!r} is no choice; give a number "
                    f"from 0 to {number - 1}"
                )
        return np.array(found, np.int32)

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """[CLS] context [SEP] choice [SEP] for each choice, [B, n, T] each."""
        choices = strings["choices"]
        rows, _ = kind.paired_rows(strings["context"], choices, tokenizer, max_length)
        return kind.in_lists(rows, choices)

    def respond(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        context, choices = strings["context"], strings["choices"]
        rows, truncated = kind.paired_rows(
            context, choices, answerer.tokenizer, answerer.max_length
        )
        scores = map_rows(answerer.predict, kind.alone(rows))  # (B * n, 1)
        # Lists of unequal length may be padded: an empty choice has the probability 0.
        is_blank = choices == ""
        is_blank &= ~tf.reduce_all(is_blank, -1, keepdims=True)
        scores = tf.where(is_blank, scores.dtype.min, tf.reshape(scores, tf.shape(choices)))
        return {**self.answers(scores, answerer.labels), "truncated": tf.reduce_max(truncated, -1)}

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example's longest choice with the context, int64 [E]."""
        choices = [text for choices in columns["choices"] for text in choices]
        of_choices = kind.count_pieces(choices, tokenizer).reshape(len(columns["choices"]), -1)
        return 3 + kind.count_pieces(columns["context"], tokenizer) + of_choices.max(axis=1)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = keras.ops.softmax(outputs, axis=-1)
        padded = tf.pad(probabilities, [[0, 0], [0, 1]])  # an empty batch may have no choices
        best = {"choice": tf.argmax(padded, -1, tf.int32), "probability": tf.reduce_max(padded, -1)}
        return {**best, "probabilities": probabilities}

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        return np.log(np.maximum(answers["probabilities"], np.finfo(np.float32).tiny))

    def compared(self, given: Answered) -> tuple[np.ndarray, np.ndarray]:
        return self.targets(given.examples, given.labels), given.answers["choice"]

    def report(self, given: Answered) -> Report:
        probabilities = given.answers["probabilities"]
        numbers = [str(number) for number in range(probabilities.shape[-1])]
        truth = self.targets(given.examples, given.labels)
        return classes_report(given.examples, numbers, truth, probabilities)

    def predicted(self, given: Answered) -> Columns:
        columns, shares = given.examples.columns, enumerate(given.answers["probabilities"].T)
        texts = [(f"choices{i}", x) for i, x in enumerate(zip(*columns["choices"], strict=True))]
        found = [(f"probability{i}", map("{:.6f}".format, x)) for i, x in shares]
        predicted = ("predicted", given.answers["choice"].tolist())
        return [("context", columns["context"]), *texts, predicted, *found]
