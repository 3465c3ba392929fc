"""Batches that Keras trains on, evaluates and predicts, of raw text and labels."""

import functools
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
)
from bert_tf.raw_text.inputs import by_role, given_examples, text_columns
from bert_tf.raw_text.labels import are_numbers, class_of, label_list
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer
from bert_tf.trained.fine_tuned import FineTuned
from pipelines.data_options import PretrainingDataOptions
from pipelines.examples.batches import example_batches
from pipelines.examples.labelled_text import Examples
from pipelines.instances.masking import mask_tokens

BATCH_SIZE = 32
UNKNOWN_LABELS = "unknown labels, known are "  # how the error of a graph begins
_EVALUATION_SEED = 0
_NO_PAIR_LABELS = (
    "next sentence prediction learns from pairs of texts with labels, 0 where the second follows "
    "the first and 1 where it is random: give them, or train a BertMaskedLanguageModel on texts "
    "alone"
)
# Models with a row, a target and an output for each example.
ROW_MODELS = (BertChooser, BertClassifier, BertMultiLabelClassifier, BertRegressor)


class Batches(NamedTuple):
    """A data set that Keras takes, and how many of its batches are an epoch."""

    dataset: tf.data.Dataset
    steps: int | None  # None for all that the data set has


class BatchOptions(NamedTuple):
    """How batches are made; see `TextModel.fit`."""

    batch_size: int | None = None
    shuffle: bool = False
    is_training: bool = False
    repeats: bool = False  # without end, though not shuffled
    has_labels: bool = True  # not for predictions
    class_weight: Mapping[Any, float] | None = None


def make_batches(
    tuned: FineTuned, x: Any, y: Any, weights: Any, options: BatchOptions
) -> tuple[Task, Batches]:
    """Inputs, targets and weights of raw text; and the task, with pairs if there are pairs.

    Batches that are shuffled repeat without end.
    """
    model, kind = tuned.model, tuned.task.kind
    if isinstance(x, tf.data.Dataset):
        if isinstance(model, ROW_MODELS) or "mask_positions" in model.input:
            return streamed(tuned, x, options)
        x, y, weights = in_memory(x)
    own_targets = None
    if model.has_own_loss and isinstance(model, ROW_MODELS):
        own_targets = _own_targets(y)
    labels = tuned.labels
    is_masked = "mask_positions" in model.input
    task, examples = given_examples(
        tuned.task, x, y, labels, reads_labels=own_targets is None and not is_masked
    )
    if options.is_training:
        for remark in examples.remarks():
            warnings.warn(remark, stacklevel=4)
    size = options.batch_size or BATCH_SIZE
    seed = random.randrange(2**31) if options.shuffle else None
    columns: Mapping[str, Sequence[Any]] = text_columns(task, examples)
    if is_masked:
        return task, _masked_batches(tuned, columns, y, weights, options, seed)
    arrays: list[np.ndarray] = []
    if own_targets is not None:
        arrays.append(own_targets)
    elif "label" in examples.columns or "answers" in examples.columns:
        columns, targets = kind.training_rows(task, examples, labels, tuned.tokenizer)
        arrays.append(targets)
    else:
        raise InputError("there are no labels: give y, or a column of labels")
    of_examples = _example_weights(tuned, examples, weights, options.class_weight, arrays)
    arrays += [] if of_examples is None else [of_examples]
    lengths = None
    if options.shuffle and kind.batches_of_like_length:
        lengths = np.minimum(kind.lengths(columns, tuned.tokenizer), task.max_length)
    made = example_batches(
        columns, functools.partial(_batch, tuned), size, targets=arrays, lengths=lengths, seed=seed
    )
    if options.class_weight and of_examples is None:  # a tagger's, whose weights are of its words
        table = tf.constant(_class_table(options.class_weight, tuned))
        made = made.map(lambda x, y, w: (x, y, w * tf.gather(table, y)))
    return task, _epochs(made, math.ceil(len(next(iter(columns.values()))) / size), options)


def _epochs(dataset: tf.data.Dataset, steps: int, options: BatchOptions) -> Batches:
    if options.repeats and not options.shuffle:
        dataset = dataset.repeat()
    return Batches(dataset, steps if options.shuffle or options.repeats else None)


def _batch(tuned: FineTuned, strings: dict[str, tf.Tensor], arrays: list[tf.Tensor]) -> tuple:
    kind, length = tuned.task.kind, tuned.task.max_length
    if not arrays:
        return (kind.model_inputs(strings, tuned.tokenizer, length),)
    return kind.batch(strings, arrays, tuned.tokenizer, length)


def rows(tuned: FineTuned, columns: Mapping[str, Sequence[Any]], size: int) -> tf.data.Dataset:
    """Batches of inputs alone, in the order of the examples."""
    return example_batches(columns, functools.partial(_batch, tuned), size)


# Weights and targets.


def _example_weights(
    tuned: FineTuned,
    examples: Examples,
    weights: Any,
    class_weight: Mapping[Any, float] | None,
    arrays: Sequence[np.ndarray],
) -> np.ndarray | None:
    """Weights of examples, float32 [E], if there are any."""
    found = None
    if weights is not None:
        given = label_list(weights)
        if len(given) != len(examples):
            raise InputError(
                f"sample_weight has {len(given)} numbers for {len(examples)} examples: give a "
                "weight for each"
            )
        found = np.array([_weight(x, f"sample_weight {i}") for i, x in enumerate(given)])
        if not isinstance(tuned.model, ROW_MODELS):
            raise InputError(
                "sample_weight is for models of an answer per example: leave it out, or repeat "
                "examples that shall count more"
            )
    if class_weight and isinstance(tuned.model, ROW_MODELS):
        of_classes = _class_table(class_weight, tuned)
        (targets,) = arrays or (np.zeros(0),)
        if targets.ndim > 1 or targets.dtype.kind != "i":
            raise InputError("class_weight is for labels that are classes: leave it out")
        found = of_classes[targets] * (1 if found is None else found)
    return found


def _weight(value: Any, name: str) -> np.float32:
    try:
        weight = np.float32(value)
    except (TypeError, ValueError):
        weight = np.float32("nan")
    if not np.isfinite(weight):
        raise InputError(f"{name} is {value!r:.40}: give a number")
    return weight


def _class_table(class_weight: Mapping[Any, float], tuned: FineTuned) -> np.ndarray:
    """Weights of the labels, float32 [C]; 1 for those without, as in Keras."""
    labels = tuned.labels
    if not labels:
        raise InputError("class_weight is for models with labels: leave it out")
    if not isinstance(class_weight, Mapping):
        raise InputError(
            f"class_weight is {class_weight!r:.40}: give a dict, such as {{{labels[0]!r}: 2.0}}"
        )
    weights = np.ones(len(labels), np.float32)
    for label, weight in class_weight.items():
        name = class_of(label, tuned.task, labels, "a label of class_weight")
        weights[list(labels).index(name)] = _weight(weight, f"class_weight of {name!r}")
    return weights


def _own_targets(y: Any) -> np.ndarray | None:
    """Targets for a loss of the user's: numbers [E, ...] that are no class ids; else None."""
    if y is None:
        return None
    try:
        found = np.asarray(label_list(y))
    except (ValueError, InputError):
        return None
    is_id = found.ndim == 1 and found.dtype.kind != "f"
    return None if is_id or found.dtype.kind not in "fiub" else found.astype(np.float32)


def pair_targets(y: Any) -> np.ndarray:
    """Labels of pairs for next sentence prediction, int32 [E].

    Raises:
        InputError: they are not 0 or 1 each.
    """
    found = np.asarray([] if y is None else label_list(y))
    if found.ndim != 1 or found.dtype.kind not in "iub" or not np.isin(found, (0, 1)).all():
        raise InputError(_NO_PAIR_LABELS)
    return found.astype(np.int32)


# Masked words.


def _masked_batches(
    tuned: FineTuned,
    columns: Mapping[str, Sequence[Any]],
    y: Any,
    weights: Any,
    options: BatchOptions,
    seed: int | None,
) -> Batches:
    count = len(next(iter(columns.values())))
    if weights is not None or options.class_weight:
        raise InputError("weights are for models with labels, not for masked words: leave them out")
    arrays = []
    if isinstance(tuned.model.output, dict):
        arrays.append(pair_targets(y))
        if "text_pair" not in columns:
            raise InputError("next sentence prediction learns from pairs: give (texts, texts)")
    elif y is not None:
        raise InputError("masked words are their own labels: leave the labels out")
    size = options.batch_size or BATCH_SIZE
    packed = example_batches(
        columns, functools.partial(_batch_of_pieces, tuned), size, targets=arrays, seed=seed
    )
    return _epochs(masked(tuned, packed, seed), math.ceil(count / size), options)


def _batch_of_pieces(
    tuned: FineTuned, strings: dict[str, tf.Tensor], arrays: list[tf.Tensor]
) -> tuple:
    pieces = tuned.task.kind.pieces(strings, tuned.tokenizer)
    return (Packer(tuned.tokenizer, tuned.task.max_length)(*pieces), *arrays)


def masked(tuned: FineTuned, packed: tf.data.Dataset, seed: int | None) -> tf.data.Dataset:
    """Masks words of packed rows, anew in each batch; without a seed, every pass masks the same."""
    options = PretrainingDataOptions(max_seq_length=tuned.task.max_length)
    seed = _EVALUATION_SEED if seed is None else seed

    @tf.autograph.experimental.do_not_convert
    def mask(step: tf.Tensor, batch: Any) -> tuple:
        inputs, *arrays = batch if isinstance(batch, tuple) else (batch,)
        key = tf.stack([tf.constant(seed, tf.int64), step])
        found = mask_tokens(
            inputs["token_ids"], inputs["padding_mask"], tuned.tokenizer, options, key
        )
        inputs = {**inputs, "token_ids": found.token_ids, "mask_positions": found.positions}
        if not arrays:
            return inputs, found.labels, found.weights
        labels = {"mlm_logits": found.labels, "nsp_logits": arrays[0]}
        ones = tf.ones_like(arrays[0], tf.float32)
        return inputs, labels, {"mlm_logits": found.weights, "nsp_logits": ones}

    return packed.enumerate().map(mask, num_parallel_calls=2)


# Data sets of TensorFlow.


def is_text(dataset: tf.data.Dataset) -> bool:
    found = tf.nest.flatten(inputs_alone(dataset.element_spec), expand_composites=True)
    return any(getattr(each, "dtype", None) == tf.string for each in found)


def inputs_alone(batch: Any) -> Any:
    """The inputs of a batch, or of its spec, without labels and weights."""
    return batch[0] if isinstance(batch, tuple) else batch


def check_batched(dataset: tf.data.Dataset) -> None:
    if any(each.shape.rank == 0 for each in tf.nest.flatten(inputs_alone(dataset.element_spec))):
        raise InputError("the data set holds single examples: batch it, dataset.batch(32)")


def in_memory(dataset: tf.data.Dataset) -> tuple[Any, Any, Any]:
    """Inputs by column, labels and weights of all batches, as lists; None for what is missing.

    Raises:
        InputError: the data set has no end, or is not batched.
    """
    check_batched(dataset)
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise InputError("the data set repeats without end: leave .repeat() out")
    parts: list[list[Any]] = [[], [], []]
    for batch in dataset:
        given = batch if isinstance(batch, tuple) else (batch,)
        for part, values in zip(parts, given, strict=False):
            part.append(tf.nest.map_structure(_values, values))
    if not parts[0]:
        raise InputError("the data set has no example: give at least one text")
    x, y, weights = map(_joined, parts)
    return x, y, weights


def _joined(batches: list[Any]) -> Any:
    """Lists of batches one after the other, within tuples and dicts; None without any."""
    if not batches:
        return None
    if isinstance(batches[0], Mapping):
        return {name: _joined([batch[name] for batch in batches]) for name in batches[0]}
    if isinstance(batches[0], tuple):
        return tuple(_joined(list(each)) for each in zip(*batches, strict=True))
    return [value for batch in batches for value in batch]


def _values(tensor: Any) -> list[Any]:
    """The rows of a tensor; words of padded rows without the padding."""
    values = tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
    if tensor.dtype == tf.string and tensor.shape.rank == 2:
        return [[each for each in row if each] for row in values]
    return values


def streamed(
    tuned: FineTuned, dataset: tf.data.Dataset, options: BatchOptions
) -> tuple[Task, Batches]:
    """Maps a data set of batches of strings, with labels if it has any."""
    check_batched(dataset)
    model = tuned.model
    spec = dataset.element_spec
    task = tuned.task
    if "text_pair" in by_role(task, inputs_alone(spec)) and task.pair is None:
        task = task.with_settings({"pair_column": "text_pair"})
    is_masked = "mask_positions" in model.input
    table = None
    if options.class_weight:
        table = tf.constant(_class_table(options.class_weight, tuned))
    if not is_masked and options.has_labels and not _has_labels(spec, task):
        raise InputError("there are no labels: give batches of (texts, labels)")

    @tf.autograph.experimental.do_not_convert
    def prepare(x: Any, y: Any = None, weights: Any = None) -> Any:
        if y is None and isinstance(x, Mapping):
            y = x.get(task.label, x.get("label"))
        strings = by_role(task, x)
        if is_masked:
            arrays = [tf.cast(y, tf.int32)] if isinstance(model.output, dict) else []
            made = _batch_of_pieces(tuned, strings, arrays)
            return made if arrays else made[0]
        packed = task.kind.model_inputs(strings, tuned.tokenizer, task.max_length)
        if y is None:
            return packed
        if y.dtype == tf.string or not model.has_own_loss:
            y = _targets(y, task, tuned.labels)
        if table is not None:
            weights = tf.gather(table, y) * (1.0 if weights is None else weights)
        return (packed, y) if weights is None else (packed, y, weights)

    made = dataset.map(prepare, num_parallel_calls=2, deterministic=True)
    if is_masked:
        if isinstance(model.output, dict) and not _has_labels(spec, task):
            raise InputError(_NO_PAIR_LABELS)
        made = masked(tuned, made, random.randrange(2**31) if options.is_training else None)
    return task, Batches(made.prefetch(2), None)


def _has_labels(spec: Any, task: Task) -> bool:
    if isinstance(spec, tuple) and len(spec) > 1:
        return True
    inputs = inputs_alone(spec)
    return isinstance(inputs, Mapping) and bool({task.label, "label"} & set(inputs))


def _targets(y: tf.Tensor, task: Task, labels: Sequence[str]) -> tf.Tensor:
    """Numbers of labels that are names, of a batch; other labels as they are."""
    if not labels:
        return tf.strings.to_number(y) if y.dtype == tf.string else y
    if task.kind.many_labels:
        if y.dtype != tf.string:
            return y
        if y.shape.rank == 1:
            y = tf.strings.split(y, task.kind.label_separator)
        y = y.to_tensor() if isinstance(y, tf.RaggedTensor) else y
        y = tf.strings.strip(y)  # [B, N], "" for none
        is_named = y[..., tf.newaxis] == tf.constant(["", *labels])
        with tf.control_dependencies([_check_known(y, tf.reduce_any(is_named, -1), labels)]):
            return tf.cast(tf.reduce_any(is_named, 1)[:, 1:], tf.float32)
    if y.dtype != tf.string and not are_numbers(labels):
        return y
    names = y if y.dtype == tf.string else tf.as_string(y)
    for other, name in task.label_aliases.items():
        names = tf.where(names == other, name, names)
    same = names[..., tf.newaxis] == tf.constant(list(labels))
    with tf.control_dependencies([_check_known(names, tf.reduce_any(same, -1), labels)]):
        return tf.argmax(same, -1, tf.int32)


def _check_known(names: tf.Tensor, is_known: tf.Tensor, labels: Sequence[str]) -> tf.Operation:
    """Refuses, in graph, names that are no labels."""
    told = [UNKNOWN_LABELS + ", ".join(labels), tf.boolean_mask(names, ~is_known)]
    return tf.debugging.Assert(tf.reduce_all(is_known), told)


def padded_to(length: int) -> Any:
    """Pads inputs [B, T] to a length."""

    def pad(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return keras.tree.map_structure(
            lambda x: tf.pad(x, [[0, 0], [0, length - tf.shape(x)[1]]]), inputs
        )

    return pad
