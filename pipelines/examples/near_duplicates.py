"""Texts that are the same but for a few words: MinHash finds candidates, Jaccard decides.

A text is the set of its runs of five characters, of lower-cased letters and digits with single
spaces between words (Broder 1997). Two texts are near-duplicates if they share a part of both sets.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_RUN = 5  # characters
_BANDS, _ROWS = 16, 4  # texts that agree in all rows of a band are compared: 99% at 0.7
_AT_ONCE = 1 << 22  # characters hashed together
_PRIME = np.uint64(1099511628211)  # of FNV


@dataclass(frozen=True)
class DuplicateGroup:
    """Texts that are near-duplicates of the first, or of one another."""

    members: tuple[int, ...]  # ascending
    similarities: tuple[float, ...]  # to the first, 1 for equal texts


def near_duplicates(texts: Sequence[str], similarity: float, seed: int = 1) -> list[DuplicateGroup]:
    """Groups of two texts or more that are linked by a Jaccard similarity of at least this.

    Blank texts are in no group.
    """
    numbers: dict[str, int] = {}
    normal = (" ".join(re.findall(r"\w+", text.lower())) for text in texts)
    of_text = [numbers.setdefault(text, len(numbers)) for text in normal]
    different = list(numbers)
    sets: list[np.ndarray] = []
    signatures = []
    for part in _parts(different):
        runs, starts = _runs(part)
        sets += [np.unique(each) for each in np.split(runs, starts[1:])]
        signatures.append(_signatures(runs, starts, seed))
    parent = list(range(len(different)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in _candidates(np.concatenate(signatures)) if signatures else ():
        is_new = different[i] and different[j] and root(i) != root(j)
        if is_new and _jaccard(sets[i], sets[j]) >= similarity:
            parent[root(j)] = root(i)
    members: dict[int, list[int]] = {}
    for place, number in enumerate(of_text):
        if different[number]:
            members.setdefault(root(number), []).append(place)
    found = []
    for group in members.values():
        if len(group) > 1:
            first = sets[of_text[group[0]]]
            alike = tuple(_jaccard(first, sets[of_text[place]]) for place in group)
            found.append(DuplicateGroup(tuple(group), alike))
    return sorted(found, key=lambda group: group.members)


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Lists of texts with a bounded number of characters, or a single longer one."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _AT_ONCE:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


def _runs(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the runs of each text, uint64 [R], one after the other, and where each begins."""
    padded = [text.ljust(_RUN) for text in texts]
    joined = "".join(padded).encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(joined, np.uint32).astype(np.uint64)
    lengths = np.array([len(text) for text in padded])
    hashes = np.zeros(len(points) - _RUN + 1, np.uint64)
    for offset in range(_RUN):
        hashes = hashes * _PRIME + points[offset : offset + len(hashes)]
    hashes = _mixed(hashes)
    ends = np.cumsum(lengths)
    is_inside = np.ones(len(points), bool)
    for offset in range(1, _RUN):
        is_inside[ends - offset] = False
    counts = lengths - _RUN + 1
    return hashes[is_inside[: len(hashes)]], np.cumsum(counts) - counts


def _mixed(x: np.ndarray) -> np.ndarray:
    """Spreads the bits of uint64 (the end of MurmurHash3)."""
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def _signatures(runs: np.ndarray, starts: np.ndarray, seed: int) -> np.ndarray:
    """The least of each text's runs under random orders, uint32 [N, bands * rows]."""
    factors = np.random.default_rng(seed).integers(1, 2**63, _BANDS * _ROWS, np.uint64)
    found = np.empty((len(starts), len(factors)), np.uint32)
    for number, factor in enumerate(factors * np.uint64(2) + np.uint64(1)):
        ordered = ((runs * factor) >> np.uint64(32)).astype(np.uint32)
        found[:, number] = np.minimum.reduceat(ordered, starts)
    return found


def _candidates(signatures: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of texts that agree in a band: with the first of those that do, and with the next."""
    for band in range(_BANDS):
        rows = np.ascontiguousarray(signatures[:, band * _ROWS : (band + 1) * _ROWS])
        keys = rows.view(np.uint64)  # [N, 2]
        order = np.lexsort((keys[:, 0], keys[:, 1]))
        same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
        first = 0
        for place in np.flatnonzero(same).tolist():
            if place == 0 or not same[place - 1]:
                first = place
            yield int(order[first]), int(order[place + 1])
            if place != first:
                yield int(order[place]), int(order[place + 1])


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    if one is other:
        return 1.0
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)
