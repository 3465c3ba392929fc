"""Learn a WordPiece vocabulary from your own text.

  bert-tf vocab --corpus text/ --output vocab/

Reads plain text or JSONL, which may be compressed. Writes vocab.txt and
tokenizer_config.json, for every command with --tokenizer and for Hugging Face. Give --strip_accents
false for Korean, and for languages that distinguish words by accents.
"""

import shlex
from dataclasses import dataclass, fields
from typing import Any

from bert_tf.atomic import replace_directory
from bert_tf.cli.progress import console, progress, typed
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from pipelines.options import CorpusOptions

FILES = ("vocab.txt", "tokenizer_config.json")

# Share of letters changed by stripping accents from which on a text depends on them: less than
# 0.2% in English, 1% in Italian, 1.5% in German, a quarter in Vietnamese, all in Korean.
_LOST_LETTERS = 0.005


@dataclass(kw_only=True)
class Options(CorpusOptions):
    """Options of `bert-tf vocab`."""

    corpus: list[str] = option(path=True)
    """text files, folders, globs, or names of TensorFlow Datasets (tfds:NAME/CONFIG)."""
    output: str
    """tokenizer folder to make."""
    size: int = option(30522, at_least=6, at_most=10_000_000)
    """maximum number of pieces, by default the original's 30,522; a small corpus needs fewer."""
    min_frequency: int = option(2, at_least=1, below=2**31)
    """minimum number of occurrences for two pieces to be merged into one."""
    do_lower_case: bool = True
    """lower-case the text, as the uncased models do."""
    strip_accents: bool | None = None
    """drop accents; by default when the text is lower-cased."""
    tokenize_chinese_chars: bool = True
    """make every Chinese character a word."""
    overwrite: bool = False
    """replace an older tokenizer folder."""


def run(options: Options) -> None:
    output = check_output_folder(
        options.output, options.corpus, ours=FILES, overwrite=options.overwrite
    )
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    switches: dict[str, Any] = {name: getattr(options, name) for name in names}
    with progress("counting words") as bar:
        from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary
        from bert_tf.tokenization.normalizer import lost_letters
        from bert_tf.tokenization.vocabulary import check_alphabet
        from pipelines.corpus.formats import input_errors, read_lines, sample_text
        from pipelines.corpus.sources import open_corpus

        corpus = open_corpus(options.corpus, options)
        check_output_folder(output, corpus.files)
        if options.do_lower_case and options.strip_accents is None:
            share, examples = lost_letters(sample_text(corpus))
            if share > _LOST_LETTERS:
                bar.print(
                    f"{share:.1%} of the letters in this text lose accents or fall apart "
                    f"({', '.join(examples)}); to keep them, add --strip_accents false"
                )
        with input_errors():
            counts = count_words(
                read_lines(corpus),
                **switches,
                progress=bar.update,
                check=lambda counts: check_alphabet(counts, options.size, corpus.text_bytes),
                notice=bar.print,
            )
    with progress(f"learning {options.size} pieces from {len(counts)} words") as bar:
        pieces = learn_vocabulary(
            counts, options.size, min_frequency=options.min_frequency, notice=bar.print
        )
        with replace_directory(output) as folder:
            BertTokenizer(pieces, **switches).save(folder)
    words = ["shards", "--corpus", *options.corpus]
    for each in fields(CorpusOptions):
        if (value := getattr(options, each.name)) != each.default:
            words += [f"--{each.name}", *([] if value is True else [str(value)])]
    words += ["--tokenizer", options.output, "--output", "shards/"]
    console.print(
        f"{len(pieces)} pieces from {sum(counts.values())} words ({len(counts)} distinct): "
        f"{options.output}\n"
        f"Next: {typed('bert-tf')} {shlex.join(words)}"
    )
