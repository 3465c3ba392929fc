"""Takes the pictures of docs/playground.md from a server's models `sentiment`, `entities`, `words`.

python docs/playground_pictures.py http://127.0.0.1:8501
"""

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "processes"))
from chromium import run_chromium
from playwright.sync_api import Browser

DOCS = Path(__file__).parent


def take(
    browser: Browser,
    url: str,
    name: str,
    text: str,
    head: tuple[int, int] | None = None,
    **settings: Any,
) -> None:
    """Writes docs/playground-NAME.png, of few colors and so small.

    The model at the URL answers the text. For a head, its attention is opened.
    """
    page = browser.new_page(**settings)
    page.goto(url)
    page.fill("#inputs textarea", text)
    if head is not None:
        page.click("#attention summary")
    for _ in range(2):  # the first request of a server takes longer
        page.evaluate("document.querySelector('#attention-body').replaceChildren()")
        page.evaluate("document.querySelector('#status').textContent = ''")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#status:text-matches('^Answered')")
        if head is not None:
            page.wait_for_selector("canvas.matrix")
    if head is not None:
        page.select_option("#attention-layer", index=head[0] - 1)
        page.select_option("#attention-head", index=head[1] - 1)
        page.hover(".pieces li:nth-child(5) button")
    page.evaluate("document.activeElement.blur()")
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    path = DOCS / f"playground-{name}.png"
    image.quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {image.width} x {image.height}, {path.stat().st_size / 1024:.0f} kB")


def main(server: str) -> None:
    """Takes all pictures from a server's models `sentiment`, `entities` and `words`."""
    sentiment, entities, words = (
        f"{server}/#model={model}" for model in ("sentiment", "entities", "words")
    )
    review = "A stirring, funny and finally moving film."
    names = "Angela Merkel met Barack Obama in Berlin before the NATO summit."
    masks = "The function returns a [MASK] of the model's [MASK]."
    desktop = {"viewport": {"width": 860, "height": 600}, "device_scale_factor": 1.5}
    phone = {"viewport": {"width": 360, "height": 700}, "device_scale_factor": 2, "is_mobile": True}
    with run_chromium() as browser:
        take(browser, sentiment, "attention", review, (3, 3), **desktop)
        take(browser, entities, "entities", names, **desktop)
        take(browser, words, "words-dark", masks, color_scheme="dark", **desktop)
        take(browser, entities, "phone", names, color_scheme="dark", **phone)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
