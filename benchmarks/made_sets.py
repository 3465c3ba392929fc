r"""Sets for the kinds that GLUE lacks, made by rule from CoNLL-2003 and novels; plain baselines.

    python benchmarks/made_sets.py --conll conll2003 --books books --output sets

Writes, each as NAME-train and NAME-test:

- `types`: a sentence, and the types of entities in it, several labels.
- `pos`: words and their parts of speech.
- `long`: 430 words of one novel, then 60 to 600 of Austen's or Dickens's, and whose they are: the
  first 512 word pieces say nothing.

Then it scores what needs no BERT: for `types` TF-IDF of words and pairs of words with a logistic
regression for each label (scikit-learn), for `pos` each word's most frequent tag. docs/scores.md
has the scores of these commands:

    bert-tf finetune --task multi_label --train sets/types-train.tsv \
      --validation sets/types-test.tsv --model all-MiniLM-L6-v2 --max_length 64 --output runs/types
    bert-tf finetune --task tags --train sets/pos-train.conll --validation sets/pos-test.conll \
      --model all-MiniLM-L6-v2 --max_length 96 --output runs/pos
    bert-tf finetune --train sets/long-train.tsv --validation sets/long-test.tsv \
      --model all-MiniLM-L6-v2 --epochs 4 --batch_size 8 --learning_rate 1e-4 --seed 1 \
      --max_length 128 --long_texts windows --doc_stride 112 --output runs/long
"""

import argparse
import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer

SENTENCES = {"train": 4000, "test": 1500}
DOCUMENTS = {"train": 128, "test": 100}
FRONT, AUTHORS = "don-quixote", {"Austen": "emma", "Dickens": "bleak-house"}

Sentence = list[tuple[str, str, str]]  # word, part of speech, entity


def sentences(path: Path) -> Iterator[Sentence]:
    """The sentences of a column file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split() for line in block.splitlines() if line.strip()]
            if rows and not rows[0][0].startswith("-DOCSTART-"):
                yield [(row[0], row[1], row[3]) for row in rows]


def chosen(folder: Path, split: str) -> list[Sentence]:
    """As many sentences as `SENTENCES` says, evenly spaced."""
    found = list(sentences(folder / f"{split}.txt.gz"))
    return found[:: max(1, len(found) // SENTENCES[split])][: SENTENCES[split]]


def types_of(sentence: Sentence) -> list[str]:
    """The types of entities in a sentence."""
    return sorted({entity[2:] for _, _, entity in sentence if entity != "O"})


def text_of(sentence: Sentence) -> str:
    return " ".join(word for word, _, _ in sentence).replace('"', "'")


def documents(folder: Path, split: str, draw: random.Random) -> Iterator[tuple[str, str]]:
    """Long texts and their authors; tests are of the last quarter of each novel."""

    def words(name: str) -> list[str]:
        with gzip.open(folder / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
            return file.read().replace('"', "'").split()[2000:-4000]

    novels = {name: words(name) for name in (FRONT, *AUTHORS.values())}

    def passage(name: str, length: int) -> str:
        novel = novels[name]
        first, last = 0, int(len(novel) * 0.7)
        if split == "test":
            first, last = int(len(novel) * 0.72), len(novel) - length
        start = draw.randrange(first, last - length)
        return " ".join(novel[start : start + length])

    for number in range(DOCUMENTS[split]):
        author = sorted(AUTHORS)[number % 2]
        front = passage(FRONT, 430)
        yield f"{front} {passage(AUTHORS[author], draw.randrange(60, 600))}", author


def write(path: Path, blocks: list[str]) -> None:
    path.write_text("\n".join(blocks) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the sets, prints the baselines' scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conll", required=True, type=Path, help="folder of train and test.txt.gz")
    parser.add_argument("--books", required=True, type=Path, help="folder of novels, NAME.txt.gz")
    parser.add_argument("--output", required=True, type=Path, help="folder to write")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    draw = random.Random(3)
    of = {split: chosen(options.conll, split) for split in SENTENCES}
    for split, each in of.items():
        rows = [f"{text_of(one)}\t{','.join(types_of(one))}" for one in each]
        write(options.output / f"types-{split}.tsv", ["text\tlabel", *rows])
        tagged = ["".join(f"{word} {tag}\n" for word, tag, _ in one) for one in each]
        write(options.output / f"pos-{split}.conll", tagged)
        long = ["\t".join(row) for row in documents(options.books, split, draw)]
        write(options.output / f"long-{split}.tsv", ["text\tlabel", *long])

    texts = {split: [text_of(one) for one in each] for split, each in of.items()}
    labels = MultiLabelBinarizer()
    truth = {
        "train": labels.fit_transform([types_of(one) for one in of["train"]]),
        "test": labels.transform([types_of(one) for one in of["test"]]),
    }
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), lowercase=False, token_pattern=r"\S+"),
        OneVsRestClassifier(LogisticRegression(C=100, max_iter=1000)),
    ).fit(texts["train"], truth["train"])
    answers = model.predict(texts["test"])
    precision = average_precision_score(truth["test"], model.predict_proba(texts["test"]))
    f1 = {each: f1_score(truth["test"], answers, average=each) for each in ("micro", "macro")}
    print(
        f"types: average precision {precision:.3f}, F1 {f1['micro']:.3f} over all decisions, "
        f"{f1['macro']:.3f} over labels"
    )

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for word, tag, _ in (row for one in of["train"] for row in one):
        counts[word][tag] += 1
    usual = sum(counts.values(), Counter()).most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    rows = [row for one in of["test"] for row in one]
    right = sum(best.get(word, usual) == tag for word, tag, _ in rows)
    print(f"pos: accuracy {right / len(rows):.3f}")


if __name__ == "__main__":
    main()
