"""The encoder that a config describes."""

from typing import Any

from bert_tf.config import BertConfig
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.lstm_encoder import LstmEncoder
from bert_tf.models.two_encoders import TwoEncoders


def encoder_class(config: BertConfig) -> Any:
    """`BertEncoder`, or what takes its place: `TwoEncoders`, or an `LstmEncoder`."""
    if config.attention_direction == "recurrent":
        return LstmEncoder
    return BertEncoder if len(config.directions) == 1 else TwoEncoders


def encoder_for(
    encoder: BertEncoder | BertConfig, seed: int | None, dtype: Any
) -> tuple[BertEncoder, Any]:
    """The encoder under a head, made here if only its config is given, and the head's dtype."""
    made: Any = encoder
    if isinstance(encoder, BertConfig):
        seed = child_seed(seed, "encoder")
        made = encoder_class(encoder)(encoder, seed, dtype, name="encoder")
    return made, made.dtype_policy if dtype is None else dtype
