import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import numpy as np

from bert_tf.server.models import Models

TEXTS = np.array([b"the seas", b"farm"], object)


@contextlib.asynccontextmanager
async def running(models: Models) -> AsyncIterator[Models]:
    """Loads the models, then watches their folders; closes them on exit."""
    await models.start()
    try:
        yield models
    finally:
        await models.close()


async def predict(
    models: Models, name="toy", version=None, label=None, **inputs: np.ndarray
) -> dict[str, np.ndarray]:
    """The default signature's answer to TEXTS, or to other inputs."""
    with models.servable(name, version, label) as held:
        return await held.predict("serving_default", inputs or {"text": TEXTS})


async def until(condition: Callable[[], object], seconds=60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
