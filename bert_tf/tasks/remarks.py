"""Remarks, a sentence each: on labels and training data, on cut texts and on scores."""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.pipelines.examples.cells import whole
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.choice import Choice
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.kinds.kind import Answered, Kind
from bert_tf.tasks.kinds.long_texts import WindowedKind
from bert_tf.tasks.kinds.masked_language_model import MaskedLanguageModel
from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.kinds.tagging import Tagging, Tags, entity_scores
from bert_tf.tasks.readers import spelt_twice
from bert_tf.tasks.scoring.metrics import Counts, count_classes
from bert_tf.tasks.task import Task

_LISTED = 5  # classes that are never given
_COUNTED = 6  # labels with their counts


def label_counts(targets: np.ndarray, labels: Sequence[str]) -> list[int]:
    """Number of examples, or of words, with each label [C].

    `targets` are class ids [E], of words [E, W] padded with -1, or float32 marks 0 and 1 [E, C];
    without labels, anything else.
    """
    if not labels:
        return []
    if targets.dtype.kind == "f":
        return targets.sum(axis=0, dtype=np.int64).tolist()
    return np.bincount(targets[targets >= 0], minlength=len(labels)).tolist()


def listed_counts(labels: Sequence[str], counts: Sequence[int]) -> str:
    """Labels with their counts; of many, the most frequent ones and the rarest."""
    named = [f"{label[:40]} {count:,}" for label, count in zip(labels, counts, strict=True)]
    if len(named) <= _COUNTED:
        return ", ".join(named)
    *frequent, last = [named[i] for i in np.argsort(-np.array(counts), kind="stable")]
    shown = frequent[: _COUNTED - 2]
    return f"{', '.join(shown)}, {len(frequent) - len(shown)} more, rarest {last}"


def baseline(
    labels: Sequence[str], targets: np.ndarray, scored: np.ndarray, name: str
) -> list[str]:
    """A sentence with the accuracy of always giving the most frequent label; none if undefined.

    `targets` belong to the training data, `scored` are the targets of the data called `name`.
    """
    if not labels or targets.dtype.kind == "f":
        return []
    most = int(np.argmax(label_counts(targets, labels)))
    share = float(np.mean(scored[scored >= 0] == most))
    return [f"always answering {labels[most]!r} has an accuracy of {share:.1%} on the {name}"]


@functools.singledispatch
def doubts(kind: Kind, examples: Examples) -> list[str]:
    """What looks wrong with training examples."""
    return examples.remarks()


@doubts.register
def _doubts_of_classes(kind: Classification, examples: Examples) -> list[str]:
    remarks = examples.remarks()
    path = examples.path
    labels = set(examples.columns["label"])
    fractions = sorted(label for label in labels if "." in whole(label))
    if fractions and all(re.fullmatch(r"-?\d+(\.\d+)?", label) for label in labels):
        remarks.append(
            f"{path}: labels such as {fractions[0]} are numbers with decimals; for regression give "
            "--task regression"
        )
    for label, usual in spelt_twice(examples.columns["label"]).items():
        remarks.append(
            f"{path}: the label {label!r} is a class beside {usual!r}: spell both in one way "
            "(bert-tf check lists the lines)"
        )
    if bare := examples.columns["label"].count("-"):
        remarks.append(
            f"{path}: the label '-' of {bare} examples is a class; in SNLI and MNLI it marks those "
            "without an agreed label: remove them"
        )
    return remarks + _doubts_of_lists(path, labels, "--task multi_label ")


def _doubts_of_lists(path: str, labels: set[str], options: str = "") -> list[str]:
    """A remark on labels that look like lists of labels, if any.

    At least half of the parts of lists are parts of another label, too, or labels themselves:
    "sea|cow" beside "cow|farm", but not "yes, of course" beside "no".
    """
    known = {label.strip().strip("[]") for label in labels}  # as data frames write lists
    for separator in "|;,":
        parts = {x: {part.strip() for part in x.split(separator)} - {""} for x in known}
        lists = sorted(label for label, names in parts.items() if len(names) > 1)
        labels_with = Counter(part for names in parts.values() for part in names)
        of_lists = {part for label in lists for part in parts[label]}
        recurring = [part for part in of_lists if labels_with[part] > 1]
        if lists and 2 * len(recurring) >= len(of_lists):
            return [
                f"{path}: labels such as {lists[0]!r} contain {separator!r}: did you mean "
                f'{options}--label_separator "{separator}"?'
            ]
    return []


@doubts.register
def _doubts_of_label_sets(kind: MultiLabel, examples: Examples) -> list[str]:
    remarks = examples.remarks()
    path = examples.path
    if bare := examples.columns["label"].count(""):
        remarks.append(f"{path}: {bare:,} of {len(examples):,} examples have no label")
    labels = {part for text in examples.columns["label"] for part in kind.parts(text)}
    return remarks + _doubts_of_lists(path, labels)


@doubts.register
def _doubts_of_choices(kind: Choice, examples: Examples) -> list[str]:
    number = len(examples.columns["choices"][0])
    if set(map(whole, examples.columns["label"])) != {str(label) for label in range(1, number)}:
        return examples.remarks()
    return [
        *examples.remarks(),
        f"{examples.path}: no right choice has the number 0; choices are counted from 0: subtract "
        "1 if these are counted from 1",
    ]


@functools.singledispatch
def truncation(kind: Kind, truncated: Sequence[int] | np.ndarray, max_length: int) -> str:
    """How many examples were truncated, by the word pieces that each of them lost."""
    shorter = np.count_nonzero(truncated)
    return f"truncated at {max_length} tokens: {shorter} of {len(truncated)} inputs"


@truncation.register(MaskedLanguageModel)
@truncation.register(Tagging)
@truncation.register(WindowedKind)
def _truncated_texts(kind: Kind, truncated: Sequence[int] | np.ndarray, max_length: int) -> str:
    if isinstance(kind, WindowedKind) and not kind.reads_windows:
        return truncation.dispatch(Kind)(kind, truncated, max_length)
    return f"truncated: 0 of {len(truncated)} texts; long ones are read in windows"


@truncation.register
def _truncated_questions(kind: Span, truncated: Sequence[int] | np.ndarray, max_length: int) -> str:
    longest = min(kind.max_query_length, (max_length - 3) // 2)  # as `QuestionPacker` has it
    return (
        f"truncated at {longest} word pieces: {np.count_nonzero(truncated)} of {len(truncated)} "
        "questions; contexts are read in windows"
    )


@functools.singledispatch
def score_remarks(kind: Kind, task: Task, labels: Sequence[str]) -> list[str]:
    """What the scores of a model with these labels measure."""
    return []


@score_remarks.register
def _scores_of_classes(kind: Classification, task: Task, labels: Sequence[str]) -> list[str]:
    if "f1" not in task.score_names(labels):
        return []
    return [f"f1 is the F1 score of the label {task.ordered(labels)[-1]!r}"]


@score_remarks.register
def _scores_of_masked_words(
    kind: MaskedLanguageModel, task: Task, labels: Sequence[str]
) -> list[str]:
    return [
        "accuracy and pseudo_perplexity mask one word piece at a time; masked_lm_accuracy and "
        "masked_lm_perplexity, that of the paper's table 6, 15% at once as in pre-training"
    ]


@functools.singledispatch
def class_counts(kind: Kind, answered: Answered) -> dict[str, Counts]:
    """How often each class is the true answer, the given one, and both; none without classes."""
    return {}


@class_counts.register
def _counts_of_classes(kind: Classification, answered: Answered) -> dict[str, Counts]:
    return count_classes(answered.task.ordered(answered.labels), *kind.compared(answered))


@class_counts.register
def _counts_of_label_sets(kind: MultiLabel, answered: Answered) -> dict[str, Counts]:
    return kind.sets(answered).counts()


@class_counts.register
def _counts_of_entities(kind: Tagging, answered: Answered) -> dict[str, Counts]:
    return entity_scores(answered).by_type


@class_counts.register
def _counts_of_tags(kind: Tags, answered: Answered) -> dict[str, Counts]:
    return count_classes(answered.labels, *kind.compared(answered))


def unlearned(counts: Mapping[str, Counts], *, one_each: bool, weights: str) -> list[str]:
    """Classes that a model never gets right, whether it beats a constant answer, and what to try.

    `one_each` says that every example, or word, has exactly one of the classes; `weights` is the
    option that weighs classes, if there is one.
    """
    wrong = {label: x for label, x in counts.items() if x.gold and not x.right}
    remarks = []
    for what, is_given in (("never predicted", False), ("predicted but never right", True)):
        never = {label: x.gold for label, x in wrong.items() if bool(x.predicted) == is_given}
        if not never:
            continue
        shown = sorted(never, key=lambda label: -never[label])[:_LISTED]
        more = f" and {len(never) - len(shown)} more" * (len(never) > len(shown))
        listed = ", ".join(f"{label[:40]!r} (0 of {never[label]:,} right)" for label in shown)
        remarks.append(f"{what}: {listed}{more}")
    gold = {n: x.gold for n, x in counts.items()}
    right = sum(x.right for x in counts.values())
    if one_each and sum(map(bool, gold.values())) > 1 and right <= max(gold.values()):
        usual = max(gold, key=lambda label: gold[label])
        total = sum(gold.values())
        remarks.append(
            f"accuracy {right / total:.1%}, no better than always answering {usual[:40]!r} "
            f"({gold[usual] / total:.1%})"
        )
    if remarks:
        options = f"{weights} if you have not, more epochs" if weights else "more epochs"
        remarks.append(
            f"Try {options}, or more examples of the rare classes: see docs/my-score-is-bad.md"
        )
    return remarks


def remarks_on_scores(answered: Answered, scores: Mapping[str, float | None]) -> list[str]:
    """Remarks for a reader of the scores."""
    undefined = [name for name, value in scores.items() if value is None]
    undefined_correlations = [name for name in undefined if name in ("pearson", "spearman")]
    undefined_others = [name for name in undefined if name not in undefined_correlations]
    remarks = score_remarks(answered.task.kind, answered.task, answered.labels)
    for names, reason in (
        (undefined_correlations, "for constant values"),
        (undefined_others, "without an example"),
    ):
        if names:
            remarks.append(f"{', '.join(names)}: undefined {reason}")
    return remarks


def remarks_on_classes(answered: Answered) -> list[str]:
    """Remarks on what a model has not learned, for a reader of its scores."""
    kind = answered.task.kind
    return unlearned(
        class_counts(kind, answered),
        one_each=isinstance(kind, Classification | Tags),
        weights="" if isinstance(kind, Tagging) else "--class_weights balanced",
    )
