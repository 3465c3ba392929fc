"""Multiple choice: which of several texts goes with a context? (paper, section 4.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.pipelines.examples.bad_rows import refuse
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import TOKENS, Answered, Answers, RowKind, count_pieces
from bert_tf.tasks.kinds.rows import alone, in_lists, paired_rows
from bert_tf.tasks.readers import ChoiceReader, choice_in
from bert_tf.tasks.signatures import DEFAULT, LISTS, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.windows import map_rows


@dataclass(frozen=True)
class Choice(ChoiceReader, RowKind):
    """One of n texts for each context: each pair gets a score, and softmax runs over the n."""

    model_class = "BertChooser"

    def signatures(self, task: Task) -> dict[str, Signature]:
        tokens = dict.fromkeys(TOKENS, tf.TensorSpec([None, None, None], tf.int32))
        return {
            DEFAULT: Signature({"context": TEXTS, "choices": LISTS}, self.respond),
            "tokens": Signature(tokens, self.respond_to_tokens),
        }

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Numbers of the right choices, int32 [E]."""
        refuse([*self.label_faults(examples, labels).values()])
        number = len(examples.columns["choices"][0])
        return np.array([choice_in(x, number) for x in examples.columns["label"]], np.int32)

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """[CLS] context [SEP] choice [SEP] for each choice, [B, n, T] each."""
        choices = strings["choices"]
        rows, _ = paired_rows(strings["context"], choices, tokenizer, max_length)
        return in_lists(rows, choices)

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        context = strings["context"]
        choices = strings["choices"]
        rows, truncated = paired_rows(context, choices, answerer.tokenizer, answerer.max_length)
        scores = map_rows(answerer.predict, alone(rows))  # (B * n, 1)
        answers = self.choose(scores, choices == "")
        return {**answers, "truncated": tf.reduce_max(truncated, -1)}

    def choose(self, scores: tf.Tensor, is_blank: tf.Tensor) -> Tensors:
        """Answers to scores [B * n, 1] of lists [B, n], of which some choices are empty strings."""
        # Lists of unequal length may be padded: an empty choice has the probability 0.
        is_blank &= ~tf.reduce_all(is_blank, -1, keepdims=True)
        scores = tf.reshape(scores, tf.shape(is_blank))
        return self.answers(tf.where(is_blank, scores.dtype.min, scores), ())

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
