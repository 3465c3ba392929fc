"""The files in which sentence-transformers records how vectors of texts are pooled."""

from pathlib import Path
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json
from bert_tf.files.model_files import (
    CONFIG,
    MODULES,
    PROMPTS,
    SENTENCE_CONFIG,
    TOKENIZER_CONFIG,
    read_json,
)

_NO_LENGTH = 1_000_000  # Hugging Face writes a huge number where there is no limit
_POOLING = "1_Pooling"
FILES = (MODULES, SENTENCE_CONFIG, PROMPTS, f"{_POOLING}/*")
# Names of prompts for questions and for what they search, the first that is there.
_ROLE_PROMPTS = {"query_prompt": ("query",), "document_prompt": ("document", "passage", "corpus")}
_DEFAULTS = (("similarity", "cosine"), ("prompt", ""))
# Our name of a pooling -> its key and its name in their files, older and newer ones.
_POOLINGS = {
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "cls": ("pooling_mode_cls_token", "cls"),
    "max": ("pooling_mode_max_tokens", "max"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
}


def read_sentence_files(directory: str | Path) -> dict[str, Any]:
    """Reads how vectors of texts are made; empty without such files.

    Keys: `pooling`, `normalize`, `max_length`; and, if they differ from the defaults, `similarity`,
    `prompt` (put before every text), `query_prompt` and `document_prompt`.
    """
    folder = Path(directory)
    if not (folder / MODULES).is_file():
        return {}
    modules = read_json(folder / MODULES, list)
    if not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{folder / MODULES} is no list of modules: restore it")
    names = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        raise InputError(
            f"{folder / MODULES} has the modules {', '.join(names)}, and only Transformer, Pooling "
            "and Normalize are computed here: give a model of these, or delete the file to use its "
            "encoder alone"
        )
    path = folder / str(modules[1].get("path", _POOLING)) / CONFIG
    settings = {"pooling": _pooling(path), "normalize": names[2:] == ["Normalize"]}
    settings |= _prompts(folder)
    prompts = [settings[name] for name in settings if name.endswith("prompt") and settings[name]]
    if prompts and not read_json(path).get("include_prompt", True):
        raise InputError(
            f"{path}: include_prompt is false, and the tokens of the prompt {prompts[0]!r} are "
            "always pooled here: give another model, or remove its prompts"
        )
    # Newer versions write the length beside the tokenizer.
    for file, key in ((SENTENCE_CONFIG, "max_seq_length"), (TOKENIZER_CONFIG, "model_max_length")):
        values = read_json(folder / file) if (folder / file).is_file() else {}
        length: Any = values.get(key)
        is_number = isinstance(length, int | float) and not isinstance(length, bool)
        if is_number and length >= _NO_LENGTH:
            continue
        if length is not None and (not isinstance(length, int) or not is_number or length < 3):
            raise InputError(f"{folder / file}: {key} is {length!r:.40}: give a number from 3 on")
        if length is not None:
            return {**settings, "max_length": length}
    return settings


def _prompts(folder: Path) -> dict[str, str]:
    """Reads the similarity and the default prompts."""
    path = folder / PROMPTS
    values = read_json(path) if path.is_file() else {}
    similarity, prompts = values.get("similarity_fn_name") or "cosine", values.get("prompts") or {}
    if similarity not in ("cosine", "dot"):
        raise InputError(
            f"{path}: similarity_fn_name is {similarity!r}, and vectors are compared here by "
            "cosine or dot: give another model, or set it to one of these"
        )
    default = values.get("default_prompt_name")
    known = isinstance(prompts, dict) and all(isinstance(x, str) for x in prompts.values())
    if not known or (default is not None and default not in prompts):
        raise InputError(
            f"{path}: prompts are no texts by name, or lack the default {default!r}: restore it"
        )
    prompt = prompts.get(default, "")
    settings = {"similarity": similarity, "prompt": prompt}
    for role, names in _ROLE_PROMPTS.items():
        role_prompt = next((prompts[name] for name in names if name in prompts), prompt)
        settings |= {role: role_prompt} if role_prompt != prompt else {}
    return {name: value for name, value in settings.items() if (name, value) not in _DEFAULTS}


def write_prompts(
    directory: str | Path,
    *,
    similarity: str,
    prompt: str,
    query_prompt: str | None,
    document_prompt: str | None,
) -> None:
    """Writes similarity and prompts, unless they are the defaults."""
    prompts = {
        "query": prompt if query_prompt is None else query_prompt,
        "document": prompt if document_prompt is None else document_prompt,
        **({"default": prompt} if prompt else {}),
    }
    if similarity == "cosine" and not any(prompts.values()):
        return
    default = "default" if prompt else None
    values = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": similarity}
    write_json(Path(directory) / PROMPTS, values)


def copy_sentence_files(source: Path, target: Path, config: BertConfig) -> None:
    """Copies the files of one model directory to another."""
    recorded = read_sentence_files(source)
    if not recorded:
        return
    length = recorded.get("max_length", config.max_position_embeddings)
    how = {name: recorded[name] for name in ("pooling", "normalize")}
    write_sentence_files(target, **how, max_length=length, width=config.width)
    for name in (SENTENCE_CONFIG, PROMPTS):
        if (source / name).is_file():  # it has more than we read
            changes = {"max_seq_length": length} if name == SENTENCE_CONFIG else {}
            write_json(target / name, {**read_json(source / name), **changes})


def _pooling(path: Path) -> str:
    config = read_json(path)
    newer = config.get("pooling_mode")
    asked = list(newer) if isinstance(newer, list) else [newer] * (newer is not None)
    if not asked:
        asked = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
    known = {name: pooling_name for pooling_name, names in _POOLINGS.items() for name in names}
    if len(asked) != 1 or str(asked[0]) not in known:
        poolings = " and ".join(map(str, asked)) or "nothing"
        raise InputError(
            f"{path} pools by {poolings}, and vectors are pooled here by one of mean, cls, max and "
            "last: give another model, or delete modules.json to use its encoder alone"
        )
    return known[str(asked[0])]


def write_sentence_files(
    directory: str | Path, *, pooling: str, normalize: bool, max_length: int, width: int
) -> None:
    """Writes the files in the form that every version of sentence-transformers reads."""
    folder = Path(directory)
    modules = [("", "Transformer"), (_POOLING, "Pooling")]
    modules += [("2_Normalize", "Normalize")] * normalize
    for path, _ in modules:
        (folder / path).mkdir(exist_ok=True)
    keys = {key: name == pooling for name, (key, _) in _POOLINGS.items()}
    write_json(folder / _POOLING / CONFIG, {"word_embedding_dimension": width, **keys})
    write_json(folder / SENTENCE_CONFIG, {"max_seq_length": max_length, "do_lower_case": False})
    described = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(modules)
    ]
    write_json(folder / MODULES, described)  # last: it names the others
