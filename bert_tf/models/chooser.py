"""The model that chooses one of several texts."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers import ClassificationHead
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.encoder import BertEncoder, encoder_for
from bert_tf.models.pretrained_model import PretrainedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertChooser(PretrainedModel):
    """An encoder with one score for each choice, from the pooled output (paper, section 4.4).

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        dropout: dropout rate of the pooled output; None for the config's `classifier_dropout`,
            or else its `hidden_dropout_prob`.
        seed: random seed for the head and for a new encoder; None for no fixed seed.
        dtype: Keras dtype policy of the head and of a new encoder; None for the encoder's, or
            else the global one.
        kwargs: Keras' own, such as `name`.

    Inputs: the encoder's, but [B, N, T]: N choices for each example. Output: logits, float32
    [B, N] whatever the compute dtype.
    """

    arguments = ("encoder", "dropout")

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        dropout: float | None = None,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        # Layers.
        encoder, dtype = encoder_for(encoder, seed, dtype)
        classifier = ClassificationHead(
            encoder.config,
            1,
            dropout=dropout,
            seed=child_seed(seed, "classifier"),
            dtype=dtype,
            name="classifier",
        )
        fold, unfold = FoldChoices(name="fold"), UnfoldChoices(name="unfold", dtype="float32")

        # Wiring.
        inputs = {
            name: keras.Input((None, None), dtype="int32", name=name)
            for name in self.symbolic_inputs()
        }
        rows = {name: fold(x) for name, x in inputs.items()}  # (B * N, T)
        scores = classifier(encoder(rows)["pooled_output"])  # (B * N, 1)
        logits = unfold(scores, inputs["token_ids"])  # (B, N)
        super().__init__(encoder.config, inputs, logits, seed, dtype, **kwargs)

        self.dropout = classifier.dropout.rate
        self.encoder = encoder
        self.classifier = classifier


@keras.saving.register_keras_serializable(package="bert_tf")
class FoldChoices(keras.layers.Layer):
    """Makes a row of every choice: [B, N, T] -> [B * N, T]."""

    def call(self, x: Any) -> Any:
        """Reshapes."""
        batch, choices, length = ops.shape(x)
        return ops.reshape(x, (batch * choices, length))

    def compute_output_spec(self, x: Any) -> Any:
        """[B, N, T] -> [B * N, T]."""
        return keras.KerasTensor((None, x.shape[2]), dtype=x.dtype)


@keras.saving.register_keras_serializable(package="bert_tf")
class UnfoldChoices(keras.layers.Layer):
    """The inverse for scores: [B * N, 1] -> [B, N], as in a tensor [B, N, T]."""

    def call(self, scores: Any, choices: Any) -> Any:
        """Reshapes."""
        return ops.reshape(scores, tuple(ops.shape(choices))[:2])

    def compute_output_spec(self, scores: Any, choices: Any) -> Any:
        """[B * N, 1] -> [B, N]."""
        return keras.KerasTensor(choices.shape[:2], dtype="float32")
