"""The REST server and the playground on loopback, with models that answer with Python functions."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import uvicorn
from tensorflow.core.framework.types_pb2 import DataType
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.server import playground
from bert_tf.server.app import make_app
from bert_tf.server.credentials import Tokens
from bert_tf.server.errors import ServingError
from bert_tf.server.monitoring import Metrics

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
NAMES = {"Zoë A\u0301da": "PER", "Bo": "PER", "Tōkyō": "LOC"}

Answer = dict[str, Any]


def columns(name: str, text: str, parts: list[str], **more: list[Any]) -> Answer:
    """The padded lists of a signature, for parts of a text."""
    starts = [text.index(part) for part in parts]
    ends = [start + len(part) for start, part in zip(starts, parts, strict=True)]
    lists = {"text": parts, "start": starts, "end": ends}
    for side in ("start", "end"):
        lists[f"{side}_byte"] = [len(text[:place].encode()) for place in lists[side]]
    padded = {key: [*values, values[-1]] for key, values in {**lists, **more}.items()}
    return {f"{name}_count": len(parts), **{f"{name}_{key}": v for key, v in padded.items()}}


def classes(text: str) -> Answer:
    labels = ["positive", MARKUP, *(f"rare {number}" for number in range(10))]
    probabilities = [0.75, 0.2, *([0.0005] * 10)]
    all_classes = {"labels": labels, "probabilities": probabilities}
    truncated = 7 if len(text) > 100 else 0
    return {"label": labels[0], "probability": 0.75, **all_classes, "truncated": truncated}


def score(text: str, text_pair: str) -> Answer:
    return {"score": float("nan") if text == text_pair else 3.21456}


def choice(context: str, choices: list[str]) -> Answer:
    shares = np.array([len(choice) for choice in choices]) / sum(map(len, choices))
    best = int(shares.argmax())
    return {"choice": best, "probability": shares[best], "probabilities": list(shares)}


def entities(text: str) -> Answer:
    names = [name for name in NAMES if name in text] or ["Berlin"]
    types = [NAMES.get(name, "LOC") for name in names]
    words = columns("words", text, names, label=types, score=[0.5] * len(names))
    return {**columns("entities", text, names, type=types, score=[0.9] * len(names)), **words}


def answer(question: str, context: str) -> Answer:
    spans = [part for part in ("Gustave Eiffel", "Eiffel") if part in context] or [context[:1]]
    shares = [0.7, 0.2][: len(spans)]
    best = columns("answers", context, [*spans, ""], probability=[*shares, 0.1])
    has_answer = question != "?"
    return {
        "answer": spans[0] if has_answer else "",
        **{key: best[f"answers_{key}"][0] if has_answer else 0 for key in ("start", "end")},
        "score": 0.7 if has_answer else 0.1,
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
    size = len(words) + 2
    heads = np.tile(np.eye(size), (2, 3, 1, 1))
    heads[0, 0] = np.roll(np.eye(size), 1, axis=1)
    pieces = columns("pieces", text, ["", *words, ""])
    pieces["pieces_text"] = ["[CLS]", *words, "[SEP]", ""]
    return {**pieces, "pieces_id": list(range(100, 100 + size + 1)), "probabilities": heads}


def explain(text: str) -> Answer:
    words = text.split()
    answer = {"label": "sea", "probability": 0.75, "logit": 1.5, "masked_logit": 0.5}
    pieces = {"count": len(words) + 2, "text": ["[CLS]", *words, "[SEP]", ""]}
    pieces["attribution"] = [0.0, *(0.5 - place for place in range(len(words))), 0.0, 0.0]
    return {**answer, "truncated": 0} | {f"pieces_{name}": value for name, value in pieces.items()}


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
        answer = self._functions[name or "serving_default"](**decoded)
        return {key: encode([value]) for key, value in answer.items()}


def decode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [decode(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def encode(value: Any) -> np.ndarray:
    array = np.array(value)
    if array.dtype.kind == "U":
        return np.array([text.encode() for text in array.ravel()], object).reshape(array.shape)
    return array.astype({"i": np.int32, "f": np.float32}[array.dtype.kind])


def signature_of(function: Callable[..., Answer]) -> SignatureDef:
    samples = {"choices": ["a", "b"], "token_ids": [1, 2]}
    names = [name for name in function.__annotations__ if name != "return"]
    inputs = {name: samples.get(name, "a Berlin") for name in names}
    outputs = {"label": ""} if function is fail else function(**inputs)
    types = {"O": DataType.DT_STRING, "i": DataType.DT_INT32, "f": DataType.DT_FLOAT}
    signature = SignatureDef(method_name="tensorflow/serving/predict")
    for tensors, values in ((signature.inputs, inputs), (signature.outputs, outputs)):
        for name, value in values.items():
            array = encode([value])
            tensors[name].dtype = types[array.dtype.kind]
            tensors[name].name = f"{name}:0"
            for _ in array.shape:
                tensors[name].tensor_shape.dim.add(size=-1)
    return signature


class CannedModels:
    def __init__(self) -> None:
        more = {"embed": embed, "explain": explain, "tokens": tokens}
        functions: dict[str, dict[str, Callable[..., Answer]]] = {
            "classes": {"serving_default": classes, **more},
            "choice": {"serving_default": choice},
            "entities": {"serving_default": entities},
            "full": {"serving_default": fail},
            "masks": {"serving_default": masks},
            "questions": {"serving_default": answer},
            "similarity": {"serving_default": score},
        }
        self._loaded: dict[str, dict[int, CannedServable]] = {}
        for name, answers in functions.items():
            all_answers = {**answers, "attention": attention}
            self._loaded[name] = {x: CannedServable(name, x, all_answers) for x in (1, 2)}
        self.names = sorted(functions)
        self.metrics = Metrics()

    @contextlib.contextmanager
    def servable(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> Iterator[CannedServable]:
        yield self._loaded[name][version or 2]

    def available(self, name: str) -> dict[int, CannedServable]:
        return self._loaded[name]


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
