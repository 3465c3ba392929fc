"""Text to pieces by TensorFlow's own operations alone; `tf_text` has the same by TF Text's.

Most text between two spaces is one piece, which a table finds. The rest is decoded: a table of code
points gives symbols (what is left of a character after normalization), and the words of symbols
walk through a trie of the vocabulary, all at once, a symbol at each step.
"""

import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization.normalizer import (
    INVALID,
    LONGEST_WORD,
    chinese,
    is_chinese,
    is_punctuation,
    isolating_replacements,
    lower_final_sigmas,
    punctuation,
    ranges,
    replacements,
)
from bert_tf.tokenization.strings import Pieces, host_constant, on_host

_POINTS = 0x110000
_SPACE = 0  # symbols; those of words come last
_UNKNOWN_MARK = 1  # a word of its own that has no piece
_BREAKS = "\t\n\r"
_HALF = 1 << 32  # two numbers are packed in an int64: one operation then moves both
_LOW = _HALF - 1
_SYMBOLS = 3  # in an iteration: more are fewer iterations, and more looked up in vain
_NO_CHILD = -(1 << 62)


class Splitter(tf.Module):
    """Normalizes texts as the original BERT does, and splits them into pieces."""

    def __init__(
        self,
        vocabulary: Sequence[str],
        unknown_token: str,
        *,
        do_lower_case: bool,
        strip_accents: bool,
        tokenize_chinese_chars: bool,
    ):
        super().__init__()
        self._lower_case = do_lower_case
        self._unknown_id = vocabulary.index(unknown_token)

        def is_word(character: str) -> bool:
            return is_punctuation(character) or (tokenize_chinese_chars and is_chinese(character))

        changed = replacements(do_lower_case, strip_accents)
        characters = sorted(set().union(*vocabulary) - {" "})
        marks = list(filter(is_word, characters))
        letters = [c for c in characters if not is_word(c)]
        self._unknown_letter = unknown_letter = _UNKNOWN_MARK + 1 + len(marks)
        symbols = {" ": _SPACE} | {c: _UNKNOWN_MARK + 1 + i for i, c in enumerate(marks)}
        symbols |= {c: unknown_letter + 1 + i for i, c in enumerate(letters)}
        of_point = np.full(_POINTS, unknown_letter, np.int32)
        for known in (punctuation(), chinese() if tokenize_chinese_chars else ()):
            of_point[[*map(ord, known)]] = _UNKNOWN_MARK
        of_point[[*map(ord, symbols)]] = [*symbols.values()]
        self._symbols = _Replacements(of_point, changed)
        ids = {piece: index for index, piece in enumerate(vocabulary)}
        unknown_marks = [self._unknown_id] * (_UNKNOWN_MARK + 1)
        self._mark_ids = host_constant(
            [*unknown_marks, *(ids.get(c, self._unknown_id) for c in marks)]
        )
        if self._trie(vocabulary, symbols) == 0 and ids.keys().isdisjoint(marks):
            raise InputError(
                "the vocabulary cannot be used: no text has its pieces. Give it pieces beside the "
                "special tokens"
            )

        # What a space on both sides changes nothing for: it is looked up apart from its neighbours.
        apart = {*map(chr, range(33, 127)), *marks} & punctuation() - changed.keys()
        self._apart = f"[{ranges([*map(ord, apart), *map(ord, _BREAKS)])}]"
        removed = [ord(c) for c, after in changed.items() if not after]
        self._apart_before_removed = f"{self._apart}[{ranges(removed)}]"
        self._whole_words(vocabulary, [*sorted(apart), *_BREAKS, ""])

    def _trie(self, vocabulary: Sequence[str], symbols: Mapping[str, int]) -> int:
        """The trie of all pieces that words can have, with a root for "##", as tables.

        Returns the number of pieces.
        """
        nodes: dict[int, int] = {}  # parent and symbol -> child
        ends: dict[int, int] = {}  # node -> id and length of its piece
        for index, piece in enumerate(vocabulary):
            root, text = (1, piece[2:]) if piece.startswith("##") else (0, piece)
            word = [symbols[character] for character in text]
            if not 0 < len(word) <= LONGEST_WORD or min(word) <= self._unknown_letter:
                continue
            node = root
            for symbol in word:
                node = nodes.setdefault(node * _HALF + symbol, len(nodes) + 2)
            ends[node] = index << 8 | len(word)
        depths, longest = [0, 0], [0, 0]
        for step, node in nodes.items():  # parents come first
            parent = step // _HALF
            depths.append(depths[parent] + 1)
            longest.append(ends.get(node, longest[parent]))
        depth, found = np.array(depths), np.array(longest)
        self._depth = host_constant(depth)
        self._longest = host_constant(found)  # id and length of the longest piece, 0 for none
        # How far from the end of a walk the rest of its word starts; none is beyond all symbols.
        self._back = host_constant(np.where(found > 0, depth - (found & 255), -_HALF))
        # A value is added to a position: the child, and the next position.
        nodes = nodes or {-1: 0}  # a table has an entry
        children = np.array([*nodes.values()], np.int64) * _HALF + 1
        self._steps = _table(np.array([*nodes], np.int64), children)
        return len(ends)

    def _whole_words(self, vocabulary: Sequence[str], apart: Sequence[str]) -> None:
        """Makes the table of what is one piece, or of `apart` none, between two spaces.

        A value has the piece's id plus 1, or 0, and whether the word is one of `apart` (1 bit).
        """
        pieces = (p for p in vocabulary if not p.startswith("##") and " " not in p)
        words = list(dict.fromkeys([*apart, *pieces]))
        with tf.init_scope(), tf.device("CPU:0"):
            ids, splits, starts, ends = (x.numpy() for x in self._split(tf.constant(words), True))
        sizes = np.array([len(word.encode()) for word in words])
        first = np.minimum(splits[:-1], len(ids) - 1)
        is_one = (np.diff(splits) == 1) & (starts[first] == 0) & (ends[first] == sizes)
        is_apart = np.arange(len(words)) < len(apart) - 1  # "" is last
        kept = np.flatnonzero(is_one | (np.arange(len(words)) < len(apart)))
        values = np.where(is_one, ids[first] + 1, 0) * 2 + is_apart
        self._words = _table([words[i] for i in kept], values[kept].astype(np.int64))

    def __call__(self, texts: tf.Tensor, get_offsets: bool) -> Pieces:
        """Splits strings [batch]; without `get_offsets` their offsets mean nothing."""
        if self._lower_case:
            # The ASCII letters; the others are left to the decoding.
            texts = tf.strings.lower(lower_final_sigmas(texts))

        chunks, is_spaced = tf.strings.regex_replace(texts, self._apart, r" \0 "), True
        if get_offsets:  # a character that is removed belongs to the piece before it
            joined = tf.strings.reduce_join(texts)
            is_spaced = tf.strings.regex_replace(joined, self._apart_before_removed, "") == joined
            chunks = tf.where(is_spaced, chunks, texts)
        split = tf.raw_ops.StringSplit(input=chunks, delimiter=" ", skip_empty=not get_offsets)
        chunks, text = split.values, split.indices[:, 0]
        text_splits = tf.searchsorted(text, tf.range(tf.size(texts, tf.int64) + 1))
        found = self._words.lookup(chunks)
        missed = _where(found < 0)

        def split_missed() -> tuple[tf.Tensor, ...]:
            distinct, which = tf.unique(tf.gather(chunks, missed), tf.int64)
            return which, *self._split(distinct, get_offsets)

        nothing = tf.zeros([0], tf.int64)
        which, ids, splits, starts, ends = tf.cond(
            tf.size(missed) > 0,
            split_missed,
            lambda: (nothing, tf.zeros([0], tf.int32), tf.zeros([1], tf.int64), nothing, nothing),
        )
        # The pieces of chunks that were found, one for each, and then those of the missed ones.
        number, at = tf.size(chunks, tf.int64), missed[:, tf.newaxis]
        first = number + tf.gather(splits, which)
        firsts = tf.tensor_scatter_nd_update(tf.range(number), at, first)
        size = tf.gather(splits[1:] - splits[:-1], which)
        sizes = tf.tensor_scatter_nd_update(tf.cast(found > 1, tf.int64), at, size)
        index, chunk, begins = _runs(firsts, sizes)
        piece = tf.cast(tf.bitwise.right_shift(found, 1), tf.int32) - 1
        ids = tf.gather(tf.concat([piece, ids], 0), index)
        row_splits = tf.gather(begins, text_splits)
        if not get_offsets:
            return ids, row_splits, index, index
        length = tf.cast(tf.strings.length(chunks), tf.int64)
        # Where a chunk starts in its text, without the spaces that were put around marks.
        is_mark = tf.where(is_spaced, found & 1, 0) * tf.cast(found >= 0, tf.int64)
        edges = tf.cumsum(length + 1 - 2 * is_mark, exclusive=True)
        base = edges - is_mark - tf.gather(edges, tf.gather(text_splits, text))
        shift = tf.gather(base, chunk)
        starts = tf.gather(tf.concat([tf.zeros_like(length), starts], 0), index) + shift
        return ids, row_splits, starts, tf.gather(tf.concat([length, ends], 0), index) + shift

    def _split(self, texts: tf.Tensor, get_offsets: bool) -> Pieces:
        """Splits texts by their symbols."""
        symbols, row_splits, origins, first_bytes = self._symbols(texts, get_offsets)
        in_word = symbols >= self._unknown_letter
        before = tf.concat([[False], in_word[:-1]], 0)
        # A text's last symbol is a space, so all words end within their texts.
        edges = tf.reshape(tf.where(in_word != before), [-1, 2])
        firsts, lasts = edges[:, 0], edges[:, 1]
        is_long = lasts - firsts > LONGEST_WORD
        at, ids, lengths = self._match(symbols, tf.gather(firsts, _where(~is_long)))
        word = tf.gather(tf.cumsum(tf.cast(in_word & ~before, tf.int64)) - 1, at)  # of each piece
        failed = tf.gather(word, _where(lengths == 0))
        yes = tf.fill(tf.shape(failed), True)
        is_unknown = tf.tensor_scatter_nd_update(is_long, failed[:, tf.newaxis], yes)
        keep, unknown = _where(~tf.gather(is_unknown, word)), _where(is_unknown)
        first = tf.gather(firsts, unknown)
        unknown_ids = tf.fill(tf.shape(first), self._unknown_id)
        marks = _where((symbols > _SPACE) & ~in_word)
        mark_ids = tf.gather(self._mark_ids, tf.gather(symbols, marks))
        at = tf.concat([tf.gather(at, keep), first, marks], 0)
        ids = tf.concat([tf.gather(ids, keep), unknown_ids, mark_ids], 0)
        widths = tf.gather(lasts, unknown) - first, tf.ones_like(marks)
        lengths = tf.concat([tf.gather(lengths, keep), *widths], 0)
        # Sorted by where they start.
        shape = tf.shape(symbols, tf.int64)
        number = tf.scatter_nd(at[:, tf.newaxis], tf.range(tf.size(at)) + 1, shape)
        at = _where(number > 0)
        order = tf.gather(number, at) - 1
        ids = tf.gather(ids, order)
        splits = tf.searchsorted(at, row_splits)
        if not get_offsets:
            return ids, tf.cast(splits, tf.int64), at, at
        end = at + tf.gather(lengths, order)
        last, following = tf.gather(origins, end - 1), tf.gather(origins, end)
        # Up to the next symbol's character, or if that is the same one, all of it.
        behind = tf.where(following > last, following, last + 1)
        starts, ends = (tf.gather(first_bytes, x) for x in (tf.gather(origins, at), behind))
        return ids, tf.cast(splits, tf.int64), starts, ends

    def _match(self, symbols: tf.Tensor, firsts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Pieces of the words that start at `firsts`: starts int64, ids int32 and lengths int64.

        The length is 0 where no piece matches.
        """
        tables = self._steps.resource_handle, self._back
        ended = _walked(tf.cast(symbols, tf.int64), firsts, self._unknown_letter, *tables)
        node = tf.bitwise.right_shift(ended, 32)
        longest = tf.gather(self._longest, node)
        ids = tf.cast(tf.bitwise.right_shift(longest, 8), tf.int32)
        return (ended & _LOW) - tf.gather(self._depth, node), ids, longest & 255


_INTEGERS = tf.TensorSpec([None], tf.int64)
_SIGNATURE = [_INTEGERS, _INTEGERS, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.resource)]


# As a graph also in eager calls: it has an iteration for each symbol of the longest word.
@tf.function(input_signature=[*_SIGNATURE, _INTEGERS], autograph=False)
@on_host
def _walked(
    symbols: tf.Tensor,
    firsts: tf.Tensor,
    unknown_letter: tf.Tensor,
    steps: tf.Tensor,
    back: tf.Tensor,
) -> tf.Tensor:
    """The nodes and positions at which the walks of all words end, a piece or none for each."""
    last = tf.size(symbols, tf.int64) - 1
    to_symbol = symbols - tf.range(last + 1)
    no_child = tf.constant(_NO_CHILD, tf.int64)

    def step(walks: tf.Tensor, ended: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """`walks` has the node of each word that is matched, and the position of its symbol."""
        for _ in range(_SYMBOLS):  # a walk that has ended stays where it is
            position = walks & _LOW
            key = walks + tf.gather(to_symbol, position)
            child = tf.raw_ops.LookupTableFindV2(
                table_handle=steps, keys=key, default_value=no_child
            )
            child.set_shape([None])
            is_on = child >= 0
            walks = tf.where(is_on, child + position, walks)
        stuck, on = tf.dynamic_partition(walks, tf.cast(is_on, tf.int32), 2)
        behind = tf.gather(back, tf.bitwise.right_shift(stuck, 32))
        rest = tf.minimum((stuck & _LOW) - behind, last)
        rest = tf.gather(rest, _where(tf.gather(symbols, rest) >= unknown_letter))
        # They go on at the root of "##".
        return tf.concat([on, rest + _HALF], 0), tf.concat([ended, stuck], 0)

    shape = tf.TensorShape([None])
    _, ended = tf.while_loop(
        lambda walks, _: tf.size(walks) > 0,
        step,
        [firsts, tf.zeros([0], tf.int64)],
        shape_invariants=[shape, shape],
    )
    return ended


class Normalizer(tf.Module):
    """Normalizes text as the original BERT does before it looks words up.

    The `isolate` options put spaces around Chinese characters, and around "all" punctuation or "no"
    punctuation.
    """

    def __init__(
        self,
        do_lower_case: bool,
        strip_accents: bool,
        isolate_chinese: bool,
        isolate_punctuation: str,
    ):
        super().__init__()
        self._lower_case = do_lower_case
        isolated = punctuation() if isolate_punctuation == "all" else frozenset()
        table = isolating_replacements(do_lower_case, strip_accents, isolate_chinese, isolated)
        self._points = _Replacements(np.arange(_POINTS), table)

    def __call__(self, texts: tf.Tensor, get_offsets: bool = False) -> tuple[tf.Tensor, ...]:
        """Normalizes strings [batch] and returns the origins of their bytes, int64, and row splits.

        Each text has an origin per normalized byte, and the end of the last one.
        """
        if self._lower_case:
            texts = lower_final_sigmas(texts)
        points, splits, origins, first_bytes = self._points(texts, get_offsets)
        normalized = tf.raw_ops.UnicodeEncode(
            input_values=points, input_splits=splits, output_encoding="UTF-8"
        )
        length = tf.strings.length(normalized)
        normalized = tf.strings.substr(normalized, tf.zeros_like(length), length - 1)
        if not get_offsets:
            return normalized, first_bytes, splits
        widths = 1 + sum(tf.cast(points >= edge, tf.int64) for edge in (0x80, 0x800, 0x10000))
        _, point, begins = _runs(tf.zeros_like(widths), widths)
        starts = tf.gather(first_bytes, tf.gather(origins, point))
        return normalized, starts, tf.gather(begins, splits)


class _Replacements:
    """Texts as numbers: a table has one, several or no number for each code point."""

    def __init__(self, numbers: np.ndarray, replacements: Mapping[str, str]):
        """`numbers` [code points] are those of text without `replacements`."""
        points = np.array([*map(ord, replacements)])
        sizes = np.array([*map(len, replacements.values())])
        firsts = np.cumsum(sizes) - sizes
        values = numbers[[*map(ord, "".join(replacements.values()))]].astype(np.int32)
        entries = numbers.astype(np.int32)
        entries[points] = -2 - np.arange(len(points))
        is_one = sizes == 1
        entries[points[is_one]] = values[firsts[is_one]]
        entries[entries == np.arange(_POINTS)] = -1  # itself, so that many pages are equal
        pages: dict[bytes, int] = {}
        starts = [pages.setdefault(x.tobytes(), 256 * len(pages)) for x in entries.reshape(-1, 256)]
        self._pages = host_constant(np.array(starts, np.int32))
        self._entries = host_constant(np.frombuffer(b"".join(pages), np.int32))
        self._sizes, self._firsts = map(host_constant, (sizes, firsts))
        self._values = host_constant(values)

    def __call__(self, texts: tf.Tensor, get_offsets: bool) -> tuple[tf.Tensor, ...]:
        """Numbers int32 [n] of texts that end with a space more, and their row splits.

        Also the code point that each number comes from, int64 [n], and, with `get_offsets`, the
        byte of its text at which each code point starts, int64.
        """
        texts = tf.strings.join([texts, " "])
        settings = {
            "input_encoding": "UTF-8",
            "errors": "replace",
            "replacement_char": ord(INVALID),
            "Tsplits": tf.int64,  # int32 ends the process in TensorFlow 2.21
        }
        if get_offsets:
            splits, points, first_bytes = tf.raw_ops.UnicodeDecodeWithOffsets(
                input=texts, **settings
            )
        else:
            splits, points = tf.raw_ops.UnicodeDecode(input=texts, **settings)
            first_bytes = tf.zeros([0], tf.int64)
        page = tf.gather(self._pages, tf.bitwise.right_shift(points, 8))
        entries = tf.gather(self._entries, page + (points & 255))
        entries = tf.where(entries == -1, points, entries)
        number = tf.range(tf.size(points, tf.int64))

        def several() -> tuple[tf.Tensor, ...]:
            is_one = entries >= 0
            sequence = tf.maximum(-2 - entries, 0)
            behind = tf.size(self._values, tf.int64) + number
            firsts = tf.where(is_one, behind, tf.gather(self._firsts, sequence))
            sizes = tf.where(is_one, tf.ones_like(number), tf.gather(self._sizes, sequence))
            index, origins, begins = _runs(firsts, sizes)
            values = tf.gather(tf.concat([self._values, entries], 0), index)
            return values, tf.gather(begins, splits), origins

        def single() -> tuple[tf.Tensor, ...]:
            return tf.identity(entries), tf.identity(splits), tf.identity(number)

        return *tf.cond(tf.reduce_all(entries >= 0), single, several), first_bytes


def unassigned_marks() -> list[str]:
    """As in `tf_text`: here only Chinese ones, as punctuation is that of this Python's Unicode."""
    return [c for c in chinese() if unicodedata.category(c) == "Cn"]


def _runs(firsts: tf.Tensor, sizes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs firsts[i], firsts[i] + 1, ... of `sizes[i]` numbers, one after the other; all int64.

    Returns their numbers, the i of each number, and where each run begins.
    """
    firsts += tf.range(tf.size(firsts, tf.int64)) * _HALF
    one = tf.constant(1, tf.int64)
    begins, packed = tf.raw_ops.RaggedRange(starts=firsts, limits=firsts + sizes, deltas=one)
    return packed & _LOW, tf.bitwise.right_shift(packed, 32), begins


def _where(mask: tf.Tensor) -> tf.Tensor:
    """Where a mask [n] is true: int64. With a gather, a third of the operations of boolean_mask."""
    return tf.reshape(tf.where(mask), [-1])


def _table(keys: Sequence[str] | np.ndarray, values: np.ndarray) -> tf.lookup.StaticHashTable:
    """A table on the host with the default -1."""
    with tf.init_scope(), tf.device("CPU:0"):
        rows = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(values))
        return tf.lookup.StaticHashTable(rows, -1)
