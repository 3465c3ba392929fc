import contextlib
from collections.abc import AsyncIterator

from bert_tf.server.models import Models


@contextlib.asynccontextmanager
async def running(models: Models) -> AsyncIterator[Models]:
    """Loads the models, then watches their folders; closes them on exit."""
    await models.start()
    try:
        yield models
    finally:
        await models.close()
