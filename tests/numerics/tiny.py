"""The configuration of a BERT that is made, trained and exported in no time."""

from typing import Any

from bert_tf import BertConfig


def tiny_config(vocab_size: int, size: str = "1x8x2", **changes: Any) -> BertConfig:
    """A config of LAYERSxWIDTHxHEADS, 16 positions and inner layers of twice its width.

    `dropout` stands for both rates.
    """
    if (dropout := changes.pop("dropout", None)) is not None:
        changes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    inner = 2 * int(size.split("x")[1])
    values = {"vocab_size": vocab_size, "max_position_embeddings": 16, "intermediate_size": inner}
    return BertConfig.named(size, **values | changes)
