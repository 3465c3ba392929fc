import contextlib
import functools
import re
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cases import for_each
from chromium import PHONE, run_chromium, watched_page
from command_line import finished, words
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from bert_tf.cli import COMMANDS

ROOT = Path(__file__).parents[2]
URL = "https://bert-tf.example/docs/"


pytestmark = pytest.mark.slow

# What people type, and the page that one of the first three results is.
QUERIES = {
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
        build = words("-m mkdocs build --quiet --site-dir", path)
        finished(sys.executable, *build, cwd=ROOT, env={"SITE_URL": URL})

    return made_once("site", build)


def test_the_site(site):
    for name in COMMANDS:
        text = (site / "commands" / f"{name}.html").read_text(encoding="utf-8")
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
    def log_message(self, *words: object) -> None:
        pass

    def copyfile(self, source, outputfile) -> None:
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)


@pytest.fixture(scope="module")
def served(site) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with run_chromium() as browser:
        yield browser


def search(page: Page, query: str) -> list[str]:
    """Types a query into the site's search; the pages that it lists, the best first."""
    box = page.locator("[data-md-component=search-query]")
    results = page.locator(".md-search-result__meta")
    box.fill("")
    box.press("End")  # the page listens for keys
    expect(results).to_have_text(re.compile("^Type to start"))
    box.fill(query)
    box.press("End")
    expect(results).to_have_text(re.compile(" match|No match"))
    links = "Array.from(document.querySelectorAll('.md-search-result__item'), (e) => "
    return page.evaluate(f"{links} new URL(e.querySelector('a').href).pathname.slice(1))")


@pytest.mark.peer("chromium")
def test_a_search_finds_the_page(browser, served):
    with watched_page(browser, served) as page:
        page.goto(f"{served}/index.html")
        results = {query: search(page, query)[:3] for query in QUERIES}
    missed = {q: pages for q, pages in results.items() if f"{QUERIES[q]}.html" not in pages}
    assert not missed


@pytest.mark.peer("chromium")
@for_each("settings", {}, PHONE, ids=["wide", "phone"])
@for_each(
    "name", "index", "commands/finetune", "notebooks/question_answering", "python-api", "serving"
)
def test_a_page_in_a_browser(name, settings, browser, served):
    """On a wide screen and a phone nothing is wider than the window, and no picture is missing."""
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    missing = "Array.from(document.images).filter((i) => !i.naturalWidth).map((i) => i.src)"
    broken: list[str] = []
    with watched_page(browser, served, **settings) as page:
        page.on("response", lambda got: got.status >= 400 and broken.append(got.url))
        page.goto(f"{served}/{name}.html", wait_until="networkidle")
        assert page.evaluate(wider) == 0
        assert page.evaluate(missing) == []
    assert set(broken) == {f"{served}/versions.json"}  # of published versions: `mike` writes it
