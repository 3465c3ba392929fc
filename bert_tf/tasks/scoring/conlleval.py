"""Scores of entities, as CoNLL's script conlleval computes and prints them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.examples.tagged_words import chunks


def entity_score_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The scores over all types, F1 first, and the F1 score of each type of some labels."""
    types = sorted({label.partition("-")[2] for label in labels} - {""})
    return "f1", "precision", "recall", "accuracy", *(f"f1_{type_}" for type_ in types)


@dataclass(frozen=True)
class Entities:
    """Counts of entities of one type, or of all; a score without any is 0."""

    gold: int
    found: int
    correct: int  # with the right words and type

    @property
    def precision(self) -> float:
        return self.correct / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.correct / (self.gold + self.found) if self.correct else 0.0


@dataclass(frozen=True)
class EntityScores:
    """Numbers of words, and counts by type, in alphabetical order, and over all types."""

    words: int
    right_words: int
    by_type: dict[str, Entities]
    all: Entities

    @property
    def accuracy(self) -> float:
        return self.right_words / self.words if self.words else 0.0

    def scores(self) -> dict[str, float]:
        of_all = {name: getattr(self.all, name) for name in ("f1", "precision", "recall")}
        of_types = {f"f1_{type_}": counts.f1 for type_, counts in self.by_type.items()}
        return {**of_all, "accuracy": self.accuracy, **of_types}

    def report(self) -> str:
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
    """Compares labels of sentences as conlleval and seqeval do: a wrong prefix is no error.

    For accuracy labels are compared as they are.
    """
    gold_types, found_types, correct_types = Counter[str](), Counter[str](), Counter[str]()
    words = right = 0
    for true, guessed in zip(gold, predicted, strict=True):
        words += len(true)
        right += sum(a == b for a, b in zip(true, guessed, strict=True))
        true_chunks, found = set(chunks(true)), set(chunks(guessed))
        gold_types.update(type_ for type_, _, _ in true_chunks)
        found_types.update(type_ for type_, _, _ in found)
        correct_types.update(type_ for type_, _, _ in true_chunks & found)
    counts = (gold_types, found_types, correct_types)
    types = sorted(gold_types.keys() | found_types.keys())
    by_type = {type_: Entities(*(each[type_] for each in counts)) for type_ in types}
    return EntityScores(words, right, by_type, Entities(*(each.total() for each in counts)))


def _percentages(counts: Entities) -> str:
    precision, recall, f1 = 100 * counts.precision, 100 * counts.recall, 100 * counts.f1
    return f"precision: {precision:6.2f}%; recall: {recall:6.2f}%; FB1: {f1:6.2f}"
