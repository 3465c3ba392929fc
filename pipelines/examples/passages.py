"""Labelled passages from unlabelled text: which package, or which file, is a passage from?

All passages of a document go to one split, so the test text is not in the training text.
"""

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_tf.errors import InputError
from bert_tf.files.atomic import replace_file, write_tsv
from bert_tf.pipelines.corpus.installed_documentation import STANDARD_LIBRARY, LabelledDocument
from bert_tf.pipelines.corpus.text_files import read_blocks, strip

_SHORTEST = 120  # passage, in characters
_LONGEST = 400
_MOST_OF_A_DOCUMENT = 10  # passages; a test on a few long documents would say little
SPLITS = ("train", "validation", "test")
_LABELS = 8  # sources told apart
_NAMES = {  # words that would give packages away
    "tensorflow": ["tensorflow", "tf"],
    "numpy": ["numpy", "np"],
    "sklearn": ["sklearn", "scikit-learn", "scikit"],
    STANDARD_LIBRARY: ["python", "cpython", "python's"],
    "huggingface_hub": ["huggingface_hub", "huggingface", "hugging face", "hf", "hf_hub"],
}
_EXAMPLES_PER_LABEL = {"train": 100, "validation": 50, "test": 100}


def without_names(text: str, names: Iterable[str]) -> str:
    """Removes the words in `names`, in any case, with the dot that follows one in code."""
    pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    if not pattern:
        return text
    removed = re.sub(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])\.?", " ", text, flags=re.I)
    return " ".join(removed.split())


def _passages(document: LabelledDocument, names: Iterable[str]) -> list[str]:
    """Splits the paragraphs of a document into runs of whole sentences."""
    passages = []
    for paragraph in document.paragraphs:
        passage = ""
        for sentence in [*paragraph, None]:
            if sentence is None or len(passage) + len(sentence) > _LONGEST:
                passage = without_names(passage, names)
                if _SHORTEST <= len(passage) <= _LONGEST:
                    passages.append(passage)
                passage = ""
            passage = f"{passage} {sentence or ''}".strip()
    return passages


def labelled_passages(
    documents: Sequence[LabelledDocument],
    *,
    names: Sequence[str] = (),
    examples_per_label: dict[str, int],
    seed: int,
) -> tuple[dict[str, list[tuple[str, str]]], set[int]]:
    """Draws (passage, label) pairs for each split, shuffled, as many for each label.

    The label with the fewest passages sets the number, at most `examples_per_label`; `names` would
    give labels away and are removed. The second result numbers the documents behind the validation
    and test splits, which belong in no pre-training corpus.
    """
    draw = random.Random(seed)
    by_label: dict[str, list[int]] = defaultdict(list)
    for number, document in enumerate(documents):
        by_label[document.label].append(number)
    drawn: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    held_out: set[int] = set()
    for label in sorted(by_label):
        numbers = by_label[label]
        draw.shuffle(numbers)
        pools: dict[str, list[tuple[int, str]]] = {split: [] for split in SPLITS}
        for number in numbers:
            # Goes to the split that lacks most of its share, or to training once all have enough.
            had = {s: len(pools[s]) / max(examples_per_label[s], 1) for s in SPLITS}
            split = min(SPLITS, key=had.__getitem__) if min(had.values()) < 1 else "train"
            passages = _passages(documents[number], names)
            passages = draw.sample(passages, min(len(passages), _MOST_OF_A_DOCUMENT))
            pools[split] += [(number, passage) for passage in passages]
        for split, pool in pools.items():
            chosen = draw.sample(pool, min(examples_per_label[split], len(pool)))
            drawn[split][label] = [passage for _, passage in chosen]
            if split != "train":
                held_out.update(number for number, _ in chosen)
    result = {}
    for split in SPLITS:
        fewest = min((len(passages) for passages in drawn[split].values()), default=0)
        if len(drawn[split]) < 2 or not fewest:
            raise InputError(
                "the text is too short, or from one place only, for labelled passages of "
                f"{', '.join(drawn[split]) or 'no label'}: give more text"
            )
        result[split] = [(p, label) for label, ps in drawn[split].items() for p in ps[:fewest]]
        draw.shuffle(result[split])
    return result, held_out


_CHUNK = 6000  # characters after which a document is cut
_PARTS = 4  # of a single file


def read_labelled_documents(files: Sequence[str]) -> list[LabelledDocument]:
    """Documents in the original's format, cut if long, labelled by file, or by quarter of one."""
    documents = []
    for path in files:
        sentences: list[str] = []
        lines = (line for block in read_blocks(path) for line in block.lines)
        for line in itertools.chain(lines, [b""]):  # a blank line ends a document
            if text := strip(line).decode("utf-8"):
                sentences.append(text)
            if sentences and (not text or sum(map(len, sentences)) > _CHUNK):
                documents.append(LabelledDocument(Path(path).name, [sentences]))
                sentences = []
    if len(files) == 1:
        return [
            LabelledDocument(f"part {1 + i * _PARTS // len(documents)} of {_PARTS}", d.paragraphs)
            for i, d in enumerate(documents)
        ]
    return documents


def write_corpus(path: str | Path, documents: Iterable[LabelledDocument]) -> None:
    """Writes documents in the original's format: a sentence a line, a blank line between them."""
    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for document in documents:
            for paragraph in document.paragraphs:
                file.writelines(" ".join(sentence.split()) + "\n" for sentence in paragraph)
            file.write("\n")


@dataclass(frozen=True)
class WrittenTask:
    labels: list[str]  # sorted
    examples: dict[str, int]  # split -> number of passages
    left_out: list[str]  # sentences of the documents that are not in the corpus


def write_task(
    documents: Sequence[LabelledDocument],
    corpus: Path,
    labelled: Path,
    *,
    has_names: bool,
    seed: int,
) -> WrittenTask:
    """Writes passages of the largest sources, and a corpus without the documents of their tests.

    `labelled` is the folder of train.tsv, validation.tsv and test.tsv. With `has_names` the labels
    are packages, whose names are removed from the passages.
    """
    sizes = Counter(d.label for d in documents for _ in d.paragraphs)
    labels = {label for label, _ in sizes.most_common(_LABELS)}
    told_apart = [i for i, d in enumerate(documents) if d.label in labels]
    names = [n for label in labels for n in _NAMES.get(label, [label])] if has_names else []
    splits, held_out = labelled_passages(
        [documents[i] for i in told_apart],
        names=names,
        examples_per_label=_EXAMPLES_PER_LABEL,
        seed=seed,
    )
    for split, examples in splits.items():
        rows = ((" ".join(text.split()), label) for text, label in examples)
        write_tsv(labelled / f"{split}.tsv", [("text", "label"), *rows])
    left_out = {told_apart[i] for i in held_out}
    write_corpus(corpus, (d for i, d in enumerate(documents) if i not in left_out))
    return WrittenTask(
        sorted(labels),
        {split: len(examples) for split, examples in splits.items()},
        [s for i in sorted(left_out) for part in documents[i].paragraphs for s in part],
    )
