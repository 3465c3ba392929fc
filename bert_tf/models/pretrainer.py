"""The pre-training model: encoder, masked language model and next sentence prediction."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers import ClassificationHead
from bert_tf.layers.bert_layer import part
from bert_tf.layers.heads import take_tokens
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.encoders import encoder_for
from bert_tf.models.losses import classes_loss, classes_metrics
from bert_tf.models.masked_language_model import words_head
from bert_tf.models.pretrained_model import PretrainedModel

_OUTPUTS = ("mlm_logits", "nsp_logits")


@keras.saving.register_keras_serializable(package="bert_tf")
class BertPreTrainer(PretrainedModel):
    """An encoder with the two heads of pre-training (paper, section 3.1).

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        seed, dtype, kwargs: see `PretrainedModel`.

    Inputs: the encoder's, and
        mask_positions: int [B, P], positions of the masked tokens in [0, T). Give unused slots
            weight 0 in the loss; a position outside [0, T) reads the nearest token.
        first_positions: with `position_ids`, int [B, S], positions of each instance's [CLS].

    Outputs: a dict of logits, float32 whatever the compute dtype.
        mlm_logits: [B, P, V], of the tokens at `mask_positions`.
        nsp_logits: [B, 2], class 0 if the second sentence follows the first, 1 if it is random;
            [B, S, 2] for rows of several instances.
    """

    arguments = ("encoder",)
    new_loss = staticmethod(lambda: {name: classes_loss() for name in _OUTPUTS})
    new_metrics = staticmethod(lambda: {name: classes_metrics() for name in _OUTPUTS})
    learning_rate = 1e-4

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        encoder, dtype = encoder_for(encoder, seed, dtype)
        masked_language_model = words_head(encoder, seed, dtype)
        next_sentence = ClassificationHead(
            encoder.config, 2, dropout=0.0, **part("next_sentence", seed, dtype)
        )

        inputs = self.symbolic_inputs("mask_positions")
        encoded = encoder({name: inputs[name] for name in encoder.input}, reads="tokens")
        states = encoded["sequence_output"]
        outputs = {
            "mlm_logits": masked_language_model(states, inputs["mask_positions"]),  # (B, P, V)
            "nsp_logits": next_sentence(encoded["pooled_output"]),  # (B, 2)
        }
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)

        self.encoder = encoder
        self.masked_language_model = masked_language_model
        self.next_sentence = next_sentence

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if "position_ids" not in inputs:
            return super().call(inputs, training=training, mask=mask)
        states = self.encoder(inputs, training=training)["sequence_output"]  # (B, T, H)
        positions = inputs["first_positions"]
        pooled = self.encoder.pooler.dense(take_tokens(states, positions))  # (B * S, H)
        next_sentence = self.next_sentence(pooled, training=training)
        return {
            "mlm_logits": self.masked_language_model(states, inputs["mask_positions"]),
            "nsp_logits": ops.reshape(next_sentence, (*ops.shape(positions), 2)),
        }
