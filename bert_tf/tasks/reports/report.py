"""Reports of `evaluate` beside the scores: tables and pictures, in files and in TensorBoard.

Pictures are uint8 arrays [height, width, 3]. To draw one imports Matplotlib, which takes 0.25 s.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.files.atomic import replace_file, write_text, write_tsv
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.scoring.metrics import Counts
from bert_tf.training.logs import EventFolder

_BINS = 10  # of confidences
_WORST = 20  # errors to show
_LONGEST = 200  # characters of a cell

Cell = Any  # a text, a number, or None
Line = Sequence[tuple[float, Sequence[float]]]  # the values at each place x
_DIAGONAL: dict[str, Any] = {"color": "lightgray", "zorder": 0}
_MOST_NAMES = 32  # rows with a name each; of more only some have room
_MOST_COUNTS = 14  # rows whose counts are written into the cells


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
    counts = _counts(labels, truth, predicted)
    sums = map(Counts, counts.sum(axis=1), counts.sum(axis=0), counts.diagonal())
    each = dict(zip(labels, sums, strict=True))
    rows = [[label, *own.shares, own.gold, own.found] for label, own in each.items()]
    missing = ", ".join(label for label, own in each.items() if not own.gold)
    note = missing and f"no example has the label {missing}"
    columns = ["label", "precision", "recall", "f1", "examples", "predicted"]
    return ReportTable("classes", "Scores of each label", columns, rows, note, brief=True)


def calibration(confidence: np.ndarray, right: np.ndarray) -> Report:
    """Confidence [E] beside accuracy, and their expected difference (Guo et al., 2017)."""
    number = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    rows: list[list[Cell]] = []
    error = 0.0
    for place in range(_BINS):
        inside = number == place
        count, mean, share = int(inside.sum()), None, None
        if count:
            mean, share = float(np.mean(confidence[inside])), float(np.mean(right[inside]))
            error += count / len(right) * abs(mean - share)
        rows.append([f"{place / _BINS:.1f} to {(place + 1) / _BINS:.1f}", count, mean, share])
    note = f"expected calibration error {error:.4f} ({_BINS} bins)"
    columns = ["confidence", "examples", "mean confidence", "accuracy"]
    heights = [row[3] for row in rows]
    return [
        ReportTable("calibration", "Calibration", columns, rows, note),
        Picture("calibration", lambda: bars("Calibration", heights, "confidence", "accuracy")),
    ]


def worst(
    title: str,
    place: Callable[[int], str],
    badness: np.ndarray,
    wrong: np.ndarray,
    columns: Mapping[str, Sequence[Cell]],
) -> ReportTable:
    """The errors of the largest `badness` [E], with their places and further columns of E cells."""
    order = [index for index in np.argsort(-badness, kind="stable").tolist() if wrong[index]]
    rows = [[place(i), *(cells[i] for cells in columns.values())] for i in order[:_WORST]]
    return ReportTable("worst", title, ["place", *columns], rows, "" if rows else "no errors")


def classes_report(
    examples: Examples, labels: Sequence[str], truth: np.ndarray, probabilities: np.ndarray
) -> Report:
    """A report on answers that are classes, from the true ones [E] and probabilities [E, C]."""
    predicted, confidence = np.argmax(probabilities, -1), np.max(probabilities, -1)
    of_truth = np.take_along_axis(probabilities, truth[:, np.newaxis], -1)[:, 0]
    loss = -np.log(np.maximum(of_truth, np.finfo(np.float32).tiny))
    shown = {
        **{role: values for role, values in examples.columns.items() if role != "label"},
        "label": [labels[number] for number in truth],
        "predicted": [labels[number] for number in predicted],
        "probability": confidence,
        "loss": loss,
    }
    errors = worst("Errors with the highest loss", examples.place, loss, predicted != truth, shown)
    found = [*confusion(labels, truth, predicted), *calibration(confidence, predicted == truth)]
    return [per_class(labels, truth, predicted), *found, errors]


def write_report(report: Report, folder: Path) -> None:
    """Writes report.md, a TSV for each table, a PNG for each picture, and TensorBoard's events."""
    lines = ["# Evaluation"]
    with EventFolder(folder).at(0):
        for part in report:
            if isinstance(part, Picture):
                lines.append(f"![{part.name}]({part.name}.png)")
                image = part.draw()
                save_png(folder / f"{part.name}.png", image)
                tf.summary.image(part.name, image[np.newaxis])
            else:
                table = markdown([part.columns, *part.texts()])
                lines += [f"## {part.title}", *filter(None, [part.note]), table]
                write_tsv(folder / f"{part.name}.tsv", [part.columns, *part.texts()])
                tf.summary.text(part.name, table)
    write_text(folder / "report.md", "\n\n".join(lines) + "\n")


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


def heat_map(title: str, names: Sequence[str], counts: np.ndarray) -> np.ndarray:
    """Counts [N, N] by true (row) and predicted class, each coloured by its share of the row."""
    figure, axes = _axes(title, "predicted", "true")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(0, len(names), 1 + len(names) // _MOST_NAMES)
    shown = [names[place][:14] for place in places]
    axes.set_xticks(places, shown, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(places, shown)
    if len(names) <= _MOST_COUNTS:
        for row, column in np.argwhere(counts):
            ink = "white" if shares[row, column] > 0.6 else "black"
            axes.text(column, row, counts[row, column], color=ink, ha="center", va="center")
    return _drawn(figure)


def scatter(title: str, x: np.ndarray, y: np.ndarray, x_title: str, y_title: str) -> np.ndarray:
    """A point for each pair of values, on axes of the same scale with their diagonal."""
    figure, axes = _axes(title, x_title, y_title)
    axes.scatter(x, y, facecolors="none", edgecolors="C0")
    axes.axline((0, 0), slope=1, **_DIAGONAL)
    axes.set_aspect("equal", "datalim")
    return _drawn(figure)


def bars(title: str, heights: Sequence[float | None], x_title: str, y_title: str) -> np.ndarray:
    """Bars of equal width over the range from 0 to 1, with the diagonal; None leaves a gap."""
    figure, axes = _axes(title, x_title, y_title)
    width = 1 / len(heights)
    known = [place for place, height in enumerate(heights) if height is not None]
    axes.bar([(x + 0.5) * width for x in known], [heights[x] for x in known], 0.9 * width)
    axes.axline((0, 0), slope=1, **_DIAGONAL)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return _drawn(figure)


def curves(title: str, series: Mapping[str, Line], x_title: str, y_title: str) -> np.ndarray:
    """Lines over a logarithmic axis, through the means of the values (hollow) at each place x."""
    figure, axes = _axes(title, x_title, y_title)
    for number, (name, line) in enumerate(series.items()):
        color = f"C{number}"
        places, values = zip(*sorted(line), strict=True)
        axes.plot(places, [np.mean(ys) for ys in values], "o-", color=color, label=name)
        each = [(x, y) for x, ys in line for y in ys]
        axes.scatter(*zip(*each, strict=True), facecolors="none", edgecolors=color)
    axes.set_xscale("log")
    ticks = sorted({x for line in series.values() for x, _ in line})
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    if series:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return _drawn(figure)


def compared(
    title: str, names: Sequence[str], columns: Mapping[str, Sequence[Sequence[float]]]
) -> np.ndarray:
    """A panel for each score: mean, standard deviation, values (hollow), if any, of each name."""
    from matplotlib.figure import Figure

    size = (2.4 + 2.2 * len(columns), 1.4 + 0.36 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, (column, rows) in zip(panels, columns.items(), strict=True):
        for place, values in enumerate(rows):
            if values:
                deviation = np.std(values, ddof=1) if len(values) > 1 else None
                axes.errorbar(
                    np.mean(values), place, xerr=deviation, fmt="o", color="C0", capsize=4
                )
                axes.scatter(
                    values, [place] * len(values), facecolors="none", edgecolors="C1", zorder=3
                )
        axes.set(title=column, yticks=range(len(names)), yticklabels=names)
        axes.grid(axis="y", color="lightgray")
    panels[0].invert_yaxis()
    return _drawn(figure)


def png(picture: np.ndarray) -> bytes:
    import matplotlib.image

    content = io.BytesIO()
    matplotlib.image.imsave(content, picture, format="png")
    return content.getvalue()


def save_png(path: Path, picture: np.ndarray) -> None:
    with replace_file(path) as temporary:
        temporary.write_bytes(png(picture))


def _axes(title: str, x_title: str, y_title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    # Without pyplot, which would keep the figures and choose a display.
    figure = Figure(figsize=(6.4, 5), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x_title, ylabel=y_title)
    return figure, axes


def _drawn(figure: Any) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        # A character that Matplotlib's font lacks is drawn as a box; the tables have it.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
