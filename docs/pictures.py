"""Pictures and pages that take minutes to make, and are therefore kept in the repository.

  python docs/pictures.py notebooks           # executes notebooks/ into docs/notebooks/
  python docs/pictures.py tensorboard RUNS    # docs/tensorboard.png, of a folder of runs

`make docs-pictures` does the first. The second needs Chromium ($BERT_TF_CHROMIUM, or on the PATH).
`tests/serving/server/playground_pictures.py` takes those of the playground.
"""

import base64
import os
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

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "notebooks"
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
            lines = [line.rstrip() for line in text.splitlines()]
            (made / f"{path.stem}.md").write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
        shutil.rmtree(PAGES, ignore_errors=True)
        made.rename(PAGES)
        PAGES.chmod(0o755)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"{PAGES.relative_to(ROOT)}: {len(list(PAGES.iterdir()))} files")


def take_tensorboard(runs: str) -> None:
    """Takes a picture of TensorBoard's scalars of a folder of runs."""
    port, to = 6017, ROOT / "docs" / "tensorboard.png"
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
        with tempfile.TemporaryDirectory() as profile:
            chromium = os.environ.get("BERT_TF_CHROMIUM", "chromium")
            subprocess.run(
                [
                    chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                    "--disable-background-networking", "--hide-scrollbars",
                    f"--user-data-dir={profile}", "--window-size=1280,860",
                    "--virtual-time-budget=20000", f"--screenshot={to}", f"{url}#scalars",
                ],
                check=True, stderr=subprocess.DEVNULL,
            )  # fmt: skip
    finally:
        server.terminate()
    print(f"{to.relative_to(ROOT)}: {to.stat().st_size:,} bytes")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["notebooks"]:
            render_notebooks()
        case ["tensorboard", runs]:
            take_tensorboard(runs)
        case _:
            raise SystemExit(__doc__)
