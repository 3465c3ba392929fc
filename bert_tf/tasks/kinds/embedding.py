"""Vectors of texts, from an encoder without a head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.language_model import BertLanguageModel
from bert_tf.serving.encoder_signatures import ENCODER_SIGNATURES, embed, vectors
from bert_tf.serving.signatures import DEFAULT, Signature
from bert_tf.tasks.kinds.kind import Answers, Kind, checked_rows
from bert_tf.tasks.task import Task
from pipelines.examples.labelled_text import Examples


class Embedding(Kind):
    """Vectors of each text. There are no labels: nothing to train or to score."""

    model_class = BertEncoder
    opens = (BertLanguageModel,)
    is_trained = False

    def signatures(self, task: Task) -> dict[str, Signature]:
        """`embed`, by default."""
        return {DEFAULT: ENCODER_SIGNATURES["embed"]}

    def respond(
        self, strings: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """See `bert_tf.serving.encoder_signatures.embed`."""
        return embed(strings, model, tokenizer, labels, max_length)

    def respond_to_tokens(
        self, tensors: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """The vectors of rows of tokens."""
        return vectors(checked_rows(tensors, model), model)

    def read(self, task: Task, path: str | Path, *, labelled: bool = True) -> Examples:
        """Reads texts; there are no labelled ones."""
        return _refuse() if labelled else super().read(task, path, labelled=False)

    def targets(self, examples: Examples, labels: Sequence[str]) -> NoReturn:
        """Refuses."""
        _refuse()

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """None."""
        return []

    def scores(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> NoReturn:
        """Refuses."""
        _refuse()

    def write_predictions(
        self, folder: Path, task: Task, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> NoReturn:  # fmt: skip
        """Refuses."""
        raise InputError("vectors have no official file: leave --submission out")


def _refuse() -> NoReturn:
    raise InputError(
        "the model is an encoder without a head, which has no scores: train it for a task first "
        "(bert-tf finetune)"
    )
