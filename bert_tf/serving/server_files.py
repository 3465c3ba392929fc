"""Configuration of TensorFlow Serving beside the models: batching, and the list of models."""

import re
from collections.abc import Mapping
from pathlib import Path

from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.atomic import write_text

MODELS_CONFIG = "models.config"
# Where the server's Docker image looks for models.
_MOUNT = "/models"

BATCHING_FILE = "batching_params.pbtxt"
# A batch is made of what waits while all threads are busy, so an idle server adds no delay. The
# number of threads is the server's own: one per core.
_BATCHING = """\
# Dynamic batching of this model on CPUs, in tensorflow_model_server with
#   --enable_batching --enable_per_model_batching_parameters
# Rows of a batch, and therefore of a single request.
max_batch_size { value: 64 }
# No waiting for more requests: a batch takes what has queued while the processor was busy.
batch_timeout_micros { value: 0 }
# Beyond 16 waiting batches a request is refused (503) rather than answered too late.
max_enqueued_batches { value: 16 }
"""

_NO_MODELS = """\
# For TensorFlow Serving: one block per model. base_path is an absolute path on the server;
# with Docker this folder is mounted at /models.
model_config_list {
}
"""


def batching_parameters(signatures: Mapping[str, SignatureDef]) -> str | None:
    """The text of `batching_params.pbtxt`; None for a model that a server must not batch.

    A server joins requests only if all dimensions but the first agree. A list of choices may have
    any length, and the server's padding, which repeats the first value, would add choices.
    """
    inputs = signatures["serving_default"].inputs.values()
    return _BATCHING if all(len(info.tensor_shape.dim) == 1 for info in inputs) else None


def list_model(root: str | Path, name: str) -> bool:
    """Adds a model to `<root>/models.config`, unless the file names it; keeps the rest.

    Returns:
        Whether the file names the model now: not if it has no `model_config_list`.
    """
    path = Path(root) / MODELS_CONFIG
    text = path.read_text(encoding="utf-8") if path.is_file() else _NO_MODELS
    # Comments may speak of models and hold brackets: blank them, so that all places stay.
    code = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text)
    if re.search(rf"""\bname\s*:\s*(["']){re.escape(name)}\1""", code):
        return True
    end = code.rfind("}")
    if not re.search(r"\bmodel_config_list\b", code) or end < 0:
        return False
    block = (
        "  config {\n"
        f'    name: "{name}"\n'
        f'    base_path: "{_MOUNT}/{name}"\n'
        '    model_platform: "tensorflow"\n'
        "  }\n"
    )
    line = text.rfind("\n", 0, end) + 1
    place = line if not text[line:end].strip() else end  # `{}` may stand on one line
    separator = "" if place == line else "\n"
    write_text(path, text[:place] + separator + block + text[place:])
    return True
