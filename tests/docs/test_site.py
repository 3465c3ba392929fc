"""The site: it builds without a warning, and holds what it lists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from site_search import search_site

from bert_tf.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
URL = "https://bert-tf.example/docs/"


pytestmark = pytest.mark.slow

# What people type, and the page that one of the first three results is.
QUERIES = {
    "bert-tf index": "commands/bert-tf-index",
    "class imbalance": "how-do-i",
    "confusion matrix": "how-do-i",
    "cross-validation": "how-do-i",
    "distillation": "smaller-models",
    "docker": "serving",
    "early stopping": "how-do-i",
    "embeddings": "sentence-vectors",
    "gpu": "gpu",
    "hyperparameters": "choosing",
    "korean": "languages",
    "label_separator": "multi-label",
    "learning rate": "commands/finetune",
    "long documents": "long-texts",
    "max_length": "how-do-i",
    "mixed precision": "how-do-i",
    "named entity recognition": "tagging",
    "offline": "how-do-i",
    "out of memory": "how-do-i",
    "quantization": "serving",
    "question answering": "squad",
    "resume": "resuming",
    "semantic search": "sentence-vectors",
    "tensorboard": "monitoring",
    "text classification": "tasks",
}


@pytest.fixture(scope="module")
def site(made_once) -> Path:
    """A page outside the navigation, a link or an anchor that leads nowhere are warnings."""

    def build(path: Path) -> None:
        built = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", path],
            cwd=ROOT, capture_output=True, text=True, env={**os.environ, "SITE_URL": URL},
        )  # fmt: skip
        assert built.returncode == 0, built.stderr

    return made_once("site", build)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the site's search")
def test_a_search_finds_the_page(site):
    results = search_site(site, list(QUERIES))
    missed = {
        query: pages[:3]
        for (query, page), pages in zip(QUERIES.items(), results, strict=True)
        if f"{page}.html" not in pages[:3]
    }
    assert not missed


def test_the_site(site):
    for name in COMMANDS:  # the page of `index` is not that of the folder
        page = "bert-tf-index" if name == "index" else name
        text = (site / "commands" / f"{page}.html").read_text(encoding="utf-8")
        assert re.search(rf"<h1[^>]*>bert-tf {name}\b", text), name
    finetune = (site / "commands" / "finetune.html").read_text(encoding="utf-8")
    assert 'id="learning_rate"' in finetune
    listed = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(listed) > 30
    assert all((site / page).is_file() for page in listed)
    cards = set()
    for page in site.rglob("*.html"):  # nothing is loaded from elsewhere
        text = page.read_text(encoding="utf-8")
        linked = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", text)
        assert all(url.startswith(URL) for url in linked), page
        # A link to the page shows a picture with its title.
        for card in re.findall(r'property="og:image" content="([^"]+)"', text):
            with Image.open(site / card.removeprefix(URL)) as picture:
                assert picture.size == (1200, 630)
            cards.add(card)
    assert len(cards) > 50
