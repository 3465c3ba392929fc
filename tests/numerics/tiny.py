"""The configuration of a BERT that is made, trained and exported in no time, and its batches."""

from typing import Any

import keras
import numpy as np

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


def drawn_pretraining(seed: int, rows: int, vocabulary: int, length: int, predictions: int) -> Any:
    """Inputs and labels of a pre-training model, int32, without padding."""
    draw = np.random.default_rng(seed)
    ids, segments = (draw.integers(most, size=(rows, length)) for most in (vocabulary, 2))
    inputs = {"token_ids": ids, "segment_ids": segments, "padding_mask": np.ones((rows, length))}
    inputs["mask_positions"] = draw.integers(length, size=(rows, predictions))
    words = draw.integers(vocabulary, size=(rows, predictions))
    labels = {"mlm_logits": words, "nsp_logits": draw.integers(2, size=rows)}
    return keras.tree.map_structure(lambda x: x.astype(np.int32), (inputs, labels))
