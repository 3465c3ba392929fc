"""Pictures of results, drawn by Pillow: uint8 arrays [height, width, 3]."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_INK, _PALE, _BLUE = (32, 33, 36), (218, 220, 224), (26, 115, 232)
_MARGIN = 120  # pixels on the left and below, for titles and ticks
_TOP = 40
_PLOT = 400  # pixels of a side of the plot
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
    image, draw = _canvas(title, x_title, y_title)
    place = _axes(draw, low, high if high > low else low + 1)
    for one, other in zip(x, y, strict=True):
        across, up = place(float(one), float(other))
        draw.ellipse([across - 3, up - 3, across + 3, up + 3], outline=_BLUE)
    return np.asarray(image)


def bars(title: str, heights: Sequence[float | None], x_title: str, y_title: str) -> np.ndarray:
    """Bars of equal width over the range from 0 to 1, with the diagonal; None leaves a gap."""
    image, draw = _canvas(title, x_title, y_title)
    place = _axes(draw, 0.0, 1.0)
    width = 1 / len(heights)
    for number, height in enumerate(heights):
        if height is not None:
            left, top = place(number * width, height)
            right, bottom = place((number + 1) * width, 0)
            draw.rectangle([left + 3, top, right - 3, bottom], outline=_BLUE, width=2)
    return np.asarray(image)


def _canvas(title: str, x_title: str, y_title: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (_MARGIN + _PLOT + 24, _TOP + _PLOT + 60), "white")
    draw = ImageDraw.Draw(image)
    middle = _MARGIN + _PLOT / 2
    draw.text((middle, 12), title, _INK, _FONT, anchor="mt")
    draw.text((middle, _TOP + _PLOT + 34), x_title, _INK, _FONT, anchor="mt")
    upright = Image.new("L", (_PLOT, 20))
    ImageDraw.Draw(upright).text((_PLOT / 2, 2), y_title, 255, _FONT, anchor="mt")
    image.paste(_INK, (2, _TOP), upright.rotate(90, expand=True))
    return image, draw


def _axes(draw: ImageDraw.ImageDraw, low: float, high: float):
    """Draws both axes from `low` to `high` and their diagonal; returns (x, y) -> pixels."""

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = ((value - low) / (high - low) * _PLOT for value in (x, y))
        return _MARGIN + across, _TOP + _PLOT - up

    draw.rectangle([*place(low, high), *place(high, low)], outline=_PALE)
    draw.line([place(low, low), place(high, high)], fill=_PALE)
    for tick in np.linspace(low, high, 6):
        left, below = place(low, float(tick)), place(float(tick), low)
        draw.text((left[0] - 6, left[1]), f"{tick:.3g}", _INK, _SMALL, anchor="rm")
        draw.text((below[0], below[1] + 6), f"{tick:.3g}", _INK, _SMALL, anchor="mt")
    return place
