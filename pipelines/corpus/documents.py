"""Batches of documents of bounded size; random next sentences come from a batch's other documents.

- Files are read in turns, a part of each, so that a batch of long books holds parts of many.
- A batch with few documents gets *donors*, which are drawn once for the whole corpus.
- A hash of its beginning decides whether a document is held out: duplicates stay together, and
  other documents make no difference, unless many begin alike.
- Held-out documents have batches and donors of their own.

The batches of a unit are a function of the corpus, its `DocumentPlan` and the number of the unit.
"""

import hashlib
import itertools
import json
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_tf.errors import InputError
from bert_tf.pipelines.corpus.formats import Lines, read_slice
from bert_tf.pipelines.corpus.sources import Corpus, Slice
from bert_tf.pipelines.data_options import PretrainingDataOptions

PART_BYTES = 1 << 18  # of a document; files take turns after as much text
OPEN_FILES = 16
# Documents that share this much text at their beginning are on the same side.
_FIRST_BYTES = 4096
_FIRST_LINES = 64
FEW_DOCUMENTS = 8  # a batch of fewer gets donors
DONORS = 16  # documents that give a donor
DONOR_BYTES = 1 << 16
_MOST_HELD_OUT = 3  # the share held out may be this many times the option,
_BY_CHANCE = 0.05  # and this share more
_ATTEMPTS = 16  # draws to choose from
_LARGE = 1 << 30  # bytes of a corpus that takes long to read again
_ATTEMPTS_IF_LARGE = 2
_BEGINNING_BYTES = 1 << 20  # of a slice, where donors are sought first
GROUP_BYTES = 32 << 20  # text in a group of batches, whose shards are finished together
MOST_BATCHES = 1 << 20  # per unit, an upper bound

# How a corpus gets several documents, by its format.
_CURES = {
    "sentences": "put a blank line between documents, or add files",
    "text": "add files, or --corpus_format sections if two blank lines end documents",
    "sections": "put two blank lines between documents, such as chapters, or add files",
}

Document = tuple[int, int, int]  # number of the unit, of the slice in it, and of the document there


class Part(NamedTuple):
    document: Document
    ordinal: int  # number of the part in the document
    lines: list[bytes]  # lines of text, none blank
    size: int  # bytes of text
    draw: float  # the document's draw in [0, 1]: a low one holds it out


class Donor(NamedTuple):
    document: Document
    held_out: bool
    lines: list[str]


class DocumentPlan(NamedTuple):
    """What the units of a corpus share; `json.dumps` writes it."""

    seed: int  # random seed of the documents' draws
    held_out_below: float  # documents with a lower draw are held out; 0 for none
    donors: list[Donor]  # two documents or more per split with text; none without pairs

    @classmethod
    def from_json(cls, content: str | bytes) -> "DocumentPlan":
        seed, held_out_below, donors = json.loads(content)
        return cls(seed, held_out_below, [Donor(tuple(name), *rest) for name, *rest in donors])


class DocumentBatch(NamedTuple):
    lines: np.ndarray  # string [lines], none blank
    documents: np.ndarray  # int32 [lines], ascending number of the document in the batch
    passages: np.ndarray  # int32 [lines], ascending number of the passage
    is_donor: np.ndarray  # bool [lines], whether the line is only a random next sentence for others
    unit: int  # number of the unit in the corpus
    group: int  # number of the group of batches in the unit
    number: int  # number of the batch in its unit and split
    held_out: bool  # whether the batch belongs to the held-out split
    ends_unit: bool  # whether it is the last batch of its unit
    bytes_read: int  # bytes on disk of the unit read so far
    counts: Counter[str]  # `documents`, and what `read_slice` counts, since the previous batch
    unreadable: list[str]  # paths of the unit's files that were skipped so far


def plan_documents(
    corpus: Corpus, *, held_out_share: float = 0.0, seed: int = 0, for_pairs: bool = True
) -> DocumentPlan:
    """Draws the donors of a corpus, and settles which documents are held out.

    Reads the beginnings of slices throughout the corpus; all of the text if these hold fewer than
    two documents of a side. Then, at least two documents are held out and two are trained on, or
    all if fewer than four begin differently. Pairs need donors, hence two documents.

    Where many documents that begin alike fall to the held-out side together, all are drawn again
    with other seeds.
    """
    nearest = None
    least = math.inf
    for attempt in range(_ATTEMPTS if corpus.text_bytes < _LARGE else _ATTEMPTS_IF_LARGE):
        own_seed = seed + (attempt << 31)  # no option's
        plan, held_out = _drawn(corpus, held_out_share, own_seed, for_pairs)
        if held_out < least:
            nearest = plan
            least = held_out
        if held_out <= _MOST_HELD_OUT * held_out_share + _BY_CHANCE:
            break
    assert nearest is not None
    return nearest


def _drawn(corpus: Corpus, below: float, seed: int, for_pairs: bool) -> tuple[DocumentPlan, float]:
    """A plan, and the share of the documents that it holds out if these are many; else 0."""
    if not (below or for_pairs):
        return DocumentPlan(seed, 0.0, []), 0.0
    documents: Counter[float] = Counter()  # by their draw, which those that begin alike share
    draws = [0, 0]  # different ones of documents to train on and to hold out

    def each_side_has(number: int) -> bool:
        return draws[0] >= number and (draws[1] >= number or not below)

    files_are_documents = corpus.format == "text"
    for most in (math.inf,) if files_are_documents else (_BEGINNING_BYTES, math.inf):
        documents.clear()
        draws[:] = 0, 0
        parts: list[Part] = []
        for part in _beginnings(corpus, seed, most):
            draws[part.draw < below] += part.draw not in documents
            documents[part.draw] += 1
            parts.append(part)
            if len(parts) > 4 * DONORS:
                parts.sort(key=lambda part: part.draw)
                del parts[DONORS:-DONORS]
            if each_side_has(FEW_DOCUMENTS):
                break
        if each_side_has(2):
            break
    else:
        if for_pairs and documents.total() == 1:
            cure = _CURES.get(corpus.format, "give each document an object or row of its own")
            raise InputError(
                f"{corpus.name}: the corpus is a single document, which leaves no random next "
                f"sentences: add --instances full_sentences, which learns masked words alone, or "
                f"{cure}"
            )
        ordered = sorted(documents)
        before = itertools.accumulate((documents[draw] for draw in ordered), initial=0)
        lower = dict(zip(ordered, before, strict=False))  # documents with lower draws
        wanted = sum(n for draw, n in documents.items() if draw < below)
        possible = ordered[2:-1] if below else []
        below = min(possible, key=lambda draw: abs(lower[draw] - wanted), default=0.0)
    held_out = sum(n for draw, n in documents.items() if draw < below)
    share = held_out / documents.total() if held_out >= FEW_DOCUMENTS else 0.0
    donors = []
    for is_held_out in (False, True):
        side = [part for part in parts if for_pairs and (part.draw < below) == is_held_out]
        for part in side[:DONORS]:
            lines = _passage(part.lines, random.Random(repr((seed, *part.document))))
            donors.append(Donor(part.document, is_held_out, [line.decode() for line in lines]))
    return DocumentPlan(seed, below, donors), share


def _beginnings(corpus: Corpus, seed: int, most: float) -> Iterator[Part]:
    """The first parts of the documents in the first `most` bytes of slices, in random order."""
    rng = random.Random(seed)
    places = [(unit, n) for unit, slices in enumerate(corpus.units) for n in range(len(slices))]
    places.sort(key=lambda _: rng.random())
    for unit, number in places:
        slice_ = corpus.units[unit][number]
        size = 0
        for part in _parts(read_slice(slice_, corpus.options, Counter()), unit, number, seed):
            size += part.size
            if part.ordinal == 0:
                yield part
            if size >= most or slice_.format == "text":
                break


def _passage(lines: list[bytes], rng: random.Random) -> list[bytes]:
    """About `DONOR_BYTES` of consecutive lines from a random place."""
    ends = np.cumsum([len(line) for line in lines])
    first = int(np.searchsorted(ends, rng.random() * (ends[-1] - DONOR_BYTES), side="right"))
    begin = ends[first] - len(lines[first])
    return lines[first : int(np.searchsorted(ends, begin + DONOR_BYTES)) + 1]


@dataclass
class UnitReader:
    """Reads one unit of a corpus, as `DocumentBatch`es; one without lines if it has no text."""

    unit: int  # number of the unit
    slices: Sequence[Slice]  # its text
    options: PretrainingDataOptions  # how it is read, and the bytes of a batch
    plan: DocumentPlan
    group_bytes: int  # bytes of text in a group
    finished: Container[int] = ()  # groups of batches to read but not to yield

    def __post_init__(self):
        self._waiting: dict[bool, list[Part]] = defaultdict(list)  # held out: for a next batch
        self._sizes: Counter[bool] = Counter()  # bytes of text in them
        self._numbers: Counter[bool] = Counter()  # batches so far
        self._positions: Counter[int] = Counter()  # by slice: bytes read
        self._counts: Counter[str] = Counter()  # since the previous batch
        self._unreadable: set[str] = set()
        self._group = self._group_size = 0

    def __iter__(self) -> Iterator[DocumentBatch]:
        for part in self._parts():
            held_out = part.draw < self.plan.held_out_below
            size = self._sizes[held_out] + part.size
            if self._waiting[held_out] and size > self.options.buffer_bytes:
                yield from self._batch(held_out)
            self._waiting[held_out].append(part)
            self._sizes[held_out] += part.size
        last = [side for side in (True, False) if self._waiting[side]] or [False]
        for held_out in last:
            yield from self._batch(held_out, ends_unit=held_out == last[-1])

    def _parts(self) -> Iterator[Part]:
        waiting = map(self._file_parts, range(len(self.slices)))
        turns = deque(itertools.islice(waiting, OPEN_FILES))
        while turns:
            parts = turns.popleft()
            size = 0
            for part in parts:
                yield part
                size += part.size
                if size >= PART_BYTES:
                    turns.append(parts)
                    break
            else:  # the file has ended
                turns.extend(itertools.islice(waiting, 1))

    def _file_parts(self, number: int) -> Iterator[Part]:
        def lines() -> Iterator[Lines]:
            slice_ = self.slices[number]
            for read in read_slice(slice_, self.options, self._counts, self._unreadable):
                self._positions[number] = read.position
                yield read

        seed = self.plan.seed if self.plan.held_out_below else None
        for part in _parts(lines(), self.unit, number, seed):
            self._counts["documents"] += part.ordinal == 0
            yield part

    def _batch(self, held_out: bool, ends_unit: bool = False) -> Iterator[DocumentBatch]:
        """The batch that a split has gathered, unless its group is finished already."""
        if self._group_size >= self.group_bytes:
            self._group += 1
            self._group_size = 0
        self._group_size += self._sizes.pop(held_out, 0)
        parts = self._waiting.pop(held_out, [])
        if self._group not in self.finished:
            documents = {part.document for part in parts}
            donors = self.plan.donors if 0 < len(documents) < FEW_DOCUMENTS else []
            donors = [x for x in donors if x.held_out == held_out]
            yield DocumentBatch(
                *_joined(parts, [x for x in donors if x.document not in documents]),
                unit=self.unit,
                group=self._group,
                number=self._numbers[held_out],
                held_out=held_out,
                ends_unit=ends_unit,
                bytes_read=sum(self._positions.values()),
                counts=self._counts.copy(),
                unreadable=sorted(self._unreadable),
            )
        self._counts.clear()
        self._numbers[held_out] += 1


def _parts(text: Iterable[Lines], unit: int, number: int, seed: int | None) -> Iterator[Part]:
    """The parts of the documents in a slice; without a seed, their draws are 1."""
    document = -1
    ordinal = 0
    size = 0
    draw = 1.0
    lines: list[bytes] = []
    for line in itertools.chain((line for read in text for line in read.lines), [b""]):
        if lines and (not line or size >= PART_BYTES):
            if ordinal == 0:
                document += 1
                if seed is not None:  # a draw from the seed and the first text alone
                    first = b"\n".join(lines[:_FIRST_LINES])[:_FIRST_BYTES]
                    key = hashlib.blake2b(b"%d\n%b" % (seed, first), digest_size=8).digest()
                    draw = int.from_bytes(key, "big") / 2**64
            yield Part((unit, number, document), ordinal, lines, size, draw)
            ordinal = ordinal + 1 if line else 0
            lines = []
            size = 0
        if line:
            lines.append(line)
            size += len(line)


def _joined(
    parts: list[Part], donors: list[Donor]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of a `DocumentBatch`: the parts of each document in order, then the donors."""
    marked = [(part.document, part.ordinal, part.lines) for part in parts]
    marked += [(donor.document, 0, [x.encode() for x in donor.lines]) for donor in donors]
    number = {name: index for index, name in enumerate(dict.fromkeys(part[0] for part in marked))}
    marked.sort(key=lambda part: (number[part[0]], part[1]))
    counts = [len(lines) for *_, lines in marked]
    begins = [True] * bool(marked) + [
        (document, ordinal) != (last, last_ordinal + 1)
        for (last, last_ordinal, _), (document, ordinal, _) in itertools.pairwise(marked)
    ]
    return (
        np.array([line for *_, lines in marked for line in lines], object),
        np.repeat(np.array([number[part[0]] for part in marked], np.int32), counts),
        np.repeat(np.cumsum(begins, dtype=np.int32), counts),
        np.repeat(np.arange(len(marked)) >= len(parts), counts),
    )
