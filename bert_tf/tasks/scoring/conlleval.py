"""Scores of entities, as CoNLL's script conlleval computes and prints them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.examples.tagged_words import chunks


@dataclass(frozen=True)
class Entities:
    """Counts of entities of one type, or of all.

    Attributes:
        gold: entities in the data.
        found: entities predicted.
        correct: entities predicted with the right words and type.
    """

    gold: int
    found: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of the predicted entities that are right; 0 without any."""
        return self.correct / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """The share of the gold entities that were found; 0 without any."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if nothing is correct."""
        return 2 * self.correct / (self.gold + self.found) if self.correct else 0.0


@dataclass(frozen=True)
class EntityScores:
    """Result of `score_entities`.

    Attributes:
        words: number of words.
        right_words: number of words with the right label.
        by_type: counts by type, in alphabetical order.
    """

    words: int
    right_words: int
    by_type: dict[str, Entities]

    @property
    def all(self) -> Entities:
        """Counts over all types."""
        counts = self.by_type.values()
        return Entities(
            sum(c.gold for c in counts),
            sum(c.found for c in counts),
            sum(c.correct for c in counts),
        )

    @property
    def accuracy(self) -> float:
        """The share of the words with the right label."""
        return self.right_words / self.words if self.words else 0.0

    def report(self) -> str:
        """The text that conlleval prints."""
        every = self.all
        lines = [
            f"processed {self.words} tokens with {every.gold} phrases; "
            f"found: {every.found} phrases; correct: {every.correct}.",
            f"accuracy: {100 * self.accuracy:6.2f}%; {_percentages(every)}",
        ]
        for type_, counts in self.by_type.items():
            lines.append(f"{type_:>17}: {_percentages(counts)}  {counts.found}")
        return "\n".join(lines) + "\n"


def score_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> EntityScores:
    """Compares the labels of sentences.

    Entities are found as conlleval finds them (seqeval's default mode, too): a wrong prefix is no
    error. For accuracy labels are compared as they are.

    Args:
        gold: labels of each sentence.
        predicted: labels of each sentence, as many.
    """
    counts = [Counter(), Counter(), Counter()]  # type: tuple[Counter[str], ...] | list
    words = right = 0
    for true, guessed in zip(gold, predicted, strict=True):
        words += len(true)
        right += sum(a == b for a, b in zip(true, guessed, strict=True))
        true_chunks, found = set(chunks(true)), set(chunks(guessed))
        for counter, of_kind in zip(counts, (true_chunks, found, true_chunks & found), strict=True):
            counter.update(type_ for type_, _, _ in of_kind)
    types = sorted(counts[0].keys() | counts[1].keys())
    return EntityScores(words, right, {t: Entities(*(c[t] for c in counts)) for t in types})


def _percentages(counts: Entities) -> str:
    return (
        f"precision: {100 * counts.precision:6.2f}%; recall: {100 * counts.recall:6.2f}%; "
        f"FB1: {100 * counts.f1:6.2f}"
    )
