"""`BertPreprocessor`: raw text to what a model reads, in graph, as a Keras layer."""

import functools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.pretrained_model import Encoder
from bert_tf.models.task_models import BertChooser, BertClassifier, BertRegressor, TaskModel
from bert_tf.raw_text.given import given_examples, inputs_of, is_raw, with_columns
from bert_tf.serving.predictor import answer_rows
from bert_tf.tasks.kinds.kind import Kind
from bert_tf.tasks.table import find_task
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.trained.fine_tuned import FineTuned
from pipelines.examples.batches import example_batches
from pipelines.instances.masking import mask_tokens
from pipelines.options import PretrainingDataOptions

_BATCH_SIZE = 32
_SHUFFLE_SEED = 0


class Batches(NamedTuple):
    """A data set that Keras takes, and how many of its batches are an epoch."""

    dataset: tf.data.Dataset
    steps: int | None  # None for all that the data set has


@keras.saving.register_keras_serializable(package="bert_tf")
class BertPreprocessor(keras.layers.Layer):
    """The tokenizer and the packing of a task: strings to token ids, in graph.

    A model's `preprocessor` does this for raw text in `fit`, `evaluate` and `predict`; map it over
    a tf.data pipeline to do it there. Its vocabulary is saved with it.

    Args:
        tokenizer: a `BertTokenizer`, or a directory that holds one.
        task: name of a task (`bert-tf tasks`), or a `Task`: what a row is made of.
        max_length: most tokens of a row; None for the task's.
        kwargs: Keras' own, such as `name`.

    Call arguments:
        x: strings [B]; for pairs and questions a tuple of such, or a dict by name (`text` and
            `text_pair`; `question` and `context`; `context` and `choices` [B, N]).

    Returns:
        The inputs of a model, a dict of int32 [B, T] ([B, N, T] for choices).

    Raises:
        InputError: the task is unknown, or the inputs are not those of the task.

    Example::

    ```python
    preprocessor = bert_tf.BertPreprocessor("models/base", max_length=64)
    preprocessor(["a raw string"])["token_ids"]
    dataset.map(lambda text, label: (preprocessor(text), label))
    ```
    """

    def __init__(
        self,
        tokenizer: BertTokenizer | str | os.PathLike | None = None,
        task: str | Task = "classification",
        max_length: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(trainable=False, **kwargs)
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = BertTokenizer.from_directory(tokenizer)
        task = find_task(task) if isinstance(task, str) else task
        self._task = (task.with_settings({"max_length": max_length}),)  # a tuple: not to be tracked
        self._tokenizer = (tokenizer,)
        self._asked = _Asked(None)
        self.built = True

    @property
    def task(self) -> Task:
        """What a row is made of."""
        return self._task[0]

    @property
    def tokenizer(self) -> BertTokenizer:
        """The tokenizer."""
        if self._tokenizer[0] is None:
            raise InputError(
                "the preprocessor has no tokenizer: give it one, or a directory of one"
            )
        return self._tokenizer[0]

    @property
    def max_length(self) -> int:
        """Most tokens of a row, [CLS] and [SEP] included."""
        return self.task.max_length

    @property
    def kind(self) -> Kind:
        """What the task's model does."""
        return self.task.kind

    def __call__(self, x: Any, **kwargs: Any) -> dict[str, tf.Tensor]:
        """Takes lists and other columns of strings, too, as `fit` does."""
        if not all(tf.is_tensor(each) or keras.ops.is_tensor(each) for each in _leaves(x)):
            task, examples = given_examples(self.task, x)
            x = {name: tf.constant(examples.columns[name]) for name in inputs_of(task)}
        return super().__call__(x, **kwargs)

    def call(self, x: Any) -> dict[str, tf.Tensor]:
        """Tokenizes and packs."""
        return self.kind.model_inputs(self._strings(x), self.tokenizer, self.max_length)

    def _strings(self, x: Any) -> dict[str, tf.Tensor]:
        """Tensors of strings by name."""
        names = inputs_of(self.task)
        if not isinstance(x, Mapping):
            parts = x if isinstance(x, tuple) else (x,)
            names = ["text", "text_pair"] if names == ["text"] else names
            x = dict(zip(names, parts, strict=False))
        known = {*names, "text_pair", "window"}
        return {name: tf.convert_to_tensor(value) for name, value in x.items() if name in known}

    def compute_output_spec(self, x: Any) -> dict[str, Any]:
        """Strings [B] -> int32 [B, T]."""
        return {
            name: keras.KerasTensor(spec.shape, "int32")
            for name, spec in self.kind.token_inputs.items()
        }

    def get_config(self) -> dict[str, Any]:
        """The task's settings and the tokenizer's switches; the vocabulary is an asset."""
        return {"name": self.name, "task": self.task.settings()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a preprocessor whose vocabulary `load_assets` reads."""
        settings = config["task"]
        task = find_task(settings["task"]).with_settings(settings)
        return cls(None, task, name=config["name"])

    def save_assets(self, directory: str) -> None:
        """Writes the vocabulary and the tokenizer's switches; Keras calls it."""
        self.tokenizer.save(directory)

    def load_assets(self, directory: str) -> None:
        """Reads what `save_assets` wrote; Keras calls it."""
        self._tokenizer = (BertTokenizer.from_directory(directory),)

    # What models ask.

    def takes(self, x: Any) -> bool:
        """Whether inputs are raw text, or a tf.data pipeline of it."""
        if isinstance(x, tf.data.Dataset):
            spec = x.element_spec
            spec = spec[0] if isinstance(spec, tuple) else spec
            return any(each.dtype == tf.string for each in tf.nest.flatten(spec))
        return is_raw(x)

    def batches(
        self,
        model: Any,
        x: Any,
        y: Any = None,
        weights: Any = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> Batches:
        """What Keras trains on, evaluates or predicts: inputs, targets and weights of raw text.

        Batches that are shuffled hold examples of similar length, and repeat without end.
        """
        if isinstance(x, tf.data.Dataset):
            return Batches(self._mapped(model, x), None)
        size = batch_size or _BATCH_SIZE
        task, examples = given_examples(self.task, x, y, model.label_names)
        columns: Mapping[str, Sequence[Any]] = {
            name: examples.columns[name] for name in inputs_of(task)
        }
        if "mask_positions" in model.input:
            batch = functools.partial(self._masked, model)
            no_labels = np.zeros(len(examples), np.int32)
            seed = (_SHUFFLE_SEED if seed is None else seed) if shuffle else None
            of_pairs = _numbers_of_pairs(y) if isinstance(model.output, dict) else no_labels
            made = example_batches(columns, batch, size, targets=[of_pairs], seed=seed)
            return Batches(made, math.ceil(len(examples) / size))
        arrays: list[np.ndarray] = []
        if y is not None or "label" in examples.columns or "answers" in examples.columns:
            labels = model.label_names
            columns, targets = self.kind.training_rows(task, examples, labels, self.tokenizer)
            arrays.append(targets)
        if weights is not None:
            arrays.append(_weights(weights, len(examples)))
        rows = len(next(iter(columns.values())))
        if rows != len(examples) and weights is not None:
            raise InputError("sample_weight is for tasks of a row per example: leave it out")
        lengths = None
        if shuffle and self.kind.batches_of_like_length:
            lengths = np.minimum(self.kind.lengths(columns, self.tokenizer), self.max_length)
        made = example_batches(
            columns, self._batch, size, targets=arrays, lengths=lengths,
            seed=(_SHUFFLE_SEED if seed is None else seed) if shuffle else None,
        )  # fmt: skip
        return Batches(made, math.ceil(rows / size))

    def _batch(self, strings: dict[str, tf.Tensor], arrays: list[tf.Tensor]) -> tuple:
        if not arrays:
            return (self.kind.model_inputs(strings, self.tokenizer, self.max_length),)
        return self.kind.batch(strings, arrays, self.tokenizer, self.max_length)

    def _masked(self, model: Any, strings: dict[str, tf.Tensor], arrays: list[tf.Tensor]) -> tuple:
        """Masked words of texts, other ones each time; and whether the second text is random."""
        ids = self.kind.pieces(strings, self.tokenizer)
        inputs = Packer(self.tokenizer, self.max_length)(*ids)
        options = PretrainingDataOptions(max_seq_length=self.max_length)
        seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
        masked = mask_tokens(
            inputs["token_ids"], inputs["padding_mask"], self.tokenizer, options, seed
        )
        inputs |= {"token_ids": masked.token_ids, "mask_positions": masked.positions}
        if not isinstance(model.output, dict):
            return inputs, masked.labels, masked.weights
        labels = {"mlm_logits": masked.labels, "nsp_logits": arrays[0]}
        ones = tf.ones_like(arrays[0], tf.float32)
        return inputs, labels, {"mlm_logits": masked.weights, "nsp_logits": ones}

    def _mapped(self, model: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """A pipeline of batches of strings, with labels if it has any."""
        spec = dataset.element_spec
        first = tf.nest.flatten(spec)[0]
        if first.shape.rank == 0:
            raise InputError("the data set holds single examples: batch it, dataset.batch(32)")
        labels = model.label_names

        @tf.autograph.experimental.do_not_convert
        def prepare(x: Any, y: Any = None, *weights: Any) -> Any:
            inputs = self(x)
            return inputs if y is None else (inputs, _class_ids(y, labels), *weights)

        mapped = dataset.map(prepare, num_parallel_calls=2, deterministic=True)
        return mapped.prefetch(2)

    def split(self, x: Any, y: Any, weights: Any, share: float) -> tuple[tuple, tuple]:
        """The first examples, and the last ones, a share of all, as Keras' `validation_split`."""
        if isinstance(x, tf.data.Dataset):
            raise InputError("validation_split is for lists and arrays: use dataset.take and .skip")
        _, columns, y = with_columns(self.task, x, y)
        count = len(next(iter(columns.values())))
        first = count - int(count * share)
        if not 0 < first < count:
            raise InputError(f"validation_split {share} of {count} examples leaves one side empty")

        def part(chosen: slice) -> tuple[Any, ...]:
            cut = {name: values[chosen] for name, values in columns.items()}
            others = (None if each is None else list(each)[chosen] for each in (y, weights))
            return cut, *others

        return part(slice(None, first)), part(slice(first, None))

    def predict(
        self, model: Any, x: Any, predict: Any, batch_size: int | None = None, **kwargs: Any
    ) -> Any:
        """The outputs of a model for raw text; `predict` is Keras'. See `TextModel.predict`."""
        if isinstance(x, tf.data.Dataset):
            return predict(self._mapped(model, x), **kwargs)
        if not issubclass(self.kind.model_class, _OF_ROWS):
            return [_told(row) for row in self.answers(model, x, batch_size or _BATCH_SIZE)]
        task, examples = given_examples(self.task, x)
        columns = {name: examples.columns[name] for name in inputs_of(task)}
        lengths = np.minimum(self.kind.lengths(columns, self.tokenizer), self.max_length)
        order = np.argsort(-lengths, kind="stable")  # the longest first: it shows what memory holds
        ordered = {name: [values[i] for i in order] for name, values in columns.items()}
        batches = example_batches(ordered, self._batch, batch_size or _BATCH_SIZE)
        # An encoder's outputs have the length of the batch, and Keras joins them.
        found = predict(batches.map(self._to(int(lengths.max()))), **kwargs)
        back = np.argsort(order)
        return keras.tree.map_structure(lambda values: values[back], found)

    def _to(self, length: int) -> Any:
        def pad(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            if issubclass(self.kind.model_class, TaskModel):
                return inputs
            return {n: tf.pad(x, [[0, 0], [0, length - tf.shape(x)[1]]]) for n, x in inputs.items()}

        return pad

    def answers(self, model: Any, x: Any, batch_size: int = _BATCH_SIZE) -> list[dict[str, Any]]:
        """What `bert-tf predict` writes for each example of raw text."""
        task, examples = given_examples(self.task, x)
        names = inputs_of(task)
        strings = {name: examples.columns[name] for name in names}
        return answer_rows(self._function(model, task), strings, batch_size)

    def _function(self, model: Any, task: Task) -> Any:
        """The function of the task's strings, traced once for a model."""
        if self._asked.model is not model:
            self._asked = _Asked(model)
        inputs = tuple(inputs_of(task))
        if inputs not in self._asked.functions:
            bound = self.bound(model, task)
            self._asked.functions[inputs] = bound.function(bound.signature_for(inputs))
        return self._asked.functions[inputs]

    def bound(self, model: Any, task: Task | None = None) -> FineTuned:
        """The model with its task, tokenizer and labels."""
        task = task or self.task
        own = [task.label_aliases.get(label, label) for label in model.label_names]
        return FineTuned(task, model, self.tokenizer, own)

    def save(self, model: Any, directory: str | os.PathLike) -> None:
        """Writes a model directory."""
        self.bound(model).save(Path(directory))

    def export(self, model: Any, folder: str | os.PathLike) -> Path:
        """Writes a SavedModel into NAME/VERSION."""
        folder = Path(folder)
        version = folder.name
        if not version.isdecimal() or not int(version):
            raise InputError(f"{folder}: TensorFlow Serving wants a number: give {folder}/1")
        name = folder.parent.name
        return self.bound(model).export(name, root=folder.parent.parent, version=int(version))


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, Mapping):
        return list(x.values())
    return list(x) if isinstance(x, tuple) else [x]


class _Asked:
    """The model that was asked last, and functions of it by their inputs: nothing to track."""

    def __init__(self, model: Any):
        self.model = model
        self.functions: dict[tuple[str, ...], Any] = {}


# Models that give one output for each example.
_OF_ROWS = (BertChooser, BertClassifier, BertRegressor, Encoder)


def _told(row: Mapping[str, Any]) -> Any:
    """What a user reads first in an answer: an answer's text, labels of words, words of masks."""
    if "words" in row:
        return [word["label"] for word in row["words"]]
    if "masks" in row:
        return [mask["words"][0] for mask in row["masks"]]
    return row["answer"]


def _numbers_of_pairs(y: Any) -> np.ndarray:
    """Labels of pairs, int32 [E]."""
    found = np.asarray(y)
    if found.ndim != 1 or found.dtype.kind not in "iub" or not np.isin(found, (0, 1)).all():
        raise InputError(
            "next sentence prediction learns from pairs of texts with labels, 0 where the second "
            "follows the first and 1 where it is random: give them, or train a "
            "BertMaskedLanguageModel on texts alone"
        )
    return found.astype(np.int32)


def _weights(values: Any, count: int) -> np.ndarray:
    found = np.asarray(values, np.float32)
    if found.shape != (count,):
        raise InputError(f"sample_weight has the shape {found.shape} for {count} examples")
    return found


def _class_ids(y: tf.Tensor, labels: Sequence[str]) -> tf.Tensor:
    """Numbers of labels that are names; other labels as they are."""
    if y.dtype != tf.string:
        return y
    same = y[..., tf.newaxis] == tf.constant(list(labels))
    known = tf.debugging.Assert(
        tf.reduce_all(tf.reduce_any(same, -1)),
        ["a label is none of the model's", ", ".join(labels), "among", y],
    )
    with tf.control_dependencies([known]):
        return tf.argmax(same, -1, tf.int32)
