"""Parts of benchmarks/shards.py that run in separate processes.

    python benchmarks/shard_processes.py prepare books/ corpus/

The first argument names a function of this file; the others are its arguments.
"""

import gzip
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DOCUMENT_SENTENCES = 200
MAX_SEQ_LENGTH = 128
VOCABULARY_SIZE = 30_522


def prepare(corpus: str, output: str) -> None:
    """Writes the corpus for both scripts: a sentence per line, blank lines between documents."""
    import tensorflow as tf

    from bert_tf.pipelines.corpus.installed_documentation import installed_documentation
    from bert_tf.pipelines.corpus.sentence_splitting import split_sentences

    def books() -> Iterator[tuple[str, list[bytes]]]:
        for path in sorted(path for path in Path(corpus).rglob("*") if path.is_file()):
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rb") as file:
                text = file.read().replace(b"\r", b"")
            sentences = split_sentences(tf.constant(re.split(rb"\n\s*\n", text)))
            yield path.name.split(".")[0], sentences.flat_values.numpy().tolist()

    def packages() -> Iterator[tuple[str, list[bytes]]]:
        by_package: dict[str, list[bytes]] = {}
        for module in installed_documentation():
            sentences = (sentence for docstring in module.paragraphs for sentence in docstring)
            by_package.setdefault(module.label, []).extend(map(str.encode, sentences))
        yield from by_package.items()

    Path(output).mkdir()
    for name, sentences in books() if corpus else packages():
        documents = [
            b"\n".join(sentences[first : first + DOCUMENT_SENTENCES])
            for first in range(0, len(sentences), DOCUMENT_SENTENCES)
        ]
        (Path(output) / f"{name}.txt").write_bytes(b"\n\n".join(documents) + b"\n")


def tokenizer_folder(vocabulary: str, corpus: str, output: str) -> None:
    """Makes a tokenizer folder from a vocabulary, by default learned from the corpus."""
    from bert_tf.pipelines.corpus.formats import read_lines
    from bert_tf.pipelines.corpus.sources import open_corpus
    from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary

    if vocabulary:
        tokenizer = BertTokenizer(vocabulary)
    else:
        words = count_words(read_lines(open_corpus(corpus)))
        tokenizer = BertTokenizer(learn_vocabulary(words, VOCABULARY_SIZE))
    tokenizer.save(output)


def share(corpus: str, output: str, megabytes: str) -> None:
    """Copies about so many megabytes of documents from all over the corpus into one file."""
    documents = [
        document
        for path in sorted(Path(corpus).iterdir())
        for document in path.read_bytes().strip().split(b"\n\n")
    ]
    step = max(1.0, sum(map(len, documents)) / (float(megabytes) * 1e6))
    taken = [documents[int(index * step)] for index in range(int(len(documents) / step))]
    Path(output).mkdir()
    (Path(output) / "share.txt").write_bytes(b"\n\n".join(taken) + b"\n")


def library(corpus: str, output: str, tokenizer: str, dupe_factor: str, masking: str) -> None:
    """Calls `write_shards` and prints the seconds it takes, without the imports."""
    from bert_tf.pipelines.data_options import PretrainingDataOptions
    from bert_tf.pipelines.shards.run import write_shards
    from bert_tf.startup import keep_freed_memory
    from bert_tf.tokenization import BertTokenizer

    keep_freed_memory()
    options = PretrainingDataOptions(
        max_seq_length=MAX_SEQ_LENGTH,
        dupe_factor=int(dupe_factor),
        masking=masking,  # type: ignore[arg-type]
        held_out_share=0,
    )
    loaded = BertTokenizer.from_directory(tokenizer)
    begun = time.perf_counter()
    write_shards(corpus, output, loaded, options)
    print("seconds of work:", time.perf_counter() - begun)


if __name__ == "__main__":
    PROCESSES = (prepare, tokenizer_folder, share, library)
    {function.__name__: function for function in PROCESSES}[sys.argv[1]](*sys.argv[2:])
