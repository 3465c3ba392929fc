"""The list of pieces: learned from text, read, checked and written."""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.files.model_files import read_small_file
from bert_tf.startup import available_cores
from bert_tf.tokenization.merges import learn_merges
from bert_tf.tokenization.normalizer import INVALID, LONGEST_WORD, strips_accents
from bert_tf.tokenization.operations import operations

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_DISTINCT = 2_000_000  # distinct words counted at once, in about 0.4 GB of memory
MOST_LEARNED = 5_000_000  # characters of distinct words that are learned from, in about 0.5 GB
# A character that is one of fewer characters of the text gets a piece, if it occurs twice.
_RAREST_CHARACTER = 10_000_000
_FIRST_CHECK = 10_000  # distinct words
_SHOWN = 10  # characters without a piece

Notice = Callable[[str], object]


class Vocabulary:
    """Pieces and their ids, which are positions in the list; InputError for an unusable list."""

    def __init__(self, pieces: Sequence[str], source: str = "the vocabulary"):
        self.pieces = list(pieces)
        if not self.pieces:
            raise InputError(f"{source}: holds no pieces; give a vocab.txt with one per line")
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}
        for index, piece in enumerate(self.pieces):
            cure = f"put another in line {index + 1}, such as [unused line {index + 1}]"
            if not piece or "\n" in piece or "\r" in piece:
                fault = "a piece with a line end" if piece else "no piece"
                raise InputError(f"{source}: line {index + 1} holds {fault}; {cure}: ids must stay")
            if self.ids[piece] != index:
                raise InputError(
                    f"{source}: line {self.ids[piece] + 1} repeats line {index + 1}, {piece!r}; "
                    f"{cure}: the original reads the later line"
                )
        for mark in ("\u2581", "\u0120"):  # of SentencePiece and of byte-level BPE
            first = next((p for p in self.pieces if p.startswith(mark) and len(p) > 1), None)
            if first is not None and not any(p.startswith("##") for p in self.pieces):
                raise InputError(
                    f"{source}: its pieces mark where words begin ({first!r}), those of BERT where "
                    "they continue (##): give a model with BERT's WordPiece vocabulary"
                )
        if missing := [token for token in SPECIAL_TOKENS if token not in self.ids]:
            raise InputError(
                f"{source}: lacks {', '.join(missing)}; add a line for each "
                "(in a model's vocabulary in place of an unused piece: other ids must not move)"
            )

    def add(self, tokens: Iterable[str]) -> None:
        """Gives tokens without an id the next ones; they may hold line ends, unlike pieces."""
        for token in tokens:
            if token not in self.ids:
                self.ids[token] = len(self.pieces)
                self.pieces.append(token)


def read_vocabulary(path: StrPath) -> Vocabulary:
    r"""Reads a `vocab.txt`: a piece per line, UTF-8.

    All lines end with \n, \r\n or \r: readers disagree about mixed line ends, hence about ids.
    InputError if the file is missing, is not UTF-8, or is no vocabulary.
    """
    try:
        content = read_small_file(Path(path))
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(f"{path}: {reason}; give the path of a vocab.txt") from None
    line_end = next((end for end in (b"\r\n", b"\n", b"\r") if end in content), b"\n")
    lines = content.removeprefix(b"\xef\xbb\xbf").split(line_end)
    while lines and not lines[-1].strip():
        lines.pop()
    pieces = []
    for number, line in enumerate(lines, 1):
        line_name = f"{path}: line {number}"
        try:
            piece = line.decode("utf-8")
            # White space around a piece is no part of it, as in the original; it may be all of it.
            pieces.append(piece.strip() or piece)
        except UnicodeDecodeError:
            raise InputError(f"{line_name} is not UTF-8; save the vocabulary as UTF-8") from None
        if b"\r" in line or b"\n" in line:
            cure = "save it with one kind of line end"
            raise InputError(f"{line_name} ends otherwise than the others; {cure}")
    return Vocabulary(pieces, str(path))


def file_text(pieces: Sequence[str]) -> str:
    """The content of a `vocab.txt`."""
    return "".join(f"{piece}\n" for piece in pieces)


def count_words(
    texts: tf.data.Dataset,
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    progress: Callable[[int], None] | None = None,
    check: Callable[[Mapping[bytes, int]], object] | None = None,
    notice: Notice = print,
    threads: int | None = None,
) -> dict[str, int]:
    """Counts the words of a corpus, cleaned and split as by a `BertTokenizer` of these switches.

    `texts` are string batches [n] of any size; some thousands each are fastest. Memory is bounded:
    words of over 200 characters, which are [UNK], do not count, and the rarest are forgotten
    whenever there are more than `MOST_DISTINCT` different ones; `notice` gets a line about them.
    `progress` gets the number of texts after each batch; `check` the words counted so far, as
    UTF-8, whenever there are twice as many. `threads` work, by default one per core.
    """
    strips = strips_accents(do_lower_case, strip_accents)
    normalizer = operations().Normalizer(do_lower_case, strips, tokenize_chinese_chars, "all")

    def distinct_words(batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        words = tf.strings.split(normalizer(batch)[0]).flat_values
        words, _, counts = tf.unique_with_counts(words, tf.int64)
        is_known = tf.strings.length(words, unit="UTF8_CHAR") <= LONGEST_WORD
        too_long = tf.reduce_sum(tf.boolean_mask(counts, ~is_known))
        words, counts = tf.boolean_mask(words, is_known), tf.boolean_mask(counts, is_known)
        return words, counts, too_long, tf.size(batch)

    options = tf.data.Options()
    options.autotune.enabled = False
    counted = texts.map(distinct_words, num_parallel_calls=threads or available_cores())
    totals: Counter[bytes] = Counter()
    texts_seen = long_words = forgotten = 0
    next_check = _FIRST_CHECK
    batches = counted.prefetch(2).with_options(options).as_numpy_iterator()
    for words, counts, too_long, size in batches:
        for word, count in zip(words.tolist(), counts.tolist(), strict=True):
            totals[word] += count
        long_words += int(too_long)
        texts_seen += int(size)
        if len(totals) > MOST_DISTINCT:
            rarest = 0
            while len(totals) > MOST_DISTINCT // 2:
                rarest += 1
                for word in [word for word, count in totals.items() if count <= rarest]:
                    forgotten += totals.pop(word)
        if check is not None and len(totals) >= next_check:
            check(totals)
            next_check = 2 * len(totals)
        if progress is not None:
            progress(texts_seen)
    if long_words:
        notice(f"{long_words:,} words of over {LONGEST_WORD} characters are not counted")
    if forgotten:
        notice(
            f"{forgotten:,} occurrences of rare words are not counted: memory is for "
            f"{MOST_DISTINCT:,} different words"
        )
    return dict(_decoded(totals.popitem() for _ in range(len(totals))))  # each word once in memory


def _decoded(counts: Iterable[tuple[bytes, int]]) -> Iterator[tuple[str, int]]:
    """Words as text, without those that are not UTF-8."""
    for word, count in counts:
        # The graph lets invalid UTF-8 pass, or writes INVALID, but not U+FFFD, which therefore
        # marks it here.
        text = word.decode("utf-8", "replace")
        if "\ufffd" not in text and INVALID not in text:
            yield text, count


def check_alphabet(counts: Mapping[bytes, int], vocabulary_size: int, text_bytes: int) -> None:
    """Raises InputError if a part's words do not fit; `text_bytes` estimates the whole corpus."""
    least = max(2, 4 * text_bytes // _RAREST_CHARACTER)  # 4, for estimates may be too low
    _alphabet(_decoded(counts.items()), vocabulary_size, least, ())


def _alphabet(
    counts: Iterable[tuple[str, int]],
    vocabulary_size: int,
    least: int | None,
    reserved: Sequence[str],
) -> tuple[list[str], Counter[str], int]:
    """The special tokens and pieces of one character; rare characters without one; all characters.

    The rare characters come with their counts; the last number is the count of all characters.
    """
    characters: Counter[str] = Counter()
    within: set[str] = set()
    for word, count in counts:
        for character in word:
            characters[character] += count
        within.update(word[1:])
    if least is None:
        least = max(2, characters.total() // _RAREST_CHARACTER)
    rare = Counter({c: count for c, count in characters.items() if count < least})
    # All words count for where characters stand, but only spellable ones for merges.
    firsts, rests = sorted(characters.keys() - rare.keys()), sorted(within - rare.keys())
    special = list(dict.fromkeys([*SPECIAL_TOKENS, *reserved]))
    alphabet = list(dict.fromkeys([*special, *firsts, *(f"##{c}" for c in rests)]))
    if len(alphabet) > vocabulary_size:
        raise InputError(
            f"a vocabulary of {vocabulary_size} cannot hold the {len(special)} special "
            f"tokens and {len(alphabet) - len(special)} pieces of one character; give "
            f"--size {len(alphabet)} or more"
        )
    return alphabet, rare, characters.total()


def learn_vocabulary(
    counts: Mapping[str, int],
    vocabulary_size: int,
    *,
    min_frequency: int = 2,
    reserved: Sequence[str] = (),
    notice: Notice = print,
) -> list[str]:
    """Learns WordPiece pieces from the words of a corpus; InputError if there are none.

    The result holds the special and the `reserved` tokens, characters as `c`, those within words as
    `##c`, then the pieces from byte-pair merges, the most frequent first. A character gets a piece
    if it occurs twice, or more often than once in ten million characters. Merges as
    Sennrich et al. (2016): the original's learner was never published, and TF Text's takes tens
    of times as long.

    Args:
        counts: counts from `count_words`; those of the rarest words are left out above 5 million
            characters in different words.
        vocabulary_size: maximum number of pieces, at least the number of characters.
        min_frequency: minimum number of occurrences for a merge.
        reserved: further tokens, after the special ones.
        notice: called with a line if rare characters or words are left out.
    """
    words = [word for word, n in counts.items() if 0 < len(word) <= LONGEST_WORD and n > 0]
    if not words:
        raise InputError(
            f"the corpus has no words of up to {LONGEST_WORD} characters; give a file with text in "
            "it, with spaces or punctuation between words"
        )
    known = ((word, counts[word]) for word in words)
    alphabet, rare, characters = _alphabet(known, vocabulary_size, None, reserved)
    if rare:
        examples = " ".join(character for character, _ in rare.most_common(_SHOWN))
        notice(
            f"{len(rare):,} rare characters ({rare.total() / characters:.2%} of the text) have no "
            f"piece, and words with them are [UNK]: {examples}{' ...' * (len(rare) > _SHOWN)}"
        )
    spellable = sorted(word for word in words if rare.keys().isdisjoint(word))
    learned = _most_frequent(spellable, counts)
    if len(learned) < len(spellable):
        notice(
            f"{len(learned):,} of {len(spellable):,} different words are learned from, the most "
            f"frequent ones: memory is for {MOST_LEARNED:,} characters of them"
        )
    frequencies = [counts[word] for word in learned]
    return learn_merges(learned, frequencies, alphabet, vocabulary_size, min_frequency)


def _most_frequent(words: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """The most frequent words, of `MOST_LEARNED` characters at most, in their order."""
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    if lengths.sum() <= MOST_LEARNED:
        return list(words)
    # Among equally frequent ones, an even choice: sorted words begin with few letters.
    keys = np.fromiter((zlib.crc32(word.encode()) for word in words), np.int64, len(words))
    frequencies = np.fromiter((counts[word] for word in words), np.int64, len(words))
    order = np.lexsort((keys, -frequencies))
    chosen = order[: np.searchsorted(np.cumsum(lengths[order]), MOST_LEARNED, side="right")]
    return [words[index] for index in np.sort(chosen)]
