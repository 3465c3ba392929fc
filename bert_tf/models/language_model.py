"""Language models: an encoder that sees one side, with the words' output layer."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.encoders import encoder_for
from bert_tf.models.masked_language_model import words_head
from bert_tf.models.pretrained_model import PretrainedModel

# Direction -> name of the logits.
OUTPUTS = {"left_to_right": "ltr_logits", "right_to_left": "rtl_logits"}


@keras.saving.register_keras_serializable(package="bert_tf")
class BertLanguageModel(PretrainedModel):
    """An encoder that predicts each token from those before it, or from those after it.

    The left-to-right model of the paper's ablation (section 5.1), `BertLMHeadModel` of Hugging
    Face: BERT with another attention mask and the same output layer.

    Args:
        encoder: a `BertEncoder` with an `attention_direction` other than "both", `TwoEncoders`, or
            a `BertConfig` for a new one.
        seed, dtype, kwargs: see `PretrainedModel`.

    Inputs: the encoder's, and
        mask_positions: int [B, P], positions in [0, T) to predict the neighbours of.

    Outputs: a dict of logits, float32 [B, P, V] whatever the compute dtype.
        ltr_logits: for the tokens after `mask_positions`, from a left-to-right encoder.
        rtl_logits: for the tokens before them, from a right-to-left one.

    Two encoders side by side are two language models, each with its head, that share nothing. LSTMs
    share embeddings and head (Peters et al. 2018, section 3.1).
    """

    arguments = ("encoder",)

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
                f"{' or '.join(OUTPUTS)}"
            )
        heads = [
            words_head(tower, seed, dtype, name=f"{tower.config.attention_direction}_head")
            for tower in encoder.towers()
        ]

        inputs = self.symbolic_inputs("mask_positions")
        read = {name: inputs[name] for name in encoder.input}
        states = encoder(read, reads="tokens")["sequence_output"]
        outputs = _logits(encoder, heads, states, inputs["mask_positions"])
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)

        self.encoder = encoder
        self.heads = heads

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        # Also for rows of several instances, which have more inputs.
        read = {name: x for name, x in inputs.items() if name != "mask_positions"}
        states = self.encoder(read, training=training, reads="tokens")["sequence_output"]
        return _logits(self.encoder, self.heads, states, inputs["mask_positions"])


def _logits(encoder: Any, heads: list[Any], states: Any, mask_positions: Any) -> dict[str, Any]:
    """Logits [B, P, V] by name, from states [B, T, W]."""
    directions = encoder.summary_direction.split("+")
    parts = ops.split(states, len(directions), axis=-1)  # (B, T, H)
    heads = heads * (len(directions) // len(heads))
    return {
        OUTPUTS[direction]: head(part, mask_positions)
        for direction, head, part in zip(directions, heads, parts, strict=True)
    }
