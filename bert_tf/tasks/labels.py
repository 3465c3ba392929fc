"""Labels as they stand in a file: which number each has in training, and blank ones.

The labels of words are numbered in `kinds.tagging`.
"""

from collections.abc import Sequence

from bert_tf.pipelines.examples.cells import whole
from bert_tf.pipelines.examples.table import MissingColumnError


def label_numbers(labels: Sequence[str]) -> dict[str, int]:
    """The number of each label. "1" and "1.0" are one label, unless both occur."""
    numbers = {label: number for number, label in enumerate(labels)}
    for label, number in list(numbers.items()):
        numbers.setdefault(whole(label), number)
        if whole(f"{label}.0") == label:
            numbers.setdefault(f"{label}.0", number)
    return numbers


def blank_label(location: str) -> MissingColumnError:
    """The error for an example without a label; `location` is its file and line."""
    return MissingColumnError(
        f"{location}: the label is blank; give the example a label or remove the line"
    )
