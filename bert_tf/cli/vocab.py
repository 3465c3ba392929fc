"""Learn a WordPiece vocabulary from your own text.

  bert-tf vocab --corpus text/ --output vocab/

Reads plain text or JSONL, which may be compressed. Writes vocab.txt and
tokenizer_config.json, for every command with --tokenizer and for Hugging Face. Give --strip_accents
false for Korean, and for languages that distinguish words by accents.
"""

import shlex
from dataclasses import fields

from bert_tf.api.progress import console, typed
from bert_tf.api.vocabulary import VocabularyOptions as Options
from bert_tf.api.vocabulary import learn_vocabulary
from bert_tf.pipelines.data_options import CorpusOptions


def run(options: Options) -> None:
    result = learn_vocabulary.of(options)
    words = ["shards", "--corpus", *options.corpus]
    for each in fields(CorpusOptions):
        if (value := getattr(options, each.name)) != each.default:
            words += [f"--{each.name}", *([] if value is True else [str(value)])]
    words += ["--tokenizer", options.output, "--output", "shards/"]
    console.print(f"{result}\nNext: {typed('bert-tf')} {shlex.join(words)}")
