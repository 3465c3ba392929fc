"""Answers to raw strings from a SavedModel, as a server gives them."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.device_errors import memory_errors
from bert_tf.errors import InputError
from bert_tf.serving.engines import Engine, Engines
from bert_tf.serving.export import ASSETS
from bert_tf.serving.openvino_model import SUFFIX, OpenVinoModel
from bert_tf.serving.precisions import load_error, versions
from bert_tf.tasks.signatures import DEFAULT, find_signature

_AT_ONCE = 2  # batches, to keep a CPU's cores busy
Strings = Mapping[str, Sequence[Any]]  # input name -> a string or a list of strings per example
Progress = Callable[[int], object]  # called after each batch with the examples answered so far


class ServedFunction:
    """A signature of an export, called like a concrete function, which returns arrays."""

    def __init__(self, run: Callable[[Any], Any], specs: dict[str, tf.TensorSpec]) -> None:
        self._run = run
        self.specs = specs
        self.structured_input_signature = (), specs

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        arrays = {
            name: tf.convert_to_tensor(value, self.specs[name].dtype).numpy()
            for name, value in inputs.items()
        }
        return self._run(arrays)


class Predictor:
    """The signatures of a SavedModel, in a session of its own as a server has it.

    `saved_model` is `saved_models/<name>`, for its newest version, or one version's folder, as
    `directory` is; `signatures` are functions by name. Or it is an OpenVINO `model.xml`, which has
    the default signature and knows its `labels`. InputError if it cannot be read.

    `engine` is "tensorflow", "openvino" or "onnx" for an export with twins (`bert-tf export
    --twin`), or "auto", which takes the fastest for single texts and for batches, measured once.
    """

    labels: Sequence[str] = ()  # in the order of the outputs; none if the export tells none

    def __init__(self, saved_model: str | Path, engine: Engine = "auto") -> None:
        directory = Path(saved_model)
        if directory.suffix == SUFFIX:
            of_twin = directory.parent.parent / ASSETS  # what its SavedModel knows of the task
            self.directory = of_twin if of_twin.is_dir() else directory.parent
            model = OpenVinoModel(directory)
            self.labels = model.labels
            self.signatures = {DEFAULT: ServedFunction(model.run, model.specs)}
            return
        if not (directory / "saved_model.pb").is_file():
            available = [*versions(directory).values()]
            if not available:
                raise InputError(
                    f"{directory} contains no SavedModel: give a folder that `bert-tf export` "
                    "wrote, such as saved_models/<name>"
                )
            directory = available[-1]
        self.directory = directory
        try:
            loaded = Engines(directory, engine)
            self.signatures = {
                name: ServedFunction(functools.partial(loaded.run, name), _specs(signature))
                for name, signature in loaded.signatures.items()
            }
            self.signatures[DEFAULT]
        except (OSError, KeyError, tf.errors.OpError, ValueError, DecodeError) as error:
            cure = load_error(directory, str(error))
            reason = str(error).splitlines()[0]
            why = f": {cure}" if cure else f" ({reason}): export the model again"
            raise InputError(f"{directory} cannot be loaded{why}") from error

    @property
    def inputs(self) -> list[str]:
        """Names of the strings that the default signature takes."""
        return sorted(self.signatures[DEFAULT].specs)

    def signature(self, name: str = DEFAULT) -> ServedFunction:
        """The function of a signature; raises InputError if the SavedModel lacks it."""
        return find_signature(self.signatures, name)


def _specs(signature: Any) -> dict[str, tf.TensorSpec]:
    return {
        key: tf.TensorSpec(info.tensor_shape, tf.as_dtype(info.dtype), key)
        for key, info in signature.inputs.items()
    }


def answer(
    signature: Any,
    strings: Strings,
    batch_size: int,
    *,
    lengths: Sequence[int] | np.ndarray | None = None,
    answered: Progress = lambda number: None,
) -> dict[str, np.ndarray]:
    """Returns the outputs of a signature for E examples, in their order: name -> [E, ...], padded.

    `signature` is a function as of `Predictor.signature` or `RawTextModel.signature`; `lengths` are
    the lengths of the examples, by default in characters.

    Raises InputError for invalid Unicode, other inputs than the model's, or too little memory.
    """
    batches: list[dict[str, np.ndarray]] = []
    order: list[int] = []
    known: dict[bytes, bytes] = {}
    for indices, outputs in _answer_batches(signature, strings, batch_size, lengths, answered):
        for name, values in outputs.items():
            if values.dtype == object:  # equal strings once: every answer has all labels
                shared = (known.setdefault(value, value) for value in values.flat)
                outputs[name] = np.fromiter(shared, object, values.size).reshape(values.shape)
        batches.append(outputs)
        order += indices.tolist()
    back = np.argsort(order)
    names = list(batches[0]) if batches else []
    return {name: _join([batch.pop(name) for batch in batches])[back] for name in names}


def answer_rows(
    signature: Any, strings: Strings, batch_size: int, *, answered: Progress = lambda number: None
) -> list[dict[str, Any]]:
    """Returns the answer to each example as JSON values, not padded; see `answer` and `rows`."""
    answers: dict[int, dict[str, Any]] = {}
    for indices, outputs in _answer_batches(signature, strings, batch_size, None, answered):
        answers |= dict(zip(indices.tolist(), rows(outputs), strict=True))
    return [answers[index] for index in range(len(answers))]


def _answer_batches(
    signature: Any, strings: Strings, batch_size: int, lengths: Any, answered: Progress
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields indices of examples of similar length, int64 [B], and their outputs [B, ...]."""
    _check_inputs(signature, strings)
    if lengths is None:
        examples = zip(*strings.values(), strict=True)
        lengths = [sum(len("".join(text)) for text in example) for example in examples]
    order = np.argsort(lengths, kind="stable")

    def outputs(chosen: np.ndarray) -> dict[str, np.ndarray]:
        rows = {name: [values[i] for i in chosen] for name, values in strings.items()}
        try:
            batch = {name: tf.constant(values, tf.string) for name, values in rows.items()}
        except ValueError as error:  # TensorFlow's word for a lone surrogate
            raise InputError("a text is not valid Unicode: correct it") from error
        with memory_errors("give a smaller --batch_size"):
            return {name: np.asarray(value) for name, value in signature(**batch).items()}

    chosen = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        for number, batch in enumerate(pool.map(outputs, chosen)):
            yield chosen[number], batch
            answered(min((number + 1) * batch_size, len(order)))
    finally:
        pool.shutdown(cancel_futures=True)  # a failure or an interrupt waits for two at most


def _join(batches: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenates batches, padded to the widest."""
    widest = np.max([batch.shape[1:] for batch in batches], axis=0)
    empty = b"" if batches[0].dtype == object else 0
    gaps = [[(0, 0), *((0, int(gap)) for gap in widest - batch.shape[1:])] for batch in batches]
    padded = map(functools.partial(np.pad, constant_values=empty), batches, gaps)
    return np.concatenate(list(padded))


def _check_inputs(signature: Any, strings: Strings) -> None:
    specs = signature.structured_input_signature[1]
    wanted = sorted(specs)
    names = sorted(strings)
    lists = (name for name in names if wanted == names and specs[name].shape.rank == 2)
    if wanted == names and not any(isinstance(x, str) for name in lists for x in strings[name][:1]):
        return
    kinds = {("text",): "single strings", ("text", "text_pair"): "pairs of strings"}
    cure = "leave the pair out" if "text_pair" in names else "give --pair or --pair_column"
    if "text" not in wanted:
        cure = "give --input a file of them"
        missing = [name for name in wanted if name not in names]
        if len(missing) == 1 and specs[missing[0]].shape.rank == 1:
            cure = f"give the {missing[0]} with --pair, or --input a file"
    takes = kinds.get(tuple(wanted), " and ".join(wanted))
    raise InputError(f"the model takes {takes}: {cure}")


def rows(outputs: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Yields the answer to each example as JSON values.

    `labels` and `probabilities` become one object, padded lists such as `words_text` and
    `words_label`, of which `words_count` are filled, a list of objects.
    """
    decode = np.frompyfunc(lambda text: text.decode("utf-8", "replace"), 1, 1)
    columns = [(decode(x) if x.dtype.kind in "OS" else x).tolist() for x in outputs.values()]
    lists = [name.removesuffix("_count") for name in outputs if name.endswith("_count")]
    for values in zip(*columns, strict=True):
        row = dict(zip(outputs, values, strict=True))
        for name in lists:
            count = row.pop(f"{name}_count")
            prefix = f"{name}_"
            keys = [key for key in row if key.startswith(prefix)]
            parts = {key.removeprefix(prefix): row.pop(key)[:count] for key in keys}
            row[name] = [
                _strings_first(dict(zip(parts, part, strict=True)))
                for part in zip(*parts.values(), strict=True)
            ]
        if "labels" in row and "probabilities" in row:
            row["probabilities"] = dict(zip(row.pop("labels"), row["probabilities"], strict=True))
        yield _strings_first(row)


def _strings_first(row: dict[str, Any]) -> dict[str, Any]:
    """Strings, numbers, lists, each in alphabetical order: a SavedModel has no order of its own."""
    kinds = {key: (not isinstance(x, str), isinstance(x, (dict, list))) for key, x in row.items()}
    return {key: row[key] for key in sorted(row, key=lambda key: (kinds[key], key))}
