"""The model that predicts a number for a sentence or a pair of sentences."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers import ClassificationHead
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.encoder import BertEncoder, encoder_for
from bert_tf.models.pretrained_model import PretrainedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertRegressor(PretrainedModel):
    """An encoder with a dense layer of one unit on the pooled output, as for STS-B.

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        dropout: dropout rate of the pooled output; None for the config's `classifier_dropout`,
            or else its `hidden_dropout_prob`.
        seed: random seed for the head and for a new encoder; None for no fixed seed.
        dtype: Keras dtype policy of the head and of a new encoder; None for the encoder's, or
            else the global one.
        kwargs: Keras' own, such as `name`.

    Inputs: the encoder's. Output: float32 [B] whatever the compute dtype.
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
        regressor = ClassificationHead(
            encoder.config,
            1,
            dropout=dropout,
            seed=child_seed(seed, "regressor"),
            dtype=dtype,
            name="regressor",
        )

        # Wiring.
        inputs = self.symbolic_inputs()
        outputs = ops.squeeze(regressor(encoder(inputs)["pooled_output"]), axis=-1)  # (B,)
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)

        self.dropout = regressor.dropout.rate
        self.encoder = encoder
        self.regressor = regressor
