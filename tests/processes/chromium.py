from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peer_programs import find_peer, why_missing
from playwright.sync_api import Browser, Page, sync_playwright

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True}


@contextmanager
def run_chromium() -> Iterator[Browser]:
    if (command := find_peer("chromium")) is None:
        raise FileNotFoundError(why_missing("chromium"))
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=command) as browser,
    ):
        yield browser


@contextmanager
def watched_page(browser: Browser, server: str, **settings: Any) -> Iterator[Page]:
    """A tab without the cookies of others.

    At its end no script has failed, the security policy has refused nothing, and nothing was loaded
    from elsewhere than the server.
    """
    complaints: list[str] = []
    urls: list[str] = []
    with browser.new_context(**settings) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        page.on("request", lambda request: urls.append(request.url))
        yield page
    # What the server refuses is for the page to show.
    assert [said for said in complaints if not said.startswith("Failed to load resource")] == []
    assert [url for url in urls if not url.startswith((f"{server}/", "data:"))] == []
    assert len(urls) > 1
