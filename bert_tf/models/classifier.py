"""The classifier of a sentence or a pair of sentences."""

from collections.abc import Sequence
from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.layers import ClassificationHead
from bert_tf.layers.initialization import child_seed
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.pretrained_model import HeadedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertClassifier(HeadedModel):
    """An encoder with a dense layer on the pooled output (paper, section 4.1).

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` to make one of.
        num_classes: C; None for as many as there are labels.
        labels: the classes' names, in the order of their ids; None for no names.
        dropout: of the pooled output; None for the config's `classifier_dropout`, or else its
            `hidden_dropout_prob`.
        seed: of the head's start and dropout, and of an encoder made here; None draws anew.
        dtype: a Keras dtype policy of the head, and of an encoder made here; None for the
            encoder's, or else the global one.

    Inputs: the encoder's. Output: logits, float32 [B, C] whatever the compute dtype.

    Raises:
        InputError: if there is neither a number of classes nor labels, the two disagree, or a
            label comes twice.
    """

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
        if labels is not None:
            labels = [str(label) for label in labels]
            if len(set(labels)) < len(labels):
                raise InputError(f"A label comes twice in {labels}: give each once.")
            if num_classes not in (None, len(labels)):
                raise InputError(f"There are {len(labels)} labels for {num_classes} classes.")
            num_classes = len(labels)
        if num_classes is None:
            raise InputError("A classifier needs num_classes or labels.")

        # Layers.
        if isinstance(encoder, BertConfig):
            seed_of_encoder = child_seed(seed, "encoder")
            encoder = BertEncoder(encoder, seed=seed_of_encoder, dtype=dtype, name="encoder")
        config = encoder.config
        dtype = encoder.dtype_policy if dtype is None else dtype
        if dropout is None:
            dropout = config.classifier_dropout
        if dropout is None:
            dropout = config.hidden_dropout_prob
        classifier = ClassificationHead(
            num_classes,
            dropout=dropout,
            initializer_range=config.initializer_range,
            seed=child_seed(seed, "classifier"),
            dtype=dtype,
            name="classifier",
        )

        # Wiring.
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask")
        }
        logits = classifier(encoder(inputs)["pooled_output"])  # (B, C)
        super().__init__(inputs=inputs, outputs=logits, dtype=dtype, **kwargs)

        self.num_classes = num_classes
        self.labels = labels
        self.dropout = dropout
        self.seed = seed
        self.encoder = encoder
        self.classifier = classifier

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "labels": self.labels and list(self.labels),
            "dropout": self.dropout,
        }
