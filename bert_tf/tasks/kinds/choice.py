"""Multiple choice: which of several texts goes with a context? (paper, section 4.4)."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.table import Examples, Table
from bert_tf.tasks.kinds.kind import TOKENS, Answered, Answers, RowKind
from bert_tf.tasks.kinds.rows import alone, count_pieces, in_lists, paired_rows
from bert_tf.tasks.signatures import DEFAULT, LISTS, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.windows import map_rows


@dataclass(frozen=True)
class Choice(RowKind):
    """One of n texts for each context: each pair gets a score, and softmax runs over the n."""

    model_class = "BertChooser"
    opening: str | None = None  # column of a text that every choice of the example begins with

    def signatures(self, task: Task) -> dict[str, Signature]:
        tokens = dict.fromkeys(TOKENS, tf.TensorSpec([None, None, None], tf.int32))
        return {
            DEFAULT: Signature({"context": TEXTS, "choices": LISTS}, self.respond),
            "tokens": Signature(tokens, self.respond_to_tokens),
        }

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        roles = {"context": columns["text"], "choices": columns.get("text_pair", "choices*")}
        if "label" in columns:
            roles["label"] = columns["label"]
        examples = table.examples(roles)
        rows = examples.columns["choices"]
        for index, choices in enumerate(rows):
            if len(choices) < 2 or len(choices) != len(rows[0]):
                raise InputError(
                    f"{examples.location(index)}: {len(choices)} choices where {examples.row(0)} "
                    f"has {len(rows[0])}; give all examples the same number, 2 or more"
                )
            empty = [number for number, choice in enumerate(choices) if not choice.strip()]
            if empty:
                raise InputError(
                    f"{examples.location(index)}: choice {empty[0]} is empty; fill it in or remove "
                    "the line"
                )
        openings = [] if self.opening is None else table.texts("opening", self.opening)
        for index, opening in enumerate(openings):
            rows[index] = [f"{opening} {choice}".strip() for choice in rows[index]]
        return examples

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Numbers of the right choices, int32 [E], which are counted from 0 or called A, B, C."""
        number = len(examples.columns["choices"][0])
        letters = string.ascii_uppercase[:number]
        choices = []
        for index, label in enumerate(examples.columns["label"]):
            is_letter = len(label) == 1 and label in letters
            choices.append(
                letters.index(label) if is_letter else int(label) if label.isdecimal() else -1
            )
            if not 0 <= choices[-1] < number:
                raise InputError(
                    f"{examples.location(index)}: the label {label!r} is no choice; give a number "
                    f"from 0 to {number - 1}"
                )
        return np.array(choices, np.int32)

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """[CLS] context [SEP] choice [SEP] for each choice, [B, n, T] each."""
        choices = strings["choices"]
        rows, _ = paired_rows(strings["context"], choices, tokenizer, max_length)
        return in_lists(rows, choices)

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        context, choices = strings["context"], strings["choices"]
        rows, truncated = paired_rows(context, choices, answerer.tokenizer, answerer.max_length)
        scores = map_rows(answerer.predict, alone(rows))  # (B * n, 1)
        # Lists of unequal length may be padded: an empty choice has the probability 0.
        is_blank = choices == ""
        is_blank &= ~tf.reduce_all(is_blank, -1, keepdims=True)
        scores = tf.where(is_blank, scores.dtype.min, tf.reshape(scores, tf.shape(choices)))
        return {**self.answers(scores, answerer.labels), "truncated": tf.reduce_max(truncated, -1)}

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example's longest choice with the context, int64 [E]."""
        choices = [text for choices in columns["choices"] for text in choices]
        choice_pieces = count_pieces(choices, tokenizer).reshape(len(columns["choices"]), -1)
        return 3 + count_pieces(columns["context"], tokenizer) + choice_pieces.max(axis=1)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = keras.ops.softmax(outputs, axis=-1)
        padded = tf.pad(probabilities, [[0, 0], [0, 1]])  # an empty batch may have no choices
        best = {"choice": tf.argmax(padded, -1, tf.int32), "probability": tf.reduce_max(padded, -1)}
        return {**best, "probabilities": probabilities}

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        return np.log(np.maximum(answers["probabilities"], np.finfo(np.float32).tiny))

    def compared(self, answered: Answered) -> tuple[np.ndarray, np.ndarray]:
        return self.targets(answered.examples, answered.labels), answered.answers["choice"]
