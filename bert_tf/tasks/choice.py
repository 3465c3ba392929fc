"""Multiple choice: which of several texts goes with a context? (paper, section 4.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.task_models import BertChooser
from bert_tf.tasks.dataset import Dataset
from bert_tf.tasks.kind import Answers, RowKind, count_pieces
from bert_tf.tasks.report import Report, classes_report
from bert_tf.tokenization.packing import Packer
from pipelines.examples.labelled_text import Examples, read_examples


@dataclass(frozen=True)
class Choice(RowKind):
    """One of n texts for each context: each pair gets a score, and softmax runs over the n.

    The answers are `choice` (int32 [B], counted from 0), `probability` (float32 [B]) and
    `probabilities` (float32 [B, n]).

    Attributes:
        opening: column of a text that every choice of the example begins with; None for none.
    """

    model_class = BertChooser
    lists = ("choices",)
    opening: str | None = None

    def inputs(self, dataset: Dataset) -> list[str]:
        """A context and a list of choices."""
        return ["context", "choices"]

    def read(self, dataset: Dataset, path: str | Path, *, labelled: bool = True) -> Examples:
        """Reads tables, and JSON lines with a list of choices."""
        columns = {"context": dataset.text, "choices": dataset.pair or "choices*"}
        if self.opening is not None:
            columns["opening"] = self.opening
        if labelled:
            columns["label"] = dataset.label
        examples = read_examples(path, columns, format=dataset.format, header=dataset.header)
        number = len(examples.columns["choices"][0])
        for index, choices in enumerate(examples.columns["choices"]):
            if len(choices) < 2 or len(choices) != number:
                raise InputError(
                    f"{examples.place(index)}: {len(choices)} choices where line "
                    f"{examples.lines[0]} has {number}; give all examples the same number, 2 or "
                    "more"
                )
            for place, choice in enumerate(choices):
                if not choice.strip():
                    raise InputError(
                        f"{examples.place(index)}: choice {place} is empty; fill it in or remove "
                        "the line"
                    )
        for index, opening in enumerate(examples.columns.pop("opening", ())):
            choices = examples.columns["choices"][index]
            examples.columns["choices"][index] = [f"{opening} {c}".strip() for c in choices]
        return examples

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Numbers of the right choices, int32 [E]."""
        number = len(examples.columns["choices"][0])
        for index, label in enumerate(examples.columns["label"]):
            if not label.isdecimal() or int(label) >= number:
                raise InputError(
                    f"{examples.place(index)}: the label {label!r} is no choice; give a number "
                    f"from 0 to {number - 1}"
                )
        return np.array([int(label) for label in examples.columns["label"]], np.int32)

    def model_inputs(
        self, strings: Mapping[str, tf.Tensor], tokenizer: Any, max_length: int
    ) -> Any:
        """[CLS] context [SEP] choice [SEP] for each choice, [B, N, T] each."""
        batch, number = tf.unstack(tf.shape(strings["choices"]))
        contexts = tokenizer.tokenize(strings["context"])
        contexts = tf.gather(contexts, tf.repeat(tf.range(batch), number))
        choices = tokenizer.tokenize(tf.reshape(strings["choices"], [-1]))
        rows = Packer(tokenizer, max_length)(contexts, choices)
        return {name: tf.reshape(x, [batch, number, tf.shape(x)[1]]) for name, x in rows.items()}

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example's longest choice with the context, int64 [E]."""
        choices = [text for choices in columns["choices"] for text in choices]
        of_choices = count_pieces(choices, tokenizer).reshape(len(columns["choices"]), -1)
        return 3 + count_pieces(columns["context"], tokenizer) + of_choices.max(axis=1)

    def answers(self, outputs: Any, labels: Sequence[str]) -> dict[str, tf.Tensor]:
        """The most probable choice, and the probabilities of all."""
        probabilities = keras.ops.softmax(outputs, axis=-1)
        return {
            "choice": tf.argmax(probabilities, -1, output_type=tf.int32),
            "probability": tf.reduce_max(probabilities, -1),
            "probabilities": probabilities,
        }

    def outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """Logarithms of the probabilities, float32 [E, n]."""
        return np.log(np.maximum(answers["probabilities"], np.finfo(np.float32).tiny))

    def compared(
        self, dataset: Dataset, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the right and of the most probable choices."""
        return self.targets(examples, labels), answers["choice"]

    def report(
        self, dataset: Dataset, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Report:
        """Confusion matrix, scores of each place, calibration, worst errors."""
        numbers = [str(number) for number in range(answers["probabilities"].shape[-1])]
        truth = self.targets(examples, labels)
        return classes_report(examples, numbers, truth, answers["probabilities"])

    def predicted(
        self, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> list[tuple[str, Sequence[object]]]:
        """Context and choices, the predicted choice, and the probabilities of all."""
        choices = zip(*examples.columns["choices"], strict=True)
        return [
            ("context", examples.columns["context"]),
            *((f"choices{i}", texts) for i, texts in enumerate(choices)),
            ("predicted", answers["choice"].tolist()),
            *(
                (f"probability{i}", [f"{value:.6f}" for value in values])
                for i, values in enumerate(answers["probabilities"].T)
            ),
        ]
