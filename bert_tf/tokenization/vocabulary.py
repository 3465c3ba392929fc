"""The list of pieces: learned from text, read, checked and written."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from bert_tf.atomic import replace_file
from bert_tf.errors import InputError
from bert_tf.tokenization.normalizer import Normalizer
from bert_tf.tokenization.wordpiece import LONGEST_WORD

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Words that the learner is shown at most; it takes about half a second for each million.
MOST_OCCURRENCES = 100_000_000


class Vocabulary:
    """Pieces and their ids; a piece's id is its place in the list.

    Args:
        pieces: distinct strings, the special tokens among them.
        source: where they come from, for messages.

    Raises:
        InputError: there is no piece, one stands twice, one cannot stand on a line of its own, or
            a special token is missing.
    """

    def __init__(self, pieces: Sequence[str], source: str = "the vocabulary"):
        self.pieces = list(pieces)
        if not self.pieces:
            raise InputError(f"{source}: holds no pieces; give a vocab.txt with one on each line")
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

    def __len__(self) -> int:
        return len(self.pieces)

    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the file that `write_vocabulary` makes."""
        return hashlib.sha256(_file_content(self.pieces)).hexdigest()


def read_vocabulary(path: str | os.PathLike) -> Vocabulary:
    r"""Reads a `vocab.txt`: a piece on each line, UTF-8.

    Lines end with \n, \r\n or \r, all of them alike: within a line, other readers disagree whether
    a \r ends it, and so about the ids of the pieces after it.

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
    with replace_file(path) as temporary:
        temporary.write_bytes(_file_content(pieces))


def _file_content(pieces: Sequence[str]) -> bytes:
    return "".join(f"{piece}\n" for piece in pieces).encode("utf-8")


def count_words(
    texts: tf.data.Dataset,
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Counts the words of a corpus, cut and cleaned as the tokenizer does it.

    Streams: memory grows with the number of distinct words, not with the corpus.

    Args:
        texts: string batches [n] of any sizes; some thousands each are quickest.
        do_lower_case: as in BertTokenizer.
        strip_accents: as in BertTokenizer.
        tokenize_chinese_chars: as in BertTokenizer.
        progress: is called after each batch with the number of texts counted so far.

    Returns:
        Each word with its count.
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
        # Counter.update would add each occurrence, or walk a mapping as slowly as this does.
        for word, count in zip(words.tolist(), counts.tolist(), strict=True):
            totals[word] += count
        texts_seen += int(batch_size)
        if progress is not None:
            progress(texts_seen)
    # Invalid UTF-8 passes through the graph; such words are unknown to the tokenizer. U+FFFD
    # itself does not pass: it is the mark of what could not be decoded.
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

    Special tokens come first, then every frequent character as `c`, then as `##c` those that words
    go on with, then the pieces that byte-pair merges make, the most frequent first. The same
    counts give the same list.

    Args:
        counts: words, as `count_words` returns them. Above 100 million occurrences they are
            scaled down to as many, which changes nothing that is not rare.
        vocabulary_size: the most pieces of the result. A small corpus may have fewer.
        min_frequency: pieces met less often are not merged.
        character_min_frequency: characters met less often get no piece, and words with them are
            unknown. None: 2, or a ten-millionth of all characters where that is more.

    Raises:
        InputError: there are no words, or their characters do not fit.

    The merges are those of Sennrich et al. (2016), in the `tokenizers` library. The learner of the
    original BERT was never published; that of TF Text takes tens of times as long
    (`benchmarks/vocabulary.py` compares the two).
    """
    # What the tokenizer will call unknown in any case has nothing to teach.
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
    # Where a character stands is asked of all words; merges are made of the spellable ones.
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
        # The library would number the "##c" in the order of a hash map, and break ties between
        # merges by these numbers. As special tokens they have ours: the same in every run.
        special_tokens=alphabet,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    learner.train_from_iterator(_occurrences(spellable), trainer)
    ids = learner.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def _occurrences(counts: Mapping[str, int]) -> Iterator[str]:
    """Lines in which each word stands as often as it was counted, scaled down where too often."""
    total = sum(counts.values())
    shown = min(total, MOST_OCCURRENCES)
    seen = 0
    for word, count in counts.items():
        # Rounding the running sum loses no more than one occurrence over all words together.
        repeats = (seen + count) * shown // total - seen * shown // total
        seen += count
        while repeats > 0:
            yield f"{word} " * min(repeats, 1000)
            repeats -= 1000
