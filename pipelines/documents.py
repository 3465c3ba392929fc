"""A corpus as batches of documents, of bounded size, for pairing sentences.

The original holds the whole corpus, so that a random next sentence can come from any document.
Here a batch of some megabytes is held, and random next sentences come from its other documents.
Three rules keep that sound for every shape of corpus:

- Several files are read in turns, a slice of each, so that a batch of long books holds parts of
  many of them.
- A batch that still holds few documents is joined by *donors*: passages of documents met earlier
  (at the very start: of the next one), which give random next sentences and nothing else.
- Held-out text is batched apart, so no training pair holds a held-out sentence.

Everything here is a function of the files and the seed.
"""

import hashlib
import itertools
import random
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_tf.errors import InputError
from pipelines.corpus import empty_corpus, read_blocks, strip

# Documents are cut into parts of this size; a part is trained on or held out as a whole, and
# files take turns after this much text.
PART_BYTES = 1 << 18
OPEN_FILES = 16

# A batch of fewer documents gets donors: passages of this size, of so many documents.
FEW_DOCUMENTS = 8
DONOR_BYTES = 1 << 16
DONORS = 16


class Part(NamedTuple):
    """Consecutive lines of one document.

    Attributes:
        document: number of the document, in the order in which documents are met.
        ordinal: number of the part in its document.
        lines: lines of text, none blank.
        size: bytes of text.
        held_out: whether the part is for evaluation.
    """

    document: int
    ordinal: int
    lines: list[bytes]
    size: int
    held_out: bool


class DocumentBatch(NamedTuple):
    """Documents or parts of them, as one list of lines.

    Attributes:
        lines: string [lines], none blank.
        documents: int32 [lines], number of the document; equal numbers stand together.
        passages: int32 [lines], number of the passage, an unbroken run of lines of a document.
        is_donor: bool [lines], whether the line may only be the random next of others.
        number: counts the batches of the split.
        held_out: the split, training or held out.
        bytes_read: bytes on disk that had been read when the batch was full.
    """

    lines: np.ndarray
    documents: np.ndarray
    passages: np.ndarray
    is_donor: np.ndarray
    number: int
    held_out: bool
    bytes_read: int


class DocumentReader:
    """Reads a corpus once, as `DocumentBatch`es.

    Args:
        files: as `pipelines.corpus.find_files` lists them.
        buffer_bytes: text in a batch.
        held_out_share: share of the text to hold out. It is chosen by document (a document of
            over 256 kB by parts of that size). If this would leave fewer than two documents held
            out, two are; if the corpus has fewer than four, none.
        seed: of the held-out choice and of the choice of donors.

    Iterating raises `InputError` for an unusable file, for a corpus without text, and for one of
    a single document.
    """

    def __init__(
        self, files: list[str], *, buffer_bytes: int, held_out_share: float = 0.0, seed: int = 0
    ):
        self.files = files
        self.documents = 0
        self.lines = 0
        self._buffer_bytes = buffer_bytes
        self._held_out_share = held_out_share
        self._seed = seed
        self._positions: dict[int, int] = {}  # by file: bytes read

    def __iter__(self) -> Iterator[DocumentBatch]:
        train = _Split(self, held_out=False)
        held_out = _Split(self, held_out=True)
        for part in self._parts():
            self.documents = max(self.documents, part.document + 1)
            self.lines += len(part.lines)
            split = held_out if part.held_out else train
            if split.size + part.size > self._buffer_bytes and split.parts:
                yield split.batch()
            split.add(part)
        if not self.documents:
            raise empty_corpus(self.files)
        if self.documents < 2:
            raise self._one_document()
        if self._held_out_share > 0:
            _share_out_last(train, held_out)
        for split in (train, held_out):
            if split.parts:
                yield split.batch()

    def _parts(self) -> Iterator[Part]:
        """Parts of all files, `OPEN_FILES` files in turns, documents numbered as met."""
        waiting = enumerate(self.files)
        turns = deque(self._file_parts(*file) for file in itertools.islice(waiting, OPEN_FILES))
        numbers: dict[tuple[int, int], int] = {}
        met = itertools.count()
        while turns:
            parts = turns.popleft()
            size = 0
            for file, document, ordinal, lines, part_size in parts:
                if ordinal == 0:
                    numbers[file, document] = next(met)
                    numbers.pop((file, document - 1), None)
                held_out = self._is_held_out(file, document, ordinal)
                yield Part(numbers[file, document], ordinal, lines, part_size, held_out)
                size += part_size
                if size >= PART_BYTES:
                    turns.append(parts)
                    break
            else:  # the file has ended
                turns.extend(self._file_parts(*file) for file in itertools.islice(waiting, 1))

    def _file_parts(self, file: int, path: str) -> Iterator[tuple[int, int, int, list[bytes], int]]:
        """Parts of one file: file, document in the file, part in the document, lines, bytes."""
        document, ordinal = 0, 0
        lines: list[bytes] = []
        size = 0
        for block in read_blocks(path):
            self._positions[file] = block.position
            for line in block.lines:
                if line := strip(line):
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

    def other_document(self, document: int, held_out: bool) -> Part:
        """The first part in the corpus, of this split, that is not of `document`."""
        ahead = DocumentReader(
            self.files,
            buffer_bytes=self._buffer_bytes,
            held_out_share=self._held_out_share,
            seed=self._seed,
        )
        for part in ahead._parts():
            if part.document != document and part.held_out == held_out:
                return part
        if held_out:
            raise InputError(
                f"{self.files[0]}: the held-out share is a single document, so no random next "
                "sentence can be drawn for it; set held_out_share to 0 or raise it"
            )
        raise self._one_document()

    def _one_document(self) -> InputError:
        return InputError(
            f"{self.files[0]}: the corpus is a single document, so no random next sentence can be "
            "drawn; put a blank line between documents, or add files"
        )

    @property
    def bytes_read(self) -> int:
        """Bytes on disk read so far, of all files."""
        return sum(self._positions.values())

    @property
    def seed(self) -> int:
        """The seed given."""
        return self._seed


class _Split:
    """Gathers the parts of one split into batches, and remembers donors for the next ones."""

    def __init__(self, reader: DocumentReader, held_out: bool):
        self.parts: list[Part] = []
        self.size = 0
        self._reader = reader
        self._held_out = held_out
        self.number = 0
        self._donors: dict[int, Part] = {}  # by document, oldest first

    def documents(self) -> set[int]:
        return {part.document for part in self.parts}

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.size += part.size

    def batch(self) -> DocumentBatch:
        documents = self.documents()
        donors: list[Part] = []
        if len(documents) < FEW_DOCUMENTS:
            donors = list(self._donors.values())
            if len(documents.union(self._donors)) < 2:
                donors.append(self._reader.other_document(self.parts[0].document, self._held_out))
        batch = _document_batch(
            self.parts, donors, self.number, self._held_out, self._reader.bytes_read
        )
        self._remember()
        self.parts, self.size = [], 0
        self.number += 1
        return batch

    def _remember(self) -> None:
        """Keeps a passage of each of some documents of the batch; the oldest make room."""
        rng = random.Random(repr((self._reader.seed, self._held_out, self.number)))
        by_document: dict[int, list[Part]] = {}
        for part in self.parts:
            by_document.setdefault(part.document, []).append(part)
        for document in rng.sample(sorted(by_document), min(DONORS, len(by_document))):
            part = rng.choice(by_document[document])
            self._donors.pop(document, None)
            self._donors[document] = part._replace(lines=_passage(part.lines, DONOR_BYTES, rng))
        for document in list(self._donors)[:-DONORS]:
            del self._donors[document]


def _passage(lines: list[bytes], size: int, rng: random.Random) -> list[bytes]:
    """Consecutive lines of about `size` bytes from a random place."""
    ends = np.cumsum([len(line) for line in lines])
    first = int(np.searchsorted(ends, rng.random() * max(0, ends[-1] - size), side="right"))
    begin = ends[first] - len(lines[first])
    return lines[first : int(np.searchsorted(ends, begin + size)) + 1]


def _document_batch(
    parts: list[Part], donors: list[Part], number: int, held_out: bool, bytes_read: int
) -> DocumentBatch:
    # Parts of a document stand together, in order, then what it donates.
    marked = [(part, False) for part in parts] + [(part, True) for part in donors]
    marked.sort(key=lambda pair: (pair[0].document, pair[1], pair[0].ordinal))
    counts = [len(part.lines) for part, _ in marked]
    continues = [False] + [
        (part.document, is_donor, part.ordinal) == (last.document, was_donor, last.ordinal + 1)
        for (last, was_donor), (part, is_donor) in itertools.pairwise(marked)
    ]
    return DocumentBatch(
        lines=np.array([line for part, _ in marked for line in part.lines], object),
        documents=np.repeat(np.array([p.document for p, _ in marked], np.int32), counts),
        passages=np.repeat(np.cumsum(~np.array(continues), dtype=np.int32), counts),
        is_donor=np.repeat(np.array([is_donor for _, is_donor in marked]), counts),
        number=number,
        held_out=held_out,
        bytes_read=bytes_read,
    )


def _share_out_last(train: _Split, held_out: _Split) -> None:
    """Sees to it, before the last batches, that both splits have two documents, or one has all."""
    training, evaluation = train.documents(), held_out.documents()
    spare = sorted(training - evaluation)
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
        return
    parts = [*train.parts, *held_out.parts]
    train.parts = [part for part in parts if part.document not in chosen]
    held_out.parts = [part for part in parts if part.document in chosen]
