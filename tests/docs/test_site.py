"""The site: it builds without a warning, holds what it lists, and works in a browser."""

import contextlib
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from chromium import Chromium, Page
from PIL import Image

from bert_tf.cli import COMMANDS

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
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "SITE_URL": URL},
        )
        assert built.returncode == 0, built.stderr

    return made_once("site", build)


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


class Files(SimpleHTTPRequestHandler):
    """Serves files without a log; a browser that closes a tab interrupts some answers."""

    def log_message(self, *words: object) -> None:
        pass

    def copyfile(self, source, outputfile) -> None:
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)


@pytest.fixture(scope="module")
def served(site) -> Iterator[str]:
    """The site's URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture
def page(browser, served) -> Iterator[Page]:
    """A tab; at its end no script has failed, and nothing was loaded from elsewhere."""
    tab = Page(browser)
    yield tab
    assert tab.complaints() == []
    urls = [url for url in tab.requests() if not url.startswith(("about:", "data:"))]
    assert len(urls) > 1
    assert all(url.startswith(f"{served}/") for url in urls)
    tab.close()


def search(page: Page, query: str) -> list[str]:
    """Types a query into the site's search; the pages that it lists, the best first."""
    box = "document.querySelector('[data-md-component=search-query]')"
    results = "document.querySelector('.md-search-result__meta').innerText"
    page.evaluate(f"({box}.focus(), {box}.select())")
    page.press("Delete")
    page.wait(f"{results}.startsWith('Type to start')")
    page.insert(query)
    page.press("End")
    page.wait(f"/ match|No match/.test({results})")
    links = "Array.from(document.querySelectorAll('.md-search-result__item'), (e) => "
    return page.evaluate(f"{links} new URL(e.querySelector('a').href).pathname.slice(1))")


@pytest.mark.peer("chromium")
def test_a_search_finds_the_page(page, served):
    page.open(f"{served}/index.html", "document.querySelector('.md-search-result__meta') !== null")
    results = {query: search(page, query)[:3] for query in QUERIES}
    missed = {
        query: pages for query, pages in results.items() if f"{QUERIES[query]}.html" not in pages
    }
    assert not missed


@pytest.mark.peer("chromium")
@pytest.mark.parametrize(
    "name", ["index", "commands/finetune", "notebooks/question_answering", "python-api", "serving"]
)
def test_a_page_in_a_browser(name, page, served):
    """On a wide screen and a phone nothing is wider than the window, and no picture is missing."""
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    missing = "Array.from(document.images).filter((i) => !i.naturalWidth).map((i) => i.src)"
    page.open(f"{served}/{name}.html", "document.readyState === 'complete'")
    assert page.evaluate(wider) == 0
    page.size(380, 800, phone=True)
    assert page.evaluate(wider) == 0
    assert page.evaluate(missing) == []
    broken = [
        event["response"]["url"]
        for event in page.events("Network.responseReceived")
        if event["response"]["status"] >= 400
    ]
    assert broken == [f"{served}/versions.json"]  # of published versions: `mike` writes it
