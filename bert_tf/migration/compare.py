"""Whether a model computes here what the old code computed: its ids and outputs, in a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.loading import load_model
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer

# Float32 rounds each of the thousands of sums of a BERT; other orders of summation give 2e-6.
TOLERANCE = 1e-5
# Another GELU (its tanh approximation) makes differences up to this; other weights larger ones.
_GELU_DIFFERENCE = 3e-2
# Names of the inputs here and in other libraries.
_INPUTS = {
    "token_ids": ("token_ids", "input_ids", "input_word_ids"),
    "segment_ids": ("segment_ids", "token_type_ids", "input_type_ids"),
    "padding_mask": ("padding_mask", "attention_mask", "input_mask"),
}
# Outputs of other libraries -> ours: "" for an array, a dict's key, or an index of the last axis.
_OUTPUTS: dict[str, str | int] = {
    "logits": "",
    "mlm_logits": "mlm_logits",
    "prediction_logits": "mlm_logits",
    "nsp_logits": "nsp_logits",
    "seq_relationship_logits": "nsp_logits",
    "start_logits": 0,
    "end_logits": 1,
    "sequence_output": "sequence_output",
    "last_hidden_state": "sequence_output",
    "pooled_output": "pooled_output",
    "pooler_output": "pooled_output",
}
_Arrays = dict[str, np.ndarray]


@dataclass
class Difference:
    name: str  # of the old code
    largest: float  # max |ours - theirs| at tokens that are no padding
    scale: float  # max |theirs|

    @property
    def relative(self) -> float:
        return self.largest / max(1.0, self.scale)


@dataclass
class Comparison:
    rows: int
    texts: int | None  # number of texts that were tokenized here; None without texts
    other_ids: list[str] = field(default_factory=list)  # a sentence for each text of other ids
    outputs: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether float32's rounding explains the differences."""
        return not self.other_ids and all(output.relative <= TOLERANCE for output in self.outputs)

    @property
    def cause(self) -> str:
        """What to look at when it is not equal."""
        if self.other_ids:
            return (
                "copy the files of the old model's tokenizer: vocab.txt, tokenizer_config.json, "
                "added_tokens.json, special_tokens_map.json, tokenizer.json"
            )
        if max(output.relative for output in self.outputs) < _GELU_DIFFERENCE:
            return (
                "differences of this size come from another GELU or epsilon: see hidden_act and "
                "layer_norm_eps in config.json (docs/checkpoints.md, which GELU)"
            )
        return "convert the weights that the old code used, and save its outputs without dropout"


def compare(file: Path, directory: Path) -> Comparison:
    """Compares a model's ids and outputs with those in a file.

    The .npz `file` holds inputs, int [B, T] (choices [B, n, T]), under the names of transformers,
    KerasHub, Model Garden or this library; outputs, float; and, to compare the tokenizer, too,
    "texts", [B], or [B, 2] for pairs. InputError if it lacks them or has others than the model.
    """
    arrays = _read(file)
    inputs = _inputs(arrays, file)
    texts = arrays.get("texts")
    result = Comparison(len(inputs["token_ids"]), None if texts is None else len(texts))
    if texts is not None:
        result.other_ids = _other_ids(texts, inputs, directory, file)
    size = BertConfig.from_json(directory / "config.json").vocab_size
    if (last := inputs["token_ids"].max(initial=0)) >= size:
        raise InputError(
            f"{file} has the id {last}, and {directory} has embeddings of {size} pieces: convert "
            "the model as it was saved after its tokens were added"
        )
    encoder: Any = None
    model: Any = None
    for name in sorted(arrays.keys() & _OUTPUTS.keys()):
        key = _OUTPUTS[name]
        if key in ("sequence_output", "pooled_output"):
            encoder = encoder or BertEncoder.from_directory(directory)
            output = encoder(inputs)[key]
        else:
            model = model or load_model(directory)
            output = _output(model, inputs, key, name, file)
        result.outputs.append(_difference(name, output, arrays[name], inputs, file))
    if not result.outputs:
        raise InputError(f"{file} holds no outputs: save some of {', '.join(_OUTPUTS)}.")
    return result


def _read(file: Path) -> _Arrays:
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise InputError(
            f"{file} is no .npz file of plain arrays ({error}): save it with np.savez."
        ) from None


def _inputs(arrays: _Arrays, file: Path) -> _Arrays:
    inputs = {}
    for ours, names in _INPUTS.items():
        value = next((arrays[name] for name in names if name in arrays), None)
        if value is not None and value.dtype.kind in "iub":
            inputs[ours] = value.astype(np.int32)
    ids = inputs.get("token_ids")
    if ids is None or ids.ndim not in (2, 3):
        raise InputError(
            f"{file} holds no ids [batch, length]: save the inputs of the old model, such as "
            "input_ids and attention_mask, with its outputs."
        )
    inputs.setdefault("segment_ids", np.zeros_like(ids))
    inputs.setdefault("padding_mask", np.ones_like(ids))
    for name, value in inputs.items():
        if value.shape != ids.shape:
            raise InputError(
                f"{file}: {name} is {list(value.shape)}, the ids are {list(ids.shape)}: save them "
                "in one shape."
            )
    return inputs


def _other_ids(texts: np.ndarray, inputs: _Arrays, directory: Path, file: Path) -> list[str]:
    """The texts whose ids differ from the file's, each in a sentence."""
    ids = inputs["token_ids"]
    mask = inputs["padding_mask"]
    shapes = [(len(ids),), (len(ids), 2)]
    if texts.dtype.kind not in "SU" or texts.shape not in shapes or ids.ndim != 2:
        raise InputError(
            f"{file}: texts is {texts.dtype} {list(texts.shape)}: save one string for each row of "
            "ids, or a pair of strings."
        )
    tokenizer = BertTokenizer.from_directory(directory)
    columns = texts.T if texts.ndim == 2 else [texts]
    pieces = [tokenizer.tokenize(column.tolist()) for column in columns]
    ours = Packer(tokenizer, max_length=ids.shape[1])(*pieces)["token_ids"].numpy()
    vocabulary = dict(enumerate(tokenizer.vocabulary))

    def shown(row: np.ndarray) -> str:
        return repr(" ".join(vocabulary.get(number, f"id {number}") for number in row))

    sentences = []
    for row, text in enumerate(texts.tolist()):
        # Either side may be padded: only real tokens are compared.
        here = ours[row][ours[row] != tokenizer.pad_token_id]
        there = ids[row][mask[row] > 0]
        if not np.array_equal(here, there):
            sentences.append(f"{text!r} is {shown(here)} here, {shown(there)} there")
    return sentences


def _output(model: Any, inputs: _Arrays, key: str | int, name: str, file: Path) -> Any:
    ids = inputs["token_ids"]
    if "mask_positions" in model.input:
        positions = np.broadcast_to(np.arange(ids.shape[-1], dtype=np.int32), ids.shape)
        inputs = {**inputs, "mask_positions": positions}
    output = model(inputs)
    if isinstance(output, dict):
        if key == "" and len(output) == 1:
            return next(iter(output.values()))
        if key in output:
            return output[key]
    elif key == "":
        return output
    elif isinstance(key, int):
        return output[..., key]
    raise InputError(
        f"{file} has {name}, which a {type(model).__name__} has not: give the directory of the "
        "model that computed it."
    )


def _difference(
    name: str, output: Any, theirs: np.ndarray, inputs: _Arrays, file: Path
) -> Difference:
    ours = np.asarray(output, dtype=np.float32)
    if ours.size == theirs.size:  # a single label or choice: an axis more or less
        ours = ours.reshape(theirs.shape)
    if ours.shape != theirs.shape or theirs.dtype.kind != "f":
        raise InputError(
            f"{file}: {name} is {theirs.dtype} {list(theirs.shape)}, here it is "
            f"{list(ours.shape)}: give the directory of the model that computed it."
        )
    mask = inputs["padding_mask"] > 0
    if theirs.shape[: mask.ndim] == mask.shape:  # one for each token
        ours = ours[mask]
        theirs = theirs[mask]
    largest = float(np.max(np.abs(ours - theirs), initial=0.0))
    return Difference(name, largest, float(np.max(np.abs(theirs), initial=0.0)))
