"""Byte-pair merges: which neighbouring pieces become one, the most frequent pair first."""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

_NONE = -1  # between words, and where a symbol was merged into the one before it


class _Symbols:
    """The symbols of all words in a row: each cell has one, and knows its neighbours.

    Arrays have one element for a cell; words have an empty cell between them.
    """

    def __init__(self, words: Sequence[str], frequencies: Sequence[int], ids: dict[str, int]):
        text = "\0" + "\0".join(words) + "\0"
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        self.symbols = np.full(len(codes), _NONE, np.int64)
        starts = np.roll(codes == 0, 1)
        for prefix, cells in (("", starts), ("##", ~starts)):
            chosen = np.flatnonzero(cells & (codes != 0))
            characters, which = np.unique(codes[chosen], return_inverse=True)
            known = [ids[prefix + chr(character)] for character in characters]
            self.symbols[chosen] = np.array(known, np.int64)[which]
        words_of_cells = np.cumsum(codes == 0) - 1
        self.frequencies = np.array([*frequencies, 0], np.int64)[words_of_cells]
        self.before = np.arange(len(codes)) - 1
        self.after = np.arange(len(codes)) + 1

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First symbols, second symbols, and the cells of the first ones."""
        cells = np.flatnonzero((self.symbols[:-1] != _NONE) & (self.symbols[1:] != _NONE))
        return self.symbols[cells], self.symbols[cells + 1], cells

    def occurrences(self, first: int, second: int, cells: np.ndarray) -> np.ndarray:
        """Those of the cells, in order, that still begin the pair; of `aaa`, the left `aa`."""
        cells = cells[self.symbols[cells] == first]
        cells = np.sort(cells[self.symbols[self.after[cells]] == second])
        if first != second:
            return cells
        chosen = []
        taken = _NONE
        for cell in cells.tolist():
            if cell != taken:
                chosen.append(cell)
                taken = self.after[cell]
        return np.array(chosen, np.int64)

    def merge(self, cells: np.ndarray, merged: int) -> tuple[Any, Any]:
        """Puts `merged` for the pairs at the cells.

        Returns pairs that went and pairs that came, as the arrays of `pairs`; a pair that stood
        beside two merged ones is in each list once.
        """
        seconds = self.after[cells]
        befores, afters = self.before[cells], self.after[seconds]
        follows = np.zeros(len(cells), bool)  # the occurrence before it, directly
        follows[1:] = befores[1:] == seconds[:-1]
        is_followed = np.roll(follows, -1)
        to_left = ~follows & (self.symbols[befores] != _NONE)
        to_right = self.symbols[afters] != _NONE
        lefts = befores[to_left]
        went = (
            np.concatenate([self.symbols[lefts], self.symbols[seconds[to_right]]]),
            np.concatenate([self.symbols[cells[to_left]], self.symbols[afters[to_right]]]),
            np.concatenate([lefts, cells[to_right]]),
        )
        seconds_now = np.where(is_followed, merged, self.symbols[afters])[to_right]
        came = (
            np.concatenate([self.symbols[lefts], np.full(to_right.sum(), merged)]),
            np.concatenate([np.full(len(lefts), merged), seconds_now]),
            went[2],
        )
        self.symbols[cells] = merged
        self.symbols[seconds] = _NONE
        self.after[cells] = afters
        self.before[afters] = cells
        return went, came


def learn_merges(
    words: Sequence[str],
    frequencies: Sequence[int],
    alphabet: Sequence[str],
    size: int,
    min_frequency: int,
) -> list[str]:
    """Merges pairs of pieces until there are `size` pieces, or no pair occurs often enough.

    Sennrich et al. (2016), section 3.2, with `##` before what continues a word. Of equally frequent
    pairs the one of earlier pieces is merged first: the vocabulary that Hugging Face's
    `tokenizers` 0.23 learns from the same words.

    Args:
        words: different words, of characters in the alphabet.
        frequencies: how often each occurs.
        alphabet: the first pieces, special tokens included; `c` and `##c` for characters.
        size: maximum number of pieces.
        min_frequency: a pair that occurs less often is not merged.

    Returns the alphabet and the merged pieces, in the order of merging.
    """
    pieces = list(alphabet)
    ids = {piece: number for number, piece in enumerate(pieces)}
    symbols = _Symbols(words, frequencies, ids)
    counts: dict[int, int] = {}  # by pair: `first * size + second`
    places: dict[int, list[np.ndarray]] = {}  # cells where a pair may begin
    queue: list[tuple[int, int]] = []  # negative counts, which may be old, and pairs

    def add(pairs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        for pair, count, cells in _grouped(pairs, symbols.frequencies, size):
            counts[pair] = counts.get(pair, 0) + count
            places.setdefault(pair, []).append(cells)
            heapq.heappush(queue, (-counts[pair], pair))

    add(symbols.pairs())
    while queue and len(pieces) < size:
        count, pair = queue[0]
        if -count != counts[pair]:
            heapq.heapreplace(queue, (-counts[pair], pair))
            continue
        heapq.heappop(queue)
        if -count < max(1, min_frequency):
            break
        first, second = divmod(pair, size)
        cells = symbols.occurrences(first, second, np.concatenate(places.pop(pair, [_NO_CELLS])))
        if not len(cells):
            continue
        piece = pieces[first] + pieces[second].removeprefix("##")
        if piece not in ids:
            ids[piece] = len(pieces)
            pieces.append(piece)
        went, came = symbols.merge(cells, ids[piece])
        for gone, times, _ in _grouped(went, symbols.frequencies, size):
            counts[gone] -= times
        add(came)
    return pieces


_NO_CELLS = np.zeros(0, np.int64)


def _grouped(
    pairs: tuple[np.ndarray, np.ndarray, np.ndarray], frequencies: np.ndarray, size: int
) -> list[tuple[int, int, np.ndarray]]:
    """Each different pair, how often it occurs, and its cells."""
    firsts, seconds, cells = pairs
    if not len(cells):
        return []
    keys = firsts * size + seconds
    order = np.argsort(keys, kind="stable")
    keys, cells = keys[order], cells[order]  # grouped
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    counts = np.add.reduceat(frequencies[cells], starts)
    return list(
        zip(keys[starts].tolist(), counts.tolist(), np.split(cells, starts[1:]), strict=True)
    )
