"""Faults of labelled text, which are reported: damage, near-duplicates, wrong labels.

Labels that stop a command, or are spelt in two ways, are found in `tasks.readers`.
"""

import contextlib
import functools
import itertools
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from bert_tf.pipelines.corpus.sources import in_groups

# Texts: empty, damaged, in another script.
_DAMAGED = re.compile(r"[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MISREAD = re.compile(r"[\u00c2-\u00f4][\u0080-\u00bf\u20ac\u0152-\u0178\u2013-\u203a]")
_CLOSING = "\u00bb\u00ab\u201d\u201c\u2019\u2018\u203a\u2039\u2026\u2013\u2014"
_LOOKED_AT = 400  # characters of a text, for its script
_MAIN_SHARE = 0.5  # of a text's letters that another script needs

# Near-duplicates.
_RUN = 5  # characters
# Texts that agree in all rows of a band are compared: 99% of those with a similarity of 0.7.
_BANDS = 16
_ROWS = 4
_AT_ONCE = 1 << 22  # characters hashed together, unless a text is longer
_BLANK = -1  # in place of a group's number
_PRIME = np.uint64(1099511628211)  # of FNV

# Wrong labels.
_WORD = re.compile(r"\b\w\w+\b")
_MOST_FEATURES = 200_000
_FOLDS = 5
_FEW = 20  # examples; a judge of a tenth as many as of another label finds them all wrong
# Probability of a doubt; fewer are right where a class of texts misleads, as negations do words.
_LEAST = 0.8
_LARGEST_WEIGHT = 20.0  # of a judge's logits


def text_fault(text: str) -> str | None:
    """What is wrong with a text, or None."""
    if not text.strip():
        return "empty"
    if _DAMAGED.search(text):
        return "damaged characters"
    if any(_is_misread(text, match.start()) for match in _MISREAD.finditer(text)):
        return "read in a wrong encoding"
    return None


def _is_misread(text: str, start: int) -> bool:
    """Whether characters are UTF-8 that was read as Windows-1252."""
    some = text[start : start + 4]
    # A word may end with a capital other than these two, and a quote or a dash follow it.
    if some[0] not in "\u00c2\u00c3" and some[1] in _CLOSING and not some[2:3].isalnum():
        return False
    for encoding, end in itertools.product(("cp1252", "latin-1"), range(2, len(some) + 1)):
        with contextlib.suppress(UnicodeError):
            some[:end].encode(encoding).decode("utf-8")
            return True
    return False


def script_of(text: str) -> str | None:
    """The script of most letters of a text, such as LATIN; None without letters."""
    letters = [c for c in text[:_LOOKED_AT] if c.isalpha()]
    counts = Counter(unicodedata.name(c, "?").split(" ")[0].split("-")[0] for c in letters)
    if not counts:
        return None
    (script, count), *_ = counts.most_common(1)
    return script if count > _MAIN_SHARE * len(letters) else None


def other_scripts(texts: Sequence[str]) -> tuple[str | None, dict[int, str]]:
    """The script of most texts; and the texts in others, index -> script."""
    scripts = [script_of(text) for text in texts]
    counts = Counter(script for script in scripts if script)
    main = counts.most_common(1)[0][0] if counts else None
    return main, {i: s for i, s in enumerate(scripts) if s is not None and s != main}


@dataclass(frozen=True)
class DuplicateGroup:
    """Rows that are near-duplicates of the first, or of one another."""

    members: tuple[int, ...]  # ascending
    similarities: tuple[float, ...]  # to the first, 1 for equal texts; the least of several texts


def near_duplicates(
    rows: Sequence[str | tuple[str, ...]], similarity: float, seed: int = 1
) -> list[DuplicateGroup]:
    """Groups of two rows or more, a text or several each, that are linked by their similarity.

    Rows are linked if their texts are, column by column: by Jaccard's measure, or by a chain of
    similar texts. A text is the set of its runs of five characters, in lower case, with single
    spaces for white space and punctuation (Broder 1997). Rows of blank texts are left out.
    """
    texts = [(row,) if isinstance(row, str) else row for row in rows]
    columns = [_linked(column, similarity, seed) for column in zip(*texts, strict=True)]
    sets = [sets_of_column for _, sets_of_column in columns]
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, group in enumerate(zip(*(numbers for numbers, _ in columns), strict=True)):
        if any(number != _BLANK for number in group):
            members[group].append(index)
    groups = []
    for rows_alike in members.values():
        first, *others = rows_alike
        if others:
            alike = tuple(min(_jaccard(x[first], x[row]) for x in sets) for row in rows_alike)
            groups.append(DuplicateGroup(tuple(rows_alike), alike))
    return sorted(groups, key=lambda group: group.members)


def _linked(
    texts: Sequence[str], similarity: float, seed: int
) -> tuple[list[int], list[np.ndarray]]:
    """The group of each text, or _BLANK, and the hashes of its runs.

    Groups are linked by a similarity of at least this, as MinHash finds it.
    """
    numbers: dict[str, int] = {}
    normal = (" ".join(text.lower().translate(_punctuation()).split()) for text in texts)
    number_of = [numbers.setdefault(text, len(numbers)) for text in normal]
    different = list(numbers)
    sets: list[np.ndarray] = []
    signatures = []
    for part in in_groups(different, _AT_ONCE, len):
        runs, starts = _runs(part)
        sets += [np.unique(hashes) for hashes in np.split(runs, starts[1:])]
        signatures.append(_signatures(runs, starts, seed))
    linked = DisjointSet(range(len(different)))
    for i, j in _candidates(np.concatenate(signatures)) if signatures else ():
        is_new = different[i] and different[j] and not linked.connected(i, j)
        if is_new and _jaccard(sets[i], sets[j]) >= similarity:
            linked.merge(i, j)
    group_of = [linked[number] if text else _BLANK for number, text in enumerate(different)]
    return [group_of[n] for n in number_of], [sets[n] for n in number_of]


@functools.cache
def _punctuation() -> dict[int, str]:
    """Unicode's punctuation -> a space. Marks and symbols are part of a text."""
    code_points = range(sys.maxunicode + 1)
    return {x: " " for x in code_points if unicodedata.category(chr(x)).startswith("P")}


def _runs(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the runs of each text, uint64 [R], one after the other, and where each begins."""
    padded = [text.ljust(_RUN) for text in texts]
    joined = "".join(padded).encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(joined, np.uint32).astype(np.uint64)
    lengths = np.array([len(text) for text in padded])
    hashes = np.zeros(len(points) - _RUN + 1, np.uint64)
    for offset in range(_RUN):
        hashes = hashes * _PRIME + points[offset : offset + len(hashes)]
    # Spread the bits as the end of MurmurHash3 does.
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(factor)
    hashes ^= hashes >> np.uint64(33)
    ends = np.cumsum(lengths)
    is_inside = np.ones(len(points), bool)
    for offset in range(1, _RUN):
        is_inside[ends - offset] = False
    counts = lengths - _RUN + 1
    return hashes[is_inside[: len(hashes)]], np.cumsum(counts) - counts


def _signatures(runs: np.ndarray, starts: np.ndarray, seed: int) -> np.ndarray:
    """The least of each text's runs under random orders, uint32 [N, bands * rows]."""
    factors = np.random.default_rng(seed).integers(1, 2**63, _BANDS * _ROWS, np.uint64)
    signatures = np.empty((len(starts), len(factors)), np.uint32)
    for number, factor in enumerate(factors * np.uint64(2) + np.uint64(1)):
        ordered = ((runs * factor) >> np.uint64(32)).astype(np.uint32)
        signatures[:, number] = np.minimum.reduceat(ordered, starts)
    return signatures


def _candidates(signatures: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of texts that agree in a band: with the first of those that do, and with the next."""
    for band in range(_BANDS):
        rows = np.ascontiguousarray(signatures[:, band * _ROWS : (band + 1) * _ROWS])
        keys = rows.view(np.uint64)  # [N, 2]
        order = np.lexsort((keys[:, 0], keys[:, 1]))
        same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
        first = 0
        for index in np.flatnonzero(same).tolist():
            if index == 0 or not same[index - 1]:
                first = index
            yield int(order[first]), int(order[index + 1])
            if index != first:
                yield int(order[index]), int(order[index + 1])


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    if one is other:
        return 1.0
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


@dataclass(frozen=True)
class DoubtedLabel:
    """A label that is probably wrong."""

    index: int
    label: str
    proposed: str  # the most probable other label
    probability: float  # that the label is wrong


def doubted_labels(
    texts: Sequence[str],
    labels: Sequence[str],
    vectors: np.ndarray | None = None,
    *,
    wrong_share: float = 0.05,
    seed: int = 1,
) -> list[DoubtedLabel]:
    """The examples whose labels are probably wrong, the most probable first.

    Each text (both texts of a pair are one) is judged by a logistic regression on the words of the
    others (cross-validation), and by one on their `vectors`, float32 [N, H], if given. What these
    say of the true labels is fitted to the given ones, of which `wrong_share` are wrong; Bayes'
    rule then tells how probably each is (the noise model of Natarajan et al. 2013). Labels of fewer
    than five examples, or of fewer than twenty where another has ten times as many, are neither
    doubted nor proposed.
    """
    names, targets, counts = np.unique(labels, return_inverse=True, return_counts=True)
    known = np.flatnonzero(counts >= max(_FOLDS, min(_FEW, counts.max() / 10)))
    if len(known) < 2:
        return []
    indices = np.flatnonzero(np.isin(targets, known))
    targets = np.searchsorted(known, targets[indices])
    names = names[known]
    judged = [_judged([texts[i] for i in indices.tolist()], targets, seed)]
    if vectors is not None:
        judged.append(_judged(vectors[indices], targets, seed))
    mistake = wrong_share / (len(names) - 1)  # probability of each label that is not the true one
    shares = _calibrated(np.stack(judged), targets, wrong_share, mistake)
    rows = np.arange(len(targets))
    true = shares[rows, targets]  # probability that the given label is right
    shares[rows, targets] = -1
    wrong = mistake * (1 - true) / (mistake * (1 - true) + (1 - wrong_share) * true)
    chosen = sorted(np.flatnonzero(wrong >= _LEAST).tolist(), key=lambda i: -wrong[i])
    proposed = shares.argmax(axis=1)
    return [
        DoubtedLabel(
            int(indices[i]), str(names[targets[i]]), str(names[proposed[i]]), float(wrong[i])
        )
        for i in chosen
    ]


def _judged(inputs: list[str] | np.ndarray, targets: np.ndarray, seed: int) -> np.ndarray:
    """Probabilities [N, C] of labels by words of texts, or vectors [N, H], of other examples."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if isinstance(inputs, np.ndarray):
        # Few dimensions tell the labels: a strong penalty keeps the weights of the others small.
        judge = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    else:
        words = TfidfVectorizer(analyzer=_features, sublinear_tf=True, max_features=_MOST_FEATURES)
        model = OneVsRestClassifier(LogisticRegression(C=10.0, solver="liblinear"))
        judge = make_pipeline(words, model)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    shares = cross_val_predict(judge, inputs, targets, cv=folds, method="predict_proba")
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _features(text: str) -> list[str]:
    """The words of two letters or more, or else the characters of a text that has none."""
    return _WORD.findall(text.lower()) or [*"".join(text.lower().split())]


def _calibrated(
    judged: np.ndarray, targets: np.ndarray, wrong_share: float, mistake: float
) -> np.ndarray:
    """Probabilities [N, C] of the true labels, from the probabilities of K judges [K, N, C].

    The logits of each judge have the weight with which their sum fits the given labels best, if of
    these `wrong_share` are wrong, and each other label is given with probability `mistake`.
    """
    from scipy.optimize import minimize
    from scipy.special import softmax

    logits = np.log(np.maximum(judged, 1e-12))
    rows = np.arange(len(targets))

    def true(weights: np.ndarray) -> np.ndarray:
        return softmax(np.tensordot(weights, logits, 1), axis=1)

    def loss(weights: np.ndarray) -> float:
        likelihoods = mistake + (1 - wrong_share - mistake) * true(weights)[rows, targets]
        return -float(np.log(likelihoods).mean())

    best = minimize(loss, np.ones(len(judged)), bounds=[(0, _LARGEST_WEIGHT)] * len(judged))
    return true(best.x)
