"""The files in which sentence-transformers records how vectors of texts are pooled."""

from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.checkpoints.weights_files import (
    WEIGHTS,
    Tensors,
    read_tensors,
    weights_path,
    write_tensors,
)
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
_DENSE = "2_Dense"
FILES = (MODULES, SENTENCE_CONFIG, PROMPTS, f"{_POOLING}/*", f"{_DENSE}/*")
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
# Keras' name of a dense layer's activation -> the class that they name.
DENSE_ACTIVATIONS = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "linear": "torch.nn.modules.linear.Identity",
}
_DENSE_KEYS = ("in_features", "out_features", "bias", "activation_function")
_KNOWN = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Dense"])


def read_sentence_files(directory: str | Path) -> dict[str, Any]:
    """Reads how vectors of texts are made; empty without such files.

    Keys: `pooling`, `normalize`, `max_length`; and, if they differ from the defaults, `similarity`,
    `prompt` (put before every text), `query_prompt` and `document_prompt`; and, of a dense layer
    between pooling and normalization, `dense`: arguments of `keras.layers.Dense`.
    """
    folder = Path(directory)
    modules = _modules(folder)
    if not modules:
        return {}
    path = modules["Pooling"] / CONFIG
    settings = {"pooling": _pooling(path), "normalize": "Normalize" in modules}
    settings |= {"dense": _dense(modules["Dense"] / CONFIG)} if "Dense" in modules else {}
    settings |= _prompts(folder)
    prompts = [settings[name] for name in settings if name.endswith("prompt") and settings[name]]
    if prompts and not read_json(path).get("include_prompt", True):
        raise InputError(
            f"{path}: include_prompt is false, but pooling without the prompt {prompts[0]!r} is "
            "not supported: give another model, or remove its prompts"
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


def _modules(folder: Path) -> dict[str, Path]:
    """The folder of each module by the module's name; empty without the file that lists them."""
    if not (folder / MODULES).is_file():
        return {}
    modules = read_json(folder / MODULES, list)
    if not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{folder / MODULES} is not a list of modules: restore it")
    names = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if names not in [known + last for known in _KNOWN for last in ([], ["Normalize"])]:
        raise InputError(
            f"{folder / MODULES} has the modules {', '.join(names)}, but only Transformer, "
            "Pooling, at most one Dense and Normalize, in this order, are supported: give another "
            "model, or delete the file to use the encoder alone"
        )
    paths = (folder / str(module.get("path", "")) for module in modules)
    return dict(zip(names, paths, strict=True))


def _dense(path: Path) -> dict[str, Any]:
    """Arguments of `keras.layers.Dense` from the config.json of the module Dense."""
    config = read_json(path)
    theirs = str(config.get("activation_function"))
    activations = [name for name, x in DENSE_ACTIVATIONS.items() if x == theirs]
    units = config.get("out_features")
    faults = [] if activations else [f"activation_function {theirs}"]
    faults += [f"out_features {units!r:.40}"] if not isinstance(units, int) or units < 1 else []
    # Newer versions name what the module reads and writes, by default the text's vector.
    faults += [
        f"{name} {value!r:.40}"
        for name, value in config.items()
        if name not in _DENSE_KEYS and value not in (None, False, "sentence_embedding")
    ]
    if faults:
        raise InputError(
            f"{path} has {' and '.join(faults)}, but only a dense layer on the text's vector with "
            f"{' or '.join(DENSE_ACTIVATIONS.values())} is supported: give another model, or "
            f"delete {MODULES} to use the encoder alone"
        )
    use_bias = bool(config.get("bias", True))
    return {"units": units, "activation": activations[0], "use_bias": use_bias}


def read_dense(directory: str | Path) -> tuple[Path, dict[str, np.ndarray]] | None:
    """The file and the tensors, float32, of the module Dense; None without such a module.

    `linear.weight` is [units, width], and `linear.bias`, if there is one, [units].
    """
    modules = _modules(Path(directory))
    if "Dense" not in modules:
        return None
    path = weights_path(modules["Dense"])
    return path, dict(read_tensors(path))


def _prompts(folder: Path) -> dict[str, str]:
    """Reads the similarity and the default prompts."""
    path = folder / PROMPTS
    values = read_json(path) if path.is_file() else {}
    similarity = values.get("similarity_fn_name") or "cosine"
    prompts = values.get("prompts") or {}
    if similarity not in ("cosine", "dot"):
        raise InputError(
            f"{path}: similarity_fn_name is {similarity!r}, but only cosine and dot are supported: "
            "give another model, or set it to one of these"
        )
    default = values.get("default_prompt_name")
    known = isinstance(prompts, dict) and all(isinstance(x, str) for x in prompts.values())
    if not known or (default is not None and default not in prompts):
        raise InputError(
            f"{path}: prompts must map names to strings and include the default {default!r}: "
            "restore it"
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
    if dense := read_dense(source):
        how |= {"dense": dense[1], "activation": recorded["dense"]["activation"]}
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
            f"{path} pools by {poolings}, but only one of mean, cls, max and last is supported: "
            "give another model, or delete modules.json to use the encoder alone"
        )
    return known[str(asked[0])]


def write_sentence_files(
    directory: str | Path,
    *,
    pooling: str,
    normalize: bool,
    max_length: int,
    width: int,
    dense: Tensors | None = None,
    activation: str = "linear",
) -> None:
    """Writes the files in the form that every version of sentence-transformers reads.

    `dense` are tensors as of `read_dense`, of a layer with this activation; None for no layer.
    """
    folder = Path(directory)
    modules = [("", "Transformer"), (_POOLING, "Pooling")]
    modules += [(_DENSE, "Dense")] * (dense is not None)
    modules += [(f"{len(modules)}_Normalize", "Normalize")] * normalize
    for path, _ in modules:
        (folder / path).mkdir(exist_ok=True)
    keys = {key: name == pooling for name, (key, _) in _POOLINGS.items()}
    write_json(folder / _POOLING / CONFIG, {"word_embedding_dimension": width, **keys})
    if dense is not None:
        units, inputs = dense["linear.weight"].shape
        values = (inputs, units, "linear.bias" in dense, DENSE_ACTIVATIONS[activation])
        write_json(folder / _DENSE / CONFIG, dict(zip(_DENSE_KEYS, values, strict=True)))
        write_tensors(folder / _DENSE / WEIGHTS, dense, {"format": "pt"})
    write_json(folder / SENTENCE_CONFIG, {"max_seq_length": max_length, "do_lower_case": False})
    described = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(modules)
    ]
    write_json(folder / MODULES, described)  # last: it names the others
