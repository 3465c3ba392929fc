"""How kinds read examples and their labels, without TensorFlow: bad rows are named before it loads.

Which number a label has in training is told by `label_numbers`; words have their own in
`kinds.tagging`. `Kind` and its subclasses extend these classes; `KindName.reader` makes one alone.
"""

import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from bert_tf.errors import InputError
from bert_tf.pipelines.examples import tagged_words
from bert_tf.pipelines.examples.cells import collection, whole
from bert_tf.pipelines.examples.squad import read_questions
from bert_tf.pipelines.examples.table import Examples, MissingColumnError, Table
from bert_tf.tasks.task import Task

SPACE = re.compile("[ \n]")  # between two words or labels of an example


def label_numbers(labels: Sequence[str]) -> dict[str, int]:
    """The number of each label. "1" and "1.0" are one label, unless both occur."""
    numbers = {label: number for number, label in enumerate(labels)}
    for label, number in list(numbers.items()):
        numbers.setdefault(whole(label), number)
        if whole(f"{label}.0") == label:
            numbers.setdefault(f"{label}.0", number)
    return numbers


def spelt_twice(labels: Sequence[str]) -> dict[str, str]:
    """Labels that differ from a more frequent one in case, white space around, or ".0" alone."""
    counts = Counter(labels)
    alike: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        alike[whole(label.strip().lower())].append(label)
    spellings: dict[str, str] = {}
    for group in alike.values():
        best = max(group, key=lambda label: (counts[label], label)).strip()
        spellings |= {label: best for label in group if label != best and len(group) > 1}
    return spellings


class Reader:
    """Reads texts with a label each, which is any text."""

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The reader with other `settings`; None keeps a value, and other keys are ignored."""
        if not is_dataclass(self):
            return self
        names = (field.name for field in fields(self))
        return replace(self, **{n: settings[n] for n in names if settings.get(n) is not None})

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        """Reads examples from columns, role -> name; unlabelled ones if there is no "label".

        Raises InputError, which names the row, if a cell cannot be used.
        """
        examples = table.examples(columns)
        for index, label in enumerate(examples.columns.get("label", ())):
            if not label.strip():
                raise MissingColumnError(
                    f"{examples.location(index)}: the label is blank; give the example a label or "
                    "remove the line"
                )
        return examples

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        """The labels of a new model: the task's, or all labels of the training examples, sorted."""
        return []

    def label_faults(self, examples: Examples, labels: Sequence[str]) -> dict[int, InputError]:
        """Why examples have no target for a model of these labels, by index."""
        return {}


class ClassReader(Reader):
    """Reads texts with one label each."""

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        labels = list(task.labels) or sorted(set(examples.columns["label"]))
        if len(labels) < 2:
            raise InputError(
                f"{examples.path} has one label only, {labels[0]!r}: give examples of two or more"
            )
        return labels

    def label_faults(self, examples: Examples, labels: Sequence[str]) -> dict[int, InputError]:
        known = label_numbers(labels)
        return {
            index: InputError(
                f"{examples.location(index)}: the label {label!r} is not one of the model's "
                f"({', '.join(labels)}); correct or remove the line"
            )
            for index, label in enumerate(examples.columns["label"])
            if label not in known
        }


class NumberReader(Reader):
    """Reads texts with a number each."""

    what: ClassVar[str] = "label"
    cure: ClassVar[str] = "give --task classification"

    def label_faults(self, examples: Examples, labels: Sequence[str]) -> dict[int, InputError]:
        return {
            index: InputError(
                f"{examples.location(index)}: the {self.what} {text!r} is not a number; correct "
                f"the line, or {self.cure}"
            )
            for index, text in enumerate(examples.columns["label"])
            if not math.isfinite(number_in(text))
        }


class ScoreReader(NumberReader):
    """Reads pairs of texts with a score each."""

    what = "score"
    cure = "learn from pairs without scores (--embedding_loss infonce)"


def number_in(text: str) -> float:
    """The number that a text is, as float32; NaN if it is none, as 1_000, which Python reads."""
    try:
        with np.errstate(over="ignore"):
            return float(np.float32("" if "_" in text else text))
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class LabelSetReader(Reader):
    """Reads texts with any number of labels each: one string, with the separator between them."""

    label_separator: str = ","

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        """Reads labels from one column, or a column of 0 and 1 for each; a JSON list is taken."""
        texts = {role: name for role, name in columns.items() if role != "label"}
        examples = table.examples(texts)
        if "label" not in columns:
            return examples
        names = label_columns(columns["label"])
        roles = [f"--label_column {name}" for name in names] if len(names) > 1 else ["labels"]
        cells_of = [table.column(role, name) for role, name in zip(roles, names, strict=True)]
        joined = []
        lists = []
        for index, row in enumerate(zip(*cells_of, strict=True)):
            location = examples.location(index)
            cells: list[Any] = [
                [table.text(index, "label", name, x) for x in cell]
                if isinstance(cell, list)
                else table.text(index, "label", name, cell)
                for name, cell in zip(names, row, strict=True)
            ]
            if len(names) > 1:
                labels = _marked(names, cells, location)
            else:
                labels = _listed(cells[0], location)
                lists.append(labels if isinstance(labels, list) else [])
            joined.append(self.joined(labels, location))
        if lists and all(len(x) == len(lists[0]) > 1 and {*x} <= {"0", "1"} for x in lists):
            raise InputError(
                f"{examples.path}: the labels are {len(lists[0])} marks of 0 and 1 without "
                "names; write the names of the labels, or a column for each (--label_column a,b)"
            )
        examples.columns["label"] = joined
        return examples

    def joined(self, labels: str | Collection[str], location: str) -> str:
        """An example's labels, a string as in a file or their names, as one string."""
        if isinstance(labels, str):
            return self.label_separator.join(sorted(set(self.parts(labels))))
        names = {label.strip() for label in labels}
        if odd := [name for name in sorted(names) if not name or self.label_separator in name]:
            raise InputError(
                f"{location}: the label {odd[0]!r} is empty or has the separator "
                f"{self.label_separator!r} in it: rename it, or give another --label_separator"
            )
        return self.label_separator.join(sorted(names))

    def parts(self, text: str) -> list[str]:
        return [part.strip() for part in text.split(self.label_separator) if part.strip()]

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        labels = {label for text in examples.columns["label"] for label in self.parts(text)}
        if not labels:
            raise InputError(f"{examples.path}: no example has a label; give some that have")
        return list(task.labels) or sorted(labels)

    def label_faults(self, examples: Examples, labels: Sequence[str]) -> dict[int, InputError]:
        known = label_numbers(labels)
        faults = {}
        for index, text in enumerate(examples.columns["label"]):
            for label in self.parts(text):
                if label not in known:
                    faults[index] = InputError(
                        f"{examples.location(index)}: the label {label!r} is not one of the "
                        f"model's ({', '.join(labels)}); correct or remove it, or, if it is "
                        f"several, give their --label_separator (now {self.label_separator!r})"
                    )
        return faults


def label_columns(column: str) -> list[str]:
    """The column of labels, or the column of each label: their names, with commas between."""
    return [name.strip() for name in column.split(",") if name.strip()] or [column]


def _listed(labels: Any, location: str) -> Any:
    """The items of a list or set, as data frames write it into a cell; else the labels."""
    items = collection(labels, location)
    if isinstance(items, dict):
        raise InputError(f"{location}: the labels {labels:.40} are a dict; write a list of names")
    if isinstance(items, str):
        return items
    if odd := [item for item in items if not isinstance(item, str | int | float)]:
        what = "a missing label" if odd[0] is None else f"{odd[0]!r:.40}"
        raise InputError(f"{location}: the labels {labels:.40} hold {what}; write a list of names")
    return [str(item) for item in items]


def _marked(names: Sequence[str], cells: Sequence[str], location: str) -> list[str]:
    """The labels whose columns have a 1."""
    values = {"1": True, "0": False, "true": True, "false": False}
    labels = []
    for name, cell in zip(names, cells, strict=True):
        number = cell.strip().lower().removesuffix(".0")
        if number not in values:
            raise InputError(f"{location}: {name} is {cell!r}; give 1 if it has the label, else 0")
        labels += [name] * values[number]
    return labels


@dataclass(frozen=True)
class ChoiceReader(Reader):
    """Reads contexts with several texts each, and the number of the right one."""

    opening: str | None = None  # column of a text that every choice of the example begins with

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        roles = {"context": columns["text"], "choices": columns.get("text_pair", "choices*")}
        if "label" in columns:
            roles["label"] = columns["label"]
        examples = table.examples(roles)
        rows = examples.columns["choices"]
        for index, choices in enumerate(rows):
            if len(choices) < 2 or len(choices) != len(rows[0]):
                raise InputError(
                    f"{examples.location(index)}: {len(choices)} choices where {examples.row(0)} "
                    f"has {len(rows[0])}; give all examples the same number, 2 or more"
                )
            empty = [number for number, choice in enumerate(choices) if not choice.strip()]
            if empty:
                raise InputError(
                    f"{examples.location(index)}: choice {empty[0]} is empty; fill it in or remove "
                    "the line"
                )
        openings = [] if self.opening is None else table.texts("opening", self.opening)
        for index, opening in enumerate(openings):
            rows[index] = [f"{opening} {choice}".strip() for choice in rows[index]]
        return examples

    def label_faults(self, examples: Examples, labels: Sequence[str]) -> dict[int, InputError]:
        number = len(examples.columns["choices"][0])
        return {
            index: InputError(
                f"{examples.location(index)}: the label {label!r} is no choice; give a number from "
                f"0 to {number - 1}"
            )
            for index, label in enumerate(examples.columns["label"])
            if choice_in(label, number) is None
        }


def choice_in(label: str, number: int) -> int | None:
    """The choice, counted from 0 or called A, B, C, that a label names; None if there is none."""
    label = whole(label)
    letters = string.ascii_uppercase[:number]
    if len(label) == 1 and label in letters:
        return letters.index(label)
    return int(label) if label.isdecimal() and int(label) < number else None


@dataclass(frozen=True)
class QuestionReader(Reader):
    """Reads questions about a context, and their answers."""

    unanswerable: bool = False  # whether a question may have no answer

    first_input: ClassVar[str] = "question"

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        return read_questions(table, labelled="label" in columns, unanswerable=self.unanswerable)


@dataclass(frozen=True)
class EntityReader(Reader):
    """Reads words with labels of entities."""

    documents: bool = False  # an example is a document of a column file, instead of a sentence

    first_input: ClassVar[str] = "words"
    are_entities: ClassVar[bool] = True  # whether labels name entities; else any tags

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        """Reads words and labels; without labels also raw text, as column "text"."""
        return tagged_words.read_words(
            table, columns, entities=self.are_entities, documents=self.documents
        )

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        """The task's labels, or O and both labels of every type in the training examples."""
        labels = {label for text in examples.columns["label"] for label in SPACE.split(text)}
        types = sorted({label[2:] for label in labels - {"O"}})
        if not types:
            raise InputError(f"{examples.path}: every label is O; give examples with entities")
        return list(task.labels) or ["O", *(f"{p}-{type_}" for type_ in types for p in "BI")]

    def known(self, label: str, labels: Collection[str]) -> str | None:
        """The label among a model's that stands for one of an example, if any."""
        if label not in labels and self.are_entities:  # a model may know IOB1 or IO only
            label = f"I{label[1:]}"
        return label if label in labels else None

    def label_faults(self, examples: Examples, labels: Sequence[str]) -> dict[int, InputError]:
        faults = {}
        known = {*labels}
        for index, text in enumerate(examples.columns["label"]):
            row = SPACE.split(text)
            if odd := [n for n, label in enumerate(row) if self.known(label, known) is None]:
                word = SPACE.split(examples.columns["words"][index])[odd[0]]
                faults[index] = InputError(
                    f"{examples.location(index)}: the word {word!r} has the label {row[odd[0]]!r}, "
                    f"which is not one of the model's ({', '.join(labels)}); correct or remove it"
                )
        return faults


class TagReader(EntityReader):
    """Reads words with any labels."""

    are_entities = False

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        texts = examples.columns["label"]
        labels = sorted({label for text in texts for label in SPACE.split(text)})
        if len(labels) < 2:
            raise InputError(f"{examples.path}: every label is {labels[0]}; give two or more")
        return list(task.labels) or labels


@dataclass(frozen=True)
class PairReader(Reader):
    """Reads pairs of texts to be compared, or texts alone."""

    embedding_loss: str = "infonce"
    negatives: str | None = None  # column of texts that are wrong answers; "negative*" for several

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        """Reads pairs; scores, and second texts for "simcse", where the table has them."""
        labelled = "label" in columns
        roles = dict(columns)
        optional = ["label", "text_pair"]
        if labelled:
            required = {"infonce": ["text_pair"], "simcse": []}.get(self.embedding_loss, optional)
            optional = [role for role in optional if role not in required]
        for role in optional:
            if role in roles and not table.has(roles[role]):
                del roles[role]
        if labelled and self.negatives is not None:
            roles["negatives"] = self.negatives
        examples = table.examples(roles)
        texts = examples.columns
        if labelled:
            texts.setdefault("text_pair", texts["text"])  # its own pair
        if "negatives" in texts:
            wrong = [[x] if isinstance(x, str) else x for x in texts["negatives"]]
            for index, answers in enumerate(wrong):
                if len(answers) != len(wrong[0]):
                    raise InputError(
                        f"{examples.location(index)}: {len(answers)} wrong answers where "
                        f"{examples.row(0)} has {len(wrong[0])}; give all the same number"
                    )
            texts["negatives"] = wrong
        return examples
