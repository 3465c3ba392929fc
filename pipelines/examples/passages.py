"""Labelled passages from unlabelled text: which package, or which file, is a passage from?

Labels that cost nothing, for `bert-tf demo`: every document carries the name of where it comes
from. Whole documents go to one split, so that no text is trained on and tested with.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_tf.atomic import replace_file
from bert_tf.errors import InputError
from pipelines.corpus.text_files import read_blocks, strip

_SHORTEST, _LONGEST = 120, 400  # characters of a passage
_MOST_OF_A_DOCUMENT = 10  # passages: a test on few long documents would say little
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class LabelledDocument:
    """A document and where it comes from.

    Attributes:
        label: the class of its passages.
        paragraphs: one entry a paragraph; each a sequence of sentences.
    """

    label: str
    paragraphs: Sequence[Sequence[str]]


def without_names(text: str, names: Iterable[str]) -> str:
    """`text` without the words in `names`, any case, and the dot that follows one in code."""
    pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    if not pattern:
        return text
    removed = re.sub(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])\.?", " ", text, flags=re.I)
    return " ".join(removed.split())


def _passages(document: LabelledDocument, names: Iterable[str]) -> list[str]:
    """Runs of whole sentences, none crossing a paragraph's end."""
    found = []
    for paragraph in document.paragraphs:
        passage = ""
        for sentence in [*paragraph, None]:
            if sentence is None or len(passage) + len(sentence) > _LONGEST:
                passage = without_names(passage, names)
                if _SHORTEST <= len(passage) <= _LONGEST:
                    found.append(passage)
                passage = ""
            passage = f"{passage} {sentence or ''}".strip()
    return found


def labelled_passages(
    documents: Sequence[LabelledDocument],
    *,
    names: Iterable[str] = (),
    examples_per_label: dict[str, int],
    seed: int,
) -> tuple[dict[str, list[tuple[str, str]]], set[int]]:
    """Draws passages for training, validation and test, as many of each label.

    Args:
        documents: the labelled text.
        names: words taken out of every passage, for they would give the label away.
        examples_per_label: split -> examples of each label at most; a label with fewer passages
            lowers the number for all, so that the classes stay balanced.
        seed: of the draw.

    Returns:
        Split -> shuffled (passage, label) pairs, and the numbers of the documents that gave to
        the validation and test splits: text to be kept out of pre-training.

    Raises:
        InputError: there are fewer than two labels, or one has too little text for a split.
    """
    names = list(names)
    draw = random.Random(seed)
    by_label: dict[str, list[int]] = defaultdict(list)
    for number, document in enumerate(documents):
        by_label[document.label].append(number)
    shares = [examples_per_label[split] for split in SPLITS]
    drawn: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    held_out: set[int] = set()
    for label in sorted(by_label):
        numbers = by_label[label]
        draw.shuffle(numbers)
        pools = {split: [] for split in SPLITS}  # type: dict[str, list[tuple[int, str]]]
        for number in numbers:
            # The split that lacks most of its share takes the next document whole; once all
            # have enough, training does.
            lacking = {
                s: 1 - len(pools[s]) / max(n, 1) for s, n in zip(SPLITS, shares, strict=True)
            }
            split = max(SPLITS, key=lacking.__getitem__)
            if lacking[split] <= 0:
                split = "train"
            passages = _passages(documents[number], names)
            passages = draw.sample(passages, min(len(passages), _MOST_OF_A_DOCUMENT))
            pools[split] += [(number, passage) for passage in passages]
        for split, share in zip(SPLITS, shares, strict=True):
            chosen = draw.sample(pools[split], min(share, len(pools[split])))
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
        pairs = [
            (passage, label)
            for label, passages in drawn[split].items()
            for passage in passages[:fewest]
        ]
        draw.shuffle(pairs)
        result[split] = pairs
    return result, held_out


_CHUNK = 6000  # characters of a file that go to one split together
_PARTS = 4


def read_labelled_documents(files: Sequence[str]) -> list[LabelledDocument]:
    """Reads files in the original's format as documents labelled by their file.

    Documents are cut after some thousand characters, so that a file of one long document can be
    split. The text of a single file is labelled by which quarter of it a document stands in.

    Args:
        files: as `pipelines.corpus.sources.find_files` returns them.

    Raises:
        InputError: a file cannot be read or is not UTF-8.
    """
    documents = []
    for path in files:
        sentences: list[str] = []
        size = 0
        for block in read_blocks(path):
            for line in block.lines:
                if text := strip(line).decode("utf-8"):
                    sentences.append(text)
                    size += len(text)
                if sentences and (not text or size > _CHUNK):
                    documents.append(LabelledDocument(Path(path).name, [sentences]))
                    sentences, size = [], 0
        if sentences:
            documents.append(LabelledDocument(Path(path).name, [sentences]))
    if len(files) == 1:
        return [
            LabelledDocument(f"part {1 + i * _PARTS // len(documents)} of {_PARTS}", d.paragraphs)
            for i, d in enumerate(documents)
        ]
    return documents


def write_labelled(path: str | Path, examples: Iterable[tuple[str, str]]) -> None:
    """Writes (text, label) pairs as a TSV with the header `text`, `label`."""
    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        # No quoting, as in GLUE's files: white space of any kind becomes a space.
        for text, label in [("text", "label"), *examples]:
            file.write(f"{' '.join(text.split())}\t{label}\n")


def write_corpus(path: str | Path, documents: Iterable[LabelledDocument]) -> None:
    """Writes documents in the original's format: a sentence a line, a blank line between them."""
    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for document in documents:
            for paragraph in document.paragraphs:
                file.writelines(" ".join(sentence.split()) + "\n" for sentence in paragraph)
            file.write("\n")
