"""Text to ids, as the original BERT tokenizer does it, inside the TensorFlow graph."""

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.atomic import StrPath, write_text
from bert_tf.config import read_json_object
from bert_tf.errors import InputError
from bert_tf.tokenization.normalizer import Normalizer
from bert_tf.tokenization.strings import MANY, bytes_of, host_constant, on_host, starts_of
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS, Vocabulary, file_text, read_vocabulary
from bert_tf.tokenization.wordpiece import WordPiece

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILE = "tokenizer_config.json"
# The constructor's arguments, also in tokenizer_config.json.
_SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "special_tokens_in_text")
TOKENIZER_JSON = "tokenizer.json"  # replaces vocab.txt in newer directories of Hugging Face


def _id_of(token: str) -> property:
    return property(lambda tokenizer: tokenizer.token_to_id(token), doc=f"Id of {token}.")


class BertTokenizer(tf.Module):
    """WordPiece tokenizer whose ids are those of the original BERT code.

    It runs in Python, in `tf.data`, in `tf.function` and in a SavedModel, with ops that TensorFlow
    Serving links. A word that is not valid UTF-8 becomes [UNK].

    Args:
        vocabulary: path of a `vocab.txt`, a piece per line, or the pieces; [PAD], [UNK], [CLS],
            [SEP] and [MASK] stand at any place.
        do_lower_case: whether to lower-case the text.
        strip_accents: whether to drop accents; by default `do_lower_case`. Korean syllables stay
            composed with `do_lower_case=True, strip_accents=False`.
        tokenize_chinese_chars: whether to make each Chinese character a word; False is slower.
        special_tokens_in_text: whether "[MASK]" and the like in the text become ids; new here.

    Raises:
        InputError: the vocabulary is missing, empty, repeats a piece, or lacks a special token.

    Example:
    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hel", "##lo"])
    >>> tokenizer.tokenize(["Hello!", "héllo hello"])
    <tf.RaggedTensor [[5, 6, 1], [5, 6, 5, 6]]>
    """

    def __init__(
        self,
        vocabulary: StrPath | Sequence[str],
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        special_tokens_in_text: bool = False,
    ):
        super().__init__()
        # Plain objects, because tf.Module would wrap bare lists and dicts.
        if isinstance(vocabulary, (str, os.PathLike)):
            self._vocabulary = read_vocabulary(vocabulary)
        else:
            self._vocabulary = Vocabulary([str(piece) for piece in vocabulary])
        values = (do_lower_case, strip_accents, tokenize_chinese_chars, special_tokens_in_text)
        self._switches = tuple(zip(_SWITCHES, values, strict=True))
        _check_switches(self.settings)
        self._kept_config = "{}"  # the rest of tokenizer_config.json, as JSON

        pieces = self._vocabulary.pieces
        # A special token in the text becomes an unused character, whose id is after all others.
        absent = _absent_characters(pieces) if special_tokens_in_text else ""
        self._placeholders, self._impostor = absent[:-1], absent[-1:]
        marks = "unsplit" if tokenize_chinese_chars else "all"
        self._normalizer = Normalizer(
            do_lower_case, strip_accents, isolate_punctuation=marks, isolated=self._placeholders
        )
        self._wordpiece = WordPiece(
            [*pieces, *self._placeholders], self.unk_token, splits_words=tokenize_chinese_chars
        )
        self._pieces = host_constant(pieces)  # string [vocabulary_size]
        texts = [tf.TensorSpec([None], tf.string)]
        graph = tf.function(self._ids_in_parts, input_signature=texts, autograph=False)
        # Concrete, or TensorFlow warns of retracing in a process of many tokenizers; made at the
        # first call. In a function, because tf.Module would export it.
        self._graph_of_many = functools.cache(graph.get_concrete_function)

    @classmethod
    def from_directory(cls, directory: StrPath) -> "BertTokenizer":
        """Opens the tokenizer of a model directory, ours or Hugging Face's.

        Reads `vocab.txt` or `tokenizer.json` (transformers 5), and switches other than the defaults
        from `tokenizer_config.json`. InputError if a file is missing or cannot be used.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise InputError(f"{directory}: no such folder; give a folder with a {VOCABULARY_FILE}")
        vocabulary: Any = directory / VOCABULARY_FILE
        in_json = directory / TOKENIZER_JSON
        of_json: dict[str, Any] = {}
        if in_json.exists() and not vocabulary.exists():
            vocabulary, of_json = _read_tokenizer_json(in_json)
        path = directory / CONFIG_FILE
        config = read_json_object(path) if path.exists() else {}
        switches = {name: config.pop(name) for name in _SWITCHES if name in config}
        _check_switches(switches, f"{path}: ")
        tokenizer = cls(vocabulary, **of_json | switches)
        tokenizer._kept_config = json.dumps(config)
        return tokenizer

    def save(self, directory: StrPath, model_max_length: int | None = None) -> None:
        """Writes `vocab.txt` and `tokenizer_config.json` as Hugging Face does; other files stay.

        `model_max_length` is the model's maximum sequence length, by default the loaded one.
        """
        directory = Path(directory)
        config = {
            **json.loads(self._kept_config),
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
            **self.settings,
            "tokenizer_class": "BertTokenizer",
        }
        if model_max_length is not None:
            config["model_max_length"] = int(model_max_length)
        write_text(directory / VOCABULARY_FILE, file_text(self._vocabulary.pieces))
        write_text(directory / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n")

    @on_host
    def tokenize(self, texts: Any) -> tf.RaggedTensor | tf.Tensor:
        """Splits strings [batch], a list, array or tensor: ids int32 [batch, (pieces)], ragged.

        One string gets int32 [pieces].
        """
        batch, is_single = self._batch(texts)
        is_many = tf.executing_eagerly() and len(batch) >= MANY
        ids, row_splits = (self._graph_of_many() if is_many else self._ids)(batch)
        return ids if is_single else _ragged(ids, row_splits)

    @on_host
    def tokenize_with_offsets(self, texts: Any) -> tuple:
        """Splits texts as `tokenize`: ids, and where each piece starts and ends.

        The places are int64, in bytes of the caller's text. `text[start:end]` includes accents and
        controls that are dropped after the piece. Pieces of one character (a decomposed Korean
        syllable) each span all of it.
        """
        batch, is_single = self._batch(texts)
        marked = self._mark_special_tokens(batch)
        normalized, origins, origin_splits = self._normalizer(marked, get_offsets=True)
        ids, row_splits, starts, ends, special = self._cut(normalized)
        counts = row_splits[1:] - row_splits[:-1]
        first_origin = tf.repeat(origin_splits[:-1], counts)
        last = tf.gather(origins, first_origin + ends - 1)  # origin of the piece's last byte
        starts = tf.gather(origins, first_origin + starts)
        ends = tf.gather(origins, first_origin + ends)
        # If the next byte comes from the same character, the piece ends with the character.
        text_starts = tf.repeat(starts_of(tf.strings.length(batch))[:-1], counts)
        first_byte = tf.gather(bytes_of(batch), text_starts + last)
        width = 1 + sum(tf.cast(first_byte >= mark, tf.int64) for mark in (0xC0, 0xE0, 0xF0))
        ends = tf.where(ends > last, ends, last + width)
        if self._placeholders:
            sizes = tf.constant([0, *map(len, SPECIAL_TOKENS)], tf.int64)
            ends = tf.where(special > 0, starts + tf.gather(sizes, special), ends)
        places = (ids, starts, ends)
        return places if is_single else tuple(_ragged(each, row_splits) for each in places)

    @on_host
    def detokenize(self, ids: Any) -> tf.Tensor:
        """Joins pieces, special tokens too, as Hugging Face's `convert_tokens_to_string`.

        `ids`, ragged or not, [batch, pieces] or [pieces], become string [batch] or a scalar.
        """
        if isinstance(ids, list):
            ids = tf.ragged.constant(ids)
        pieces = tf.ragged.map_flat_values(tf.gather, self._pieces, tf.cast(ids, tf.int32))
        joined = tf.strings.reduce_join(pieces, axis=-1, separator=" ")
        return tf.strings.regex_replace(joined, " ##", "")

    @property
    def vocabulary(self) -> list[str]:
        """The pieces, in the order of their ids."""
        return list(self._vocabulary.pieces)

    @property
    def vocabulary_size(self) -> int:
        return len(self._vocabulary.pieces)

    @property
    def vocabulary_hash(self) -> str:
        """SHA-256 of the vocabulary as `save` writes it, in hexadecimal."""
        return hashlib.sha256(file_text(self._vocabulary.pieces).encode()).hexdigest()

    @property
    def is_continuation(self) -> np.ndarray:
        """Which pieces continue a word ("##"): NumPy bool [vocabulary_size]."""
        return np.array([piece.startswith("##") for piece in self._vocabulary.pieces])

    @property
    def settings(self) -> dict[str, bool | None]:
        """The four switches, as the constructor takes them."""
        return dict(self._switches)

    def other_switches(self, settings: Mapping[str, Any]) -> str:
        """The switches that differ from `settings`, as "do_lower_case (False, not True)"."""

        def in_effect(switches: Mapping[str, Any]) -> dict[str, Any]:
            lower, strip = switches["do_lower_case"], switches.get("strip_accents")
            return {**switches, "strip_accents": lower if strip is None else strip}

        mine, theirs = in_effect(self.settings), in_effect(settings)
        differing = [name for name in theirs if mine.get(name) != theirs[name]]
        return ", ".join(f"{name} ({mine.get(name)}, not {theirs[name]})" for name in differing)

    def token_to_id(self, token: str) -> int:
        """The id of a piece; InputError if there is no such piece."""
        if token not in self._vocabulary.ids:
            raise InputError(f"the vocabulary has no piece {token!r}; name one that it holds")
        return self._vocabulary.ids[token]

    def id_to_token(self, token_id: int) -> str:
        """The piece with this id; InputError if there is none."""
        last = self.vocabulary_size - 1
        if not 0 <= token_id <= last:
            raise InputError(f"no piece has the id {token_id}; ids go from 0 to {last}")
        return self._vocabulary.pieces[token_id]

    pad_token, unk_token, cls_token, sep_token, mask_token = SPECIAL_TOKENS

    pad_token_id, unk_token_id, cls_token_id, sep_token_id, mask_token_id = (
        _id_of(token) for token in SPECIAL_TOKENS
    )

    def _ids(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids int32 [pieces] and row splits int64 [batch + 1]."""
        normalized, *_ = self._normalizer(self._mark_special_tokens(texts))
        return self._cut(normalized)[:2]

    @on_host
    def _ids_in_parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The same, with a part of the texts for each processor."""
        number = os.cpu_count() or 1
        edges = [tf.size(texts) * part // number for part in range(number + 1)]
        parts = [self._ids(texts[a:b]) for a, b in itertools.pairwise(edges)]
        ids, row_splits = zip(*parts, strict=True)
        counts = [splits[1:] - splits[:-1] for splits in row_splits]
        return tf.concat(ids, 0), starts_of(tf.concat(counts, 0))

    def _batch(self, texts: Any) -> tuple[tf.Tensor, bool]:
        """Texts as a string tensor [batch], and whether the caller gave a single one."""
        if not isinstance(texts, (tf.Tensor, tf.RaggedTensor)):
            try:
                texts = tf.constant(texts, tf.string)
            except (TypeError, ValueError, tf.errors.OpError):
                raise InputError(
                    "the tokenizer takes strings; give it a str, a list of str, or a string tensor "
                    "[batch]"
                ) from None
        if isinstance(texts, tf.RaggedTensor) or (texts.shape.rank or 0) > 1:
            raise InputError(
                f"the tokenizer takes strings of shape [batch], not {texts.shape}; flatten them"
            )
        if texts.dtype != tf.string:
            raise InputError(f"the tokenizer takes strings, not {texts.dtype.name}; pass raw text")
        is_single = texts.shape.rank == 0
        return (texts[tf.newaxis] if is_single else texts), is_single

    def _mark_special_tokens(self, texts: tf.Tensor) -> tf.Tensor:
        """Replaces special tokens by placeholders, padded so that every byte keeps its place."""
        if not self._placeholders:
            return texts
        # A placeholder in the text is no special token, but a character without a piece.
        texts = tf.strings.regex_replace(texts, f"[{self._placeholders}]", self._impostor)
        for token, placeholder in zip(SPECIAL_TOKENS, self._placeholders, strict=True):
            padding = " " * (len(token) - len(placeholder.encode()))
            texts = tf.strings.regex_replace(texts, re.escape(token), placeholder + padding)
        return texts

    def _cut(self, normalized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The result of `WordPiece`, and the special tokens' numbers from 1, else 0: int32."""
        ids, row_splits, starts, ends = self._wordpiece(normalized)
        special = tf.maximum(ids - (self.vocabulary_size - 1), 0)
        if self._placeholders:
            special_ids = [self._vocabulary.ids[token] for token in SPECIAL_TOKENS]
            ids = tf.where(special > 0, tf.gather([0, *special_ids], special), ids)
        return ids, row_splits, starts, ends, special


def _check_switches(switches: Mapping[str, object], source: str = "") -> None:
    for name, value in switches.items():
        if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
            raise InputError(f"{source}{name} is {value!r}; make it true or false")


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    """The pieces and switches in a file of Hugging Face's `tokenizers`."""
    values = read_json_object(path)
    parts = (values.get("model"), values.get("normalizer"))
    model, normalizer = (part if isinstance(part, dict) else {} for part in parts)
    if model.get("type") != "WordPiece" or normalizer.get("type") != "BertNormalizer":
        raise InputError(
            f"{path}: holds a {model.get('type')} tokenizer, not BERT's; give a model with a "
            "vocab.txt"
        )
    try:
        ids = dict(model["vocab"])
        for added in values.get("added_tokens") or ():
            ids.setdefault(added["content"], added["id"])
        pieces = sorted(ids, key=ids.__getitem__)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: its vocabulary is not in the form of Hugging Face's tokenizers; give a model "
            "with a vocab.txt"
        ) from error
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise InputError(f"{path}: its ids do not run from 0 to {len(pieces) - 1}; save it again")
    return pieces, {
        "do_lower_case": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
    }


def _absent_characters(pieces: Sequence[str]) -> str:
    """Private-use characters of 4 UTF-8 bytes without a piece: one per special token, plus one."""
    used = set().union(*pieces)
    absent = (c for c in map(chr, range(0x10FFFD, 0x100000, -1)) if c not in used)
    return "".join(itertools.islice(absent, len(SPECIAL_TOKENS) + 1))


def _ragged(values: tf.Tensor, row_splits: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
