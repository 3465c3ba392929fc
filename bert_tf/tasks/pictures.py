"""Pictures of results, drawn by Pillow: uint8 arrays [height, width, 3]."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bert_tf.atomic import replace_file

_INK, _PALE, _BLUE = (32, 33, 36), (218, 220, 224), (26, 115, 232)
_COLORS = (_BLUE, (214, 39, 40), (44, 160, 44), (148, 103, 189), (255, 127, 14), (23, 190, 207))
_MARGIN = 120  # pixels on the left and below, for titles and ticks
_TOP = 40
_PLOT = 400  # pixels of a side of the plot
_LEGEND = 160  # pixels on the right, for names of lines
_CELLS = 32  # rows with a name each; of more only some have room
_FONT, _SMALL = ImageFont.load_default(15), ImageFont.load_default(12)


def heat_map(
    title: str,
    names: Sequence[str],
    counts: np.ndarray,
    *,
    rows: str,
    columns: str,
) -> np.ndarray:
    """A matrix of counts, each coloured by its share of the row.

    Args:
        title: title of the picture.
        names: names of the rows, and of the columns.
        counts: [N, N].
        rows: title of the rows.
        columns: title of the columns.
    """
    image, draw = _canvas(title, columns, rows)
    # The font has no glyphs beyond Latin: other names become the numbers of their rows.
    short = [n[:14] if n[:14].isascii() else f"#{i}" for i, n in enumerate(names)]
    size = _PLOT / len(names)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for row, column in np.ndindex(*counts.shape):
        share = shares[row, column]
        color = tuple(round(255 + share * (end - 255)) for end in _BLUE)
        left, top = _MARGIN + column * size, _TOP + row * size
        draw.rectangle([left, top, left + size - 1, top + size - 1], fill=color)
        if size >= 28 and counts[row, column]:
            ink = "white" if share > 0.6 else _INK
            text = str(counts[row, column])
            draw.text((left + size / 2, top + size / 2), text, ink, _SMALL, anchor="mm")
    for number in range(0, len(names), 1 + len(names) // _CELLS):
        place = (number + 0.5) * size
        draw.text((_MARGIN - 6, _TOP + place), short[number], _INK, _SMALL, anchor="rm")
        if size >= 28:
            below = (_MARGIN + place, _TOP + _PLOT + 6)
            draw.text(below, short[number][: int(size // 7)], _INK, _SMALL, anchor="mt")
    return np.asarray(image)


def scatter(title: str, x: np.ndarray, y: np.ndarray, x_title: str, y_title: str) -> np.ndarray:
    """A point for each pair of values, on axes of the same scale with their diagonal."""
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    high = high if high > low else low + 1
    image, draw = _canvas(title, x_title, y_title)
    place = _axes(draw, (low, high), (low, high))
    draw.line([place(low, low), place(high, high)], fill=_PALE)
    for one, other in zip(x, y, strict=True):
        across, up = place(float(one), float(other))
        draw.ellipse([across - 3, up - 3, across + 3, up + 3], outline=_BLUE)
    return np.asarray(image)


def bars(title: str, heights: Sequence[float | None], x_title: str, y_title: str) -> np.ndarray:
    """Bars of equal width over the range from 0 to 1, with the diagonal; None leaves a gap."""
    image, draw = _canvas(title, x_title, y_title)
    place = _axes(draw, (0, 1), (0, 1))
    draw.line([place(0, 0), place(1, 1)], fill=_PALE)
    width = 1 / len(heights)
    for number, height in enumerate(heights):
        if height is not None:
            left, top = place(number * width, height)
            right, bottom = place((number + 1) * width, 0)
            draw.rectangle([left + 3, top, right - 3, bottom], outline=_BLUE, width=2)
    return np.asarray(image)


def curves(
    title: str,
    series: Mapping[str, Sequence[tuple[float, Sequence[float]]]],
    x_title: str,
    y_title: str,
) -> np.ndarray:
    """Lines over a logarithmic axis, through the means of the values at each place.

    Args:
        title: title of the picture.
        series: name -> points: x, and the values there, which are drawn as hollow circles.
        x_title: title of the horizontal axis.
        y_title: title of the vertical axis.
    """
    image, draw = _canvas(title, x_title, y_title, right=_LEGEND)
    points = [point for line in series.values() for point in line]
    ticks = {math.log10(x): f"{x:g}" for x, _ in sorted(points)}
    place = _axes(draw, _around(ticks), _around(y for _, ys in points for y in ys), ticks)
    for number, (name, line) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        means = [place(math.log10(x), sum(ys) / len(ys)) for x, ys in sorted(line)]
        draw.line(means, fill=color, width=2)
        for x, y in means:
            draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=color)
        for x, y in (place(math.log10(x), y) for x, ys in line for y in ys):
            draw.ellipse([x - 3, y - 3, x + 3, y + 3], outline=color)
        left, middle = _MARGIN + _PLOT + 20, _TOP + 10 + 18 * number
        draw.line([left, middle, left + 20, middle], fill=color, width=2)
        draw.text((left + 26, middle), name, _INK, _SMALL, anchor="lm")
    return np.asarray(image)


def save_png(path: Path, picture: np.ndarray) -> None:
    """Writes a picture as a file."""
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "PNG")
    with replace_file(path) as temporary:
        temporary.write_bytes(content.getvalue())


def _canvas(
    title: str, x_title: str, y_title: str, right: int = 24
) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (_MARGIN + _PLOT + right, _TOP + _PLOT + 60), "white")
    draw = ImageDraw.Draw(image)
    middle = _MARGIN + _PLOT / 2
    draw.text((middle, 12), title, _INK, _FONT, anchor="mt")
    draw.text((middle, _TOP + _PLOT + 34), x_title, _INK, _FONT, anchor="mt")
    upright = Image.new("L", (_PLOT, 20))
    ImageDraw.Draw(upright).text((_PLOT / 2, 2), y_title, 255, _FONT, anchor="mt")
    image.paste(_INK, (2, _TOP), upright.rotate(90, expand=True))
    return image, draw


def _around(values: Iterable[float]) -> tuple[float, float]:
    """The range of the values, with a margin of a tenth; from 0 to 1 without values."""
    known = list(values) or [0.0, 1.0]
    margin = 0.1 * (max(known) - min(known)) or 0.05 * abs(known[0]) or 0.5
    return min(known) - margin, max(known) + margin


def _axes(
    draw: ImageDraw.ImageDraw,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    x_ticks: Mapping[float, str] | None = None,
) -> Callable[[float, float], tuple[float, float]]:
    """Draws both axes; returns (x, y) -> pixels. By default both have ticks at equal distances."""
    (first, last), (low, high) = x_range, y_range

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (x - first) / (last - first), (y - low) / (high - low)
        return _MARGIN + _PLOT * across, _TOP + _PLOT * (1 - up)

    draw.rectangle([*place(first, high), *place(last, low)], outline=_PALE)
    if x_ticks is None:
        x_ticks = {float(tick): f"{tick:.3g}" for tick in np.linspace(first, last, 6)}
    for tick, text in x_ticks.items():
        x, y = place(tick, low)
        draw.text((x, y + 6), text, _INK, _SMALL, anchor="mt")
    for tick in np.linspace(low, high, 6):
        x, y = place(first, float(tick))
        draw.text((x - 6, y), f"{tick:.3g}", _INK, _SMALL, anchor="rm")
    return place
