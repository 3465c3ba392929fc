"""Text to rows of tokens in OpenVINO's graph, with the ids of `BertTokenizer`.

The operations of the package openvino-tokenizers, with our own normalization table: SentencePiece's
charsmap, which `CharsMapNormalization` reads, is the double array that TF Text reads, too. Its own
conversion of tokenizers has other rules.

Strings are three tensors: where each one starts and ends, int32 [n], in bytes, uint8. Pieces are
the same with ids in the place of bytes.
"""

import functools
import itertools
import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from bert_tf.errors import InputError, pip_install
from bert_tf.tokenization.normalizer import (
    LONGEST_WORD,
    double_array,
    letters_around_sigma,
    strips_accents,
)
from bert_tf.tokenization.operations import whole_table
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS

_MALFORMED = "\ufffd"  # what CharsMapNormalization makes of bytes that are not UTF-8
_REMOVED = "\x01"  # any character that the table removes
_MOST_BYTES = 4 * LONGEST_WORD  # of a word that is looked up


class Pieces(NamedTuple):
    """Ragged ids of texts."""

    starts: Any  # int32 [n]
    ends: Any  # int32 [n]
    ids: Any  # int32 [pieces]


class TextGraph:
    """Makes the operations that turn strings into the ids of a tokenizer.

    InputError if the tokenizer has what they cannot do, or the packages are not installed.
    """

    def __init__(self, tokenizer: BertTokenizer) -> None:
        check_tokenizer(tokenizer)
        self.op = import_extension().op
        self._tokenizer = tokenizer
        self._special = tokenizer.settings["special_tokens_in_text"]

    def pieces(self, strings: Sequence[Any], prefix: str = "") -> Pieces:
        """The pieces of strings; `prefix` stands before each."""
        switches = self._tokenizer.settings
        marks, impostor = self._marks
        table = dict(self._table)
        if prefix:
            strings = self._replace(strings, "^", prefix, once=True)
        # Characters without meaning are kept apart from malformed bytes, whose word is unknown.
        first = {_MALFORMED: _REMOVED, "\0": _REMOVED}
        if self._special:
            first |= dict.fromkeys(marks, impostor)
            table |= {mark: f" {mark} " for mark in marks}
        strings = self._map(strings, first)
        if self._special:
            for token, mark in zip(SPECIAL_TOKENS, marks, strict=True):
                strings = self._replace(strings, _quoted(token), mark)
        if switches["do_lower_case"]:
            letter, ignorable, both = letters_around_sigma()
            through = rf"(?:(?!{_MALFORMED})[{ignorable}])*+"
            final = rf"[{letter}]{through}\KΣ(?={through}(?:[^{both}]|\z))"
            strings = self._replace(strings, final, "ς")
        strings = self._map(strings, table | {_MALFORMED: _MALFORMED})
        # Without a character in any text RegexSplit loses texts.
        strings = self._replace(strings, "^", " ", once=True)
        strings = self._replace(strings, f"[^ ]{{{LONGEST_WORD + 1},}}+", _MALFORMED)
        return self._word_pieces(strings)

    @functools.cached_property
    def _table(self) -> dict[str, str]:
        switches = self._tokenizer.settings
        lower = switches["do_lower_case"]
        strips = strips_accents(lower, switches["strip_accents"])
        return whole_table(lower, strips, switches["tokenize_chinese_chars"])

    @functools.cached_property
    def _marks(self) -> tuple[list[str], str]:
        """A character for each special token, and another one, that no piece has."""
        used = set().union(*self._tokenizer.vocabulary)
        private = (c for c in map(chr, range(0x10FFFD, 0x100000, -1)) if c not in used)
        impostor, *marks = itertools.islice(private, 1 + len(SPECIAL_TOKENS))
        return marks, impostor

    def _word_pieces(self, strings: Sequence[Any]) -> Pieces:
        marks = dict(zip(SPECIAL_TOKENS, self._marks[0], strict=True)) if self._special else {}
        pieces = [
            marks.get(piece)
            # No word has such a piece: words hold no blanks, and brackets are words of their own.
            or (piece if _may_match(piece) else f"[unmatchable {number}]")
            for number, piece in enumerate(self._tokenizer.vocabulary)
        ]
        count = self.op.shape_of(strings[0], "i32")
        text = self.op.range(np.int32(0), self.op.squeeze(count), np.int32(1), "i32")
        rows = [text, self.op.add(text, np.int32(1)), *strings]
        words = self._create("RegexSplit", [*rows, _constant(self.op, " +")], behaviour="remove")
        unknown = self.op.constant(self._tokenizer.unk_token_id, np.int32)
        inputs = [*words[:5], *self.strings(pieces), unknown]
        limits = {"suffix_indicator": "##", "max_bytes_per_word": _MOST_BYTES}
        starts, ends, ids = self._create("WordpieceTokenizer", inputs, **limits)
        # RegexSplit gives a text where there is none.
        first, step = ([x] for x in (np.int32(0), np.int32(1)))
        starts, ends = (self.op.slice(x, first, count, step).output(0) for x in (starts, ends))
        return Pieces(starts, ends, ids)

    def strings(self, texts: Sequence[str]) -> list[Any]:
        """Constant strings."""
        encoded = [text.encode() for text in texts]
        edges = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
        values = (edges[:-1], edges[1:], np.frombuffer(b"".join(encoded), np.uint8))
        return [self.op.constant(x) for x in values]

    def looked_up(self, texts: Sequence[str], numbers: Any) -> Any:
        """A string tensor of texts by their numbers, int32 of any shape."""
        rows = self.op.reshape(numbers, np.array([-1, 1]), False)
        # Not gathered edges: packing wants strings that follow each other.
        found = self._create("VocabDecoder", [rows, *self.strings(texts)], skip_tokens=[])
        shape = self.op.shape_of(numbers)
        edges = [self.op.reshape(edge, shape, False) for edge in found[2:4]]
        return self.op.string_tensor_pack(*edges, found[4]).output(0)

    def _map(self, strings: Sequence[Any], table: Mapping[str, str]) -> list[Any]:
        """Strings whose characters are replaced."""
        charsmap = self.op.constant(np.frombuffer(_charsmap(table), np.uint8))
        options = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
        options |= {"escape_whitespaces": False, "case_fold": False, "nmt": False}
        return self._create(
            "CharsMapNormalization", [*strings, charsmap], normalization_form="", **options
        )

    def _replace(
        self, strings: Sequence[Any], pattern: str, text: str, *, once: bool = False
    ) -> list[Any]:
        """Strings in which what matches the PCRE pattern is replaced by a text."""
        inputs = [*strings, _constant(self.op, pattern), _constant(self.op, text)]
        return self._create("RegexNormalization", inputs, global_replace=not once)

    def _create(self, name: str, inputs: Sequence[Any], **attributes: Any) -> list[Any]:
        outputs = [x if hasattr(x, "get_node") else x.output(0) for x in inputs]
        return import_extension().factory.create(name, outputs, attributes).outputs()


def packed(
    graph: TextGraph, segments: Sequence[Pieces], tokenizer: BertTokenizer, length: int
) -> dict[str, Any]:
    """Rows of one or two segments, as `Packer` makes them, and `truncated`: [n, T] and [n]."""
    op = graph.op
    specials = len(segments) + 1
    lengths = [op.subtract(part.ends, part.starts) for part in segments]
    room = np.int32(length - specials)
    # `Packer.fitting_lengths`, longest first.
    if len(lengths) == 1:
        fitting = [op.minimum(lengths[0], room)]
    else:
        half = np.int32((length - specials + 1) // 2)
        first = op.minimum(lengths[0], op.maximum(op.subtract(room, lengths[1]), half))
        fitting = [first, op.minimum(lengths[1], op.subtract(room, first))]
    total = functools.reduce(op.add, lengths)
    truncated = op.maximum(op.subtract(total, room), np.int32(0))
    nothing = op.constant(0, np.int32)
    one = op.constant(1, np.int32)
    sep = [nothing, one, op.constant([tokenizer.sep_token_id], np.int32)]
    parts = [nothing, one, op.constant([tokenizer.cls_token_id], np.int32)]
    for part, fits in zip(segments, fitting, strict=True):
        parts += [part.starts, op.add(part.starts, fits), part.ids, *sep]
    numbers = [0, *itertools.chain(*([number] * 2 for number in range(len(segments))))]
    combined = graph._create("CombineSegments", [*parts, op.constant(numbers, np.int32)])
    starts, ends, ids, segment_starts, segment_ends, segment_ids = combined[:6]
    # An empty batch is as wide as the special tokens.
    sizes = op.concat([op.subtract(ends, starts), op.constant([specials], np.int32)], 0)
    width = op.reduce_max(sizes, np.int32(0))
    pad = op.constant(tokenizer.pad_token_id, np.int32)
    options = {"pad_right": True, "pad_max_length": False}
    rows, mask = graph._create("RaggedToDense", [starts, ends, ids, width, pad], **options)
    inputs = [segment_starts, segment_ends, segment_ids, width, nothing]
    return {
        "token_ids": rows,
        "segment_ids": graph._create("RaggedToDense", inputs, **options)[0],
        "padding_mask": op.convert(mask, "i32").output(0),
        "truncated": truncated.output(0),
    }


def check_tokenizer(tokenizer: BertTokenizer) -> None:
    """Raises InputError for a tokenizer that OpenVINO's operations cannot follow exactly."""
    others = [t.content for t in tokenizer.added_tokens if t.content not in SPECIAL_TOKENS]
    if others:
        raise InputError(
            f"the tokenizer has added tokens ({', '.join(others[:3])}), which OpenVINO's "
            "operations do not find in texts: export the model as a SavedModel"
        )
    of_words = [t.content for t in tokenizer.added_tokens if t.single_word or t.normalized]
    if of_words and tokenizer.settings["special_tokens_in_text"]:
        raise InputError(
            f"{of_words[0]} is found in texts as a whole word or in normalized text, which "
            "OpenVINO's operations cannot do: export the model as a SavedModel, or set "
            "special_tokens_in_text to false"
        )


class _Extension(NamedTuple):
    op: Any  # OpenVINO's operations
    factory: Any  # of operations of openvino-tokenizers


@functools.cache
def import_extension() -> _Extension:
    """OpenVINO with openvino-tokenizers; InputError if they are not installed."""
    try:
        factory = import_module("openvino_tokenizers")._get_factory()
        return _Extension(import_module("openvino.opset15"), factory)
    except ImportError as error:
        raise InputError(
            f"text in OpenVINO needs openvino and openvino-tokenizers ({error}): "
            f"{pip_install('openvino')}"
        ) from None


def _may_match(piece: str) -> bool:
    return piece.split() == [piece] and piece != "##" and _MALFORMED not in piece


def _quoted(token: str) -> str:
    return rf"\Q{token}\E"


def _constant(op: Any, text: str) -> Any:
    return op.constant(np.frombuffer(text.encode(), np.uint8))


def _charsmap(table: Mapping[str, str]) -> bytes:
    """SentencePiece's charsmap: a double array to offsets of strings that end in NUL."""
    pool = bytearray()
    offsets: dict[str, int] = {}
    for text in dict.fromkeys(table.values()):
        offsets[text] = len(pool)
        pool += text.encode() + b"\0"
    trie = double_array({character: offsets[text] for character, text in table.items()})
    units = trie.astype("<u4").tobytes()
    return struct.pack("<I", len(units)) + units + bytes(pool)
