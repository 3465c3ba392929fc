"""Takes the pictures of docs/playground.md from a server's models `sentiment`, `entities`, `words`.

python docs/playground_pictures.py http://127.0.0.1:8501
"""

import io
import json
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "processes"))
from chromium import Chromium, Page

DOCS = Path(__file__).parent


def ask(page: Page, url: str, model: str, text: str, head: tuple[int, int] | None = None) -> None:
    """Runs a model on a text; opens a head's attention."""
    page.open(f"{url}/#model={model}", "document.querySelector('#inputs textarea') !== null")
    page.evaluate("document.querySelector('#inputs textarea').focus()")
    page.insert(text)
    if head is not None:
        page.click("#attention summary")
    for _ in range(2):  # the first request of a server takes longer
        page.evaluate("document.querySelector('#attention-body').replaceChildren()")
        page.evaluate("document.querySelector('#status').textContent = ''")
        page.press("Enter", control=True)
        page.wait("document.querySelector('#status').textContent.startsWith('Answered')")
        page.wait(f"{json.dumps(head is None)} || document.querySelector('canvas.matrix') !== null")
    if head is not None:
        page.select("#attention-layer", str(head[0] - 1))
        page.select("#attention-head", str(head[1] - 1))
        page.hover(".pieces li:nth-child(5) button")
    page.evaluate("document.activeElement.blur()")


def take(page: Page, name: str) -> None:
    """Writes docs/NAME.png, of few colors and so small."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = DOCS / f"{name}.png"
    image.quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {image.width} x {image.height}, {path.stat().st_size / 1024:.0f} kB")


def main(url: str) -> None:
    """Takes all pictures from a server's models `sentiment`, `entities` and `words`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(Path(profile))
        page = Page(browser)
        page.size(860, 600, 1.5)
        ask(page, url, "sentiment", "A stirring, funny and finally moving film.", (3, 3))
        take(page, "playground-attention")
        names = "Angela Merkel met Barack Obama in Berlin before the NATO summit."
        ask(page, url, "entities", names)
        take(page, "playground-entities")
        page.dark()
        ask(page, url, "words", "The function returns a [MASK] of the model's [MASK].")
        take(page, "playground-words-dark")
        page.size(360, 700, 2, phone=True)
        ask(page, url, "entities", names)
        take(page, "playground-phone")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
