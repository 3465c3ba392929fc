"""The configuration of a BERT that is made, trained and exported in no time."""

from typing import Any

from bert_tf import BertConfig

_SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}


def tiny_config(vocab_size: int, **changes: Any) -> BertConfig:
    """One layer of width 8 and 16 positions, but for `changes`."""
    return BertConfig(vocab_size=vocab_size, **{**_SIZES, **changes})
