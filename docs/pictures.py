"""Pictures and pages that take minutes to make, and are therefore kept in the repository.

  python docs/pictures.py notebooks         # executes notebooks/ into docs/notebooks/
  python docs/pictures.py speed             # docs/speed.svg, from tables of docs/benchmarks.md
  python docs/pictures.py tensorboard RUNS  # docs/tensorboard.png, of a folder of runs
  python docs/pictures.py card              # docs/card.png; docs/hooks.py writes titles on it

`make docs-pictures` does the first two. The others need Chromium on the PATH.
`docs/playground_pictures.py` takes those of the playground.
"""

import base64
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "notebooks"
_ROWS = 3  # of a table, or lines of a text, in the page of a notebook
# Links of a notebook, and those of its page.
_LINKS = {"](../docs/": "](../", "](../README": "](../../README", ".ipynb)": ".md)"}


def render_notebooks() -> None:
    """Executes each notebook in a folder of its own and writes it, with its pictures, as a page."""
    from nbconvert import MarkdownExporter

    made = Path(tempfile.mkdtemp(dir=ROOT / "docs"))
    try:
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            print(f"{path.name} ...", flush=True)
            notebook = nbformat.read(path, as_version=4)
            with tempfile.TemporaryDirectory() as folder:
                where = {"metadata": {"path": folder}}
                NotebookClient(notebook, timeout=1200, resources=where).execute()
            resources = {"unique_key": path.stem, "output_files_dir": "."}
            text, resources = MarkdownExporter().from_notebook_node(notebook, resources)
            for name, content in resources["outputs"].items():
                (made / name).write_bytes(content)
            for old, new in _LINKS.items():
                text = text.replace(old, new)
            # A machine's folders, and the times that its steps took.
            text = re.sub(r" - \d+m?s - \d+m?s/step", "", text.replace(sys.prefix, ".venv"))
            # Pictures of results are files, too.
            pictures = re.findall(r"data:image/png;base64,([^\"]+)", text)
            for number, encoded in enumerate(pictures, 1):
                name = f"{path.stem}_report_{number}.png"
                (made / name).write_bytes(base64.b64decode(encoded))
                text = text.replace(f"data:image/png;base64,{encoded}", name)
            lines = [line.rstrip() for line in _shortened(text).splitlines()]
            (made / f"{path.stem}.md").write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
        shutil.rmtree(PAGES, ignore_errors=True)
        made.rename(PAGES)
        PAGES.chmod(0o755)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"{PAGES.relative_to(ROOT)}: {len(list(PAGES.iterdir()))} files")


def _shortened(text: str) -> str:
    """The page with at most `_ROWS` rows of a table or a text, and the last step of each output."""
    for table in re.findall(r"<tbody>(.*?)</tbody>", text):
        rows = table.split("</tr>")[:-1]
        if len(rows) > _ROWS:
            more = f"<tr><td>... {len(rows) - _ROWS} more</td></tr>"
            text = text.replace(table, "".join(f"{row}</tr>" for row in rows[:_ROWS]) + more)
    for literal in re.findall(r'= """\n(.*?)"""', text, re.DOTALL):
        lines = literal.splitlines()
        if len(lines) > _ROWS:
            more = f"... {len(lines) - _ROWS} more lines"
            text = text.replace(literal, "\n".join([*lines[:_ROWS], more, ""]))
    return re.sub(r"(?:    step .*\n\s*?)+(    step .*\n)", r"\1", text)


# Of a table in docs/benchmarks.md: the section, what is shown, the peer, the row and the column of
# its number, and the column of ours; without one the number is the ratio, in brackets or alone.
SPEEDS = [
    (
        "Tokenizer",
        "Tokenizing",
        "Rust tokenizers",
        "`tokenizers`, `encode_batch` (with offsets)",
        2,
        "",
    ),
    ("Pre-training step", "Pre-training step, bfloat16", "KerasHub", "KerasHub", 2, ""),
    ("Pre-training step", "Pre-training step, bfloat16", "Hugging Face", "Hugging Face", 2, ""),
    (
        "A new user's first lines",
        "First epoch of fit",
        "KerasHub",
        "the epoch, processor time",
        2,
        "",
    ),
    ("Fine-tuning step", "Fine-tuning step, float32", "Hugging Face", "float32", 4, ""),
    ("Checkpoints", "Training blocked by a checkpoint", "Keras", "tiny, batch 64", 4, "3"),
]


def relative_times() -> list[tuple[str, str, float]]:
    """What is measured, beside whom, and the peer's time as a multiple of ours."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    found = []
    for section, what, peer, row, column, ours in SPEEDS:
        part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
        cells = next(
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in part.splitlines()
            if line.startswith(f"| {row} |")
        )
        number = _number(cells[column])
        found.append((what, peer, number / _number(cells[int(ours)]) if ours else number))
    return found


def _number(cell: str) -> float:
    """The number in brackets, or the first one: "1,852 (1.51)" is 1.51, "13 ms (13)" is 13."""
    ratio = re.search(r"\((\d+\.\d+)\)", cell) or re.search(r"([\d,.]+)", cell)
    assert ratio is not None, cell
    return float(ratio[1].replace(",", ""))


def draw_speed() -> None:
    """Draws how long peers take for the work that takes bert-tf 1."""
    times = relative_times()
    left, unit = 330, 38
    rows = []
    for number, (what, peer, ratio) in enumerate(times):
        y = 44 + 30 * number
        rows.append(
            f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{what}: {peer}</text>'
            f'<rect class="peer" x="{left}" y="{y}" width="{ratio * unit:.0f}" height="20" rx="3"/>'
            f'<text x="{left + ratio * unit + 6:.0f}" y="{y + 14}">{ratio:.1f}</text>'
        )
    height = 54 + 30 * len(times)
    to = ROOT / "docs" / "speed.svg"
    to.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" '
        'font-family="sans-serif" font-size="13" role="img">'
        "<title>Time of other libraries beside bert-tf</title><style>"
        "text{fill:#333}.peer{fill:#90a4ae}line{stroke:#3f51b5;stroke-width:2}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}line{stroke:#9fa8da}}</style>"
        f'<text x="{left + unit}" y="22" text-anchor="middle">bert-tf = 1</text>'
        f"{''.join(rows)}"
        f'<line x1="{left + unit}" y1="30" x2="{left + unit}" y2="{height - 8}"/></svg>\n',
        encoding="utf-8",
    )
    print(f"{to.relative_to(ROOT)}: {len(times)} bars")


def take(url: str, name: str, size: tuple[int, int], ready: str = "true") -> None:
    """Takes a picture of a page into docs/, of few colors, when the expression is true there."""
    sys.path.insert(0, str(ROOT / "tests" / "processes"))
    from chromium import run_chromium

    with run_chromium() as browser:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.goto(url)
        page.wait_for_function(ready)
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    to = ROOT / "docs" / name
    image.quantize(160, dither=Image.Dither.NONE).save(to, optimize=True)
    print(f"{to.relative_to(ROOT)}: {to.stat().st_size:,} bytes")


def take_card() -> None:
    """Takes the picture that a link to the site shows: its name, and the way of text."""
    flow = (ROOT / "docs" / "flow.svg").read_text(encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as page:
        page.write(
            "<meta charset='utf-8'><style>body{margin:60px;font-family:sans-serif;background:#fff}"
            "h1{font-size:72px;margin:0;color:#3f51b5}p{font-size:30px;color:#333}"
            "svg{width:1080px;height:auto}</style><h1>bert-tf</h1>"
            "<p>BERT for TensorFlow, from raw text to a SavedModel that takes raw strings</p>"
            f"{flow}"
        )
        page.flush()
        take(f"file://{page.name}", "card.png", (1200, 630))


def take_tensorboard(runs: str) -> None:
    """Takes a picture of TensorBoard's scalars of a folder of runs."""
    port = 6017
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", runs, "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(60):
            try:
                urllib.request.urlopen(url).close()
                break
            except OSError:  # it is still starting
                time.sleep(1)
        # The page does not say when its charts are drawn: wait for 15 seconds.
        close = "document.querySelector('.settings-button.checked')?.click()"
        losses = f"{url}?smoothing=0&tagFilter=loss#timeseries"
        take(losses, "tensorboard.png", (1280, 720), f"{close}, performance.now() > 15000")
    finally:
        server.terminate()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["notebooks"]:
            render_notebooks()
        case ["speed"]:
            draw_speed()
        case ["card"]:
            take_card()
        case ["tensorboard", runs]:
            take_tensorboard(runs)
        case _:
            raise SystemExit(__doc__)
