"""Pictures of reports: uint8 arrays [height, width, 3].

To draw one imports Matplotlib, which takes 0.25 s.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.files.atomic import replace_file

Line = Sequence[tuple[float, Sequence[float]]]  # the values at each place x
_DIAGONAL: dict[str, Any] = {"color": "lightgray", "zorder": 0}
_MOST_NAMES = 32  # rows with a name each; of more only some have room
_MOST_COUNTS = 14  # rows whose counts are written into the cells


def heat_map(title: str, names: Sequence[str], counts: np.ndarray) -> np.ndarray:
    """Counts [N, N] by true (row) and predicted class, each coloured by its share of the row."""
    figure, axes = _axes(title, "predicted", "true")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(0, len(names), 1 + len(names) // _MOST_NAMES)
    shown = [names[tick][:14] for tick in ticks]
    axes.set_xticks(ticks, shown, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(ticks, shown)
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
    known = [number for number, height in enumerate(heights) if height is not None]
    axes.bar([(x + 0.5) * width for x in known], [heights[x] for x in known], 0.9 * width)
    axes.axline((0, 0), slope=1, **_DIAGONAL)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return _drawn(figure)


def curves(title: str, series: Mapping[str, Line], x_title: str, y_title: str) -> np.ndarray:
    """Lines over a logarithmic axis, through the means of the values (hollow) at each place x."""
    figure, axes = _axes(title, x_title, y_title)
    for number, (name, line) in enumerate(series.items()):
        color = f"C{number}"
        xs, values = zip(*sorted(line), strict=True)
        axes.plot(xs, [np.mean(ys) for ys in values], "o-", color=color, label=name)
        points = [(x, y) for x, ys in line for y in ys]
        axes.scatter(*zip(*points, strict=True), facecolors="none", edgecolors=color)
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
        for row, values in enumerate(rows):
            if values:
                deviation = np.std(values, ddof=1) if len(values) > 1 else None
                axes.errorbar(np.mean(values), row, xerr=deviation, fmt="o", color="C0", capsize=4)
                axes.scatter(
                    values, [row] * len(values), facecolors="none", edgecolors="C1", zorder=3
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
