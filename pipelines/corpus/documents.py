"""A corpus as batches of documents, of bounded size, for pairing sentences.

The original holds the whole corpus, so that a random next sentence can come from any document.
Here a batch of some megabytes is held, and random next sentences come from its other documents.
Three rules keep that sound for every shape of corpus:

- Several files are read in turns, a part of each, so that a batch of long books holds parts of
  many of them.
- A batch that still holds few documents is joined by *donors*: passages of documents met earlier
  in the unit, or of those that stand first in it and the units after it, which give random next
  sentences and nothing else.
- Held-out text is batched apart, so no training pair holds a held-out sentence.

The batches of a unit of the corpus are a function of the corpus, the number of the unit and the
seed: units can be read in any order, by several machines.
"""

import hashlib
import itertools
import random
from collections import Counter, deque
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_tf.errors import InputError
from pipelines.corpus.formats import read_slice
from pipelines.corpus.sources import UNIT_BYTES, Corpus, Slice

# Documents are cut into parts of this size; a part is trained on or held out as a whole, and
# files take turns after this much text.
PART_BYTES = 1 << 18
OPEN_FILES = 16

# A batch of fewer documents gets donors: passages of this size, of so many documents.
FEW_DOCUMENTS = 8
DONOR_BYTES = 1 << 16
DONORS = 16

# Batches of this much text make up a group, whose shards are finished together.
GROUP_BYTES = 32 << 20

# Batches of a unit have numbers below this.
MOST_BATCHES = 1 << 20

COUNTED = (
    "documents",
    "empty_documents",
    "invalid_utf8_lines",
    "nul_bytes",
    "cut_lines",
    "unreadable_files",
)

Document = tuple[int, int]  # number of the unit, and of the document in it as met


class Part(NamedTuple):
    """Consecutive lines of one document.

    Attributes:
        document: which document.
        ordinal: number of the part in its document.
        lines: lines of text, none blank.
        size: bytes of text.
        held_out: whether the part is for evaluation.
    """

    document: Document
    ordinal: int
    lines: list[bytes]
    size: int
    held_out: bool


class DocumentBatch(NamedTuple):
    """Documents or parts of them, as one list of lines.

    Attributes:
        lines: string [lines], none blank.
        documents: int32 [lines], number of the document in the batch; equal numbers stand together.
        passages: int32 [lines], number of the passage, an unbroken run of lines of a document.
        is_donor: bool [lines], whether the line may only be the random next of others.
        unit: number of the unit in the corpus.
        group: number of the group of batches in the unit.
        number: counts the batches of a split, apart for every unit.
        held_out: the split, training or held out.
        ends_unit: whether it is the last batch of its unit.
        bytes_read: bytes on disk of the unit that had been read when the batch was full.
        counts: int64 [len(COUNTED)], what was met since the batch before.
    """

    lines: np.ndarray
    documents: np.ndarray
    passages: np.ndarray
    is_donor: np.ndarray
    unit: int
    group: int
    number: int
    held_out: bool
    ends_unit: bool
    bytes_read: int
    counts: np.ndarray


class UnitReader:
    """Reads one unit of a corpus, as `DocumentBatch`es.

    Args:
        corpus: as opened.
        unit: number of the unit.
        buffer_bytes: text in a batch.
        held_out_share: share of the text to hold out. It is chosen by document (a document of
            over 256 kB by parts of that size). If this would leave a corpus of one unit fewer
            than two documents held out, two are; if it has fewer than four, none. Held-out text
            for which no other held-out document is found is trained on, if it is for pairs.
        seed: of the held-out choice and of the choice of donors.
        for_pairs: whether random next sentences are wanted, which takes a second document; else
            there are no donors.
        finished: groups of batches that are not wanted again. They are read, but not yielded.

    Iterating raises `InputError` for an unusable file and for a corpus of a single document.
    A unit without text is one batch without lines.
    """

    def __init__(
        self,
        corpus: Corpus,
        unit: int,
        *,
        buffer_bytes: int,
        held_out_share: float = 0.0,
        seed: int = 0,
        for_pairs: bool = True,
        finished: Container[int] = (),
    ):
        self._corpus = corpus
        self._unit = unit
        self._first_slice = sum(map(len, corpus.units[:unit]))
        self._buffer_bytes = buffer_bytes
        self._held_out_share = held_out_share
        self._seed = seed
        self._for_pairs = for_pairs
        self._finished = finished
        self._positions: Counter[int] = Counter()  # by slice: bytes read
        self._counts: Counter[str] = Counter()
        self._counted = np.zeros(len(COUNTED), np.int64)
        self._group = 0
        self._group_size = 0
        self._moved: set[Document] = set()  # to the other split than was drawn for them

    def __iter__(self) -> Iterator[DocumentBatch]:
        train = _Split(held_out=False)
        held_out = _Split(held_out=True)
        for part in self.parts():
            split = held_out if part.held_out else train
            if split.size + part.size > self._buffer_bytes and split.parts:
                yield from self._batch(split, train)
            split.add(part)
        if self._held_out_share and len(self._corpus.units) == 1:
            self._moved = _share_out_last(train, held_out)
        if held_out.parts:
            yield from self._batch(held_out, train, ends_unit=not train.parts)
        if train.parts or not self._counts["documents"]:
            yield from self._batch(train, train, ends_unit=True)

    def parts(self) -> Iterator[Part]:
        """Parts of all files, `OPEN_FILES` files in turns, documents numbered as met."""
        waiting = enumerate(self._corpus.units[self._unit])
        turns = deque(self._file_parts(*file) for file in itertools.islice(waiting, OPEN_FILES))
        numbers: dict[tuple[int, int], int] = {}
        while turns:
            parts = turns.popleft()
            size = 0
            for file, document, ordinal, lines, part_size in parts:
                if ordinal == 0:
                    numbers[file, document] = self._counts["documents"]
                    numbers.pop((file, document - 1), None)
                    self._counts["documents"] += 1
                held_out = self._is_held_out(self._first_slice + file, document, ordinal)
                name = (self._unit, numbers[file, document])
                yield Part(name, ordinal, lines, part_size, held_out)
                size += part_size
                if size >= PART_BYTES:
                    turns.append(parts)
                    break
            else:  # the file has ended
                turns.extend(self._file_parts(*file) for file in itertools.islice(waiting, 1))

    def _file_parts(
        self, file: int, slice_: Slice
    ) -> Iterator[tuple[int, int, int, list[bytes], int]]:
        """Parts of one slice: slice, document in it, part in the document, lines, bytes."""
        document, ordinal = 0, 0
        lines: list[bytes] = []
        size = 0
        for passage in read_slice(slice_, self._corpus.options, self._counts):
            self._positions[file] = passage.position
            for line in passage.lines:
                if line:
                    if size >= PART_BYTES:
                        yield file, document, ordinal, lines, size
                        ordinal, lines, size = ordinal + 1, [], 0
                    lines.append(line)
                    size += len(line)
                elif lines:  # so a document is counted once, however many blank lines follow
                    yield file, document, ordinal, lines, size
                    document, ordinal, lines, size = document + 1, 0, [], 0
        if lines:
            yield file, document, ordinal, lines, size

    def _is_held_out(self, *position: int) -> bool:
        if not self._held_out_share:
            return False
        key = repr((self._seed, *position)).encode()
        drawn = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        return drawn < self._held_out_share * 2**64

    def _batch(
        self, split: "_Split", train: "_Split", ends_unit: bool = False
    ) -> Iterator[DocumentBatch]:
        """The batch of what a split has gathered, unless its group is finished already."""
        donors = self._donors(split) if self._for_pairs else []
        if (
            self._for_pairs
            and len(split.documents().union(part.document for part in donors)) < 2
            and split.parts
        ):
            if not split.held_out:
                cure = (
                    "put a blank line between documents, or add files"
                    if not self._corpus.split_sentences
                    else "give each document a file or JSON object of its own"
                )
                raise InputError(
                    f"{self._corpus.name}: the corpus is a single document, so no random next "
                    f"sentence can be drawn; {cure}, or give --instances full_sentences"
                )
            for part in split.parts:
                train.add(part._replace(held_out=False))
            split.clear()
            return
        if self._group_size >= GROUP_BYTES:
            self._group += 1
            self._group_size = 0
        self._group_size += split.size
        if self._group not in self._finished:
            counts = np.array([self._counts[name] for name in COUNTED], np.int64)
            yield _document_batch(
                split.parts,
                donors,
                unit=self._unit,
                group=self._group,
                number=split.number,
                held_out=split.held_out,
                ends_unit=ends_unit,
                bytes_read=sum(self._positions.values()),
                counts=counts - self._counted,
            )
        self._counted = np.array([self._counts[name] for name in COUNTED], np.int64)
        split.remember(random.Random(repr((self._seed, split.held_out, self._number(split)))))
        split.clear()
        split.number += 1

    def _number(self, split: "_Split") -> int:
        return self._unit * MOST_BATCHES + split.number

    def _donors(self, split: "_Split") -> list[Part]:
        """Passages of other documents that join a batch of few."""
        documents = split.documents()
        if len(documents) >= FEW_DOCUMENTS:
            return []
        if not split.has_borrowed and len(documents.union(split.donors)) < FEW_DOCUMENTS:
            split.has_borrowed = True
            borrowed = {part.document: part for part in self._first_of_documents(split.held_out)}
            split.borrowed.update(borrowed)
            split.donors = borrowed | split.donors
        return [part for part in split.donors.values() if part.document not in documents]

    def _first_of_documents(self, held_out: bool) -> Iterator[Part]:
        """What the documents of this unit and of those after it begin with, of one split.

        A few documents, looked for in this unit's size of text; further only for a second one.
        """
        found: set[Document] = set()
        size = 0
        rng = random.Random(repr((self._seed, held_out, self._unit, "donors")))
        units = len(self._corpus.units)
        for unit in (*range(self._unit, units), *range(self._unit)):
            ahead = UnitReader(
                self._corpus,
                unit,
                buffer_bytes=self._buffer_bytes,
                held_out_share=self._held_out_share,
                seed=self._seed,
            )
            for part in ahead.parts():
                size += part.size
                if part.document in self._moved:
                    continue
                if part.held_out == held_out and part.document not in found:
                    found.add(part.document)
                    yield part._replace(lines=_passage(part.lines, DONOR_BYTES, rng))
                if len(found) >= FEW_DOCUMENTS or (len(found) >= 2 and size >= UNIT_BYTES):
                    return


class _Split:
    """Gathers the parts of one split into batches, and remembers donors for the next ones."""

    def __init__(self, held_out: bool):
        self.held_out = held_out
        self.parts: list[Part] = []
        self.size = 0
        self.number = 0
        self.donors: dict[Document, Part] = {}  # oldest first
        self.has_borrowed = False
        self.borrowed: set[Document] = set()

    def documents(self) -> set[Document]:
        return {part.document for part in self.parts}

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.size += part.size

    def clear(self) -> None:
        self.parts, self.size = [], 0

    def remember(self, rng: random.Random) -> None:
        """Keeps a passage of each of some documents of the batch; the oldest make room."""
        by_document: dict[Document, list[Part]] = {}
        for part in self.parts:
            by_document.setdefault(part.document, []).append(part)
        for document in rng.sample(sorted(by_document), min(DONORS, len(by_document))):
            part = rng.choice(by_document[document])
            self.donors.pop(document, None)
            self.donors[document] = part._replace(lines=_passage(part.lines, DONOR_BYTES, rng))
        for document in list(self.donors)[:-DONORS]:
            del self.donors[document]


def _passage(lines: list[bytes], size: int, rng: random.Random) -> list[bytes]:
    """Consecutive lines of about `size` bytes from a random place."""
    ends = np.cumsum([len(line) for line in lines])
    first = int(np.searchsorted(ends, rng.random() * max(0, ends[-1] - size), side="right"))
    begin = ends[first] - len(lines[first])
    return lines[first : int(np.searchsorted(ends, begin + size)) + 1]


def _document_batch(parts: list[Part], donors: list[Part], **about: Any) -> DocumentBatch:
    # Parts of a document stand together, in order, then what it donates.
    marked = [(part, False) for part in parts] + [(part, True) for part in donors]
    marked.sort(key=lambda pair: (pair[0].document, pair[1], pair[0].ordinal))
    counts = [len(part.lines) for part, _ in marked]
    continues = [False] * bool(marked) + [
        (part.document, is_donor, part.ordinal) == (last.document, was_donor, last.ordinal + 1)
        for (last, was_donor), (part, is_donor) in itertools.pairwise(marked)
    ]
    documents = {name: index for index, name in enumerate(sorted({p.document for p, _ in marked}))}
    return DocumentBatch(
        lines=np.array([line for part, _ in marked for line in part.lines], object),
        documents=np.repeat(np.array([documents[p.document] for p, _ in marked], np.int32), counts),
        passages=np.repeat(np.cumsum(~np.array(continues, bool), dtype=np.int32), counts),
        is_donor=np.repeat(np.array([is_donor for _, is_donor in marked], bool), counts),
        **about,
    )


def _share_out_last(train: _Split, held_out: _Split) -> set[Document]:
    """Sees to it, before the last batches, that both splits have two documents, or one has all.

    Returns the documents that this has moved.
    """
    training, evaluation = train.documents(), held_out.documents()
    spare = sorted(training - evaluation - train.borrowed)
    needed = 0 if train.number else 2  # in the last training batch
    if held_out.number == 0 and len(evaluation) < 2:
        missing = 2 - len(evaluation)
        moved = spare[-missing:] if len(spare) - missing >= needed else []
        chosen = evaluation.union(moved) if moved else set()
    elif train.number == 0 and len(training) < 2:
        chosen = set(sorted(evaluation)[2:])
        if held_out.number == 0 and len(chosen) < 2:
            chosen = set()
    else:
        return set()
    parts = [*train.parts, *held_out.parts]
    train.parts = [part for part in parts if part.document not in chosen]
    held_out.parts = [part for part in parts if part.document in chosen]
    for split in (train, held_out):
        split.size = sum(part.size for part in split.parts)
    return train.documents() - training | held_out.documents() - evaluation
