"""The classifier of a sentence or a pair of sentences."""

from collections.abc import Sequence
from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.layers import ClassificationHead
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.encoder import BertEncoder, encoder_for
from bert_tf.models.pretrained_model import PretrainedModel


class ClassifierModel(PretrainedModel):
    """An encoder with a dense layer on one of its outputs: what `BertClassifier` and others share.

    Attributes:
        reads: name of the encoder's output under the dense layer.
    """

    reads = "pooled_output"
    arguments = ("encoder", "num_classes", "labels", "dropout")

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        dropout: float | None = None,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        num_classes, labels = check_classes(num_classes, labels)

        # Layers.
        encoder, dtype = encoder_for(encoder, seed, dtype)
        classifier = ClassificationHead(
            encoder.config,
            num_classes,
            dropout=dropout,
            seed=child_seed(seed, "classifier"),
            dtype=dtype,
            name="classifier",
        )

        # Wiring.
        inputs = self.symbolic_inputs()
        logits = classifier(encoder(inputs)[self.reads])  # (B, C) or (B, T, C)
        super().__init__(encoder.config, inputs, logits, seed, dtype, **kwargs)

        self.num_classes = num_classes
        self.labels = labels
        self.dropout = classifier.dropout.rate
        self.encoder = encoder
        self.classifier = classifier


@keras.saving.register_keras_serializable(package="bert_tf")
class BertClassifier(ClassifierModel):
    """An encoder with a dense layer on the pooled output (paper, section 4.1).

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        num_classes: C, at least 2; None for the number of labels.
        labels: names of the classes, in the order of their ids; None for no names.
        dropout: dropout rate of the pooled output; None for the config's `classifier_dropout`,
            or else its `hidden_dropout_prob`.
        seed: random seed for the head and for a new encoder; None for no fixed seed.
        dtype: Keras dtype policy of the head and of a new encoder; None for the encoder's, or
            else the global one.
        kwargs: Keras' own, such as `name`.

    Inputs: the encoder's. Output: logits, float32 [B, C] whatever the compute dtype.

    Raises:
        InputError: there are neither a number of classes nor labels, the two disagree, a label
            comes twice, or there are fewer than two classes.
    """


def check_classes(
    num_classes: int | None, labels: Sequence[str] | None
) -> tuple[int, list[str] | None]:
    """The number and the names of a classifier's classes; at least one of them must be given.

    Raises:
        InputError: there is neither, the two disagree, a label comes twice, or there are fewer
            than two classes.
    """
    if labels is not None:
        labels = [str(label) for label in labels]
        if len(set(labels)) < len(labels):
            raise InputError(f"A label comes twice in {labels}: give each once.")
        if num_classes not in (None, len(labels)):
            raise InputError(f"There are {len(labels)} labels for {num_classes} classes.")
        num_classes = len(labels)
    if num_classes is None:
        raise InputError("A classifier needs num_classes or labels.")
    if num_classes < 2:
        raise InputError(
            f"A classifier of {num_classes} class always gives the same answer: give 2 classes "
            "or more, or use BertRegressor to predict a number."
        )
    return num_classes, labels
