"""Models that predict each token from those on one side of it."""

from typing import Any

import keras
from keras import ops

from bert_tf.checkpoints.weight_names import Head
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder, EncoderWithHead, encoder_for
from bert_tf.models.language_model import words_head


@keras.saving.register_keras_serializable(package="bert_tf")
class BertLanguageModel(EncoderWithHead):
    """An encoder that predicts each token from those before it, or from those after it.

    The left-to-right model of the paper's ablation (section 5.1), `BertLMHeadModel` of Hugging
    Face: BERT with another attention mask and the same output layer.

    Arguments: as of `BertPreTrainer`, but the encoder's `attention_direction` is not "both".

    Inputs: the encoder's, and
        mask_positions: int [B, P], positions in [0, T) to predict the neighbours of.

    Outputs: a dict of logits, float32 [B, P, V] whatever the compute dtype.
        ltr_logits: for the tokens after `mask_positions`, from a left-to-right encoder.
        rtl_logits: for the tokens before them, from a right-to-left one.

    Two encoders side by side are two language models, each with its head, that share nothing. LSTMs
    share embeddings and head (Peters et al. 2018, section 3.1).
    """

    reads_text = False
    optional_inputs = BertEncoder.optional_inputs
    stored_head = Head("BertLMHeadModel", {"cls.predictions.": "heads"}, reads_pooler=False)

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        encoder, dtype = encoder_for(encoder, seed, dtype)
        if encoder.config.attention_direction == "both":
            raise InputError(
                "a language model needs an encoder that sees one side: set attention_direction to "
                "left_to_right or right_to_left"
            )
        heads = [
            words_head(tower, seed, dtype, name=f"{tower.config.attention_direction}_head")
            for tower in encoder.towers()
        ]

        inputs = self.symbolic_inputs("mask_positions")
        outputs = _logits(encoder, heads, inputs)
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)

        self.encoder = encoder
        self.heads = heads

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        # Also for rows of several instances, which have more inputs.
        return _logits(self.encoder, self.heads, inputs, training)


def _logits(encoder: Any, heads: list[Any], inputs: Any, training: bool | None = None) -> Any:
    """Logits [B, P, V] by name."""
    read = {name: x for name, x in inputs.items() if name != "mask_positions"}
    states = encoder(read, training=training, padding="zeros")["sequence_output"]  # (B, T, W)
    predicts = encoder.config.architecture.predicts
    parts = ops.split(states, len(predicts), axis=-1)  # (B, T, H)
    heads = heads * (len(predicts) // len(heads))
    return {
        f"{name}_logits": head(part, inputs["mask_positions"])
        for name, head, part in zip(predicts, heads, parts, strict=True)
    }
