import asyncio
import contextlib
from collections.abc import Iterator

from starlette.testclient import TestClient

from bert_tf.server.app import Bodies, Limits, RestApi, make_app
from bert_tf.server.models import Models

MODEL = "/v1/models/half_plus_three"


@contextlib.contextmanager
def serving(models: Models, **options) -> Iterator[TestClient]:
    with TestClient(make_app(models, **options)) as client:
        yield client


@contextlib.contextmanager
def loaded(models: Models, **options) -> Iterator[TestClient]:
    """A client of models that are loaded in a block."""
    with serving(models, **options) as client:
        client.portal.call(models.start)
        yield client
        client.portal.call(models.close)


def ask(client: TestClient, body: str | bytes, verb="predict", model=MODEL):
    return client.post(f"{model}:{verb}", content=body)


def error(response, status: int) -> str:
    """The message of an answer, which is an error with this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (message,) = response.json().values()
    assert response.json() == {"error": message}
    return message


def rest(models: Models, **limits) -> tuple[RestApi, Bodies]:
    """The application of the REST API alone, and what it holds."""
    app = RestApi(models, Limits(**limits))
    return app, app.bodies


async def run(app, messages, method="POST", path=f"{MODEL}:predict") -> list[dict]:
    """Runs one request as a server would, with what the client sends and when."""
    sent = []
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": [], "client": ("10.0.0.7", 5), "http_version": "1.1"}

    async def receive():
        if not messages:
            await asyncio.sleep(1000)
        message = messages.pop(0)
        await asyncio.sleep(message.pop("after", 0))
        return message

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent


class Stub:
    """Models of which one answers as a test wants."""

    version = 1

    def __init__(self, models, answer):
        self._models = models
        self._answer = answer
        self.metrics = models.metrics

    @contextlib.contextmanager
    def servable(self, *which):
        with self._models.servable(*which) as servable:
            self.signature, self.signatures = servable.signature, servable.signatures
            self.check_rows = servable.check_rows
            yield self

    async def predict(self, signature_name, inputs, deadline):
        return await self._answer(deadline)
