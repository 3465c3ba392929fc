"""Vectors from chosen layers of the encoder (paper, section 5.3 and table 7)."""

import re
from collections.abc import Sequence
from typing import Any

from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError

# The rows of table 7; the paper learns weights for its sums, here every layer counts the same.
# `MIX` learns them, with a task.
CHOICES = (
    "embeddings", "last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all",
)  # fmt: skip
MIX = ["mix"]


def check_layers(layers: Sequence[str], config: BertConfig) -> int:
    """Refuses layers, as of `choose_layers`, that a model does not have.

    Returns:
        The width of the vectors.
    """
    number = config.num_hidden_layers
    for layer in layers:
        if layer in MIX:
            raise InputError(
                "the weights of a mix are learned with a task, for all layers: give it alone, to "
                f"bert-tf finetune --features_only, or give {', '.join(CHOICES)}, or numbers"
            )
        if layer not in CHOICES and not re.fullmatch(r"-?\d{1,6}", layer):
            raise InputError(
                f"there is no layer {layer!r}: give {', '.join(CHOICES)}, or numbers, 0 for the "
                "embeddings and -1 for the last layer"
            )
        if layer in CHOICES:
            if layer.endswith("last_four") and number < 4:
                raise InputError(
                    f"{layer} needs 4 layers, the model has {number}: give last, or layers by "
                    "number"
                )
        elif not -number - 1 <= int(layer) <= number:
            raise InputError(
                f"there is no layer {layer}, the model has {number}: give numbers from 0, the "
                f"embeddings, to {number}, or from -1, the last layer, to {-number - 1}"
            )
    widths = [4 if layer == "concat_last_four" else 1 for layer in layers]
    return sum(widths) * config.width


def choose_layers(hidden_states: Sequence[Any], layers: Sequence[str]) -> Any:
    """Combines hidden states into one vector for each token.

    Args:
        hidden_states: L + 1 tensors [B, T, H], the embeddings' output first, as `BertEncoder` and
            Hugging Face give them.
        layers: names of `CHOICES`, or numbers of hidden states: 0 for the embeddings, 1 to L for
            the blocks, or from the end, -1 for the last. "sum_all" is the sum over the blocks.

    Returns:
        [B, T, W]: what `layers` name, one after another.
    """
    states = list(hidden_states)
    chosen: list[Any] = []
    for layer in layers:
        if layer == "concat_last_four":
            chosen += states[-4:]
        elif layer.startswith("sum_"):
            chosen.append(sum(states[-4:] if layer == "sum_last_four" else states[1:]))
        else:
            number = {"embeddings": 0, "last": -1, "second_to_last": -2}.get(layer)
            chosen.append(states[int(layer) if number is None else number])
    return ops.concatenate(chosen, axis=-1)
