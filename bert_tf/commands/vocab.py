"""Learn a WordPiece vocabulary from your own text.

  bert-tf vocab --corpus text/ --output vocab/

Reads plain text or JSONL, which may be compressed. Writes vocab.txt and
tokenizer_config.json, for every command with --tokenizer and for Hugging Face. Give --strip_accents
false for Korean, and for languages that distinguish words by accents.
"""

import shlex
from dataclasses import MISSING, fields, replace
from typing import Any

from bert_tf.api.progress import console, typed
from bert_tf.api.vocabulary import VocabularyOptions as Options
from bert_tf.api.vocabulary import learn_vocabulary
from bert_tf.pipelines.data_options import CorpusOptions

_NFC = """python3 -X utf8 -c 'import sys, unicodedata
for line in sys.stdin: sys.stdout.write(unicodedata.normalize("NFC", line))' < raw.txt > text.txt"""


def run(options: Options) -> None:
    result = learn_vocabulary.of(options)
    made_for = ["--corpus", *options.corpus, *_changed(options, CorpusOptions)]
    shards = _command("shards", *made_for, "--tokenizer", options.output, "--output", "shards/")
    following = f"Next: {shards}"
    if result.loses_letters:
        kept = replace(options, strip_accents=False, overwrite=True)
        following = f"Next: {_command('vocab', *_changed(kept, Options))}"
        following += f"\n  or, to drop the accents: {shards}"
    elif result.is_decomposed:
        following = f"Next: bring each file to NFC, and learn the vocabulary again:\n{_NFC}"
    console.print(f"{result}\n{following}")


def _command(*words: str) -> str:
    return f"{typed('bert-tf')} {shlex.join(words)}"


def _changed(options: Options, declared: type[Any]) -> list[str]:
    """The options of a class that differ from their defaults, as they are typed."""
    words = []
    for each in fields(declared):
        value = getattr(options, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if value != default:
            values = value if isinstance(value, list) else [value]
            shown = [str(x).lower() if isinstance(x, bool) else str(x) for x in values]
            words += [f"--{each.name}", *([] if value is True else shown)]
    return words
