"""KerasHub presets, read and written by KerasHub itself (the package keras-nlp)."""

from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np

from bert_tf.checkpoints import weight_names
from bert_tf.checkpoints.formats import Location
from bert_tf.checkpoints.other_formats.tensorflow_checkpoint import TANH_GELU
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.weight_names import (
    BLOCK,
    EMBEDDINGS,
    KERAS_HUB,
    MULTI_LABEL,
    POOLER,
    is_kernel,
)
from bert_tf.config import BertConfig
from bert_tf.errors import InputError, pip_install
from bert_tf.files.model_files import CONFIG, TASK_FILE, TOKENIZER_JSON, read_json
from bert_tf.tokenization.tokenizer import BertTokenizer

_TASK_WEIGHTS = "task.weights.h5"
_PROBLEM_TYPES = {  # by the activation of a classifier
    "linear": "single_label_classification",
    "softmax": "single_label_classification",
    "sigmoid": MULTI_LABEL,
}
_VOCABULARY = Path("assets", "tokenizer", "vocabulary.txt")
_HEADS_DIFFER = (
    "KerasHub's masked language model head computes GELU exactly and adds 1e-5 to variances; "
    "ours computes as the encoder does: logits differ in the third or fourth decimal."
)
_CONFIG = {  # ours: KerasHub's
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_dim",
    "hidden_dropout_prob": "dropout",
    "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments",
}


def _keras_hub() -> ModuleType:
    try:
        import keras_nlp
    except ImportError as error:
        raise InputError(
            f"KerasHub presets need KerasHub ({error}): {pip_install('keras-nlp')}"
        ) from None
    return keras_nlp


def _variables(backbone: Any, task: Any) -> dict[str, keras.Variable]:
    """The variables of a backbone and of a task's head, if any, by canonical name."""
    layers = {name: getattr(backbone, KERAS_HUB[name]) for name in (*EMBEDDINGS, *POOLER)}
    positions = "embeddings.position_embeddings"  # the only layer with a weight of its own name
    variables = {f"{positions}.weight": layers.pop(positions).position_embeddings}
    for i, block in enumerate(backbone.transformer_layers):
        for name in BLOCK:
            layers[f"encoder.layer.{i}.{name}"] = attrgetter(KERAS_HUB[name])(block)
    if hasattr(task, "masked_lm_head"):
        head = task.masked_lm_head
        variables["cls.predictions.bias"] = head._bias
        layers["cls.predictions.transform.dense"] = head._intermediate_dense
        layers["cls.predictions.transform.LayerNorm"] = head._intermediate_layer_norm
    elif task is not None:
        layers["classifier"] = task.output_dense
    for name, layer in layers.items():
        weights = weight_names.layer_weights(name, layer)
        variables |= {weight.name: weight.variables[0] for weight in weights}
    return variables


def read_keras_hub(location: Location, do_lower_case: bool | None = None) -> StoredModel:
    """Reads a preset of a `BertBackbone`, `BertMaskedLM` or `BertTextClassifier`."""
    folder = location.folder
    name = _class_name(folder / CONFIG)
    if name != "BertBackbone":
        raise InputError(f"{folder / CONFIG} is a preset of {name}: give one of BertBackbone.")
    if "QuantizedDTypePolicy" in (folder / CONFIG).read_text(encoding="utf-8"):
        raise InputError(f"{folder} is quantized: convert the preset that it was made from.")
    keras_hub = _keras_hub()
    task = None
    notes: list[str] = []
    try:
        kind = _class_name(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else ""
        if kind and not (folder / _TASK_WEIGHTS).is_file():
            notes.append(f"There is no {_TASK_WEIGHTS}: the head of the {kind} is left out.")
        elif kind in ("BertMaskedLM", "BertTextClassifier"):
            task_class = getattr(keras_hub.models, kind)
            task = task_class.from_preset(str(folder), dtype="float32", preprocessor=None)
            backbone = task.backbone
        elif kind:
            notes.append(f"{TASK_FILE} is of {kind}, whose head is not known here and is left out.")
        if task is None:
            backbone = keras_hub.models.BertBackbone.from_preset(str(folder), dtype="float32")
    except (ValueError, OSError, LookupError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(
            f"{folder} is not a complete KerasHub preset ({why}): copy it again."
        ) from None

    values: dict[str, Any] = {ours: getattr(backbone, theirs) for ours, theirs in _CONFIG.items()}
    values |= {"hidden_act": "gelu_new", "attention_probs_dropout_prob": backbone.dropout}
    notes.append("KerasHub's GELU is the tanh approximation: hidden_act is gelu_new.")
    if hasattr(task, "masked_lm_head"):
        notes.append(_HEADS_DIFFER)
    elif task is not None:
        values |= _classifier_settings(task, notes)
    preprocessor = folder / "preprocessor.json"
    if preprocessor.is_file():
        settings = read_json(preprocessor).get("config")
        length = settings.get("sequence_length") if isinstance(settings, dict) else None
        if length not in (None, values["max_position_embeddings"]):
            notes.append(
                f"The preset's sequence_length {length} is left out: give it as --max_length."
            )
    tokenizer = _tokenizer(folder, do_lower_case, notes)
    if tokenizer is not None:  # a preset knows [PAD] by its place in the vocabulary
        values["pad_token_id"] = tokenizer.pad_token_id
    config = BertConfig(**values)
    shapes = weight_names.tensor_shapes(config)
    tensors = {}
    for name, variable in _variables(backbone, task).items():
        value = keras.ops.convert_to_numpy(variable).astype(np.float32)
        shape = shapes.get(name) or value.shape[::-1]
        # A kernel becomes [out, in]; attention's has axes for the heads, [H, N, D] or [N, D, H].
        value = value.reshape(shape[::-1]).T if is_kernel(name) else value.reshape(shape)
        tensors[name] = np.ascontiguousarray(value)
    return StoredModel(config, tensors, folder, tokenizer, notes)


def _classifier_settings(task: Any, notes: list[str]) -> dict[str, Any]:
    """Values of the config that a `BertTextClassifier` has beside its weights."""
    activation = keras.activations.serialize(task.activation)
    if activation not in _PROBLEM_TYPES:
        raise InputError(
            f"The preset's classifier has the activation {activation!r:.40}: give one with one of "
            f"{', '.join(_PROBLEM_TYPES)}."
        )
    if activation != "linear":
        notes.append(f"The activation {activation} is for predictions: our model gives logits.")
    is_regression = activation == "linear" and task.num_classes == 1
    problem_type = "regression" if is_regression else _PROBLEM_TYPES[activation]
    values: dict[str, Any] = {"extra": {"problem_type": problem_type}}
    if task.dropout != task.backbone.dropout:
        values["classifier_dropout"] = task.dropout
    return values


def _tokenizer(folder: Path, do_lower_case: bool | None, notes: list[str]) -> BertTokenizer | None:
    path = folder / TOKENIZER_JSON
    if not path.is_file() or not (folder / _VOCABULARY).is_file():
        return None
    settings = read_json(path).get("config") or {}
    lower = bool(settings.get("lowercase")) if do_lower_case is None else do_lower_case
    strip = bool(settings.get("strip_accents"))
    if lower and not strip:
        notes.append(
            "The preset lower-cases but keeps accents, unlike the original's uncased models: "
            "strip_accents is false."
        )
    return BertTokenizer(
        folder / _VOCABULARY,
        do_lower_case=lower,
        strip_accents=None if strip == lower else strip,
        tokenize_chinese_chars=bool(settings.get("split_on_cjk", True)),
        special_tokens_in_text=bool(settings.get("special_tokens_in_strings")),
    )


def _class_name(path: Path) -> str:
    """The class of a serialized Keras object."""
    return str(read_json(path).get("registered_name")).split(">")[-1]


def write_keras_hub(model: StoredModel, folder: Path) -> None:
    """Writes a preset; of a task, if the model has a head that KerasHub knows."""
    config = model.config
    if config.hidden_act not in ("gelu", *TANH_GELU):
        raise InputError(
            f"KerasHub's BertBackbone supports GELU only, not {config.hidden_act!r}: the model "
            "cannot be written as a preset."
        )
    if not model.has("pooler."):
        raise InputError("KerasHub's BertBackbone has a pooler: give a model with one.")
    model.note_differences("KerasHub")
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        model.notes.append(
            f"KerasHub has one dropout rate: {config.hidden_dropout_prob}, that of the hidden "
            "states, is written."
        )
    if config.pad_token_id != (0 if model.tokenizer is None else model.tokenizer.pad_token_id):
        model.notes.append(
            f"KerasHub pads with the id of [PAD] in the vocabulary: pad_token_id "
            f"{config.pad_token_id} is left out."
        )
    keras_hub = _keras_hub()
    sizes = {theirs: getattr(config, ours) for ours, theirs in _CONFIG.items()}
    backbone = keras_hub.models.BertBackbone(**sizes, dtype="float32")
    tokenizer = None if model.tokenizer is None else _new_tokenizer(keras_hub, model.tokenizer)
    task = None
    head = kind = ""
    options: dict[str, Any] = {}
    if model.problem_type is not None:
        head = "classifier."
        kind = "BertTextClassifier"
        options = {"num_classes": model.classes, "dropout": config.head_dropout}
        if model.problem_type == MULTI_LABEL:
            options["activation"] = "sigmoid"
            model.notes.append("KerasHub's outputs are probabilities, of a sigmoid for each label.")
        if model.labels is not None:
            model.notes.append(f"KerasHub keeps no labels; in order: {', '.join(model.labels)}.")
    elif model.has("cls.predictions."):
        head = "cls.predictions."
        kind = "BertMaskedLM"
        model.notes.append(_HEADS_DIFFER)
    if kind:
        pack = getattr(keras_hub.models, f"{kind}Preprocessor")
        length = config.max_position_embeddings
        options["preprocessor"] = tokenizer and pack(tokenizer, sequence_length=length)
        task = getattr(keras_hub.models, kind)(backbone, **options)
    tensors = model.keep(("pooler.", head), "a KerasHub preset")
    for name, variable in _variables(backbone, task).items():
        value = tensors[name].T if is_kernel(name) else tensors[name]
        variable.assign(value.reshape(variable.shape))
    for part in (backbone, tokenizer) if task is None else (task,):
        if part is not None:
            part.save_to_preset(str(folder))


def _new_tokenizer(keras_hub: Any, tokenizer: Any) -> Any:
    """KerasHub's tokenizer with the vocabulary and the settings of ours."""
    switches = tokenizer.settings
    lower = switches["do_lower_case"]
    strip = switches["strip_accents"]
    return keras_hub.models.BertTokenizer(
        vocabulary=tokenizer.vocabulary,
        lowercase=lower,
        strip_accents=lower if strip is None else strip,
        split_on_cjk=switches["tokenize_chinese_chars"],
        special_tokens_in_strings=switches["special_tokens_in_text"],
    )
