import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from preloaded import run_code
from running_models import running

from bert_tf.server.models import Models

_MEGABYTES = 16  # of one version


class Large(tf.Module):
    """A weight that is read, and one that is a constant of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.ones([_MEGABYTES * 2**17]))
        self.constant = np.random.default_rng(0).random(_MEGABYTES * 2**17, np.float32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def __call__(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        length = tf.cast(tf.strings.length(text), tf.float32)
        return {"length": length * tf.reduce_max(self.weight) + 0 * self.constant[0], "text": text}


def resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError


def measured(folder: Path) -> tuple[float, float, float]:
    """Memory after the first requests, after 2,000 more, and after five further versions."""
    model = Large()
    tf.saved_model.save(model, str(folder / "export"), signatures=model.__call__)
    (folder / "models" / "large").mkdir(parents=True)
    texts = np.array([b"x" * 1000] * 8, object)

    async def run() -> tuple[float, float, float]:
        def add(version: int) -> None:
            hidden = folder / "models" / "large" / f".{version}"
            shutil.copytree(folder / "export", hidden)
            hidden.rename(hidden.with_name(str(version)))

        async def predict() -> dict[str, np.ndarray]:
            with models.servable("large") as servable:
                return await servable.predict("serving_default", {"text": texts})

        async def ask(requests: int) -> None:
            for _ in range(requests // 20):
                for answer in await asyncio.gather(*(predict() for _ in range(20))):
                    assert answer["length"].tolist() == [1000] * 8

        def states() -> list[int]:
            return [x.state for x in models.status("large").model_version_status]

        async def swap(versions: range) -> None:
            for version in versions:
                add(version)
                async with asyncio.timeout(120):
                    while states()[:2] != [30, 50]:
                        await asyncio.sleep(0.02)
                await ask(20)
                shutil.rmtree(folder / "models" / "large" / str(version - 1))

        add(1)
        models = Models(folder / "models", poll_seconds=0.05)
        async with running(models):
            await ask(200)
            await swap(range(2, 5))
            start = resident()
            await ask(2000)
            asked = resident()
            await swap(range(5, 10))
            return start, asked, resident()

    return asyncio.run(run())


# A process of its own: one that has run other tests gives back their memory, or takes it again.
_MEASURED = """
import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from test_memory import measured

print(json.dumps(measured(Path(sys.argv[2]))))
"""


@pytest.mark.slow
def test_memory_stays_flat_over_requests_and_versions(request, tmp_path):
    done = run_code(_MEASURED, [request.path.parent, tmp_path], check=True)
    start, asked, swapped = json.loads(done.stdout)
    assert asked - start < 10, (start, asked)  # their texts alone are 16 MB
    assert swapped - asked < 2.5 * _MEGABYTES, (asked, swapped)  # five versions were loaded
