"""What the tests of the server share: a tiny export, and SavedModels that cost nothing."""

import asyncio
import inspect
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import tensorflow as tf
from rest_client import loaded
from rounding import assert_equal_but_for_rounding
from starlette.testclient import TestClient
from tiny import tiny_config

from bert_tf import BertClassifier, BertSentenceEncoder, BertTokenizer, Predictor
from bert_tf.server.models import Models
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "farm", "the", "é", "。"]
PIECES += ["a", "raw", "string", "first", "second"]  # of the pages' requests
CONFIG = tiny_config(len(PIECES), max_position_embeddings=32, initializer_range=1.0)


@pytest.fixture(scope="session")
def page_models(made_once, exports_of) -> Path:
    """The models of the pages: `classifier`, `messages` and the sentence encoder `encoder`."""

    def make(folder: Path) -> None:
        tokenizer, labels = BertTokenizer(PIECES), ["bad", "good"]
        for name, task, model in (
            ("classifier", "classification", BertClassifier(CONFIG, labels=labels, seed=0)),
            ("encoder", "embedding", BertSentenceEncoder(CONFIG, seed=0)),
        ):
            settings = TASKS[task].with_settings({"max_length": 16})
            names = labels if name == "classifier" else []
            with exports_of("serving_default", "embed", "rerank"):
                Answerer(settings, model, tokenizer, names).export(name, root=folder)
        shutil.copytree(folder / "classifier", folder / "messages")

    return made_once("page_models", make)


@pytest.fixture(scope="session")
def check_vectors(page_models) -> Callable[[Sequence[str], Sequence], None]:
    """Checks vectors of texts: equal but for a block and a pooling in batches of other shapes."""
    embed = Predictor(page_models / "encoder").signature("embed")

    def check(texts: Sequence[str], vectors: Sequence) -> None:
        assert_equal_but_for_rounding(vectors, embed(text=texts)["vector"], 30, 16)

    return check


class Toy(tf.Module):
    """Signatures whose answers a test can foretell, for all types and shapes of the protocols."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = tf.Variable(scale)
        self.three = tf.Variable(3.0)

    def letters(self, text):
        letters = tf.strings.unicode_split(text, "UTF-8", errors="strict")
        count = letters.row_lengths()
        answer = {"text": text, "length": self.scale * tf.cast(count, tf.float32)}
        answer |= {"letters_count": tf.cast(count, tf.int32), "letters_text": letters.to_tensor()}
        return answer

    def half_plus_three(self, x):
        return {"y": x / 2 + self.three}

    def lengths(self, text):
        return {"length": tf.strings.length(text), "half": tf.strings.substr(text, 0, 1)}

    def pairs(self, text, text_pair):
        return {"joined": text + text_pair}

    def sensors(self, tag, signal, sensor):  # the documentation's example
        return {"tag": tag, "signal": signal, "sensor": sensor}

    def no(self, x):
        return {"y": tf.logical_not(x)}

    def save(self, folder: Path, **signatures: tuple[Callable, dict[str, tuple]]) -> None:
        """Saves signatures: the method, and the type and rank of each input."""
        functions = {
            name: tf.function(method, autograph=False).get_concrete_function(
                **{key: tf.TensorSpec([None] * rank, x, key) for key, (x, rank) in inputs.items()}
            )
            for name, (method, inputs) in signatures.items()
        }
        tf.saved_model.save(self, str(folder), signatures=functions)


@pytest.fixture(scope="session")
def save_toy() -> Callable[..., Path]:
    def save(folder: Path, scale: float = 1.0) -> Path:
        toy = Toy(scale)
        toy.save(folder, serving_default=(toy.letters, {"text": (tf.string, 1)}))
        return folder

    return save


@pytest.fixture(scope="session")
def toys(made_once, save_toy) -> Path:
    return made_once("toys", lambda folder: save_toy(folder / "toy" / "1"))


@pytest.fixture(scope="session")
def toy_models(made_once) -> Path:
    """A folder of models: `half_plus_three`, of which version 123 is there."""

    def make(folder: Path) -> None:
        toy, number, text = Toy(), {"x": (tf.float32, 1)}, (tf.string, 1)
        sensors = {"tag": text, "signal": (tf.int32, 2), "sensor": (tf.int32, 3)}
        toy.save(
            folder / "half_plus_three" / "123",
            serving_default=(toy.half_plus_three, number),
            lengths=(toy.lengths, {"text": text}),
            pairs=(toy.pairs, {"text": text, "text_pair": text}),
            sensors=(toy.sensors, sensors),
            no=(toy.no, {"x": (tf.bool, 1)}),
        )

    return made_once("toy_models", make)


@pytest.fixture(scope="module")
def served(toy_models) -> Iterator[tuple[Models, TestClient]]:
    models = Models(toy_models)
    with loaded(models) as client:
        yield models, client


@pytest.fixture(scope="module")
def models(served) -> Models:
    return served[0]


@pytest.fixture(scope="module")
def client(served) -> TestClient:
    return served[1]
