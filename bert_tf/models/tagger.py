"""The model that gives every token a label."""

from collections.abc import Sequence
from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.layers import ClassificationHead
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.classifier import check_classes
from bert_tf.models.encoder import BertEncoder, encoder_for
from bert_tf.models.pretrained_model import PretrainedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertTagger(PretrainedModel):
    """An encoder with a dense layer on every token's vector (paper, section 5.3).

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        num_classes: C, at least 2; None for the number of labels.
        labels: names of the classes, in the order of their ids; None for no names.
        dropout: dropout rate of the vectors; None for the config's `classifier_dropout`, or else
            its `hidden_dropout_prob`.
        seed: random seed for the head and for a new encoder; None for no fixed seed.
        dtype: Keras dtype policy of the head and of a new encoder; None for the encoder's, or
            else the global one.
        kwargs: Keras' own, such as `name`.

    Inputs: the encoder's. Output: logits, float32 [B, T, C] whatever the compute dtype.

    Raises:
        InputError: as of `BertClassifier`.
    """

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
        logits = classifier(encoder(inputs)["sequence_output"])  # (B, T, C)
        super().__init__(encoder.config, inputs, logits, seed, dtype, **kwargs)

        self.num_classes = num_classes
        self.labels = labels
        self.dropout = classifier.dropout.rate
        self.encoder = encoder
        self.classifier = classifier
