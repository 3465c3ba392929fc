"""The classes of models that model directories hold and kinds of tasks name."""

from typing import Any

from bert_tf.models.encoder import BertEncoder
from bert_tf.models.language_model import BertMaskedLanguageModel, BertPreTrainer
from bert_tf.models.pretrained_model import PretrainedModel
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertSentenceEncoder,
    BertSpanClassifier,
    BertTagger,
)

# The first class of an architecture and problem type is made from a directory.
STORED: tuple[type[PretrainedModel], ...] = (
    BertEncoder,
    BertPreTrainer,
    BertMaskedLanguageModel,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertChooser,
    BertTagger,
    BertSpanClassifier,
    BertSentenceEncoder,
)


def class_of_kind(kind: Any) -> Any:
    """The class of the models that a kind trains: one of these by its name, or a user's own."""
    named = kind.model_class
    return {cls.__name__: cls for cls in STORED}.get(named, named)
