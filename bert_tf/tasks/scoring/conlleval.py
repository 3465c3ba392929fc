"""Scores of entities, as CoNLL's script conlleval computes and prints them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bert_tf.pipelines.examples.tagged_words import chunks
from bert_tf.tasks.scoring.metrics import Counts


def entity_score_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The scores over all types, F1 first, and the F1 score of each type of some labels."""
    types = sorted({label.partition("-")[2] for label in labels} - {""})
    return "f1", "precision", "recall", "accuracy", *(f"f1_{type_}" for type_ in types)


@dataclass(frozen=True)
class EntityScores:
    """Numbers of words, and counts of entities by type, in alphabetical order, and of all types."""

    words: int
    right_words: int
    by_type: dict[str, Counts]
    all: Counts

    @property
    def accuracy(self) -> float:
        return self.right_words / self.words if self.words else 0.0

    def scores(self) -> dict[str, float]:
        precision, recall, f1 = defined(self.all)
        scores_by_type = {f"f1_{type_}": counts.f1 or 0.0 for type_, counts in self.by_type.items()}
        overall = {"f1": f1, "precision": precision, "recall": recall, "accuracy": self.accuracy}
        return {**overall, **scores_by_type}

    def report(self) -> str:
        total = self.all
        lines = [
            f"processed {self.words} tokens with {total.gold} phrases; "
            f"found: {total.predicted} phrases; correct: {total.right}.",
            f"accuracy: {100 * self.accuracy:6.2f}%; {_percentages(total)}",
        ]
        for type_, counts in self.by_type.items():
            lines.append(f"{type_:>17}: {_percentages(counts)}  {counts.predicted}")
        return "\n".join(lines) + "\n"


def score_entities(gold: Iterable[list[str]], predicted: Iterable[list[str]]) -> EntityScores:
    """Compares labels as conlleval and seqeval do: a wrong prefix is an error in accuracy alone."""
    counts = (Counter[str](), Counter[str](), Counter[str]())  # by type, the fields of `Counts`
    words = right = 0
    for true, guessed in zip(gold, predicted, strict=True):
        words += len(true)
        right += sum(a == b for a, b in zip(true, guessed, strict=True))
        sides = set(chunks(true)), set(chunks(guessed))
        for counter, entities in zip(counts, (*sides, sides[0] & sides[1]), strict=True):
            counter.update(type_ for type_, _, _ in entities)
    types = sorted(counts[0].keys() | counts[1].keys())
    by_type = {type_: Counts(*(counter[type_] for counter in counts)) for type_ in types}
    return EntityScores(words, right, by_type, Counts(*(counter.total() for counter in counts)))


def defined(counts: Counts) -> list[float]:
    """Precision, recall and F1 as conlleval has them: 0 where they are undefined."""
    return [share or 0.0 for share in counts.shares]


def _percentages(counts: Counts) -> str:
    precision, recall, f1 = (100 * share for share in defined(counts))
    return f"precision: {precision:6.2f}%; recall: {recall:6.2f}%; FB1: {f1:6.2f}"
