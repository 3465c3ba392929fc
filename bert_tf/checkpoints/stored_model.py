"""A model as files hold it: what every format is read into and written from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.checkpoints.weight_names import PARTS, tensor_shapes
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.tokenization.tokenizer import CONFIG_FILE, VOCABULARY_FILE, BertTokenizer
from bert_tf.tokenization.tokenizer_json import FILE_NAME as TOKENIZER_JSON
from bert_tf.tokenization.tokenizer_json import read_json_object

# A part's tensors come all or none. Those of the last two, of C classes, are not in
# `tensor_shapes`.
_OF_CLASSES = ("classifier.", "qa_outputs.")


@dataclass
class StoredModel:
    """Config, weights and tokenizer of a model, of whatever format.

    Attributes:
        config: the encoder's shape.
        tensors: float32, by canonical name (`canonical_name`), shaped as Hugging Face keeps them.
        tokenizer: None if the files hold none.
        notes: what was assumed or left out on the way, a sentence each.
    """

    config: BertConfig
    tensors: dict[str, np.ndarray]
    tokenizer: BertTokenizer | None = None
    notes: list[str] = field(default_factory=list)

    def has(self, part: str) -> bool:
        """Whether the model has a part, a key of `PARTS`."""
        return any(name.startswith(part) for name in self.tensors)

    def keep(self, parts: tuple[str, ...], target: str) -> dict[str, np.ndarray]:
        """The tensors of the encoder and of some parts; notes which others `target` lacks.

        Args:
            parts: keys of `PARTS`.
            target: what takes the tensors, for the note.
        """
        for part, title in PARTS.items():
            if part not in parts and self.has(part):
                self.notes.append(f"The {title} is left out: {target} has no place for it.")
        others = tuple(part for part in PARTS if part not in parts)
        return {name: t for name, t in self.tensors.items() if not name.startswith(others)}


def check_tensors(tensors: Mapping[str, np.ndarray], config: BertConfig, source: Path) -> None:
    """Refuses tensors that make no BERT of this config.

    Pooler and heads may be missing, each as a whole.

    Args:
        tensors: by canonical name.
        config: tells the shapes.
        source: where they come from, for the message.

    Raises:
        InputError: a tensor is missing, unexpected or of another shape; the message names it.
    """
    expected = tensor_shapes(config)
    for part in _OF_CLASSES:
        classes = len(tensors.get(f"{part}bias", ()))
        expected |= {f"{part}weight": (classes, config.hidden_size), f"{part}bias": (classes,)}
    absent = tuple(p for p in PARTS if not any(name.startswith(p) for name in tensors))
    problems = [
        f"{name} is missing"
        for name in expected
        if name not in tensors and not name.startswith(absent)
    ]
    for name, tensor in tensors.items():
        if name not in expected:
            problems.append(f"{name} is unexpected")
        elif tensor.shape != expected[name]:
            problems.append(f"{name} is {list(tensor.shape)}, not {list(expected[name])}")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError(
            f"{source} does not hold the BERT that its config describes: "
            f"{'; '.join(problems[:5])}{more}. Is it another model's config, or another model?"
        )


def check_vocabulary(model: StoredModel, source: Path) -> None:
    """Refuses a vocabulary with more pieces than the model has embeddings; notes one with fewer."""
    if model.tokenizer is None:
        model.notes.append("There is no vocabulary: put the model's vocab.txt beside it.")
        return
    pieces, rows = model.tokenizer.vocabulary_size, model.config.vocab_size
    if pieces > rows:
        raise InputError(
            f"{source}: the vocabulary has {pieces} pieces, the model {rows} embeddings "
            "(vocab_size): put the model's own vocabulary there."
        )
    if pieces < rows:
        model.notes.append(
            f"The model has {rows} embeddings for {pieces} pieces: the last {rows - pieces} are "
            "padding, and are kept."
        )


def read_tokenizer(
    folder: Path, name: Path, do_lower_case: bool | None, notes: list[str]
) -> BertTokenizer | None:
    """The tokenizer of a folder with vocab.txt, or with Hugging Face's tokenizer.json.

    Whether it lower-cases stands in tokenizer_config.json or tokenizer.json. The original's
    checkpoints have neither: `do_lower_case` tells, or the model's name, as in
    `validate_case_matches_checkpoint` of the original's tokenization.py, or capital letters in
    the vocabulary.

    Args:
        folder: holds the files.
        name: path of the model.
        do_lower_case: the user's word for it; None for none.
        notes: gets a sentence on what was assumed.

    Returns:
        None if there is no vocabulary.

    Raises:
        InputError: the files cannot be used, or nothing tells whether the model is uncased.
    """
    config = folder / CONFIG_FILE
    switches: dict[str, Any] = {}
    if (folder / VOCABULARY_FILE).is_file():
        tokenizer = BertTokenizer.from_directory(folder)
        known = config.is_file() and "do_lower_case" in read_json_object(config)
        if do_lower_case is None and not known:
            do_lower_case = _casing(folder / VOCABULARY_FILE, tokenizer.vocabulary, name, notes)
        if do_lower_case is None or do_lower_case == tokenizer.settings["do_lower_case"]:
            return tokenizer  # with all that its tokenizer_config.json says
        pieces, switches = tokenizer.vocabulary, tokenizer.settings
    elif (folder / TOKENIZER_JSON).is_file():
        tokenizer = BertTokenizer.from_directory(folder)
        pieces, switches = tokenizer.vocabulary, dict(tokenizer.settings)
        notes.append(f"{VOCABULARY_FILE} is made of {TOKENIZER_JSON}.")
    else:
        return None
    if do_lower_case is not None:
        switches["do_lower_case"] = do_lower_case
    return BertTokenizer(pieces, **switches)


def _casing(path: Path, pieces: list[str], name: Path, notes: list[str]) -> bool:
    for part in reversed(name.absolute().parts):  # the nearest name counts
        if re.search(r"(^|[-_.])uncased([-_.]|$)|^(chinese|multilingual)_L-", part):
            notes.append(f"Taken to be uncased, by the name {part!r}: do_lower_case is true.")
            return True
        if re.search(r"(^|[-_.])cased([-_.]|$)", part):
            notes.append(f"Taken to be cased, by the name {part!r}: do_lower_case is false.")
            return False
    capitals = [p for p in pieces if p != p.lower() and not (p[0] == "[" and p[-1] == "]")]
    if capitals:
        notes.append(
            f"Taken to be cased, by the capitals in its vocabulary ({capitals[0]!r}): "
            "do_lower_case is false."
        )
        return False
    raise InputError(
        f"{path}: nothing tells whether its model is uncased: give --do_lower_case true if its "
        "training text was lower-cased, else --do_lower_case false."
    )
