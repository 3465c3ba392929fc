"""The model that marks the answer to a question in its context."""

from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.layers import ClassificationHead
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.encoder import BertEncoder, encoder_for
from bert_tf.models.pretrained_model import PretrainedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertSpanClassifier(PretrainedModel):
    """An encoder with a start and an end vector (paper, section 4.2).

    `create_model` in the original's run_squad.py, `BertForQuestionAnswering` of Hugging Face:
    one dense layer on the last hidden state, without dropout.

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        seed: random seed for the head and for a new encoder; None for no fixed seed.
        dtype: Keras dtype policy of the head and of a new encoder; None for the encoder's, or
            else the global one.
        kwargs: Keras' own, such as `name`.

    Inputs: the encoder's. Output: logits, float32 [B, T, 2] whatever the compute dtype: how well
    the answer starts and ends at each token.
    """

    arguments = ("encoder",)

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        # Layers.
        encoder, dtype = encoder_for(encoder, seed, dtype)
        span = ClassificationHead(
            encoder.config,
            2,
            dropout=0.0,
            seed=child_seed(seed, "span"),
            dtype=dtype,
            name="span",
        )

        # Wiring.
        inputs = self.symbolic_inputs()
        logits = span(encoder(inputs)["sequence_output"])  # (B, T, 2)
        super().__init__(encoder.config, inputs, logits, seed, dtype, **kwargs)

        self.encoder = encoder
        self.span = span
