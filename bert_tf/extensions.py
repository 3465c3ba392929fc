"""What a package above adds to the layers below it: models, other encoders than BERT's, options.

`bert_tf.paper` does, and so may a user's package. An entry is named as "module:attribute" and
imported when a layer first reads its table, so that nothing depends on the order of imports.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

# Table -> its entries: "architectures", subclasses of `Architecture`, one for each
# `attention_direction`; "feature architectures", one for configs with features; "models", classes
# that model directories hold, of which the first that fits a directory is made; "parts" of such
# models and "layer weights", which name their tensors; "openers", the function of `from_preset`;
# options of commands, dataclasses that `bert_tf.options.extended` joins.
_ENTRIES: dict[str, list[str]] = {}


def add(table: str, *entries: str) -> None:
    _ENTRIES.setdefault(table, []).extend(entries)
    added.cache_clear()


@functools.cache
def added(table: str) -> tuple[Any, ...]:
    """The entries of a table; packages that are not installed have none."""
    entries = []
    for entry in _ENTRIES.get(table, ()):
        module, _, name = entry.partition(":")
        try:
            entries.append(getattr(importlib.import_module(module), name))
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
    return tuple(entries)


class Architecture:
    """The differences of an encoder from BERT's; this base class, BERT's, has none."""

    direction: ClassVar[str] = "both"  # the config's `attention_direction`
    marks: ClassVar[Mapping[str, Any]] = {}  # keys of config.json that stand for it
    towers: ClassVar[tuple[str, ...]] = ("both",)  # `attention_direction` of each encoder in it
    width: ClassVar[int] = 1  # W / H: of its outputs, in hidden sizes
    # Of `bert-tf pretrain`: the value of --objective, and the outputs of its model, each with the
    # distance from a word to the position that predicts it.
    objective: ClassVar[str] = ""
    predicts: ClassVar[Mapping[str, int]] = {"mlm": 0}
    reads_packed_rows: ClassVar[bool] = True
    words_class: ClassVar[str] = "BertForMaskedLM"  # Hugging Face's, of a model that predicts words

    # Function: whether the first position is seen from the second; None where all see each other.
    is_seen: Any = None

    def __init__(self, config: Any):
        self.config = config  # a `BertConfig`

    def summary_positions(self, padding_mask: Any) -> Any:
        """The position of the token that has seen all others, int32 [B]; None for the first."""
        return None

    def summary(self, states: Any, padding_mask: Any) -> Any:
        """The vectors [B, W] of the tokens that have seen all others, of states [B, T, W]."""
        return states[:, 0]

    def summary_first(self, states: Any, padding_mask: Any, dtype: Any) -> Any:
        """The states with the vector of `summary` in place of the vector of [CLS]."""
        return states

    def encoder_class(self) -> Any:
        """A `bert_tf.models.encoder.Encoder`; None for `BertEncoder`."""
        return None

    def on_encoder(self, encoder: Any, seed: int | None, dtype: Any) -> Any:
        """What the head of a task stands on; by default the encoder."""
        return encoder

    def keeping_vectors(
        self, encoder: Any, folder: Path | None, notice: Callable[[str], object]
    ) -> AbstractContextManager[object]:
        """Keeps the vectors that a frozen encoder computes while a model is trained on them.

        A run that was stopped finds them in `folder`; None for temporary files.
        """
        return nullcontext()

    @classmethod
    def make_examples(cls, inputs: Any) -> tuple[Any, Any, Any]:
        """Inputs, labels and weights of pre-training, from inputs of unmasked text."""
        raise NotImplementedError  # masked words are drawn by bert_tf.pipelines

    @staticmethod
    def pretraining_class() -> Any:
        """The model of `bert-tf pretrain`; None for `BertPreTrainer`."""
        return None

    def layer_names(self) -> Any:
        """Its `bert_tf.checkpoints.weight_names.EncoderNames`; None for BERT's."""
        return None

    def weight_shapes(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]] | None:
        """The shapes of a layer's tensors by name; None as for BERT's layers."""
        return None

    def stored_prefixes(self, name: str) -> list[str]:
        """What stands before a tensor's name in a file, to hide it from Hugging Face's classes.

        Tensors of several towers are stored one by one.
        """
        return [""]

    def encoder_products(self, length: float) -> float | None:
        """Multiplications of the encoder's matrix products for a sequence; None as for BERT."""
        return None

    def task_products(self, length: float, classes: int) -> float | None:
        """Multiplications of a task's model for a sequence; None as for BERT."""
        return None
