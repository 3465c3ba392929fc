"""Learn a WordPiece vocabulary from your own text, or add words of it to a model's vocabulary.

  bert-tf vocab --corpus text/ --output vocab/
  bert-tf vocab --extend models/base --corpus contracts/ --add 2000 --output models/contracts

Reads plain text or JSONL, which may be compressed. Writes vocab.txt and
tokenizer_config.json, for every command with --tokenizer and for Hugging Face. Give --strip_accents
false for Korean, and for languages that distinguish words by accents. With --extend the output is a
model directory, for pretrain and finetune.
"""

import glob
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.commands.command import Command
from bert_tf.commands.data_in_memory import DocumentOptions, documents_as_file
from bert_tf.commands.progress import ProgressBar, command_line, console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.files.atomic import remove, replace_directory, replace_file
from bert_tf.files.outputs import check_output_folder
from bert_tf.options import PathName, changed_words, option
from bert_tf.pipelines.data_options import CorpusOptions

if TYPE_CHECKING:
    from bert_tf.checkpoints.formats import Location
    from bert_tf.checkpoints.stored_model import StoredModel
    from bert_tf.pipelines.corpus.sources import Corpus
    from bert_tf.tokenization import BertTokenizer

FILES = ("vocab.txt", "tokenizer_config.json")
_SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
# A model to extend: where it is, the model, and its tokenizer without more words.
_Base = tuple["Location", "StoredModel", "BertTokenizer"]

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
    """tokenizer folder to make, or model directory with --extend."""
    extend: PathName | None = option(None, path=True, model=True)
    """model (folder, checkpoint, or ORG/NAME of the Hugging Face hub) to add words to instead of
    learning a vocabulary: those with the most pieces in all, each with the mean of their
    embeddings. The model decides about lower case and accents."""
    add: int = option(2000, at_least=1, at_most=1_000_000)
    """maximum number of words to add with --extend, on [unused] pieces first, then behind the
    vocabulary."""
    size: int = option(30522, at_least=6, at_most=10_000_000)
    """maximum number of pieces, by default the original's 30,522; a small corpus needs fewer."""
    reserve: list[str] = option(factory=list)
    """tokens to add after the five special ones, such as [unused0] [unused1] or ones of your own;
    they count towards the size."""
    min_frequency: int = option(2, at_least=1, below=2**31)
    """minimum number of occurrences for two pieces to be merged into one, or for a word to be
    added."""
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
    """random seed for drawing the sample."""
    threads: int | None = option(None, at_least=1, at_most=1024)
    """threads that count words; by default one per core."""
    overwrite: bool = False
    """replace an older tokenizer folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for token in self.reserve:
            if not token or token.split() != [token]:
                raise InputError(f"--reserve {token!r}: give tokens without white space")
        fixed = {f"--{name}" for name in ("size", "reserve", *_SWITCHES)}
        given = [word for word in changed_words(self) if word.replace("--no_", "--") in fixed]
        if self.extend is not None and given:
            raise InputError(
                f"{given[0]} cannot be combined with --extend, which keeps the model's pieces and "
                "its rules for lower case and accents: remove one of them"
            )


@dataclass(kw_only=True, repr=False, eq=False)
class VocabularyResult(Result):
    """The outcome of `learn_vocabulary`.

    Attributes:
        output: the tokenizer's folder, vocab.txt and tokenizer_config.json; or the model's.
        pieces: the vocabulary, in the order of the ids.
        words: number of words in the text.
        distinct_words: number of different ones.
        loses_letters: whether dropping accents changes many letters of the text.
        is_decomposed: whether the text has many letters in decomposed form (NFD).
        added: the id of each word added to the vocabulary of `extend`, those that save most pieces
            first.
        pieces_per_word: mean in the text, before and after the words were added; else None.
    """

    output: Path
    pieces: list[str]
    words: int
    distinct_words: int
    loses_letters: bool = False
    is_decomposed: bool = False
    added: dict[str, int] = field(default_factory=dict)
    pieces_per_word: tuple[float, float] | None = None

    def lines(self) -> list[str]:
        words = f"{self.words} words ({self.distinct_words} distinct)"
        if self.pieces_per_word is not None:
            before, after = self.pieces_per_word
            return [
                f"{len(self.added)} words added, now {len(self.pieces)} pieces: {self.output}",
                f"Pieces per word of the text: {before:.3f} before, {after:.3f} now, from {words}",
            ]
        return [f"{len(self.pieces)} pieces from {words}: {self.output}"]


def run(options: Options) -> VocabularyResult:
    """Learns a WordPiece vocabulary from text, or extends a model's, as `bert-tf vocab` does.

    ```python
    bert_tf.learn_vocabulary(documents=texts, output="vocab", size=8000).pieces
    ```

    Returns:
        The vocabulary and its folder, for `make_shards` and `BertTokenizer.from_directory`.
    """
    with (
        documents_as_file(options) as options,
        progress("counting words", shown=options.shown) as bar,
    ):
        from bert_tf.checkpoints.other_formats import conversion
        from bert_tf.pipelines.corpus.sources import open_corpus

        ours = FILES if options.extend is None else conversion.FILES
        inputs = [*options.corpus, options.extend]
        output = check_output_folder(options.output, inputs, ours=ours, overwrite=options.overwrite)
        corpus = open_corpus(options.corpus, options)
        check_output_folder(output, corpus.files)
        switches: dict[str, Any] = {name: getattr(options, name) for name in _SWITCHES}
        base = None
        if options.extend is not None:
            base = _model_to_extend(options.extend)
            switches = {name: base[2].settings[name] for name in _SWITCHES}
        loses_letters = base is None and _remark_on_lost_letters(options, corpus, bar)
        is_decomposed = _remark_on_decomposed_letters(switches, corpus, bar)
        if options.sample_bytes is not None:
            corpus = corpus.sampled(options.sample_bytes, options.seed)
        counts_file, counts, text_faults = _counted(options, corpus, switches, output, bar)
        for line in faults(text_faults):
            bar.print(line)
    notices = bar.notices
    task = f"learning {options.size} pieces" if base is None else f"choosing {options.add} words"
    with progress(f"{task} from {len(counts)} words", shown=options.shown) as bar:
        with replace_directory(output) as folder:
            if base is None:
                made = _learn(options, counts, switches, folder, bar)
            else:
                made = _extend(options, counts, base, folder)
            # Files may have come meanwhile.
            check_output_folder(output, ours=ours, overwrite=options.overwrite)
        left = output.parent.glob(f".{glob.escape(output.name)}.counts-*.tmp")  # by a killed call
        remove(counts_file, *left)
    return VocabularyResult(
        output=Path(options.output),
        words=sum(counts.values()),
        distinct_words=len(counts),
        loses_letters=loses_letters,
        is_decomposed=is_decomposed,
        notices=notices + bar.notices,
        **made,
    )


def _learn(
    options: Options,
    counts: Mapping[str, int],
    switches: Mapping[str, Any],
    folder: Path,
    bar: ProgressBar,
) -> dict[str, Any]:
    """Writes a new vocabulary; returns it as a field of the result."""
    from bert_tf.tokenization import BertTokenizer, learn_vocabulary

    pieces = learn_vocabulary(
        counts,
        options.size,
        min_frequency=options.min_frequency,
        notice=bar.print,
        reserved=options.reserve,
    )
    if len(pieces) < options.size:
        bar.print(
            f"{len(pieces):,} pieces, fewer than --size {options.size}: no two of them occur "
            f"together {options.min_frequency} times or more; longer text yields more"
        )
    BertTokenizer(pieces, **switches).save(folder)
    return {"pieces": pieces}


def _model_to_extend(source: str) -> _Base:
    """Reads the model; refuses what cannot be written again."""
    from bert_tf.checkpoints.other_formats.conversion import read_model
    from bert_tf.checkpoints.sentence_files import read_sentence_files

    location, model = read_model(source)
    read_sentence_files(location.folder)  # refuses modules that cannot be written
    if model.tokenizer is None:
        raise InputError(f"{source} has no vocabulary to extend: put its vocab.txt there")
    return location, model, model.tokenizer


def _extend(
    options: Options, counts: Mapping[str, int], base: _Base, folder: Path
) -> dict[str, Any]:
    """Writes the model with more words; returns fields of the result."""
    from bert_tf.checkpoints.added_words import add_words, costly_words, pieces_per_word
    from bert_tf.checkpoints.other_formats.conversion import write_directory

    location, model, tokenizer = base
    words = costly_words(counts, tokenizer, options.add, options.min_frequency)
    if not words:
        raise InputError(
            f"no word that occurs {options.min_frequency} times in the corpus has several pieces: "
            "give more text, lower --min_frequency, or use the model as it is"
        )
    extended = add_words(model, tokenizer, words)
    write_directory(location, model, folder)
    return {
        "pieces": extended.vocabulary,
        "added": {word: extended.token_to_id(word) for word in words},
        "pieces_per_word": tuple(pieces_per_word(counts, x) for x in (tokenizer, extended)),
    }


def _remark_on_lost_letters(options: Options, corpus: "Corpus", bar: ProgressBar) -> bool:
    """Whether dropping accents, unless it was asked for, changes many letters of the text."""
    from bert_tf.pipelines.corpus.formats import sample_text
    from bert_tf.tokenization.normalizer import lost_letters

    if not options.do_lower_case or options.strip_accents is not None:
        return False
    share, examples = lost_letters(sample_text(corpus))
    if share <= _LOST_LETTERS:
        return False
    bar.print(
        f"{share:.1%} of the letters in this text lose accents or fall apart "
        f"({', '.join(examples)}); to keep them, add --strip_accents false"
    )
    return True


def _remark_on_decomposed_letters(
    switches: Mapping[str, Any], corpus: "Corpus", bar: ProgressBar
) -> bool:
    """Whether accents are kept and many letters of the text are in decomposed form."""
    from bert_tf.pipelines.corpus.formats import sample_text
    from bert_tf.tokenization.normalizer import decomposed_letters, strips_accents

    if strips_accents(switches["do_lower_case"], switches["strip_accents"]):
        return False
    line = decomposed_letters(sample_text(corpus))
    if line:
        bar.print(line)
    return bool(line)


def _counted(
    options: Options, corpus: "Corpus", switches: Mapping[str, Any], output: Path, bar: ProgressBar
) -> tuple[Path, Mapping[str, int], Mapping[str, int]]:
    """The counts of the corpus' words and faults, and the file that keeps them."""
    from bert_tf.pipelines.corpus.formats import input_errors, read_lines
    from bert_tf.pipelines.corpus.sources import unit_hash
    from bert_tf.tokenization import count_words
    from bert_tf.tokenization.vocabulary import check_alphabet

    units = [unit_hash(unit) for unit in corpus.units]
    read_as = [options.corpus_format, options.text_field]
    settings = json.dumps([units, *read_as, *switches.values()])
    identity = hashlib.sha256(settings.encode()).hexdigest()
    file = output.with_name(f"{output.name}.counts-{identity[:16]}.zst")
    if (stored := _read_counts(file, identity)) is not None:
        bar.print(f"The words of an earlier call are taken from {file}")
        return file, *stored
    text_faults: Counter[str] = Counter()
    unreadable = set(corpus.unreadable)
    size = options.size if options.extend is None else 10**7  # more than there are characters
    with input_errors():
        counts = count_words(
            read_lines(corpus, text_faults, unreadable),
            **switches,
            progress=bar.update,
            notice=bar.print,
            check=lambda counts: check_alphabet(counts, size, corpus.text_bytes),
            threads=options.threads,
        )
    text_faults["unreadable_files"] = len(unreadable)
    _write_counts(file, identity, counts, text_faults)
    return file, counts, text_faults


def faults(counts: Mapping[str, int]) -> list[str]:
    """A line on the faults of a text by their counts, if there are any."""
    named = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n)
    return [f"Found in the text: {named}"] if named else []


def _write_counts(
    path: Path, identity: str, counts: Mapping[str, int], faults: Mapping[str, int]
) -> None:
    """Keeps the counts, in case that the vocabulary cannot be learned from them yet."""
    from bert_tf.pipelines.corpus.text_files import zstd

    with replace_file(path) as temporary, zstd.open(temporary, "wt", encoding="utf-8") as file:
        json.dump([identity, faults, counts], file)


def _read_counts(path: Path, identity: str) -> tuple[dict[str, int], dict[str, int]] | None:
    """The counts of words and faults of the same text with the same options, if they were kept."""
    from bert_tf.pipelines.corpus.text_files import zstd

    if not path.is_file():
        return None
    with zstd.open(path, "rt", encoding="utf-8") as file:
        stored, faults, counts = json.load(file)
    return (counts, faults) if stored == identity else None


def show(result: VocabularyResult, options: Options) -> None:
    made_for = ["--corpus", *options.corpus, *changed_words(options, CorpusOptions)]
    made_for += ["--tokenizer", options.output, "--masking", "dynamic"]
    shards = command_line("shards", *made_for, "--output", "shards/")
    following = f"Next: {shards}"
    if options.extend is not None:
        training = ("--shards", "shards/", "--objective", "mlm", "--output", "runs/extended")
        following += f"\nThen: {command_line('pretrain', '--model', options.output, *training)}"
    if result.loses_letters:
        keeping_accents = replace(options, strip_accents=False, overwrite=True)
        following = f"Next: {command_line('vocab', *changed_words(keeping_accents))}"
        following += f"\n  or, to drop the accents: {shards}"
    elif result.is_decomposed:
        following = f"Next: bring each file to NFC, and learn the vocabulary again:\n{_NFC}"
    console.print(f"{result}\n{following}")


COMMAND = Command(name="vocab", help=__doc__, options=Options, run=run, show=show)
learn_vocabulary = COMMAND.function("learn_vocabulary")
