"""The site: it builds without a warning, and holds what it lists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from bert_tf.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
URL = "https://bert-tf.example/docs/"


@pytest.mark.slow
def test_the_site(tmp_path):
    """A page outside the navigation, a link or an anchor that leads nowhere are warnings."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "SITE_URL": URL},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    for name in COMMANDS:
        assert (tmp_path / "commands" / f"{name}.html").is_file()
    finetune = (tmp_path / "commands" / "finetune.html").read_text(encoding="utf-8")
    assert 'id="learning_rate"' in finetune
    listed = re.findall(r"\]\(([^)]+)\)", (tmp_path / "llms.txt").read_text(encoding="utf-8"))
    assert len(listed) > 30
    assert all((tmp_path / page).is_file() for page in listed)
    cards = set()
    for page in tmp_path.rglob("*.html"):  # nothing is loaded from elsewhere
        text = page.read_text(encoding="utf-8")
        linked = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", text)
        assert all(url.startswith(URL) for url in linked), page
        # A link to the page shows a picture with its title.
        for card in re.findall(r'property="og:image" content="([^"]+)"', text):
            with Image.open(tmp_path / card.removeprefix(URL)) as picture:
                assert picture.size == (1200, 630)
            cards.add(card)
    assert len(cards) > 50
