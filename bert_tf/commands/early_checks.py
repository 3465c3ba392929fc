"""Checks of what a command reads and writes, made before TensorFlow is imported.

A mistyped path or task is then reported in a second or two.
"""

import contextlib
import dataclasses
import difflib
import functools
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bert_tf.errors import InputError
from bert_tf.files.cache import fetched
from bert_tf.files.outputs import check_output_file, check_output_folder
from bert_tf.files.storage import is_remote

_MODELS = ("model", "models")
_CONFIG = "config.json"


def open_models(options: Any) -> Iterator[Path]:
    """Replaces URLs and hub names of models or tokenizers with local folders, which it yields."""
    for field, path in _values(options, "model"):
        if Path(path).exists():
            continue
        from bert_tf.checkpoints.hub import find_model

        is_url = is_remote(path) and not path.startswith("hf://")
        folder = fetched(path) if is_url else find_model(path)
        value = getattr(options, field.name)
        if folder != Path(path):
            paths = [str(folder) if item == path else item for item in value]
            setattr(options, field.name, paths if isinstance(value, list) else str(folder))
            yield folder


def check_inputs(options: Any) -> None:
    """Refuses paths, outputs and names of tasks that cannot be used."""
    inputs = sorted(_values(options, "path"), key=lambda pair: pair[0].name not in _MODELS)
    for field, path in inputs:
        option = "" if field.metadata["positional"] else f"--{field.name} "
        _check_exists(path, option, field.name in _MODELS)
    read = [path for _, path in inputs]
    for field, path in _values(options, "writes"):
        kind = field.metadata["writes"]
        if not (is_remote(path) and kind == "folder or URL"):
            (check_output_file if kind == "file" else check_output_folder)(path, read)
    if getattr(options, "task", None):
        from bert_tf.tasks.task_table import check_name

        check_name(options.task)


def _values(options: Any, mark: str) -> Iterator[tuple[dataclasses.Field, str]]:
    """The options with a mark, once for each path that they have; data in memory has none."""
    for field in dataclasses.fields(options):
        if field.metadata.get(mark):
            value = getattr(options, field.name)
            for item in value if typing.get_origin(field.type) is list else [value]:
                if isinstance(item, str):
                    yield field, item


def _check_exists(name: str, option: str, is_model: bool) -> None:
    path = Path(name)
    if name == "-" or ":" in name or set(name) & set("*?["):  # a stream, a data set, a glob
        return
    if not path.exists():
        missing = [folder for folder in (path, *path.parents) if not folder.exists()][-1]
        # The prefix of a TensorFlow checkpoint, and shards that are being made.
        index = missing.with_name(f"{missing.name}.index")
        if index.exists() or (missing.parent / ".journal").exists():
            return
        siblings: list[str] = []
        with contextlib.suppress(OSError):
            siblings = sorted(sibling.name for sibling in missing.parent.iterdir())
        near = [x for x in siblings if x.startswith(f"{missing.name}.")]
        near += difflib.get_close_matches(missing.name, siblings, n=1, cutoff=0.5)
        cure = "check the path"
        if near:
            meant = missing.with_name(near[0])
            whole = meant / path.relative_to(missing)
            cure = f"did you mean {whole if whole.exists() else meant}?"
        if is_model and not near:
            from bert_tf.checkpoints.hub import hub_hint

            cure += hub_hint(name)
        raise InputError(f"{option}{name}: no such file or folder; {cure}")
    if is_model and path.is_dir() and not (path / _CONFIG).exists():
        best = path / "best"
        if (best / _CONFIG).is_file():
            raise InputError(f"{name} is a run directory, not a model: did you mean {best}?")
        # Other models are SavedModels, in versions or alone, and checkpoints of TensorFlow.
        if not any(x.suffix in (".pb", ".index") or x.name.isdecimal() for x in path.iterdir()):
            raise InputError(
                f"{name} holds neither {_CONFIG} nor a SavedModel: give a model directory or, to "
                "bert-tf predict, saved_models/NAME"
            )


class _Loader(yaml.SafeLoader):
    """YAML in which a date, such as the name of a run, is a text."""

    yaml_implicit_resolvers: typing.ClassVar = {
        first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_values(path: str) -> dict[str, Any]:
    """Reads a YAML or JSON file of names and values."""
    load = json.loads if path.endswith(".json") else functools.partial(yaml.load, Loader=_Loader)
    try:
        values = load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): give a YAML file") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML ({error}): correct it there") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no options: write lines such as batch_size: 32")
    return values
