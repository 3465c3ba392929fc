"""How a sentence encoder makes one vector of a text, as the modules of its directory say."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from bert_tf.config import read_json_object
from bert_tf.errors import InputError

EMBEDDING_FILE = "embedding.json"  # beside an export's graph
_MODULES = "modules.json"  # of sentence-transformers
# Outputs of the signature `embed`, by the names of sentence-transformers' poolings.
_OUTPUTS = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}


@dataclasses.dataclass(frozen=True)
class Embedding:
    """The output of the signature `embed` to take, and what to do with it.

    `lacking` names what the model needs and exports do not have: its vectors would be others.
    """

    pooling: str = "mean"
    normalize: bool = False
    lacking: str = ""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def of_model(directory: str | Path) -> Embedding | None:
    """What the modules of a model directory say; None without them.

    Raises InputError for files that cannot be read.
    """
    directory = Path(directory)
    if not (directory / _MODULES).is_file():
        return None
    try:
        modules = json.loads((directory / _MODULES).read_text(encoding="utf-8"))
        kinds = [(module["type"].rpartition(".")[2], module["path"]) for module in modules]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{directory / _MODULES} lists no modules ({error}): correct it"
        ) from error
    lacking = [kind for kind, _ in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    poolings = [
        name
        for kind, path in kinds
        if kind == "Pooling"
        for name in _poolings(read_json_object(directory / path / "config.json"))
    ]
    output = _OUTPUTS.get(poolings[0]) if len(poolings) == 1 else None
    if output is None:
        lacking.append(f"the pooling {' and '.join(poolings) or 'that its files do not name'}")
    normalize = any(kind == "Normalize" for kind, _ in kinds)
    return Embedding(output or "mean", normalize, ", ".join(lacking))


def _poolings(config: dict[str, Any]) -> list[str]:
    if isinstance(named := config.get("pooling_mode"), str):
        return [named]
    prefix = "pooling_mode_"
    return [key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on]


def of_export(assets: Path) -> Embedding:
    """What an export's files say; by default the mean over the tokens, as it is.

    Raises InputError for a file that cannot be used.
    """
    path = assets / EMBEDDING_FILE
    if not path.is_file():
        return Embedding()
    found = read_json_object(path)
    try:
        return Embedding(**found)
    except TypeError as error:
        raise InputError(f"{path} describes no embedding ({error}): export again") from error
