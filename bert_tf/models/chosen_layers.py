"""Vectors of tokens from chosen hidden states of an encoder (Devlin et al. 2018, section 5.3)."""

import re
from collections.abc import Sequence
from typing import Any

from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError

# The rows of table 7; sums are unweighted, where the paper's are weighted.
CHOICES = (
    "embeddings",
    "last",
    "second_to_last",
    "sum_last_four",
    "concat_last_four",
    "sum_all",
)


def check_layers(layers: Sequence[str], config: BertConfig) -> int:
    """The width of vectors of layers, as of `choose_layers`; refuses those a model lacks."""
    number = config.num_hidden_layers
    for layer in layers:
        if layer == "mix":
            raise InputError(
                "the weights of a mix are learned with a task, for all layers: give it alone, to "
                f"bert-tf finetune --features_only, or give {', '.join(CHOICES)}, or numbers"
            )
        if layer.endswith("last_four") and layer in CHOICES and number < 4:
            raise InputError(
                f"{layer} needs 4 layers, the model has {number}: give last, or layers by number"
            )
        is_number = re.fullmatch(r"-?\d{1,6}", layer) and -number - 1 <= int(layer) <= number
        if layer not in CHOICES and not is_number:
            raise InputError(
                f"there is no layer {layer!r}, the model has {number}: give {', '.join(CHOICES)}, "
                f"or numbers from 0, the embeddings, to {number}, or from -1, the last layer, to "
                f"{-number - 1}"
            )
    return config.width * sum(4 if layer == "concat_last_four" else 1 for layer in layers)


def choose_layers(hidden_states: Sequence[Any], layers: Sequence[str]) -> Any:
    """Combines hidden states into one vector for each token.

    Args:
        hidden_states: L + 1 tensors [B, T, H], the embeddings' output first.
        layers: names of `CHOICES`, or numbers of hidden states: 0 for the embeddings, 1 to L for
            the blocks, or from the end, -1 for the last. "sum_all" is the sum over the blocks.

    Returns what `layers` name, one after another, [B, T, W].
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
