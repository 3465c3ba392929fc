"""How many planted faults `bert-tf check` finds, and how fast: near-duplicates and wrong labels.

    python benchmarks/data_faults.py --books corpus/books --labelled glue/SST-2/train.tsv \
      --model models/base

Near-duplicates are planted among sentences of the books (.txt or .txt.gz): one word in twelve is
replaced, dropped or added. Wrong labels, 5%, are planted in two sets: paragraphs of six of the
books, labelled with the book, and a table with the columns "sentence" and "label". They are looked
for by the words of the texts, and with --model by its vectors, too, as `--by_vectors` does.
"""

import argparse
import gzip
import random
import time
from pathlib import Path

import numpy as np

from bert_tf import BertEncoder
from bert_tf.pipelines.examples.data_faults import doubted_labels, near_duplicates
from bert_tf.pipelines.examples.files import read_table

SIMILARITY, SHARE, DRAWS = 0.6, 0.05, 4
_OPEN = {".gz": gzip.open}


def paragraphs(path: Path) -> list[str]:
    """Paragraphs of a book, their lines joined."""
    with _OPEN.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        return [" ".join(part.split()) for part in file.read().split("\n\n")]


def edited(sentence: str, words: list[str]) -> str:
    """The sentence with one word in twelve replaced, dropped or added."""
    own = sentence.split()
    for _ in range(max(1, len(own) // 12)):
        place, kind = random.randrange(len(own)), random.random()
        if kind < 0.4:
            own[place] = random.choice(words)
        elif kind < 0.7:
            del own[place]
        else:
            own.insert(place, random.choice(words))
    return " ".join(own)


def find_duplicates(books: list[Path], rows: int) -> None:
    """Plants near-duplicates, one for twenty sentences, and prints what was found."""
    parts = (s for book in books for p in paragraphs(book) for s in p.split(". "))
    sentences = list(dict.fromkeys(s for s in parts if 8 <= len(s.split()) <= 40))
    random.shuffle(sentences)
    count = min(len(sentences), round(rows / (1 + SHARE)))
    planted = round(count * SHARE)
    words = " ".join(sentences[:2000]).split()
    texts = sentences[:count] + [edited(s, words) for s in sentences[:planted]]
    begun = time.perf_counter()
    groups = near_duplicates(texts, SIMILARITY)
    seconds = time.perf_counter() - begun
    of_text = {place: number for number, group in enumerate(groups) for place in group.members}
    found = sum(of_text.get(i, -1) == of_text.get(count + i, -2) for i in range(planted))
    others = sum(max(group.members) < count for group in groups)
    print(
        f"near-duplicates: {len(texts):,} sentences, {found:,} of {planted:,} planted ones found "
        f"({found / planted:.1%}), {others:,} other groups, {seconds:.1f} s"
    )


def find_wrong_labels(
    name: str, texts: list[str], labels: list[str], vectors: np.ndarray | None = None
) -> None:
    """Plants wrong labels in several draws, and prints what was doubted in all of them."""
    names = sorted(set(labels))
    all_planted = all_doubted = right = 0
    begun = time.perf_counter()
    for _ in range(DRAWS):
        planted = set(random.sample(range(len(labels)), round(len(labels) * SHARE)))
        given = [
            random.choice([other for other in names if other != label]) if i in planted else label
            for i, label in enumerate(labels)
        ]
        doubts = doubted_labels(texts, given, vectors)
        all_planted += len(planted)
        all_doubted += len(doubts)
        right += sum(doubt.index in planted for doubt in doubts)
    seconds = (time.perf_counter() - begun) / DRAWS
    print(
        f"wrong labels, {name}: {len(texts):,} texts, {len(names)} labels, {DRAWS} draws; "
        f"{all_planted:,} planted, {all_doubted:,} doubted, precision "
        f"{right / max(1, all_doubted):.1%}, recall {right / all_planted:.1%}, {seconds:.1f} s "
        "a draw"
    )


def main() -> None:
    """Plants, finds, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", required=True, help="folder of books")
    parser.add_argument("--labelled", required=True, help="table with sentence and label")
    parser.add_argument("--model", help="model directory, for its vectors")
    parser.add_argument("--rows", type=int, default=100_000, help="sentences to compare")
    options = parser.parse_args()
    random.seed(1)
    books = sorted(path for path in Path(options.books).iterdir() if ".txt" in path.suffixes)
    find_duplicates(books, options.rows)
    texts, labels = [], []
    for book in books[:6]:
        some = [p for p in paragraphs(book) if 40 <= len(p.split()) <= 120]
        some = random.sample(some, min(300, len(some)))
        texts += some
        labels += [book.name] * len(some)
    rows = read_table(options.labelled).examples({"text": "sentence", "label": "label"}).columns
    sets = {"books": (texts, labels)}
    sets[Path(options.labelled).parent.name] = (rows["text"], rows["label"])
    for name, labelled in sets.items():
        find_wrong_labels(name, *labelled)
        if options.model:
            found = BertEncoder.from_preset(options.model).embed(labelled[0])
            vectors = np.array([row["mean"] for row in found], np.float32)
            find_wrong_labels(f"{name} by vectors, too", *labelled, vectors)


if __name__ == "__main__":
    main()
