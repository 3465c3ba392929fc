"""The playground in headless Chromium, on the real REST server with canned models."""

import contextlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest
import uvicorn
from chromium import Chromium, Page
from credential_files import tokens_of
from tensorflow.core.framework.types_pb2 import DataType
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataResponse,
    SignatureDefMap,
)
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse, ModelVersionStatus

from bert_tf.server import playground
from bert_tf.server.app import make_app
from bert_tf.server.credentials import Tokens
from bert_tf.server.errors import ServingError
from bert_tf.server.metrics import Metrics

pytestmark = [pytest.mark.slow, pytest.mark.peer("chromium")]

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
# Astral characters, a joined emoji, one with a skin tone, letters with combining marks.
TEXT = f"👩‍🚀 Zoë A\u0301da met 👍🏽 Bo in Tōkyō {MARKUP}."
NAMES = {"Zoë A\u0301da": "PER", "Bo": "PER", "Tōkyō": "LOC"}

Answer = dict[str, Any]


def columns(name: str, text: str, parts: list[str], **more: list[Any]) -> Answer:
    """The padded lists of a signature, for parts of a text."""
    starts = [text.index(part) for part in parts]
    ends = [start + len(part) for start, part in zip(starts, parts, strict=True)]
    lists = {
        "text": parts,
        "start": starts,
        "end": ends,
        "start_byte": [len(text[:place].encode()) for place in starts],
        "end_byte": [len(text[:place].encode()) for place in ends],
    }
    padded = {key: [*values, values[-1]] for key, values in {**lists, **more}.items()}
    return {f"{name}_count": len(parts), **{f"{name}_{key}": v for key, v in padded.items()}}


def classes(text: str) -> Answer:
    labels = ["positive", MARKUP, *(f"rare {number}" for number in range(10))]
    probabilities = [0.75, 0.2, *([0.0005] * 10)]
    return {
        "label": labels[0],
        "probability": probabilities[0],
        "labels": labels,
        "probabilities": probabilities,
        "truncated": 7 if len(text) > 100 else 0,
    }


def score(text: str, text_pair: str) -> Answer:
    return {"score": float("nan") if text == text_pair else 3.21456}


def choice(context: str, choices: list[str]) -> Answer:
    shares = np.array([len(each) for each in choices]) / sum(map(len, choices))
    best = int(shares.argmax())
    return {"choice": best, "probability": shares[best], "probabilities": list(shares)}


def entities(text: str) -> Answer:
    found = [name for name in NAMES if name in text] or ["Berlin"]
    types = [NAMES.get(name, "LOC") for name in found]
    words = columns("words", text, found, label=types, score=[0.5] * len(found))
    return {**columns("entities", text, found, type=types, score=[0.9] * len(found)), **words}


def answer(question: str, context: str) -> Answer:
    found = [part for part in ("Gustave Eiffel", "Eiffel") if part in context] or [context[:1]]
    shares = [0.7, 0.2][: len(found)]
    best = columns("answers", context, [*found, ""], probability=[*shares, 0.1])
    asked = question != "?"
    return {
        "answer": found[0] if asked else "",
        **{key: best[f"answers_{key}"][0] if asked else 0 for key in ("start", "end")},
        "score": 0.7 if asked else 0.1,
        "no_answer_probability": 0.1,
        **best,
    }


def masks(text: str) -> Answer:
    starts = [match.start() for match in re.finditer(r"\[MASK\]", text)]
    guesses = [["sea", "<b>", "ocean", "lake", "rain"]] * (len(starts) + 1)
    return {
        "masks_count": len(starts),
        "masks_words": guesses,
        "masks_probabilities": [[0.5, 0.2, 0.1, 0.05, 0.0001]] * (len(starts) + 1),
        "masks_start": [*starts, 0],
        "masks_end": [start + 6 for start in starts] + [0],
    }


def attention(text: str) -> Answer:
    """Two layers of three heads: the first attends to the next piece, the others to the same."""
    words = text.split()[:30]
    found = columns("pieces", text, ["", *words, ""])
    size = len(words) + 2
    heads = np.tile(np.eye(size), (2, 3, 1, 1))
    heads[0, 0] = np.roll(np.eye(size), 1, axis=1)
    return {
        **found,
        "pieces_text": ["[CLS]", *words, "[SEP]", ""],
        "pieces_id": list(range(100, 100 + size + 1)),
        "probabilities": heads,
    }


def explain(text: str) -> Answer:
    words = text.split()
    return {
        "label": "sea",
        "probability": 0.75,
        "logit": 1.5,
        "masked_logit": 0.5,
        "truncated": 0,
        "pieces_count": len(words) + 2,
        "pieces_text": ["[CLS]", *words, "[SEP]", ""],
        "pieces_attribution": [0.0, *(0.5 - place for place in range(len(words))), 0.0, 0.0],
    }


def embed(text: str) -> Answer:
    return {"mean": [3.0, 4.0] + [0.0] * 10, "truncated": 1}


def tokens(token_ids: list[int]) -> Answer:
    return {"label": "-".join(map(str, token_ids))}


def fail(text: str) -> Answer:
    raise ServingError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"The queue is full {MARKUP}")


class CannedServable:
    """A version of a model that answers with Python functions of one example."""

    def __init__(
        self, name: str, version: int, functions: Mapping[str, Callable[..., Answer]]
    ) -> None:
        self.name = name
        self.version = version
        self._functions = functions
        self.signatures = {name: signature_of(function) for name, function in functions.items()}

    def signature(self, name: str) -> SignatureDef:
        return self.signatures[name or "serving_default"]

    def check_rows(self, count: int) -> None:
        assert count <= 1

    async def predict(
        self, name: str, inputs: Mapping[str, np.ndarray], deadline: float | None = None
    ) -> dict[str, np.ndarray]:
        (example,) = zip(*inputs.values(), strict=True)
        decoded = dict(zip(inputs, map(decode, example), strict=True))
        found = self._functions[name or "serving_default"](**decoded)
        return {key: encode([value]) for key, value in found.items()}


def decode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [decode(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def encode(value: Any) -> np.ndarray:
    array = np.array(value)
    if array.dtype.kind == "U":
        return np.array([each.encode() for each in array.ravel()], object).reshape(array.shape)
    return array.astype({"i": np.int32, "f": np.float32}[array.dtype.kind])


def signature_of(function: Callable[..., Answer]) -> SignatureDef:
    samples = {"choices": ["a", "b"], "token_ids": [1, 2]}
    names = [name for name in function.__annotations__ if name != "return"]
    given = {name: samples.get(name, "a Berlin") for name in names}
    outputs = {"label": ""} if function is fail else function(**given)
    types = {"O": DataType.DT_STRING, "i": DataType.DT_INT32, "f": DataType.DT_FLOAT}
    signature = SignatureDef(method_name="tensorflow/serving/predict")
    for tensors, values in ((signature.inputs, given), (signature.outputs, outputs)):
        for name, value in values.items():
            array = encode([value])
            tensors[name].dtype = types[array.dtype.kind]
            tensors[name].name = f"{name}:0"
            for _ in array.shape:
                tensors[name].tensor_shape.dim.add(size=-1)
    return signature


class CannedModels:
    """What the app needs of `Models`."""

    def __init__(self) -> None:
        shared = {"attention": attention}
        own: dict[str, dict[str, Callable[..., Answer]]] = {
            "classes": {
                "serving_default": classes,
                "embed": embed,
                "explain": explain,
                "tokens": tokens,
            },
            "choice": {"serving_default": choice},
            "entities": {"serving_default": entities},
            "full": {"serving_default": fail},
            "masks": {"serving_default": masks},
            "questions": {"serving_default": answer},
            "similarity": {"serving_default": score},
        }
        self._loaded = {
            name: {
                version: CannedServable(name, version, {**functions, **shared})
                for version in (1, 2)
            }
            for name, functions in own.items()
        }
        self.names = sorted(own)
        self.metrics = Metrics()

    @contextlib.contextmanager
    def servable(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> Iterator[CannedServable]:
        yield self._loaded[name][version or 2]

    def status(self, name: str, *_: Any) -> GetModelStatusResponse:
        states = [
            ModelVersionStatus(version=version, state=ModelVersionStatus.AVAILABLE)
            for version in self._loaded[name]
        ]
        return GetModelStatusResponse(model_version_status=states)

    def metadata(self, name: str, version: int | None = None, *_: Any) -> GetModelMetadataResponse:
        response = GetModelMetadataResponse()
        signatures = self._loaded[name][version or 2].signatures
        response.metadata["signature_def"].Pack(SignatureDefMap(signature_def=signatures))
        return response


class Server:
    """The app on a free port of loopback, in a thread."""

    def __init__(self, tokens: Tokens | None = None) -> None:
        models: Any = CannedModels()
        app = make_app(models, routes=playground.routes(models), tokens=tokens)
        config = uvicorn.Config(app, port=0, log_level="error")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        (listening,) = self._server.servers
        self.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.stop()


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    """A tab; at its end it has complained of nothing and asked nobody but the server."""
    found = Page(browser)
    yield found
    assert found.complaints() == []
    elsewhere = [url for url in found.requests() if not url.startswith(f"{server.url}/")]
    assert set(elsewhere) <= {"about:blank"}
    assert len(found.requests()) > 1
    found.close()


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


def open_attention(page: Page) -> None:
    page.click("#attention summary")
    page.wait("document.querySelector('#attention canvas.matrix') !== null")


def test_classes_are_bars(page, server):
    choose(page, server, "classes")
    type_in(page, text="a text")
    run(page)
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
    choose(page, server, "entities")
    type_in(page, text=TEXT)
    run(page)
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
    choose(page, server, "classes")
    page.select("#signature", "explain")
    type_in(page, text="deep sea ##s")
    run(page)
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


def test_choices_are_lines(page, server):
    choose(page, server, "choice")
    type_in(page, context="c", choices="one\n\nthe longest\nthree")
    run(page)
    assert page.texts(".bars .name") == ["one", "the longest", "three"]
    assert page.texts(".chosen .name") == ["the longest"]


def test_scores_and_vectors_and_numbers(page, server):
    choose(page, server, "similarity")
    type_in(page, text="a", text_pair="b")
    run(page)
    assert page.text("#answer") == "3.215 score"  # one output stands bare
    type_in(page, text_pair="a")
    run(page)
    assert page.text("#answer") == "NaN score"
    choose(page, server, "classes", signature="embed")
    type_in(page, text="a")
    run(page)
    assert page.texts("#answer dd") == ["12, norm 5: 3, 4, 0, 0, 0, 0, 0, 0, …"]
    assert page.text(".warning") == "The text is too long: 1 word piece was not read."
    choose(page, server, "classes", signature="tokens")
    assert page.evaluate("document.querySelector('#attention').hidden") is True
    type_in(page, token_ids="101 7, 102")
    run(page)
    assert page.texts("#answer dd") == ["101-7-102"]


def test_pieces_and_attention(page, server):
    choose(page, server, "classes")
    type_in(page, text=f"👍🏽 sea {MARKUP}")
    run(page)
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
    choose(page, server, "questions")
    type_in(page, question="Whose tower?", context="👍🏽" * 300)
    run(page)
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
        choose(page, server, model)
        type_in(page, **inputs)
        run(page)
        if model != "full":
            open_attention(page)
        assert MARKUP.replace(" ", "") in page.text("main").replace(" ", "").replace("\n", "")
        assert page.evaluate("document.querySelectorAll('main :is(img, script, b b)').length") == 0


def test_errors_are_shown_as_they_are(page, server):
    choose(page, server, "full")
    type_in(page, text="a")
    run(page)
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
        parts = [each / 255 for each in color]
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
