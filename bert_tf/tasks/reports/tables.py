"""The parts of reports: tables and pictures of classes, their confidence and the worst errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.reports.pictures import bars, heat_map
from bert_tf.tasks.scoring.metrics import count_classes

_BINS = 10  # of confidences
_WORST = 20  # errors to show
_LONGEST = 200  # characters of a cell

Cell = Any  # a text, a number, or None


@dataclass(frozen=True)
class ReportTable:
    name: str  # of its file, without extension
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # summary of the table, a sentence
    brief: bool = False  # whether the terminal shows the table, too

    def texts(self) -> list[list[str]]:
        """The cells as text: four decimals, "-" for an undefined value."""
        return [[_text(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Picture:
    name: str  # of its file, without extension
    draw: Callable[[], np.ndarray]  # called when the picture is wanted


Report = list[ReportTable | Picture]


def confusion(labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> Report:
    """Counts of predicted classes by true class; `truth` and `predicted` are numbers, int [E]."""
    counts = _counts(labels, truth, predicted)
    rows = [[label, *row] for label, row in zip(labels, counts.tolist(), strict=True)]
    title = "Confusion matrix: a row for each true label, a column for each predicted one"
    return [
        ReportTable("confusion", title, ["true", *labels], rows),
        Picture("confusion", lambda: heat_map("Confusion matrix", labels, counts)),
    ]


def _counts(labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    counts = np.zeros((len(labels), len(labels)), int)
    np.add.at(counts, (truth, predicted), 1)
    return counts


def per_class(labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> ReportTable:
    """Precision (undefined if never predicted), recall (without examples) and F1 by class."""
    counted = count_classes(labels, truth, predicted)
    rows = [[label, *x.shares, x.gold, x.predicted] for label, x in counted.items()]
    missing = ", ".join(label for label, x in counted.items() if not x.gold)
    note = missing and f"no example has the label {missing}"
    columns = ["label", "precision", "recall", "f1", "examples", "predicted"]
    return ReportTable("classes", "Scores of each label", columns, rows, note, brief=True)


def calibration(confidence: np.ndarray, right: np.ndarray) -> Report:
    """Confidence [E] beside accuracy, and their expected difference (Guo et al., 2017)."""
    number = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    rows: list[list[Cell]] = []
    error = 0.0
    for bin_ in range(_BINS):
        inside = number == bin_
        count = int(inside.sum())
        mean = None
        share = None
        if count:
            mean = float(np.mean(confidence[inside]))
            share = float(np.mean(right[inside]))
            error += count / len(right) * abs(mean - share)
        rows.append([f"{bin_ / _BINS:.1f} to {(bin_ + 1) / _BINS:.1f}", count, mean, share])
    note = f"expected calibration error {error:.4f} ({_BINS} bins)"
    columns = ["confidence", "examples", "mean confidence", "accuracy"]
    heights = [row[3] for row in rows]
    return [
        ReportTable("calibration", "Calibration", columns, rows, note),
        Picture("calibration", lambda: bars("Calibration", heights, "confidence", "accuracy")),
    ]


def worst(
    title: str,
    location: Callable[[int], str],
    badness: np.ndarray,
    wrong: np.ndarray,
    columns: Mapping[str, Sequence[Cell]],
) -> ReportTable:
    """The errors of the largest `badness` [E], each with its location and further cells."""
    order = [index for index in np.argsort(-badness, kind="stable").tolist() if wrong[index]]
    rows = [[location(i), *(cells[i] for cells in columns.values())] for i in order[:_WORST]]
    return ReportTable("worst", title, ["place", *columns], rows, "" if rows else "no errors")


def classes_report(
    examples: Examples, labels: Sequence[str], truth: np.ndarray, probabilities: np.ndarray
) -> Report:
    """A report on answers that are classes, from the true ones [E] and probabilities [E, C]."""
    predicted = np.argmax(probabilities, -1)
    confidence = np.max(probabilities, -1)
    true_shares = np.take_along_axis(probabilities, truth[:, np.newaxis], -1)[:, 0]
    loss = -np.log(np.maximum(true_shares, np.finfo(np.float32).tiny))
    shown = {
        **{role: values for role, values in examples.columns.items() if role != "label"},
        "label": [labels[number] for number in truth],
        "predicted": [labels[number] for number in predicted],
        "probability": confidence,
        "loss": loss,
    }
    errors = worst(
        "Errors with the highest loss", examples.location, loss, predicted != truth, shown
    )
    parts = [*confusion(labels, truth, predicted), *calibration(confidence, predicted == truth)]
    return [per_class(labels, truth, predicted), *parts, errors]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown, its columns aligned for a terminal; the first row names them."""
    cells = [[cell.replace("|", "&#124;") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(cell: Cell) -> str:
    if isinstance(cell, float | np.floating):
        return f"{cell:.4f}" if np.isfinite(cell) else "-"
    if cell is None:
        return "-"
    text = " ".join(str(cell).split())  # no tab or line end
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
