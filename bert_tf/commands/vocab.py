"""Learn a WordPiece vocabulary from your own text.

  bert-tf vocab --corpus text/ --output vocab/

Reads plain text or JSONL, which may be compressed. Writes vocab.txt and
tokenizer_config.json, for every command with --tokenizer and for Hugging Face. Give --strip_accents
false for Korean, and for languages that distinguish words by accents.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_tf.commands.data_in_memory import DocumentOptions, documents_as_file
from bert_tf.commands.function import function
from bert_tf.commands.progress import command_line, console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.files.atomic import replace_directory, replace_file
from bert_tf.files.outputs import check_output_folder
from bert_tf.options import PathName, changed_words, option
from bert_tf.pipelines.data_options import CorpusOptions

FILES = ("vocab.txt", "tokenizer_config.json")

# Share of letters changed by stripping accents from which on a text depends on them: less than
# 0.2% in English, 1% in Italian, 1.5% in German, a quarter in Vietnamese, all in Korean.
_LOST_LETTERS = 0.005
_NFC = """python3 -X utf8 -c 'import sys, unicodedata
for line in sys.stdin: sys.stdout.write(unicodedata.normalize("NFC", line))' < raw.txt > text.txt"""


@dataclass(kw_only=True)
class Options(DocumentOptions, CorpusOptions):
    """Options of `bert-tf vocab`."""

    corpus: list[PathName] = option(factory=list, path=True, required=True)
    """text files, folders, globs, or names of TensorFlow Datasets (tfds:NAME/CONFIG)."""
    output: PathName
    """tokenizer folder to make."""
    size: int = option(30522, at_least=6, at_most=10_000_000)
    """maximum number of pieces, by default the original's 30,522; a small corpus needs fewer."""
    reserve: list[str] = option(factory=list)
    """tokens to add after the five special ones, such as [unused0] [unused1] or ones of your own;
    they count towards the size."""
    min_frequency: int = option(2, at_least=1, below=2**31)
    """minimum number of occurrences for two pieces to be merged into one."""
    do_lower_case: bool = True
    """lower-case the text, as the uncased models do."""
    strip_accents: bool | None = None
    """drop accents; by default when the text is lower-cased."""
    tokenize_chinese_chars: bool = True
    """make every Chinese character a word."""
    sample_bytes: int | None = option(None, at_least=1, at_most=2**50)
    """bytes of text to count words in, drawn throughout the corpus in units of some 32 MB; by
    default all of it."""
    seed: int = option(12345, at_least=0, below=2**31)
    """random seed of the sample."""
    threads: int | None = option(None, at_least=1, at_most=1024)
    """threads that count words; by default one per core."""
    overwrite: bool = False
    """replace an older tokenizer folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for token in self.reserve:
            if not token or token.split() != [token]:
                raise InputError(f"--reserve {token!r}: give tokens without white space")


@dataclass(kw_only=True, repr=False, eq=False)
class VocabularyResult(Result):
    """The outcome of `learn_vocabulary`.

    Attributes:
        output: the tokenizer's folder, vocab.txt and tokenizer_config.json.
        pieces: the vocabulary, in the order of the ids.
        words: number of words in the text.
        distinct_words: number of different ones.
        loses_letters: whether dropping accents changes many letters of the text.
        is_decomposed: whether the text has many letters in decomposed form (NFD).
    """

    output: Path
    pieces: list[str]
    words: int
    distinct_words: int
    loses_letters: bool = False
    is_decomposed: bool = False

    def lines(self) -> list[str]:
        words = f"{self.words} words ({self.distinct_words} distinct)"
        return [f"{len(self.pieces)} pieces from {words}: {self.output}"]


def run(options: Options) -> VocabularyResult:
    """Learns a WordPiece vocabulary from text, as `bert-tf vocab` does.

    ```python
    bert_tf.learn_vocabulary(documents=texts, output="vocab", size=8000).pieces
    ```

    Returns:
        The vocabulary and its folder, for `make_shards` and `BertTokenizer.from_directory`.
    """
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    switches: dict[str, Any] = {name: getattr(options, name) for name in names}
    with (
        documents_as_file(options) as options,
        progress("counting words", shown=options.shown) as bar,
    ):
        output = check_output_folder(
            options.output, options.corpus, ours=FILES, overwrite=options.overwrite
        )
        from bert_tf.pipelines.corpus.formats import input_errors, read_lines, sample_text
        from bert_tf.pipelines.corpus.sources import open_corpus, unit_hash
        from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary
        from bert_tf.tokenization.normalizer import decomposed_letters, lost_letters
        from bert_tf.tokenization.vocabulary import check_alphabet

        corpus = open_corpus(options.corpus, options)
        check_output_folder(output, corpus.files)
        loses_letters = is_decomposed = False
        if options.do_lower_case and options.strip_accents is None:
            share, examples = lost_letters(sample_text(corpus))
            if loses_letters := share > _LOST_LETTERS:
                bar.print(
                    f"{share:.1%} of the letters in this text lose accents or fall apart "
                    f"({', '.join(examples)}); to keep them, add --strip_accents false"
                )
        keeps_accents = not options.do_lower_case or options.strip_accents is False
        if keeps_accents and (line := decomposed_letters(sample_text(corpus))):
            is_decomposed = True
            bar.print(line)
        if options.sample_bytes is not None:
            corpus = corpus.sampled(options.sample_bytes, options.seed)
        units = [unit_hash(unit) for unit in corpus.units]
        read_as = [options.corpus_format, options.text_field]
        settings = json.dumps([units, *read_as, *switches.values()])
        identity = hashlib.sha256(settings.encode()).hexdigest()
        counts_file = output.with_name(f"{output.name}.counts-{identity[:16]}.zst")
        text_faults: Counter[str] = Counter()
        unreadable = set(corpus.unreadable)
        if (stored := _read_counts(counts_file, identity)) is not None:
            counts, text_faults = stored[0], Counter(stored[1])
            bar.print(f"The words of an earlier call are taken from {counts_file}")
        else:
            with input_errors():
                counts = count_words(
                    read_lines(corpus, text_faults, unreadable),
                    **switches,
                    progress=bar.update,
                    notice=bar.print,
                    check=lambda counts: check_alphabet(counts, options.size, corpus.text_bytes),
                    threads=options.threads,
                )
            text_faults["unreadable_files"] = len(unreadable)
            _write_counts(counts_file, identity, counts, text_faults)
        for line in faults(text_faults):
            bar.print(line)
    notices = bar.notices
    with progress(
        f"learning {options.size} pieces from {len(counts)} words", shown=options.shown
    ) as bar:
        pieces = learn_vocabulary(
            counts,
            options.size,
            min_frequency=options.min_frequency,
            notice=bar.print,
            reserved=options.reserve,
        )
        with replace_directory(output) as folder:
            BertTokenizer(pieces, **switches).save(folder)
            # Files may have come meanwhile.
            check_output_folder(output, ours=FILES, overwrite=options.overwrite)
        counts_file.unlink(missing_ok=True)
    return VocabularyResult(
        output=Path(options.output),
        pieces=list(pieces),
        words=sum(counts.values()),
        distinct_words=len(counts),
        loses_letters=loses_letters,
        is_decomposed=is_decomposed,
        notices=notices + bar.notices,
    )


def faults(counts: Mapping[str, int]) -> list[str]:
    """A line on the faults of a text by their counts, if there are any."""
    named = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n)
    return [f"Found in the text: {named}"] if named else []


def _write_counts(
    path: Path, identity: str, counts: Mapping[str, int], faults: Mapping[str, int]
) -> None:
    """Keeps the counts, in case that the vocabulary cannot be learned from them yet."""
    from backports import zstd

    with replace_file(path) as temporary, zstd.open(temporary, "wt", encoding="utf-8") as file:
        json.dump([identity, faults, counts], file)


def _read_counts(path: Path, identity: str) -> tuple[dict[str, int], dict[str, int]] | None:
    """The counts of words and faults of the same text with the same options, if they were kept."""
    from backports import zstd

    if not path.is_file():
        return None
    try:
        with zstd.open(path, "rt", encoding="utf-8") as file:
            stored, faults, counts = json.load(file)
    except ValueError:  # of an earlier version
        return None
    return (counts, faults) if stored == identity else None


def show(result: VocabularyResult, options: Options) -> None:
    made_for = ["--corpus", *options.corpus, *changed_words(options, CorpusOptions)]
    shards = command_line("shards", *made_for, "--tokenizer", options.output, "--output", "shards/")
    following = f"Next: {shards}"
    if result.loses_letters:
        keeping_accents = replace(options, strip_accents=False, overwrite=True)
        following = f"Next: {command_line('vocab', *changed_words(keeping_accents))}"
        following += f"\n  or, to drop the accents: {shards}"
    elif result.is_decomposed:
        following = f"Next: bring each file to NFC, and learn the vocabulary again:\n{_NFC}"
    console.print(f"{result}\n{following}")


learn_vocabulary = function("learn_vocabulary", Options, run)
