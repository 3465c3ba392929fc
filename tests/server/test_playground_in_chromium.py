"""The playground in headless Chromium, on the real REST server with canned models."""

import json
import re
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from canned_models import MARKUP, NAMES, Server
from chromium import Chromium, Page
from credential_files import tokens_of

pytestmark = [pytest.mark.slow, pytest.mark.peer("chromium")]

# Astral characters, a joined emoji, one with a skin tone, letters with combining marks.
TEXT = f"👩‍🚀 Zoë A\u0301da met 👍🏽 Bo in Tōkyō {MARKUP}."


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    """A tab; at its end it has complained of nothing and asked nobody but the server."""
    page = Page(browser)
    yield page
    assert page.complaints() == []
    elsewhere = [url for url in page.requests() if not url.startswith(f"{server.url}/")]
    assert set(elsewhere) <= {"about:blank"}
    assert len(page.requests()) > 1
    page.close()


def choose(page: Page, server: Server, model: str, **more: str) -> None:
    hash = "&".join(f"{key}={value}" for key, value in {"model": model, **more}.items())
    page.open(f"{server.url}/#{hash}", "document.querySelector('#inputs textarea') !== null")


def type_in(page: Page, **texts: str) -> None:
    for name, text in texts.items():
        page.evaluate(f"document.querySelector('#input-{name}').select()")
        page.evaluate(f"document.querySelector('#input-{name}').focus()")
        page.insert(text)


ANSWERED = "document.querySelector('#status').textContent.startsWith('Answered in')"


def run(page: Page) -> None:
    page.evaluate("document.querySelector('#status').textContent = ''")
    page.press("Enter", control=True)
    page.wait(f"{ANSWERED} || document.querySelector('#answer .error') !== null")


def answer(page: Page, server: Server, model: str, signature: str = "", **texts: str) -> None:
    """Chooses a model, types the texts and runs it."""
    choose(page, server, model, **({"signature": signature} if signature else {}))
    type_in(page, **texts)
    run(page)


def open_attention(page: Page) -> None:
    page.click("#attention summary")
    page.wait("document.querySelector('#attention canvas.matrix') !== null")


def test_classes_are_bars(page, server):
    answer(page, server, "classes", text="a text")
    assert page.texts(".bars .name")[:3] == ["positive", MARKUP, "rare 0"]
    assert page.texts(".bars .number")[:3] == ["75.0%", "20.0%", "< 0.1%"]
    assert page.texts("#answer summary") == ["2 more"]
    assert page.evaluate("document.querySelector('.bars .fill').style.width") == "75%"
    share = "(e => e.offsetWidth / e.parentElement.offsetWidth)(document.querySelector('.fill'))"
    assert page.evaluate(share) == pytest.approx(0.75, abs=0.01)
    assert page.evaluate("document.querySelectorAll('.chosen').length") == 1
    assert page.evaluate("document.querySelector('#answer .warning')") is None
    assert re.fullmatch(r"Answered in [\d.]+ m?s", page.text("#status"))
    assert json.loads(page.evaluate("document.querySelector('#json').textContent"))["predictions"]
    type_in(page, text="long " * 40)
    run(page)
    assert page.text("#answer .warning") == "The text is too long: 7 word pieces were not read."


def test_entities_are_highlighted_where_they_are(page, server):
    answer(page, server, "entities", text=TEXT)
    marks = "Array.from(document.querySelectorAll('mark'), (mark) => mark.firstChild.data)"
    assert page.evaluate(marks) == list(NAMES)
    assert page.texts("mark .type") == list(NAMES.values())
    without_types = (
        "(p => { p.querySelectorAll('.type').forEach((e) => e.remove()); return p.textContent; })"
    )
    assert page.evaluate(f"{without_types}(document.querySelector('.passage'))") == TEXT
    rows = page.texts("#answer div > .scroll tbody tr, #answer > .scroll tbody tr")
    start = TEXT.index("Tōkyō")
    assert rows[2] == f"TōkyōLOC90.0%{start}–{start + 5}"
    assert page.texts("#answer summary") == ["Words, 3"]


def test_the_answer_is_highlighted_in_its_context_and_the_best_can_be_looked_at(page, server):
    choose(page, server, "questions")
    context = f"{TEXT} The tower is Gustave Eiffel's."
    type_in(page, question="Whose?", context=context)
    run(page)
    assert page.text("#answer .headline") == "Gustave Eiffel 70.0%"
    assert page.texts("mark") == ["Gustave Eiffel"]
    assert page.texts(".passage") == [context]
    assert page.texts(".bars .name") == ["Gustave Eiffel", "Eiffel", "No answer"]
    page.hover(".bars li:nth-child(2)")
    page.wait("document.querySelector('mark').textContent === 'Eiffel'")
    page.evaluate("document.querySelector('.bars li').focus()")
    for _ in range(2):
        page.press("ArrowRight")
    page.wait("document.querySelector('mark') === null")
    type_in(page, question="?")
    run(page)
    assert page.text("#answer .headline") == "No answer 10.0%"


def test_masks_are_filled(page, server):
    choose(page, server, "masks")
    type_in(page, text="👍🏽 deep [MASK], wide ")
    page.click(".label button")  # Insert [MASK]
    run(page)
    assert page.texts(".passage") == ["👍🏽 deep sea, wide sea"]
    assert page.texts("#answer h3") == ["Mask 1", "Mask 2"]
    assert page.texts(".bars .name") == ["sea", "<b>", "ocean", "lake", "rain"] * 2
    type_in(page, text="no mask")
    run(page)
    assert page.text("#answer") == "The text has no [MASK]."


def test_an_explanation_colours_the_pieces(page, server):
    answer(page, server, "classes", "explain", text="deep sea ##s")
    assert page.text("#answer .headline") == "sea 75.0%"
    assert page.texts(".passage") == ["[CLS] deep seas [SEP]"]
    assert page.texts(".passage .against") == ["sea", "s"]
    weights = "[...document.querySelectorAll('.passage mark')].map(x => x.style.cssText)"
    assert page.evaluate(weights)[1:4] == [
        "--weight: 33.3%;",
        "--weight: 33.3%;",
        "--weight: 100.0%;",
    ]
    assert page.texts("#answer td")[:4] == ["##s", "-1.5", "deep", "0.5"]


def test_choices_scores_vectors_and_numbers(page, server):
    answer(page, server, "choice", context="c", choices="one\n\nthe longest\nthree")
    assert page.texts(".bars .name") == ["one", "the longest", "three"]
    assert page.texts(".chosen .name") == ["the longest"]
    answer(page, server, "similarity", text="a", text_pair="b")
    assert page.text("#answer") == "3.215 score"  # one output stands bare
    type_in(page, text_pair="a")
    run(page)
    assert page.text("#answer") == "NaN score"
    answer(page, server, "classes", "embed", text="a")
    assert page.texts("#answer dd") == ["12, norm 5: 3, 4, 0, 0, 0, 0, 0, 0, …"]
    assert page.text(".warning") == "The text is too long: 1 word piece was not read."
    answer(page, server, "classes", "tokens", token_ids="101 7, 102")
    assert page.evaluate("document.querySelector('#attention').hidden") is True
    assert page.texts("#answer dd") == ["101-7-102"]


def test_pieces_and_attention(page, server):
    answer(page, server, "classes", text=f"👍🏽 sea {MARKUP}")
    open_attention(page)
    assert page.texts(".pieces .piece") == ["[CLS]", "👍🏽", "sea", *MARKUP.split(), "[SEP]"]
    assert page.texts(".pieces li:nth-child(3) .place") == ["102", "3–6"]
    assert re.fullmatch(
        r"(?s).*Answered in [\d.]+ m?s by the signature attention.", page.text("#attention")
    )
    page.hover(".pieces li:nth-child(3) button")
    page.wait("document.querySelector('.attends b').textContent === 'sea'")
    attends = page.text(".attends")
    assert attends.startswith("sea (id 102, characters 3–6) attends to <img 100.0% · [CLS] 0.0%")
    weights = (
        "Array.from(document.querySelectorAll('.pieces button'),"
        " (each) => each.style.getPropertyValue('--weight'))"
    )
    assert page.evaluate(weights)[:4] == ["0.0%", "0.0%", "0.0%", "100.0%"]
    # The arrow keys move from piece to piece, Tab leaves them.
    page.press("ArrowLeft")
    page.evaluate("document.querySelector('.pieces button[tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.wait("document.activeElement.firstChild.textContent === '<img'")
    assert page.evaluate("document.querySelectorAll('.pieces [tabindex=\"0\"]').length") == 1
    # Another head, by the menu and by the picture: each piece attends to itself.
    page.select("#attention-head", "1")
    page.wait("document.querySelector('.attends').textContent.includes('attends to <img 100.0%')")
    page.click("canvas.overview", down=0.75)  # the second layer's second head
    assert page.evaluate("document.querySelector('#attention-layer').value") == "1"
    assert page.evaluate("document.querySelector('#attention-head').value") == "1"
    assert "layer 2, head 2 is chosen" in page.evaluate(
        "document.querySelector('.overview').ariaLabel"
    )
    # The diagonal of the matrix is dark, beside it there is paper.
    alpha = (
        "((x, y) => { const c = document.querySelector('canvas.matrix'), s = c.width / 360,"
        " t = (360 - 72) / 7; return c.getContext('2d').getImageData("
        "(72 + (x + 0.5) * t) * s, (72 + (y + 0.5) * t) * s, 1, 1).data[3]; })"
    )
    assert [page.evaluate(f"{alpha}({x}, {y})") for x, y in ((0, 0), (5, 5), (5, 0))] == [
        255,
        255,
        0,
    ]


def test_attention_of_one_input_and_of_the_beginning_of_a_long_text(page, server):
    answer(page, server, "questions", question="Whose tower?", context="👍🏽" * 300)
    open_attention(page)
    assert page.texts(".pieces .piece") == ["[CLS]", "Whose", "tower?", "[SEP]"]
    page.select("#attention-of", "context")
    page.wait("document.querySelectorAll('.pieces li').length === 3")
    assert page.texts(".pieces li:nth-child(2) .piece") == ["👍🏽" * 200]
    assert "The first 400 characters" in page.text("#attention .note:last-child")


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
        assert MARKUP.replace(" ", "") in page.text("main").replace(" ", "").replace("\n", "")
        assert page.evaluate("document.querySelectorAll('main :is(img, script, b b)').length") == 0


def test_errors_are_shown_as_they_are(page, server):
    answer(page, server, "full", text="a")
    assert page.texts("#answer .error") == [f"429: The queue is full {MARKUP}"]
    assert page.evaluate("document.querySelector('#answer .error').getAttribute('role')") == "alert"
    page.call(
        "Network.emulateNetworkConditions",
        offline=True,
        latency=0,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )
    page.evaluate("document.querySelector('#answer').replaceChildren()")
    run(page)
    assert page.text("#answer .error").startswith("The server did not answer: ")


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
    page.wait("document.querySelector('#copied').textContent !== ''")
    assert page.text("#copied") in ("Copied", "Selected: copy it with Ctrl+C")
    type_in(page, text="another")
    assert '"another"' in page.text("#curl")


def test_by_keyboard_alone(page, server):
    choose(page, server, "classes")
    page.evaluate("document.activeElement.blur()")
    focused = "document.activeElement.id || document.activeElement.textContent"
    order = []
    for _ in range(5):
        page.press("Tab")
        order.append(page.evaluate(focused))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
    assert order == ["model", "version", "signature", "input-text", "Run"]
    page.press("Tab")
    page.press("Enter")  # the first example fills in and runs
    page.wait(ANSWERED)
    assert page.evaluate("document.querySelector('#input-text').value") != ""
    for _ in range(2):
        page.press("Tab", shift=True)
    assert page.evaluate(focused) == "input-text"
    run(page)
    # Everything that takes the focus has a name, and answers are announced.
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.wait("document.querySelector('#attention canvas.matrix') !== null")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {"textbox", "combobox", "button", "image"}
    controls = [node for node in tree if node.get("role", {}).get("value") in named]
    assert len(controls) > 10
    assert all(node["name"]["value"].strip() for node in controls)
    assert page.evaluate("document.querySelector('#answer').ariaLive") == "polite"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_in_both_schemes(page, server, dark):
    page.size(360, 740, phone=True)
    page.dark(dark)
    for model in ("classes", "choice", "entities", "masks", "questions"):
        choose(page, server, model)
        page.click("#examples button")
        page.wait(ANSWERED)
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
    options = page.texts("#signature option")
    assert options == ["serving_default", "embed", "explain", "tokens"]
    page.select("#model", "entities")
    assert page.evaluate("location.hash") == "#model=entities&version=&signature=serving_default"
    assert "versions" not in page.text("#curl")


def test_a_token_is_asked_for_by_the_browser(browser, tmp_path):
    server = Server(tokens_of(tmp_path, "secret"))
    page = Page(browser)
    try:
        page.open(server.url.replace("//", "//:secret@"))
        page.wait("document.querySelector('#inputs textarea') !== null")
        type_in(page, context="c", choices="one\nthe other")
        run(page)
        assert page.texts(".chosen .name") == ["the other"]
        curl = page.text("#curl")
        assert '-H "Authorization: Bearer $TOKEN"' in curl and "secret" not in curl
        assert "secret" not in page.evaluate("document.documentElement.outerHTML")
    finally:
        page.close()
        server.stop()
