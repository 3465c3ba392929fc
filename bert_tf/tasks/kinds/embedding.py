"""Vectors of texts, from an encoder without a head."""

from pathlib import Path
from typing import Any, NoReturn

from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.encoders import LstmEncoder, TwoEncoders
from bert_tf.models.language_model import BertLanguageModel
from bert_tf.serving.encoder_signatures import ENCODER_SIGNATURES, embed, vectors
from bert_tf.serving.signatures import DEFAULT, Parts, Signature, Tensors
from bert_tf.tasks.kinds.kind import Answered, Kind, checked_rows
from bert_tf.tasks.task import Layout, Task
from pipelines.examples.labelled_text import Examples


class Embedding(Kind):
    """Vectors of each text. There are no labels: nothing to train or to score."""

    model_class = BertEncoder
    opens = (BertLanguageModel, TwoEncoders, LstmEncoder)
    is_trained = False

    def signatures(self, task: Task) -> dict[str, Signature]:
        return {DEFAULT: ENCODER_SIGNATURES["embed"]}

    def respond(self, strings: Tensors, parts: Parts) -> Tensors:
        return embed(strings, parts)

    def respond_to_tokens(self, tensors: Tensors, parts: Parts) -> Tensors:
        return vectors(checked_rows(tensors, parts.model), parts.model)

    def read(self, layout: Layout, path: str | Path) -> Examples:
        return self._refuse() if layout.labelled else super().read(layout, path)

    def write_predictions(self, folder: Path, given: Answered) -> None:
        raise InputError("vectors have no official file: leave --submission out")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            "the model is an encoder without a head, which has no scores: train it for a task "
            "first (bert-tf finetune)"
        )

    targets = scores = _refuse
