"""Batches of documents of bounded size, for pairing sentences.

The original holds the whole corpus, so that a random next sentence can come from any document.
Here, random next sentences come from the other documents of a batch of some megabytes. Three rules
make this work for every shape of corpus:

- Files are read in turns, a part of each, so that a batch of long books holds parts of many.
- A batch with few documents gets *donors*: passages of earlier documents of the unit, or of the
  first documents in this unit and the next ones, which only provide random next sentences.
- A document is held out by a hash of its first text, so that its duplicates are, too, and other
  documents make no difference. Held-out documents have batches and donors of their own, so no
  training pair holds a held-out sentence.

The batches of a unit are a function of the corpus, the number of the unit and the seed, so several
machines can read units in any order.
"""

import hashlib
import itertools
import random
from collections import Counter, deque
from collections.abc import Container, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from bert_tf.errors import InputError
from pipelines.corpus.formats import read_slice
from pipelines.corpus.sources import UNIT_BYTES, Corpus, Slice

# Bytes of a part of a document; files take turns after as much text.
PART_BYTES = 1 << 18
OPEN_FILES = 16

# First text of a document, in bytes and in lines: documents that share it are on the same side.
_FIRST_BYTES = 4096
_FIRST_LINES = 64

# A batch of fewer documents gets donors: passages of this size from so many documents.
FEW_DOCUMENTS = 8
DONOR_BYTES = 1 << 16
DONORS = 16

# Bytes of text in a group of batches, whose shards are finished together.
GROUP_BYTES = 32 << 20

# Upper bound of the number of batches per unit.
MOST_BATCHES = 1 << 20

COUNTED = (
    "documents",
    "empty_documents",
    "invalid_utf8_lines",
    "nul_bytes",
    "cut_lines",
)

Document = tuple[int, int]  # number of the unit, and of the document in order of reading


class Part(NamedTuple):
    """Consecutive lines of one document.

    Attributes:
        document: the document.
        ordinal: number of the part in the document.
        lines: lines of text, none blank.
        size: bytes of text.
        draw: the document's draw in [0, 1]: a low one holds it out.
    """

    document: Document
    ordinal: int
    lines: list[bytes]
    size: int
    draw: float


class DocumentBatch(NamedTuple):
    """Documents or parts of them, as one list of lines.

    Attributes:
        lines: string [lines], none blank.
        documents: int32 [lines], ascending number of the document in the batch.
        passages: int32 [lines], ascending number of the passage: consecutive lines of a document.
        is_donor: bool [lines], whether the line is only a random next sentence for others.
        unit: number of the unit in the corpus.
        group: number of the group of batches in the unit.
        number: number of the batch in its unit and split.
        held_out: whether the batch belongs to the held-out split.
        ends_unit: whether it is the last batch of its unit.
        bytes_read: bytes on disk of the unit read so far.
        counts: int64 [len(COUNTED)], counts since the previous batch.
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


@dataclass
class UnitReader:
    """Reads one unit of a corpus, as `DocumentBatch`es.

    Args:
        corpus: an opened corpus.
        unit: number of the unit.
        buffer_bytes: bytes of text in a batch.
        held_out_share: share of the documents to hold out. A corpus of one unit holds out at least
            two documents and trains on two, or on all if it has fewer than four different ones.
            For pairs, held-out text without a second held-out document is trained on.
        seed: random seed of the held-out text and the donors.
        for_pairs: whether to provide random next sentences, which takes a second document.
        finished: groups of batches to read but not to yield.

    Iterating raises `InputError` for an unusable file and for a corpus of a single document.
    A unit without text is one batch without lines. `unreadable` holds the paths of skipped files.
    """

    corpus: Corpus
    unit: int
    _: KW_ONLY
    buffer_bytes: int
    held_out_share: float = 0.0
    seed: int = 0
    for_pairs: bool = True
    finished: Container[int] = ()

    def __post_init__(self):
        self._documents = 0
        self._positions: Counter[int] = Counter()  # by slice: bytes read
        self._counts: Counter[str] = Counter()  # since the previous batch
        self.unreadable: set[str] = set()
        self._group = 0
        self._group_size = 0
        self._held_out_below = self.held_out_share  # documents with a lower draw are held out

    def __iter__(self) -> Iterator[DocumentBatch]:
        train = _Split(held_out=False)
        held_out = _Split(held_out=True)
        parts, self._held_out_below = self._drawn()
        for part in parts:
            split = held_out if part.draw < self._held_out_below else train
            if split.size + part.size > self.buffer_bytes and split.parts:
                yield from self._batch(split, train)
            split.add(part)
        if held_out.parts:
            yield from self._batch(held_out, train, ends_unit=not train.parts)
        if train.parts or not self._documents:
            yield from self._batch(train, train, ends_unit=True)

    def parts(self) -> Iterator[Part]:
        """Parts of all files, `OPEN_FILES` files in turns; documents in order of reading."""
        waiting = enumerate(self.corpus.units[self.unit])
        turns = deque(self._file_parts(*file) for file in itertools.islice(waiting, OPEN_FILES))
        names: dict[int, tuple[Document, float]] = {}  # by slice, of the document being read
        while turns:
            parts = turns.popleft()
            size = 0
            for file, ordinal, lines, part_size in parts:
                if ordinal == 0:
                    names[file] = (self.unit, self._documents), self._draw(lines)
                    self._documents += 1
                    self._counts["documents"] += 1
                document, draw = names[file]
                yield Part(document, ordinal, lines, part_size, draw)
                size += part_size
                if size >= PART_BYTES:
                    turns.append(parts)
                    break
            else:  # the file has ended
                turns.extend(self._file_parts(*file) for file in itertools.islice(waiting, 1))

    def _file_parts(self, file: int, slice_: Slice) -> Iterator[tuple[int, int, list[bytes], int]]:
        """Parts of a slice: number of the slice, and of the part in its document; lines, bytes."""
        ordinal, size = 0, 0
        lines: list[bytes] = []
        for passage in read_slice(slice_, self.corpus.options, self._counts, self.unreadable):
            self._positions[file] = passage.position
            for line in passage.lines:
                if line:
                    if size >= PART_BYTES:
                        yield file, ordinal, lines, size
                        ordinal, lines, size = ordinal + 1, [], 0
                    lines.append(line)
                    size += len(line)
                elif lines:  # the first of several blank lines
                    yield file, ordinal, lines, size
                    ordinal, lines, size = 0, [], 0
        if lines:
            yield file, ordinal, lines, size

    def _draw(self, lines: list[bytes]) -> float:
        """A number in [0, 1] from the seed and the first text of a document alone."""
        if not self.held_out_share:
            return 1.0
        first = b"\n".join(lines[:_FIRST_LINES])[:_FIRST_BYTES]
        key = b"%d\n%b" % (self.seed, first)
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64

    def _drawn(self) -> tuple[Iterator[Part], float]:
        """The parts, and the draw below which a document is held out.

        It is the share, or near it in a small corpus, so that each side has two documents, or
        training has all. Parts are kept until it is known, which in other corpora is soon.
        """
        share, parts = self.held_out_share, self.parts()
        if not share or len(self.corpus.units) > 1:
            return parts, share
        kept: list[Part] = []
        size = documents = held_out = 0
        for part in parts:
            kept.append(part)
            size += part.size
            documents += part.ordinal == 0
            held_out += part.ordinal == 0 and part.draw < share
            if min(held_out, documents - held_out) >= 2 or size > UNIT_BYTES:
                return itertools.chain(kept, parts), share
        draws = sorted(part.draw for part in kept if part.ordinal == 0)
        possible = [n for n in range(2, documents - 1) if draws[n - 1] < draws[n]]
        nearest = min(possible, key=lambda n: abs(n - held_out), default=None)
        return iter(kept), 0.0 if nearest is None else draws[nearest]

    def _batch(
        self, split: "_Split", train: "_Split", ends_unit: bool = False
    ) -> Iterator[DocumentBatch]:
        """The batch that a split has gathered, unless its group is finished already."""
        donors = self._donors(split) if self.for_pairs else []
        documents = split.documents().union(part.document for part in donors)
        if self.for_pairs and split.parts and len(documents) < 2:
            if not split.held_out:
                cure = (
                    "give each document a file or JSON object of its own"
                    if self.corpus.split_sentences
                    else "put a blank line between documents, or add files"
                )
                raise InputError(
                    f"{self.corpus.name}: the corpus is a single document, which leaves no random "
                    f"next sentences: {cure}, or give --instances full_sentences"
                )
            for part in split.parts:
                train.add(part)
            split.clear()
            return
        if self._group_size >= GROUP_BYTES:
            self._group += 1
            self._group_size = 0
        self._group_size += split.size
        if self._group not in self.finished:
            yield _document_batch(
                split.parts,
                donors,
                unit=self.unit,
                group=self._group,
                number=split.number,
                held_out=split.held_out,
                ends_unit=ends_unit,
                bytes_read=sum(self._positions.values()),
                counts=np.array([self._counts[name] for name in COUNTED], np.int64),
            )
        self._counts.clear()
        number = self.unit * MOST_BATCHES + split.number
        split.remember(random.Random(repr((self.seed, split.held_out, number))))
        split.clear()
        split.number += 1

    def _donors(self, split: "_Split") -> list[Part]:
        """Passages of other documents for a batch of few."""
        documents = split.documents()
        if len(documents) >= FEW_DOCUMENTS:
            return []
        if split.borrowed is None and len(documents.union(split.donors)) < FEW_DOCUMENTS:
            borrowed = {part.document: part for part in self._first_of_documents(split.held_out)}
            split.borrowed = set(borrowed)
            split.donors = borrowed | split.donors
        return [part for part in split.donors.values() if part.document not in documents]

    def _first_of_documents(self, held_out: bool) -> Iterator[Part]:
        """Draws donors of a split from the beginnings of documents in this unit and the next ones.

        Reads a unit's worth of text, or further if that holds fewer than two documents.
        """
        found: set[Document] = set()
        size = 0
        rng = random.Random(repr((self.seed, held_out, self.unit, "donors")))
        units = len(self.corpus.units)
        for unit in (*range(self.unit, units), *range(self.unit)):
            for part in replace(self, unit=unit).parts():
                size += part.size
                is_held_out = part.draw < self._held_out_below
                if is_held_out == held_out and part.document not in found:
                    found.add(part.document)
                    yield part._replace(lines=_passage(part.lines, DONOR_BYTES, rng))
                if len(found) >= FEW_DOCUMENTS or (len(found) >= 2 and size >= UNIT_BYTES):
                    return


@dataclass
class _Split:
    """Gathers the parts of a split into batches, and keeps donors for the next ones."""

    held_out: bool
    parts: list[Part] = field(default_factory=list)
    size: int = 0
    number: int = 0  # of batches so far
    donors: dict[Document, Part] = field(default_factory=dict)  # oldest first
    borrowed: set[Document] | None = None  # first donors, once they are needed

    def documents(self) -> set[Document]:
        return {part.document for part in self.parts}

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.size += part.size

    def clear(self) -> None:
        self.parts, self.size = [], 0

    def remember(self, rng: random.Random) -> None:
        """Keeps passages of some documents of the batch as donors, in place of the oldest."""
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
    """About `size` bytes of consecutive lines from a random place."""
    ends = np.cumsum([len(line) for line in lines])
    first = int(np.searchsorted(ends, rng.random() * max(0, ends[-1] - size), side="right"))
    begin = ends[first] - len(lines[first])
    return lines[first : int(np.searchsorted(ends, begin + size)) + 1]


def _document_batch(parts: list[Part], donors: list[Part], **about: Any) -> DocumentBatch:
    # The parts of a document in order, then its donors.
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
