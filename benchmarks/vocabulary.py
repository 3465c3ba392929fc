"""Vocabulary learners, `tokenizers` and TF Text: pieces per word on held-out text, and time.

    python benchmarks/vocabulary.py --size 30522 --size 8000

Every tenth file of the corpus (with fewer files, every tenth block of 1,000 lines) is held out.
Fewer pieces per word are better: more text fits a sequence.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tokenizer import CORPUS, corpus_lines  # benchmarks/tokenizer.py

RUN = 1000


def split(corpus: Path | None) -> tuple[list[str], list[str]]:
    """Splits the lines into those to learn from and held-out ones."""
    files = sorted(corpus.rglob("*.txt*")) if corpus is not None and corpus.is_dir() else []
    if len(files) >= 10:
        parts = [list(corpus_lines(file)) for file in files]
    else:
        lines = list(corpus_lines(corpus))
        parts = [lines[i : i + RUN] for i in range(0, len(lines), RUN)]
    learned = [line for i, part in enumerate(parts) if i % 10 != 9 for line in part]
    held_out = [line for part in parts[9::10] for line in part]
    return learned, held_out


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    books = CORPUS / "books"
    parser.add_argument("--corpus", type=Path, default=books if books.exists() else None)
    parser.add_argument(
        "--size", type=int, action="append", help="vocabulary size, 30522 by default; repeatable"
    )
    arguments = parser.parse_args()

    import tensorflow as tf
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib

    from bert_tf.tokenization import SPECIAL_TOKENS, BertTokenizer, count_words, learn_vocabulary

    learned, held_out = split(arguments.corpus)
    start = time.perf_counter()
    counts = count_words(tf.data.Dataset.from_tensor_slices(learned).batch(4096))
    megabytes = sum(len(line.encode()) for line in learned) / 1e6
    elapsed = time.perf_counter() - start
    print(f"counted {len(counts):,} distinct words in {megabytes:.1f} MB: {elapsed:.1f} s")
    held_out_counts = count_words(tf.data.Dataset.from_tensor_slices(held_out).batch(4096))
    words = list(held_out_counts)
    occurrences = tf.constant(list(held_out_counts.values()), tf.int64)
    total = int(tf.reduce_sum(occurrences))
    print(f"held out: {total:,} words, {len(words):,} distinct")

    def report(name: str, vocabulary: list[str], elapsed: float) -> None:
        tokenizer = BertTokenizer(vocabulary)
        ids = tokenizer.tokenize(words)
        pieces = int(tf.reduce_sum(ids.row_lengths() * occurrences))
        unknown = tf.reduce_any(ids == tokenizer.unk_token_id, axis=1)
        lost = int(tf.reduce_sum(tf.boolean_mask(occurrences, unknown)))
        print(
            f"{name:10} {len(vocabulary):6,} pieces  {pieces / total:.4f} pieces per word  "
            f"{1e6 * lost / total:6.1f} unknown per million words  {elapsed:6.1f} s",
            flush=True,
        )

    for size in arguments.size or [30_522]:
        start = time.perf_counter()
        vocabulary = learn_vocabulary(counts, size)
        report("tokenizers", vocabulary, time.perf_counter() - start)
        start = time.perf_counter()
        vocabulary = wordpiece_tokenizer_learner_lib.learn(
            counts, size, list(SPECIAL_TOKENS), lower_thresh=2
        )
        report("TF Text", vocabulary, time.perf_counter() - start)


if __name__ == "__main__":
    main()
