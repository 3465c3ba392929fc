"""SVG pictures for pages: text as text, places to a tenth of a pixel, so that they load quickly."""

import io
import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure


def save_svg(figure: Figure, path: str | Path) -> None:
    """Writes a picture that is the same, byte for byte, for the same figure."""
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": Path(path).stem, "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    short = re.sub(r"(\d+\.\d)\d+", r"\1", drawn.getvalue())
    partial = Path(path).with_suffix(".tmp")
    partial.write_text(re.sub(r" *\n *", "\n", short), encoding="utf-8")
    partial.rename(path)
