"""Text to ids, as the original BERT tokenizer does it, inside the TensorFlow graph."""

import functools
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath, write_text
from bert_tf.files.model_files import TOKENIZER_CONFIG, VOCABULARY
from bert_tf.startup import available_cores
from bert_tf.tokenization.added_tokens import AddedToken, AddedTokens
from bert_tf.tokenization.normalizer import (
    Normalize,
    normalized_pieces,
    strips_accents,
    unreachable_pieces,
)
from bert_tf.tokenization.operations import operations
from bert_tf.tokenization.strings import MANY, Pieces, host_constant, on_host, starts_of
from bert_tf.tokenization.tokenizer_files import (
    SWITCHES,
    TokenizerFiles,
    check_switch,
    read_tokenizer_files,
)
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS, Vocabulary, file_text, read_vocabulary

_log = logging.getLogger(__name__)


def _id_of(token: str) -> property:
    return property(lambda tokenizer: tokenizer.token_to_id(token), doc=f"Id of {token}.")


class BertTokenizer(tf.Module):
    """WordPiece tokenizer that gives the ids of the original BERT code.

    It runs in Python, in `tf.data`, in `tf.function` and in a SavedModel, with ops that TensorFlow
    Serving links. A word that is not valid UTF-8 becomes [UNK].

    Args:
        vocabulary: path of a `vocab.txt`, a piece per line, or the pieces; [PAD], [UNK], [CLS],
            [SEP] and [MASK] may have any ids.
        do_lower_case: whether to lower-case the text.
        strip_accents: whether to drop accents; by default `do_lower_case`. Korean syllables stay
            composed with `do_lower_case=True, strip_accents=False`.
        tokenize_chinese_chars: whether to make each Chinese character a word; False is slower.
        special_tokens_in_text: whether "[MASK]" and the like in the text become ids; new here.
        added_tokens: tokens that are matched in the text as a whole, before it is split into words,
            as `AddedToken` or its fields; those without a piece get ids after the vocabulary.
        ops: "tf_text" for the graph operations of TF Text, "core" for TensorFlow's own, which give
            the same ids and load without TF Text but are slower, or "auto": TF Text's where it is
            installed. It is not saved with the tokenizer.

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
        added_tokens: Sequence[AddedToken | Mapping[str, Any]] = (),
        ops: str = "auto",
    ):
        super().__init__()
        # Plain objects, because tf.Module would wrap bare lists and dicts.
        if isinstance(vocabulary, (str, os.PathLike)):
            self._vocabulary = read_vocabulary(vocabulary)
        else:
            self._vocabulary = Vocabulary([str(piece) for piece in vocabulary])
        values = (do_lower_case, strip_accents, tokenize_chinese_chars, special_tokens_in_text)
        self._switches = tuple(zip(SWITCHES, values, strict=True))
        for name, value in self._switches:
            check_switch(name, value)
        self._added = tuple(
            token if isinstance(token, AddedToken) else AddedToken(**token)
            for token in added_tokens
        )
        word_pieces = tuple(self._vocabulary.pieces)
        self._words = len(word_pieces)
        self._vocabulary.add([token.content for token in self._added])
        self._kept_config = "{}"  # the rest of tokenizer_config.json, as JSON
        strips = strips_accents(do_lower_case, strip_accents)
        if unreachable := unreachable_pieces(word_pieces, do_lower_case, strips):
            shown = ", ".join(map(repr, unreachable[:3]))
            _warn(
                f"{len(unreachable):,} pieces of the vocabulary never occur in text that is "
                f"normalized so ({shown}): check do_lower_case and strip_accents"
            )

        self._ops = ops
        self._prepare_text(do_lower_case, strips, tokenize_chinese_chars, special_tokens_in_text)
        pieces = self._vocabulary.pieces
        self._pieces = host_constant(pieces)  # string [vocabulary_size]
        texts = [tf.TensorSpec([None], tf.string)]
        graph = tf.function(self._ids_in_parts, input_signature=texts, autograph=False)
        # Concrete, or TensorFlow warns of retracing in a process of many tokenizers; made at the
        # first call. In a function, because tf.Module would export it.
        self._graph_of_many = functools.cache(graph.get_concrete_function)

    def _prepare_text(
        self,
        do_lower_case: bool,
        strip_accents: bool,
        tokenize_chinese_chars: bool,
        special_tokens_in_text: bool,
    ) -> None:
        """Makes what splits text, and what finds added and special tokens in it."""
        ops = operations(self._ops)
        tokens_in_text = [t for t in self._added if t.content not in SPECIAL_TOKENS]
        if special_tokens_in_text:
            recorded = {token.content: token for token in self._added}
            plain = {t: AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS}
            tokens_in_text += [recorded.get(t, plain[t]) for t in SPECIAL_TOKENS]
        self._tokens_in_text = self._finder([t for t in tokens_in_text if not t.normalized])
        self._tokens_in_normalized = None
        if in_normalized := [t for t in tokens_in_text if t.normalized]:
            # Tokens are found after the text is normalized and before punctuation is split off.
            self._first_normalizer = ops.Normalizer(
                do_lower_case, strip_accents, tokenize_chinese_chars, "no"
            )
            do_lower_case = strip_accents = False
            self._tokens_in_normalized = self._finder(in_normalized, self._first_normalizer)
        # No word has a blank piece: added tokens beyond the vocabulary are no part of words.
        blank = " " * (len(self._vocabulary.pieces) - self._words)
        self._splitter = ops.Splitter(
            [*self._vocabulary.pieces[: self._words], *blank],
            self.unk_token,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
        )

    @classmethod
    def from_directory(cls, directory: StrPath) -> "BertTokenizer":
        """Opens the tokenizer of a model directory, ours or Hugging Face's.

        Reads `vocab.txt`, `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and
        `added_tokens.json`, or a file such as `vocab.txt`. If none says whether the model is
        uncased, the nearest name in the path or capitals in the vocabulary decide. InputError if a
        file is missing, damaged, or says what is not computed here.
        """
        files = read_tokenizer_files(Path(directory))
        if files.casing:
            _warn(f"{directory}: {files.casing}")
        return cls.from_files(files)

    @classmethod
    def from_files(cls, files: TokenizerFiles) -> "BertTokenizer":
        tokenizer = cls(files.vocabulary, **files.switches, added_tokens=files.added_tokens)
        tokenizer._kept_config = json.dumps(files.config)
        return tokenizer

    def with_ops(self, ops: str) -> "BertTokenizer":
        """A copy with the graph operations `ops`, as the constructor takes them."""
        return self._copy(self._vocabulary.pieces[: self._words], {"ops": ops})

    def with_switches(self, **switches: bool | None) -> "BertTokenizer":
        """A copy with other switches."""
        return self._copy(self._vocabulary.pieces[: self._words], switches)

    def with_vocabulary(self, pieces: Sequence[str]) -> "BertTokenizer":
        """A copy with other pieces; added tokens among them keep their ids."""
        return self._copy(pieces, {})

    def _copy(self, pieces: Sequence[str], switches: Mapping[str, Any]) -> "BertTokenizer":
        copy = BertTokenizer(pieces, **{**self.settings, "ops": self._ops, **switches})
        copy._kept_config = self._kept_config
        return copy

    def save(
        self,
        directory: StrPath,
        model_max_length: int | None = None,
        tokenizer_class: str = "BertTokenizer",
    ) -> None:
        """Writes `vocab.txt` and `tokenizer_config.json` as Hugging Face does; other files stay.

        `model_max_length` is the model's maximum sequence length, by default the loaded one, and
        `tokenizer_class` the tokenizer there.
        """
        directory = Path(directory)
        config = {
            **json.loads(self._kept_config),
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
            **dict(self._switches),
            "tokenizer_class": tokenizer_class,
        }
        if self._added:
            added = {str(self.token_to_id(t.content)): asdict(t) for t in self._added}
            config["added_tokens_decoder"] = (config.get("added_tokens_decoder") or {}) | added
        if model_max_length is not None:
            config["model_max_length"] = int(model_max_length)
        write_text(directory / VOCABULARY, file_text(self._vocabulary.pieces[: self._words]))
        write_text(
            directory / TOKENIZER_CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n"
        )

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

        Offsets are int64, in bytes of the caller's text. `text[start:end]` includes accents and
        controls that are dropped after the piece. Pieces of one character (a decomposed Korean
        syllable) each span all of it.
        """
        batch, is_single = self._batch(texts)
        ids, row_splits, starts, ends = self._split(batch, get_offsets=True)
        columns = (ids, starts, ends)
        return columns if is_single else tuple(_ragged(values, row_splits) for values in columns)

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
        """SHA-256 of all pieces, a line for each, in hexadecimal."""
        return hashlib.sha256(file_text(self._vocabulary.pieces).encode()).hexdigest()

    @property
    def is_continuation(self) -> np.ndarray:
        """Which pieces continue a word ("##"): NumPy bool [vocabulary_size]."""
        return np.array([piece.startswith("##") for piece in self._vocabulary.pieces])

    @property
    def settings(self) -> dict[str, Any]:
        """The four switches, and added tokens if there are any, as the constructor takes them."""
        added = {"added_tokens": [asdict(token) for token in self._added]} if self._added else {}
        return dict(self._switches) | added

    @property
    def added_tokens(self) -> tuple[AddedToken, ...]:
        return self._added

    def other_switches(self, settings: Mapping[str, Any]) -> str:
        """The switches that differ from `settings`, as "do_lower_case (False, not True)"."""

        def in_effect(switches: Mapping[str, Any]) -> dict[str, Any]:
            lower = switches["do_lower_case"]
            strip = switches.get("strip_accents")
            added = ", ".join(str(AddedToken(**t)) for t in switches.get("added_tokens", ()))
            return {
                **switches,
                "strip_accents": strips_accents(lower, strip),
                "added_tokens": added or "none",
            }

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
        return self._split(texts, get_offsets=False)[:2]

    @on_host
    def _ids_in_parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The same, with a part of the texts for each processor."""
        number = available_cores()
        edges = [tf.size(texts) * part // number for part in range(number + 1)]
        parts = [self._ids(texts[a:b]) for a, b in itertools.pairwise(edges)]
        ids, row_splits = zip(*parts, strict=True)
        counts = [splits[1:] - splits[:-1] for splits in row_splits]
        return tf.concat(ids, 0), starts_of(tf.concat(counts, 0))

    def _finder(
        self,
        tokens: Sequence[AddedToken],
        normalizer: Normalize | None = None,
    ) -> AddedTokens | None:
        """What finds added tokens in texts, or in normalized ones."""
        contents = [token.content for token in tokens]
        if not contents:
            return None
        if normalizer is not None:
            with tf.init_scope():
                contents = [text.decode() for text in normalizer(tf.constant(contents))[0].numpy()]
            if lost := [t.content for t, text in zip(tokens, contents, strict=True) if not text]:
                raise InputError(
                    f"nothing is left of the added token {lost[0]!r} in normalized text: make its "
                    '"normalized" false'
                )
        by_text: dict[str, AddedToken] = {}
        for text, token in zip(contents, tokens, strict=True):
            by_text.setdefault(text, token)  # of tokens that differ in capitals alone the first
        ids = [self._vocabulary.ids[token.content] for token in by_text.values()]
        used = set().union(*self._vocabulary.pieces, *by_text)
        private = (c for c in map(chr, range(0x10FFFD, 0x100000, -1)) if c not in used)
        return AddedTokens(by_text, ids, absent="".join(itertools.islice(private, 2)))

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

    def _split(self, texts: tf.Tensor, get_offsets: bool) -> Pieces:
        """Pieces of strings [batch]; without `get_offsets` their offsets mean nothing."""

        def words(texts: tf.Tensor) -> Pieces:
            return self._splitter(texts, get_offsets)

        def between_tokens(texts: tf.Tensor) -> Pieces:
            tokens = self._tokens_in_normalized
            if tokens is None:
                return words(texts)
            return normalized_pieces(
                texts, self._first_normalizer, lambda x: tokens(x, words), get_offsets
            )

        tokens = self._tokens_in_text
        return between_tokens(texts) if tokens is None else tokens(texts, between_tokens)


@functools.cache  # once for a message
def _warn(message: str) -> None:
    _log.warning("%s", message)


def _ragged(values: tf.Tensor, row_splits: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
