"""SavedModels for TensorFlow Serving, and the files that it reads beside them.

`saved_models/<name>/<version>/` is a version of a model, `saved_models/models.config` lists models.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo

from bert_tf.device_errors import full_disk_errors
from bert_tf.errors import InputError
from bert_tf.files.atomic import hold_output, replace_directory, write_text
from bert_tf.files.lock import locked
from bert_tf.networks.tensorflow import int8
from bert_tf.serving.precisions import versions
from bert_tf.serving.saved_model import LoadedModel, nodes_of, read_saved_model
from bert_tf.serving.warmup_requests import (
    WARMUP_FILE,
    check_requests,
    example_texts,
    prediction_log,
    requests,
)
from bert_tf.tasks.signatures import RawTextModel, Step, no_step

_log = logging.getLogger(__name__)

# The TF Text ops of our tokenizer. Released servers link both, but not others such as
# TFText>RoundRobinTrim (tensorflow/serving issue 2267).
SERVED_TEXT_OPS = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
# Marks a function of `tf.function(jit_compile=True)`, and each call of it.
_COMPILED = "_XlaMustCompile"

# Files here travel with a SavedModel; a server reads none but those that it knows by name.
ASSETS = "assets.extra"
_LARGEST = 2**63 - 1  # versions are int64 in TensorFlow Serving
MODELS_CONFIG = "models.config"
# What TensorFlow Serving is started with, in the folder of all models.
BESIDE_MODELS = Path(__file__).parent / "beside_models"
_LABELLED = (  # what `set_labels` writes
    r" +model_version_policy \{ specific \{[^{}]*\} \}\n"
    r"( +version_labels \{ key: \"(float32|bfloat16|int8)\" value: \d+ \}\n)+"
)
BATCHING_FILE = "batching_params.pbtxt"


def check_export(name: str, *, root: str | Path, version: int) -> None:
    """Raises InputError for a name or version that cannot be used; 0 is the next free one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"{name!r} cannot name a served model: use letters, digits, . _ and -")
    existing = versions(Path(root) / name)
    following = max(existing, default=0) + 1
    path = Path(root) / name / str(version or following)
    if not 0 <= (version or following) <= _LARGEST:
        raise InputError(f"{path} cannot be a version: give a positive number up to {_LARGEST}")
    if path.exists() or version in existing:
        raise InputError(
            f"{path} already exists: the next free version is {following}; give it, or remove the "
            "older one"
        )


def export(
    module: RawTextModel,
    name: str,
    *,
    root: str | Path = "saved_models",
    version: int = 0,
    assets: Mapping[str, str] | None = None,
    facts: Mapping[str, str] | None = None,
    step: Step = no_step,
    write_beside: Callable[[Path], object] = lambda folder: None,
) -> Path:
    """Writes `module` as `<root>/<name>/<version>/`, completely or not at all; returns the folder.

    It holds warm-up requests, each of which has been run, `batching_params.pbtxt`, a model card
    with `facts` (subject -> text), `assets` (file name -> text) and what `write_beside` adds to its
    folder. The version 0 is the one after
    the newest. `<root>/models.config` lists the model; the files of TensorFlow Serving beside it
    (compose.yaml, batching.config, monitoring.config) are written where they are missing.

    Raises InputError if the name or version cannot be used, no released TensorFlow Serving runs the
    graph, or a signature fails a warm-up request; OSError if the disk is full.
    """
    check_export(name, root=root, version=version)
    directory = Path(root) / name
    with _alone_in(directory):
        check_export(name, root=root, version=version)  # again: another export may have ended
        version = version or max(versions(directory), default=0) + 1
        with (
            replace_directory(directory / str(version)) as temporary,
            full_disk_errors(directory),
            _without_information(),
        ):
            functions = module.signatures(step=step)
            step("writing the graph and the weights", 0, 1)
            tf.saved_model.save(module, str(temporary), signatures=functions)
            refuse_unservable(temporary)
            _set_method_names(temporary, module.method_names)
            for file, text in (assets or {}).items():
                (temporary / ASSETS).mkdir(exist_ok=True)
                (temporary / ASSETS / file).write_text(text, encoding="utf-8")
            _prepare_for_servers(temporary, name, module, facts or {}, step)
            write_beside(temporary)
    with _alone_in(Path(root)):
        for template in BESIDE_MODELS.iterdir():
            if not (path := Path(root) / template.name).exists():
                write_text(path, template.read_text(encoding="utf-8"))
        if not list_model(root, name):
            _log.warning("%s/models.config has no model_config_list: add %s yourself", root, name)
    return directory / str(version)


def refuse_unservable(saved_model: str | Path) -> None:
    """Raises InputError for a graph with ops that released servers lack, or with XLA."""
    proto = read_saved_model(saved_model)
    nodes = list(nodes_of(proto))
    # tf.raw_ops holds TensorFlow's own ops and none of other libraries. It lacks int8's, which any
    # TensorFlow for x86-64 with oneDNN has from 2.17 on, released servers among them; elsewhere no
    # kernel is there, and such an export names its float32 twin.
    served = {*dir(tf.raw_ops), *SERVED_TEXT_OPS, int8.OP}
    served -= {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # Python of the exporting process
    if unserved := {node.op for node in nodes} - served:
        raise InputError(
            f"TensorFlow Serving cannot run {', '.join(sorted(unserved))}: replace these with core "
            "TensorFlow ops"
        )
    compiled = {node.name for node in nodes if node.attr[_COMPILED].b}
    for meta_graph in proto.meta_graphs:
        functions = meta_graph.graph_def.library.function
        compiled |= {x.signature.name for x in functions if x.attr[_COMPILED].b}
    if compiled:
        raise InputError(
            f"TensorFlow Serving cannot run XLA functions ({', '.join(sorted(compiled))}): remove "
            "jit_compile=True"
        )


def _set_method_names(directory: Path, method_names: Mapping[str, str]) -> None:
    """Writes the APIs that signatures are for; `tf.saved_model.save` knows predict alone."""
    if method_names:
        updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(str(directory))
        for signature_name, method_name in method_names.items():
            updater.replace_method_name(signature_name, method_name)
        updater.save()


def _prepare_for_servers(
    directory: Path, name: str, module: RawTextModel, facts: Mapping[str, str], step: Step
) -> None:
    """Runs the warm-up requests as a server will, and writes the files that go with a version."""
    step("loading the model as a server does", 0, 1)
    with contextlib.closing(LoadedModel(directory)) as model:
        warmup = list(requests(model.signatures, module.tokenizer, module.positions))
        check_requests(model, warmup, step)
    (directory / ASSETS).mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(directory / ASSETS / WARMUP_FILE)) as writer:
        for request in warmup:
            writer.write(prediction_log(name, request))
    if parameters := batching_parameters(model.signatures):
        (directory / BATCHING_FILE).write_text(parameters, encoding="utf-8")
    card = model_card(name, facts, model.signatures)
    (directory / "README.md").write_text(card, encoding="utf-8")


@contextlib.contextmanager
def _without_information() -> Iterator[None]:
    """Hides TensorFlow's information, which notebooks show: paths in a folder that is renamed."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Holds the folder's lock; what a killed export left in it is removed."""
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, waits=True), hold_output(directory):
        yield


def batching_parameters(signatures: Mapping[str, SignatureDef]) -> str | None:
    """The text of `batching_params.pbtxt`; None for a model that a server must not batch."""
    # A list of choices may have any length, and a server's padding would add choices.
    inputs = signatures["serving_default"].inputs.values()
    if any(len(info.tensor_shape.dim) > 1 for info in inputs):
        return None
    return Path(__file__).with_name(BATCHING_FILE).read_text(encoding="utf-8")


def set_labels(root: str | Path, name: str, labels: Mapping[str, int]) -> bool:
    """Serves versions under labels, in place of those that an earlier call labelled.

    Returns False, and changes nothing, if `<root>/models.config` has a user's settings for the
    model.
    """
    path = Path(root) / MODELS_CONFIG
    end = "  }\n"
    text = path.read_text(encoding="utf-8")
    block = _block(name).removesuffix(end)
    numbers = " ".join(f"versions: {number}" for number in labels.values())
    lines = f"    model_version_policy {{ specific {{ {numbers} }} }}\n"
    for label, number in labels.items():
        lines += f'    version_labels {{ key: "{label}" value: {number} }}\n'
    entry = re.search(f"{re.escape(block)}({_LABELLED})?{re.escape(end)}", text)
    if entry is None or re.findall(r"s: (\d+)", entry[0]) != re.findall(r"value: (\d+)", entry[0]):
        return False
    write_text(path, text.replace(entry[0], block + lines + end))
    return True


def pinned_versions(root: str | Path, name: str) -> set[int]:
    """The versions that `<root>/models.config` names for a model; none if it pins none."""
    path = Path(root) / MODELS_CONFIG
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    entries = re.split(r"\bconfig\s*:?\s*\{", _code(text))
    entry = next((text for text in entries if _names(text, name)), "")
    pinned = re.search(r"\bspecific\s*:?\s*\{([^{}]*)\}", entry)
    return set(map(int, re.findall(r"\d+", pinned[1]))) if pinned else set()


def _block(name: str) -> str:
    return f"""\
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
  }}
"""


def list_model(root: str | Path, name: str) -> bool:
    """Adds a model to `<root>/models.config`; False if that has no `model_config_list`."""
    path = Path(root) / MODELS_CONFIG
    text = (path if path.is_file() else BESIDE_MODELS / MODELS_CONFIG).read_text(encoding="utf-8")
    code = _code(text)
    if _names(code, name):
        return True
    end = code.rfind("}")
    if not re.search(r"\bmodel_config_list\b", code) or end < 0:
        return False
    line = text.rfind("\n", 0, end) + 1
    offset = line if not text[line:end].strip() else end  # `{}` may stand on one line
    separator = "" if offset == line else "\n"
    write_text(path, text[:offset] + separator + _block(name) + text[offset:])
    return True


def _code(text: str) -> str:
    """Blanks comments, which may speak of models and hold brackets; all offsets stay."""
    return re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text)


def _names(code: str, model: str) -> bool:
    return re.search(rf"""\bname\s*:\s*(["']){re.escape(model)}\1""", code) is not None


def card_rows(facts: Mapping[str, str]) -> str:
    """The rows of a model card's table."""
    # A bar in a text would end its cell, a line its row.
    cells = ((subject, text.replace("|", "\\|").split()) for subject, text in facts.items())
    rows = [f"| {subject} | {' '.join(words)} |" for subject, words in cells]
    return "\n".join([*rows, "| licence | not stated: add it before you pass the model on |"])


def model_card(name: str, facts: Mapping[str, str], signatures: Mapping[str, SignatureDef]) -> str:
    default = signatures["serving_default"]
    texts = example_texts(default.inputs, default.outputs)
    body = json.dumps({"inputs": {key: [text] for key, text in texts.items()}})
    table = []
    for signature_name, signature in sorted(signatures.items()):
        api = signature.method_name.rpartition("/")[2]
        inputs, outputs = map(_tensors, (signature.inputs, signature.outputs))
        table.append(f"| `{signature_name}` | {api} | {inputs} | {outputs} |")
    return f"""\
# {name}

A SavedModel that takes raw strings, made by bert-tf.

| | |
|---|---|
{card_rows(facts)}

## Example request

    curl -d '{body}' \\
        http://localhost:8501/v1/models/{name}:predict

## Signatures

B is the batch; `?` differs from request to request. Lists are padded: `NAME_count` says how many
of `NAME_...` are real. A signature other than `serving_default` is asked for with
`"signature_name"` in the request.

| signature | API | inputs | outputs |
|---|---|---|---|
{chr(10).join(table)}
"""


def _tensors(tensors: Mapping[str, TensorInfo]) -> str:
    described = []
    for name, info in sorted(tensors.items()):
        sizes = ["?" if dim.size < 0 else str(dim.size) for dim in info.tensor_shape.dim[1:]]
        shape = ", ".join(["B", *sizes])
        described.append(f"`{name}` {tf.as_dtype(info.dtype).name} [{shape}]")
    return ", ".join(described)
