"""The list of pieces: learned from text, read, checked and written."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from bert_tf.atomic import write_text
from bert_tf.errors import InputError
from bert_tf.tokenization.normalizer import Normalizer
from bert_tf.tokenization.wordpiece import LONGEST_WORD

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Maximum number of words shown to the learner, which takes about half a second per million.
MOST_OCCURRENCES = 100_000_000


class Vocabulary:
    """Pieces and their ids; a piece's id is its place in the list.

    Args:
        pieces: distinct strings, including the special tokens.
        source: name of their source, for messages.

    Raises:
        InputError: there are no pieces, a piece is repeated, empty or holds a line end, or a
            special token is missing.
    """

    def __init__(self, pieces: Sequence[str], source: str = "the vocabulary"):
        self.pieces = list(pieces)
        if not self.pieces:
            raise InputError(f"{source}: holds no pieces; give a vocab.txt with one per line")
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}
        if len(self.ids) < len(self.pieces):
            index = next(i for i, piece in enumerate(self.pieces) if self.ids[piece] != i)
            piece = self.pieces[index]
            raise InputError(
                f"{source}: line {self.ids[piece] + 1} repeats line {index + 1}, {piece!r}; "
                "remove or rename one of them (each piece needs an id of its own)"
            )
        for index, piece in enumerate(self.pieces):
            if not piece or "\n" in piece or "\r" in piece:
                found = "a piece with a line end" if piece else "no piece"
                raise InputError(
                    f"{source}: line {index + 1} holds {found}; "
                    "put one there, such as [unused1], so that the ids after it stay"
                )
        missing = [token for token in SPECIAL_TOKENS if token not in self.ids]
        if missing:
            raise InputError(
                f"{source}: lacks {', '.join(missing)}; add a line for each "
                "(in a model's vocabulary in place of an unused piece: other ids must not move)"
            )

    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the file that `write_vocabulary` makes."""
        return hashlib.sha256(_file_content(self.pieces).encode()).hexdigest()


def read_vocabulary(path: str | os.PathLike) -> Vocabulary:
    r"""Reads a `vocab.txt`: a piece per line, UTF-8.

    All lines end with \n, \r\n or \r. Readers disagree about mixed line ends, and so about ids.

    Raises:
        InputError: the file is missing, is not UTF-8, or is no vocabulary.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(f"{path}: {reason}; give the path of a vocab.txt") from None
    line_end = next((end for end in (b"\r\n", b"\n", b"\r") if end in content), b"\n")
    lines = content.removeprefix(b"\xef\xbb\xbf").split(line_end)
    while lines and not lines[-1].strip():
        lines.pop()
    pieces = []
    for number, line in enumerate(lines, 1):
        try:
            pieces.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise InputError(
                f"{path}: line {number} is not UTF-8; save the vocabulary as UTF-8"
            ) from None
        if b"\r" in line or b"\n" in line:
            raise InputError(
                f"{path}: line {number} ends otherwise than the others; save the vocabulary with "
                "one kind of line end"
            )
    return Vocabulary(pieces, str(path))


def write_vocabulary(path: str | os.PathLike, pieces: Sequence[str]) -> None:
    """Writes a `vocab.txt`, whole or not at all."""
    write_text(path, _file_content(pieces))


def _file_content(pieces: Sequence[str]) -> str:
    return "".join(f"{piece}\n" for piece in pieces)


def count_words(
    texts: tf.data.Dataset,
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Counts the words of a corpus, cleaned and split as by the tokenizer.

    Memory grows with the number of distinct words, not with the corpus.

    Args:
        texts: string batches [n] of any size; some thousands each are fastest.
        do_lower_case: as in BertTokenizer.
        strip_accents: as in BertTokenizer.
        tokenize_chinese_chars: as in BertTokenizer.
        progress: called after each batch with the number of texts counted so far.
    """
    normalizer = Normalizer(
        do_lower_case,
        do_lower_case if strip_accents is None else strip_accents,
        isolate_chinese=tokenize_chinese_chars,
        isolate_punctuation="all",
    )

    def distinct_words(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        words, _, counts = tf.unique_with_counts(
            tf.strings.split(normalizer(batch)).flat_values, tf.int64
        )
        return words, counts, tf.size(batch)

    options = tf.data.Options()
    options.autotune.enabled = False
    parallel = os.cpu_count() or 1
    counted = texts.map(distinct_words, num_parallel_calls=parallel).prefetch(2)
    totals: Counter[bytes] = Counter()
    texts_seen = 0
    for words, counts, batch_size in counted.with_options(options).as_numpy_iterator():
        for word, count in zip(words.tolist(), counts.tolist(), strict=True):
            totals[word] += count
        texts_seen += int(batch_size)
        if progress is not None:
            progress(texts_seen)
    # The graph lets invalid UTF-8 pass, but not U+FFFD, which therefore marks it after decoding.
    decoded = ((word.decode("utf-8", "replace"), count) for word, count in totals.items())
    return {word: count for word, count in decoded if "\ufffd" not in word}


def learn_vocabulary(
    counts: Mapping[str, int],
    vocabulary_size: int,
    *,
    min_frequency: int = 2,
    character_min_frequency: int | None = None,
) -> list[str]:
    """Learns WordPiece pieces from the words of a corpus.

    The result holds the special tokens, frequent characters as `c`, those within words as `##c`,
    then the pieces from byte-pair merges, the most frequent first. The same counts give the same
    list.

    Args:
        counts: counts from `count_words`; scaled down above 100 million occurrences.
        vocabulary_size: maximum number of pieces. A small corpus may have fewer.
        min_frequency: minimum number of occurrences for a merge.
        character_min_frequency: minimum number of occurrences for a character to get a piece; words
            with rarer ones are unknown. By default 2, or a ten-millionth of all characters if that
            is more.

    Raises:
        InputError: there are no words, or their characters do not fit.

    Merges as Sennrich et al. (2016), with the `tokenizers` library. The original's learner was
    never published; TF Text's takes tens of times as long (`benchmarks/vocabulary.py`).
    """
    # Longer words are unknown to the tokenizer in any case.
    counts = {word: n for word, n in counts.items() if 0 < len(word) <= LONGEST_WORD and n > 0}
    if not counts:
        raise InputError("the corpus has no words; give a file with text in it")
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    if character_min_frequency is None:
        character_min_frequency = max(2, characters.total() // 10_000_000)
    rare = {c for c, count in characters.items() if count < character_min_frequency}
    # All words count for the places of characters, but only spellable ones for merges.
    firsts = sorted(characters.keys() - rare)
    rests = sorted({c for word in counts for c in word[1:]} - rare)
    alphabet = [*SPECIAL_TOKENS, *firsts, *(f"##{c}" for c in rests)]
    if len(alphabet) > vocabulary_size:
        raise InputError(
            f"a vocabulary of {vocabulary_size} cannot hold the {len(SPECIAL_TOKENS)} special "
            f"tokens and {len(alphabet) - len(SPECIAL_TOKENS)} pieces of one character; raise its "
            f"size to more than {len(alphabet)}, or character_min_frequency above "
            f"{character_min_frequency}"
        )
    spellable = {word: n for word, n in sorted(counts.items()) if rare.isdisjoint(word)}

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        # As special tokens, they keep their numbers, which break ties between merges. The library
        # would number the "##c" in the order of a hash map, differently in every run.
        special_tokens=alphabet,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    learner.train_from_iterator(_occurrences(spellable), trainer)
    ids = learner.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def _occurrences(counts: Mapping[str, int]) -> Iterator[str]:
    """Lines that repeat each word as often as it was counted, scaled down if necessary."""
    total = sum(counts.values())
    shown = min(total, MOST_OCCURRENCES)
    seen = 0
    for word, count in counts.items():
        # Rounding the running sum loses at most one occurrence in total.
        repeats = (seen + count) * shown // total - seen * shown // total
        seen += count
        while repeats > 0:
            yield f"{word} " * min(repeats, 1000)
            repeats -= 1000
