"""Parts of benchmarks/shards.py that run in separate processes.

    python benchmarks/shard_processes.py prepare books/ corpus/

The first argument names a function of this file; the others are its arguments.
"""

import gzip
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

DOCUMENT_SENTENCES = 200
MAX_SEQ_LENGTH = 128
VOCABULARY_SIZE = 30_522


def prepare(corpus: str, output: str) -> None:
    """Writes the corpus for both scripts: a sentence per line, blank lines between documents."""
    import tensorflow as tf

    from bert_tf.paper.installed_documentation import installed_documentation
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


def enlarge(corpus: str, output: str, copies: str, form: str) -> None:
    """Writes the corpus several times, with other words in each copy, in one of three forms.

    In each copy but the first, words change places with others of about their frequency. The forms
    are `file`, `gzip`, and `files`: a thousand of them.
    """
    text = b"\n\n".join(path.read_bytes().strip() for path in sorted(Path(corpus).iterdir()))
    words = text.split(b" ")
    by_frequency = [word for word, _ in Counter(words).most_common() if b"\n" not in word]

    def copy(seed: int) -> bytes:
        if not seed:
            return text
        draw = random.Random(seed)
        exchanged: dict[bytes, bytes] = {}
        for first in range(0, len(by_frequency), 64):
            some = by_frequency[first : first + 64]
            exchanged.update(zip(some, draw.sample(some, len(some)), strict=True))
        return b" ".join([exchanged.get(word, word) for word in words])

    folder = Path(output)
    folder.mkdir()
    if form == "files":
        files_of_a_copy = max(1, 1000 // int(copies))
        for seed in range(int(copies)):
            documents = copy(seed).split(b"\n\n")
            for part in range(files_of_a_copy):
                some = documents[part::files_of_a_copy]
                (folder / f"{seed:05d}-{part:04d}.txt").write_bytes(b"\n\n".join(some) + b"\n")
        return
    name, opener = ("all.txt", open) if form == "file" else ("all.txt.gz", _fast_gzip)
    with opener(folder / name, "wb") as file:
        for seed in range(int(copies)):
            file.write(copy(seed) + b"\n\n")


def _fast_gzip(path: Path, mode: str) -> gzip.GzipFile:
    return gzip.GzipFile(path, mode, compresslevel=1)


def library(corpus: str, output: str, tokenizer: str, dupe_factor: str, masking: str) -> None:
    """Calls `write_shards` and prints the seconds it takes, without the imports."""
    from bert_tf.pipelines.data_options import PretrainingDataOptions
    from bert_tf.pipelines.shards.writing import write_shards
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


def profile(corpus: str, output: str, tokenizer: str, masking: str) -> None:
    """Runs the stages of `write_shards` one after another and prints the time of each."""
    import tensorflow as tf

    from bert_tf.pipelines.corpus.documents import GROUP_BYTES, UnitReader, plan_documents
    from bert_tf.pipelines.corpus.sources import open_corpus
    from bert_tf.pipelines.data_options import PretrainingDataOptions
    from bert_tf.pipelines.instances.masking import mask_tokens
    from bert_tf.pipelines.instances.schemas import serialize_compact, serialize_masked
    from bert_tf.pipelines.instances.sentence_pairs import (
        index_sentences,
        pack_pairs,
        sentence_pairs,
        shuffle_pairs,
        truncate_pairs,
    )
    from bert_tf.startup import keep_freed_memory
    from bert_tf.tokenization import BertTokenizer

    keep_freed_memory()
    options = PretrainingDataOptions(max_seq_length=MAX_SEQ_LENGTH)
    pieces = BertTokenizer.from_directory(tokenizer)
    length = options.max_seq_length
    seed = tf.constant([1, 2], tf.int64)
    spent: Counter[str] = Counter()

    def timed(name: str, function: Callable) -> Callable:
        def call(*arguments):
            begun = time.perf_counter()
            result = function(*arguments)
            spent[name] += time.perf_counter() - begun
            return result

        return call

    def pair(sentences):
        pairs = sentence_pairs(
            sentences, max_seq_length=length, short_seq_prob=options.short_seq_prob, seed=seed
        )
        return shuffle_pairs(truncate_pairs(pairs, max_seq_length=length, seed=seed), seed)

    def pack(sentences, pairs):
        return pack_pairs(sentences.token_ids, pairs, pieces, length)

    def mask(packed):
        return mask_tokens(packed.token_ids, packed.padding_mask, pieces, options, seed)

    def index(token_ids, documents, passages, is_donor):
        return index_sentences(token_ids, documents, passages, is_donor, max_seq_length=length)

    # Each stage is a graph, as in the pipeline, with open shapes to be traced only once.
    def graph(name: str, function: Callable) -> Callable:
        return timed(name, tf.function(function, reduce_retracing=True, autograph=False))

    tokenize, index = graph("tokenize", pieces.tokenize), graph("index sentences", index)
    pair, pack, mask = graph("pair", pair), graph("pack", pack), graph("mask", mask)
    serialize = graph("serialize", serialize_compact if masking == "dynamic" else serialize_masked)

    found = open_corpus(corpus)
    plan = plan_documents(found, seed=options.seed)
    batches = timed("read", list)(
        batch
        for unit in range(len(found.units))
        for batch in UnitReader(
            unit,
            found.units[unit],
            options,
            plan,
            buffer_bytes=options.buffer_bytes,
            group_bytes=GROUP_BYTES,
        )
    )

    def work() -> None:
        with tf.io.TFRecordWriter(output) as writer:
            for batch in batches:
                lines, *about = (tf.constant(values) for values in batch[:4])
                sentences = index(tokenize(lines), *about)
                pairs = pair(sentences)
                packed = pack(sentences, pairs)
                given = (packed,) if masking == "dynamic" else (packed, mask(packed))
                records = serialize(*given, pairs.is_random_next)
                timed("write", lambda records: [*map(writer.write, records.numpy())])(records)

    work()  # traces the graphs
    reading = spent["read"]
    spent.clear()
    spent["read"] = reading
    work()
    total = sum(spent.values())
    for name, seconds in spent.items():
        print(f"{name:16} {seconds:7.2f} s  {seconds / total:6.1%}")


if __name__ == "__main__":
    PROCESSES = (prepare, tokenizer_folder, share, enlarge, library, profile)
    {function.__name__: function for function in PROCESSES}[sys.argv[1]](*sys.argv[2:])
