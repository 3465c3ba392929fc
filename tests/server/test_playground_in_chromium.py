import json
import re
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from canned_models import MARKUP, NAMES, Server
from cases import for_each
from chromium import PHONE, run_chromium, watched_page
from credential_files import tokens_of
from playwright.sync_api import Browser, Page, expect

pytestmark = [pytest.mark.slow, pytest.mark.peer("chromium")]

# Astral characters, a joined emoji, one with a skin tone, letters with combining marks.
TEXT = f"👩‍🚀 Zoë A\u0301da met 👍🏽 Bo in Tōkyō {MARKUP}."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with run_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    with watched_page(browser, server.url) as page:
        yield page


def choose(page: Page, server: Server, model: str, **more: str) -> None:
    hash = "&".join(f"{key}={value}" for key, value in {"model": model, **more}.items())
    page.goto("about:blank")  # from there every URL is another document
    page.goto(f"{server.url}/#{hash}")
    page.wait_for_selector("#inputs textarea")


def type_in(page: Page, **texts: str) -> None:
    for name, text in texts.items():
        page.fill(f"#input-{name}", text)


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


ANSWERED = "#status:text-matches('^Answered in')"


def run(page: Page) -> None:
    page.evaluate("document.querySelector('#status').textContent = ''")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f"{ANSWERED}, #answer .error")


def answer(page: Page, server: Server, model: str, signature: str = "", **texts: str) -> None:
    choose(page, server, model, **({"signature": signature} if signature else {}))
    type_in(page, **texts)
    run(page)


def open_attention(page: Page) -> None:
    page.click("#attention summary")
    page.wait_for_selector("#attention canvas.matrix")


def test_classes_are_bars(page, server):
    answer(page, server, "classes", text="a text")
    assert texts(page, ".bars .name")[:3] == ["positive", MARKUP, "rare 0"]
    assert texts(page, ".bars .number")[:3] == ["75.0%", "20.0%", "< 0.1%"]
    assert texts(page, "#answer summary") == ["2 more"]
    assert page.evaluate("document.querySelector('.bars .fill').style.width") == "75%"
    share = "(e => e.offsetWidth / e.parentElement.offsetWidth)(document.querySelector('.fill'))"
    assert page.evaluate(share) == pytest.approx(0.75, abs=0.01)
    assert page.evaluate("document.querySelectorAll('.chosen').length") == 1
    assert page.evaluate("document.querySelector('#answer .warning')") is None
    assert re.fullmatch(r"Answered in [\d.]+ m?s", page.inner_text("#status"))
    assert json.loads(page.evaluate("document.querySelector('#json').textContent"))["predictions"]
    type_in(page, text="long " * 40)
    run(page)
    warning = page.inner_text("#answer .warning")
    assert warning == "The text is too long: 7 word pieces were not read."


def test_entities_are_highlighted_where_they_are(page, server):
    answer(page, server, "entities", text=TEXT)
    marks = "Array.from(document.querySelectorAll('mark'), (mark) => mark.firstChild.data)"
    assert page.evaluate(marks) == list(NAMES)
    assert texts(page, "mark .type") == list(NAMES.values())
    page.evaluate("document.querySelectorAll('.passage .type').forEach((e) => e.remove())")
    assert page.evaluate("document.querySelector('.passage').textContent") == TEXT
    rows = texts(page, "#answer div > .scroll tbody tr, #answer > .scroll tbody tr")
    start = TEXT.index("Tōkyō")
    assert rows[2] == f"TōkyōLOC90.0%{start}–{start + 5}"
    assert texts(page, "#answer summary") == ["Words, 3"]


def test_the_answer_is_highlighted_in_its_context_and_the_best_can_be_looked_at(page, server):
    choose(page, server, "questions")
    context = f"{TEXT} The tower is Gustave Eiffel's."
    type_in(page, question="Whose?", context=context)
    run(page)
    assert page.inner_text("#answer .headline") == "Gustave Eiffel 70.0%"
    assert texts(page, "mark") == ["Gustave Eiffel"]
    assert texts(page, ".passage") == [context]
    assert texts(page, ".bars .name") == ["Gustave Eiffel", "Eiffel", "No answer"]
    page.hover(".bars li:nth-child(2)")
    expect(page.locator("mark")).to_have_text("Eiffel")
    page.evaluate("document.querySelector('.bars li').focus()")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(page.locator("mark")).to_have_count(0)
    type_in(page, question="?")
    run(page)
    assert page.inner_text("#answer .headline") == "No answer 10.0%"


def test_masks_are_filled(page, server):
    choose(page, server, "masks")
    type_in(page, text="👍🏽 deep [MASK], wide ")
    page.click(".label button")  # Insert [MASK]
    run(page)
    assert texts(page, ".passage") == ["👍🏽 deep sea, wide sea"]
    assert texts(page, "#answer h3") == ["Mask 1", "Mask 2"]
    assert texts(page, ".bars .name") == ["sea", "<b>", "ocean", "lake", "rain"] * 2
    type_in(page, text="no mask")
    run(page)
    assert page.inner_text("#answer") == "The text has no [MASK]."


def test_an_explanation_colours_the_pieces(page, server):
    answer(page, server, "classes", "explain", text="deep sea ##s")
    assert page.inner_text("#answer .headline") == "sea 75.0%"
    assert texts(page, ".passage") == ["[CLS] deep seas [SEP]"]
    assert texts(page, ".passage .against") == ["sea", "s"]
    weights = "[...document.querySelectorAll('.passage mark')].map(x => x.style.cssText)"
    expected = [f"--weight: {share}%;" for share in ("33.3", "33.3", "100.0")]
    assert page.evaluate(weights)[1:4] == expected
    assert texts(page, "#answer td")[:4] == ["##s", "-1.5", "deep", "0.5"]


def test_choices_scores_vectors_and_numbers(page, server):
    answer(page, server, "choice", context="c", choices="one\n\nthe longest\nthree")
    assert texts(page, ".bars .name") == ["one", "the longest", "three"]
    assert texts(page, ".chosen .name") == ["the longest"]
    answer(page, server, "similarity", text="a", text_pair="b")
    assert page.inner_text("#answer") == "3.215 score"  # one output stands bare
    type_in(page, text_pair="a")
    run(page)
    assert page.inner_text("#answer") == "NaN score"
    answer(page, server, "classes", "embed", text="a")
    assert texts(page, "#answer dd") == ["12, norm 5: 3, 4, 0, 0, 0, 0, 0, 0, …"]
    assert page.inner_text(".warning") == "The text is too long: 1 word piece was not read."
    answer(page, server, "classes", "tokens", token_ids="101 7, 102")
    assert page.evaluate("document.querySelector('#attention').hidden") is True
    assert texts(page, "#answer dd") == ["101-7-102"]


def test_pieces_and_attention(page, server):
    answer(page, server, "classes", text=f"👍🏽 sea {MARKUP}")
    open_attention(page)
    assert texts(page, ".pieces .piece") == ["[CLS]", "👍🏽", "sea", *MARKUP.split(), "[SEP]"]
    assert texts(page, ".pieces li:nth-child(3) .place") == ["102", "3–6"]
    answered = r"(?s).*Answered in [\d.]+ m?s by the signature attention."
    assert re.fullmatch(answered, page.inner_text("#attention"))
    page.hover(".pieces li:nth-child(3) button")
    expect(page.locator(".attends b").first).to_have_text("sea")
    attends = page.inner_text(".attends")
    assert attends.startswith("sea (id 102, characters 3–6) attends to <img 100.0% · [CLS] 0.0%")
    weights = "[...document.querySelectorAll('.pieces button')].map(x => x.style.cssText)"
    shares = [f"--weight: {share}%;" for share in ("0.0", "0.0", "0.0", "100.0")]
    assert page.evaluate(weights)[:4] == shares
    # The arrow keys move from piece to piece, Tab leaves them.
    page.keyboard.press("ArrowLeft")
    page.evaluate("document.querySelector('.pieces button[tabindex=\"0\"]').focus()")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pieces button:focus")).to_contain_text("<img")
    assert page.evaluate("document.querySelectorAll('.pieces [tabindex=\"0\"]').length") == 1
    # Another head, by the menu and by the picture: each piece attends to itself.
    page.select_option("#attention-head", index=1)
    expect(page.locator(".attends")).to_contain_text("attends to <img 100.0%")
    overview = page.locator("canvas.overview")
    box = overview.bounding_box()
    middle = {"x": 0.5 * box["width"], "y": 0.75 * box["height"]}
    overview.click(position=middle)  # the second layer's second head
    assert page.evaluate("document.querySelector('#attention-layer').value") == "1"
    assert page.evaluate("document.querySelector('#attention-head').value") == "1"
    label = page.evaluate("document.querySelector('.overview').ariaLabel")
    assert "layer 2, head 2 is chosen" in label
    # The diagonal of the matrix is dark, beside it there is paper.
    alpha = (
        "((x, y) => { const c = document.querySelector('canvas.matrix'), s = c.width / 360,"
        " t = (360 - 72) / 7; return c.getContext('2d').getImageData("
        "(72 + (x + 0.5) * t) * s, (72 + (y + 0.5) * t) * s, 1, 1).data[3]; })"
    )
    alphas = [page.evaluate(f"{alpha}({x}, {y})") for x, y in ((0, 0), (5, 5), (5, 0))]
    assert alphas == [255, 255, 0]


def test_attention_of_one_input_and_of_the_beginning_of_a_long_text(page, server):
    answer(page, server, "questions", question="Whose tower?", context="👍🏽" * 300)
    open_attention(page)
    assert texts(page, ".pieces .piece") == ["[CLS]", "Whose", "tower?", "[SEP]"]
    page.select_option("#attention-of", "context")
    expect(page.locator(".pieces li")).to_have_count(3)
    assert texts(page, ".pieces li:nth-child(2) .piece") == ["👍🏽" * 200]
    assert "The first 400 characters" in page.inner_text("#attention .note:last-child")


def test_markup_stays_text(page, server):
    for model, inputs in (
        ("classes", {"text": MARKUP}),
        ("entities", {"text": f"{MARKUP} Bo {MARKUP}"}),
        ("questions", {"question": MARKUP, "context": f"{MARKUP} Eiffel"}),
        ("masks", {"text": f"[MASK] {MARKUP}"}),
        ("choice", {"context": MARKUP, "choices": f"{MARKUP}\n{MARKUP}"}),
        ("full", {"text": MARKUP}),
    ):
        answer(page, server, model, **inputs)
        if model != "full":
            open_attention(page)
        assert MARKUP.replace(" ", "") in page.inner_text("main").replace(" ", "").replace("\n", "")
        assert page.evaluate("document.querySelectorAll('main :is(img, script, b b)').length") == 0


def test_errors_are_shown_as_they_are(page, server):
    answer(page, server, "full", text="a")
    assert texts(page, "#answer .error") == [f"429: The queue is full {MARKUP}"]
    assert page.evaluate("document.querySelector('#answer .error').getAttribute('role')") == "alert"
    page.context.set_offline(True)
    page.evaluate("document.querySelector('#answer').replaceChildren()")
    run(page)
    assert page.inner_text("#answer .error").startswith("The server did not answer: ")


@pytest.mark.peer("curl")
def test_the_curl_command_asks_the_same(page, server):
    choose(page, server, "entities", version="1")
    type_in(page, text=f"""It's "$HOME" `id` \\n 100% @x\nBo {TEXT}""")
    run(page)
    command = page.evaluate("document.querySelector('#curl').textContent")
    assert f"{server.url}/v1/models/entities/versions/1:predict" in command
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    shown = page.evaluate("document.querySelector('#json').textContent")
    assert json.loads(done.stdout) == json.loads(shown)
    page.click("#copy")
    expect(page.locator("#copied")).not_to_be_empty()
    assert page.inner_text("#copied") in ("Copied", "Selected: copy it with Ctrl+C")
    type_in(page, text="another")
    assert '"another"' in page.inner_text("#curl")


def test_by_keyboard_alone(page, server):
    choose(page, server, "classes")
    page.evaluate("document.activeElement.blur()")
    focused = "document.activeElement.id || document.activeElement.textContent"
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate(focused))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
    assert order == ["model", "version", "signature", "input-text", "Run"]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first example fills in and runs
    page.wait_for_selector(ANSWERED)
    assert page.evaluate("document.querySelector('#input-text').value") != ""
    for _ in range(2):
        page.keyboard.press("Shift+Tab")
    assert page.evaluate(focused) == "input-text"
    run(page)
    # Everything that takes the focus has a name, and answers are announced.
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.wait_for_selector("#attention canvas.matrix")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    named = {"textbox", "combobox", "button", "image"}
    controls = [node for node in tree if node.get("role", {}).get("value") in named]
    assert len(controls) > 10
    assert all(node["name"]["value"].strip() for node in controls)
    assert page.evaluate("document.querySelector('#answer').ariaLive") == "polite"


@for_each("scheme", "light", "dark")
def test_on_a_phone_in_both_schemes(browser, server, scheme):
    with watched_page(browser, server.url, color_scheme=scheme, **PHONE) as page:
        check_on_a_phone(page, server, scheme == "dark")


def check_on_a_phone(page: Page, server: Server, dark: bool) -> None:
    for model in ("classes", "choice", "entities", "masks", "questions"):
        choose(page, server, model)
        page.click("#examples button")
        page.wait_for_selector(ANSWERED)
        open_attention(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    channels = "((e, name) => getComputedStyle(e)[name].match(/[\\d.]+/g).slice(0, 3).map(Number))"
    body = page.evaluate(f"{channels}(document.body, 'backgroundColor')")
    assert (sum(body) < 3 * 60) is dark
    for selector, behind in (
        ("body", body),
        (".note", body),
        ("label", body),
        ("#status", body),
        ("summary", body),
        (".run", page.evaluate(f"{channels}(document.querySelector('.run'), 'backgroundColor')")),
        ("mark", page.evaluate(f"{channels}(document.querySelector('mark'), 'backgroundColor')")),
    ):
        text = page.evaluate(f"{channels}(document.querySelector('{selector}'), 'color')")
        assert contrast(text, behind) >= 4.5, selector


def contrast(first: list[float], second: list[float]) -> float:
    """The contrast ratio of two colors (WCAG 2.2)."""

    def luminance(color: list[float]) -> float:
        parts = [channel / 255 for channel in color]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_the_choice_is_in_the_address(page, server):
    choose(page, server, "classes", version="1", signature="embed")
    assert page.evaluate("document.querySelector('#version').value") == "1"
    assert page.evaluate("document.querySelector('#signature').value") == "embed"
    options = texts(page, "#signature option")
    assert options == ["serving_default", "embed", "explain", "tokens"]
    page.select_option("#model", "entities")
    assert page.evaluate("location.hash") == "#model=entities&version=&signature=serving_default"
    assert "versions" not in page.inner_text("#curl")


def test_a_token_is_asked_for_by_the_browser(browser, tmp_path):
    server = Server(tokens_of(tmp_path, "secret"))
    secret = {"username": "", "password": "secret"}
    with watched_page(browser, server.url, http_credentials=secret) as page:
        page.goto(server.url)
        page.wait_for_selector("#inputs textarea")
        type_in(page, context="c", choices="one\nthe other")
        run(page)
        assert texts(page, ".chosen .name") == ["the other"]
        curl = page.inner_text("#curl")
        assert '-H "Authorization: Bearer $TOKEN"' in curl and "secret" not in curl
        assert "secret" not in page.evaluate("document.documentElement.outerHTML")
    server.stop()
