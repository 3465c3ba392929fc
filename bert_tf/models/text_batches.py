"""Batches that Keras trains on, evaluates and predicts, of raw text and labels."""

import dataclasses
import functools
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer
from bert_tf.models.class_weights import checked_weight
from bert_tf.models.text_inputs import by_role, given_examples, text_columns
from bert_tf.models.text_values import label_list
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.examples.batches import example_batches
from bert_tf.pipelines.examples.table import Examples
from bert_tf.pipelines.instances.masking import mask_tokens
from bert_tf.tasks.balance import baseline, label_counts, listed_counts
from bert_tf.tasks.kinds.rows import text_pieces
from bert_tf.tasks.remarks import doubts
from bert_tf.tasks.signatures import Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer

BATCH_SIZE = 32
_NO_PAIR_LABELS = (
    "next sentence prediction learns from pairs of texts with labels, 0 where the second follows "
    "the first and 1 where it is random: give them, or train a BertMaskedLanguageModel on texts "
    "alone"
)


class Batches(NamedTuple):
    dataset: tf.data.Dataset  # for Keras
    steps: int | None  # of an epoch; None for all that the data set has


class BatchOptions(NamedTuple):  # see `TextModel.fit`
    batch_size: int | None = None
    shuffle: bool = False
    is_training: bool = False
    repeats: bool = False  # without end, though not shuffled
    has_labels: bool = True  # not for predictions
    reports_labels: bool = False  # print how often each label occurs
    class_weight: Mapping[Any, float] | None = None


def make_batches(
    answerer: Answerer, x: Any, y: Any, weights: Any, options: BatchOptions
) -> tuple[Task, Batches]:
    """Batches of raw text, shuffled ones without end; and the task, with pairs if texts are."""
    model, kind = answerer.model, answerer.task.kind
    is_masked = "mask_positions" in model.input
    has_rows = model.text_output == "rows"
    if isinstance(x, tf.data.Dataset):
        if is_masked or has_rows:
            return streamed(answerer, x, options)
        x, y, weights = in_memory(x)
    has_own_targets = model.has_own_loss and has_rows
    own_targets = _own_targets(y) if has_own_targets else None
    labels = answerer.labels
    reads_labels = own_targets is None and not is_masked
    task, examples = given_examples(answerer.task, x, y, labels, reads_labels=reads_labels)
    if options.is_training:
        has_labels = "label" in examples.columns
        for doubt in doubts(kind, examples) if has_labels else examples.remarks():
            warnings.warn(doubt, stacklevel=4)
    size = options.batch_size or BATCH_SIZE
    seed = random.randrange(2**31) if options.shuffle else None
    columns: Mapping[str, Sequence[Any]] = text_columns(task, examples)
    if is_masked:
        arrays = _masked_targets(model, columns, y, weights, options)
    elif own_targets is not None:
        arrays = [own_targets]
    elif "label" in examples.columns or "answers" in examples.columns:
        columns, targets = kind.training_rows(task, examples, labels, answerer.tokenizer)
        arrays = [targets]
        if options.reports_labels and labels:
            counts = listed_counts(labels, label_counts(targets, labels))
            print(f"{len(examples):,} training examples: {counts}")
            print(*baseline(labels, targets, targets, "training examples"), sep="\n")
    else:
        raise InputError("there are no labels: give y, or a column of labels")
    example_weights = lengths = None
    if not is_masked:
        example_weights = _example_weights(
            answerer, examples, weights, options.class_weight, arrays
        )
        arrays += [] if example_weights is None else [example_weights]
        if options.shuffle and kind.losses.mean_over == "rows":
            lengths = np.minimum(kind.lengths(columns, answerer.tokenizer), task.max_length)
    batch = functools.partial(_batch_of_pieces if is_masked else _batch, answerer)
    dataset = example_batches(columns, batch, size, targets=arrays, lengths=lengths, seed=seed)
    if is_masked:
        dataset = masked(answerer, dataset, seed)
    elif options.class_weight and example_weights is None:  # of a tagger's words
        table = model.weights_of_classes(options.class_weight)
        dataset = dataset.map(lambda x, y, w: (x, y, w * tf.gather(table, y)))
    if options.repeats and not options.shuffle:
        dataset = dataset.repeat()
    steps = math.ceil(len(next(iter(columns.values()))) / size)
    return task, Batches(dataset, steps if options.shuffle or options.repeats else None)


def _batch(answerer: Answerer, strings: Tensors, arrays: list[tf.Tensor]) -> tuple:
    return answerer.task.kind.batch(strings, arrays, answerer.tokenizer, answerer.task.max_length)


def _example_weights(
    answerer: Answerer,
    examples: Examples,
    weights: Any,
    class_weight: Mapping[Any, float] | None,
    arrays: Sequence[np.ndarray],
) -> np.ndarray | None:
    """Weights of examples, float32 [E], if there are any."""
    product, has_rows = None, answerer.model.text_output == "rows"
    if weights is not None:
        numbers = label_list(weights)
        if len(numbers) != len(examples):
            raise InputError(
                f"sample_weight has {len(numbers)} numbers for {len(examples)} examples: give a "
                "weight for each"
            )
        product = np.array(
            [checked_weight(x, f"sample_weight {i}") for i, x in enumerate(numbers)], np.float32
        )
        if not has_rows:
            raise InputError(
                "sample_weight is for models of an answer per example: leave it out, or repeat "
                "examples that shall count more"
            )
    if class_weight and has_rows:
        table = answerer.model.weights_of_classes(class_weight)
        (targets,) = arrays or (np.zeros(0),)
        if targets.ndim > 1 or targets.dtype.kind != "i":
            raise InputError("class_weight is for labels that are classes: leave it out")
        product = table[targets] * (1 if product is None else product)
    return product


def _own_targets(y: Any) -> np.ndarray | None:
    """Targets for a loss of the user's: numbers [E, ...] that are no class ids; else None."""
    if y is None:
        return None
    try:
        targets = np.asarray(label_list(y))
    except (ValueError, InputError):
        return None
    is_id = targets.ndim == 1 and targets.dtype.kind != "f"
    return None if is_id or targets.dtype.kind not in "fiub" else targets.astype(np.float32)


def _masked_targets(
    model: Any, columns: Mapping[str, Any], y: Any, weights: Any, options: BatchOptions
) -> list[np.ndarray]:
    """Labels of pairs, int32 [E], 0 or 1 each, of a model that predicts next sentences."""
    if weights is not None or options.class_weight:
        raise InputError("weights are for models with labels, not for masked words: leave them out")
    if not isinstance(model.output, dict):
        if y is not None:
            raise InputError("masked words are their own labels: leave the labels out")
        return []
    targets = np.asarray([] if y is None else label_list(y))
    if targets.ndim != 1 or targets.dtype.kind not in "iub" or not np.isin(targets, (0, 1)).all():
        raise InputError(_NO_PAIR_LABELS)
    if "text_pair" not in columns:
        raise InputError("next sentence prediction learns from pairs: give (texts, texts)")
    return [targets.astype(np.int32)]


def _batch_of_pieces(answerer: Answerer, strings: Tensors, arrays: list[tf.Tensor]) -> tuple:
    pieces = text_pieces(strings, answerer.tokenizer)
    return (Packer(answerer.tokenizer, answerer.task.max_length)(*pieces), *arrays)


def masked(answerer: Answerer, packed: tf.data.Dataset, seed: int | None) -> tf.data.Dataset:
    """Masks words of packed rows, anew in each batch; without a seed, every pass masks the same."""
    options = PretrainingDataOptions(max_seq_length=answerer.task.max_length)

    @tf.autograph.experimental.do_not_convert
    def mask(step: tf.Tensor, batch: Any) -> tuple:
        inputs, *arrays = batch if isinstance(batch, tuple) else (batch,)
        key = tf.stack([tf.constant(seed or 0, tf.int64), step])
        ids, padding = inputs["token_ids"], inputs["padding_mask"]
        hidden = mask_tokens(ids, padding, answerer.tokenizer, options, key)
        inputs = {**inputs, "token_ids": hidden.token_ids, "mask_positions": hidden.positions}
        if not arrays:
            return inputs, hidden.labels, hidden.weights
        labels = {"mlm_logits": hidden.labels, "nsp_logits": arrays[0]}
        ones = tf.ones_like(arrays[0], tf.float32)
        return inputs, labels, {"mlm_logits": hidden.weights, "nsp_logits": ones}

    return packed.enumerate().map(mask, num_parallel_calls=2)


def inputs_alone(batch: Any) -> Any:
    """The inputs of a batch, or of its spec, without labels and weights."""
    return batch[0] if isinstance(batch, tuple) else batch


def check_batched(dataset: tf.data.Dataset) -> None:
    if any(spec.shape.rank == 0 for spec in tf.nest.flatten(inputs_alone(dataset.element_spec))):
        raise InputError("the data set holds single examples: batch it, dataset.batch(32)")


def in_memory(dataset: tf.data.Dataset) -> tuple[Any, Any, Any]:
    """Inputs by column, labels and weights of all batches, as lists; None for what is missing."""
    check_batched(dataset)
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise InputError("the data set repeats without end: leave .repeat() out")
    batches = [batch if isinstance(batch, tuple) else (batch,) for batch in dataset]
    if not batches:
        raise InputError("the data set has no example: give at least one text")
    joined = tf.nest.map_structure(
        lambda *tensors: [row for tensor in tensors for row in _values(tensor)], *batches
    )
    return (*joined, None, None)[:3]


def _values(tensor: Any) -> list[Any]:
    """The rows of a tensor; words of padded rows without the padding."""
    values = tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
    if tensor.dtype == tf.string and tensor.shape.rank == 2:
        return [[word for word in row if word] for row in values]
    return values


def streamed(
    answerer: Answerer, dataset: tf.data.Dataset, options: BatchOptions
) -> tuple[Task, Batches]:
    """Maps a data set of batches of strings, with labels if it has any."""
    check_batched(dataset)
    model, task, spec = answerer.model, answerer.task, dataset.element_spec
    inputs = inputs_alone(spec)
    if "text_pair" in by_role(task, inputs) and task.pair is None:
        task = task.with_settings({"pair_column": "text_pair"})
    is_masked = "mask_positions" in model.input
    table = model.weights_of_classes(options.class_weight) if options.class_weight else None
    has_labels = isinstance(spec, tuple) and len(spec) > 1
    has_labels |= isinstance(inputs, Mapping) and not {task.label, "label"}.isdisjoint(inputs)
    if not has_labels and is_masked and isinstance(model.output, dict):
        raise InputError(_NO_PAIR_LABELS)
    if not has_labels and not is_masked and options.has_labels:
        raise InputError("there are no labels: give batches of (texts, labels)")

    @tf.autograph.experimental.do_not_convert
    def prepare(x: Any, y: Any = None, weights: Any = None) -> Any:
        if y is None and isinstance(x, Mapping):
            y = x.get(task.label, x.get("label"))
        strings = by_role(task, x)
        if is_masked:
            arrays = [tf.cast(y, tf.int32)] if isinstance(model.output, dict) else []
            tensors = _batch_of_pieces(answerer, strings, arrays)
            return tensors if arrays else tensors[0]
        packed = task.kind.model_inputs(strings, answerer.tokenizer, task.max_length)
        if y is None:
            return packed
        if y.dtype == tf.string or not model.has_own_loss:
            y = _targets(y, task, answerer.labels)
        if table is not None:
            if y.shape.rank not in (None, 1):
                raise InputError("class_weight is for labels that are classes: leave it out")
            class_weights = tf.gather(table, tf.cast(y, tf.int32))
            weights = class_weights * (1.0 if weights is None else tf.cast(weights, tf.float32))
        return (packed, y) if weights is None else (packed, y, weights)

    batches = dataset.map(prepare, num_parallel_calls=2, deterministic=True)
    if is_masked:
        batches = masked(
            answerer, batches, random.randrange(2**31) if options.is_training else None
        )
    return task, Batches(batches.prefetch(2), None)


def _targets(y: Any, task: Task, labels: Sequence[str]) -> tf.Tensor:
    """The targets of a batch of labels, as those of lists; numbers without names as they are."""
    is_text, is_many = y.dtype == tf.string, task.many_labels
    if not labels:
        return tf.strings.to_number(y) if is_text else y
    if is_many and not is_text:
        return y
    single = dataclasses.replace(task, pair=None)
    dtype = np.float32 if is_many else np.int32

    def targets(values: np.ndarray) -> np.ndarray:
        cells: Any = values
        if is_text and values.ndim == 2:  # names, padded
            cells = [[name for name in row if name] for row in values]
        elif values.dtype.kind == "f" and (values == values.round()).all():
            cells = values.astype(np.int64)
        try:
            _, examples = given_examples(single, [""] * len(values), cells, labels)
            return task.kind.targets(examples, labels).astype(dtype)
        except InputError as error:
            raise InputError(f"a batch of the data set: {error}") from None

    values = y.to_tensor() if isinstance(y, tf.RaggedTensor) else y
    return tf.ensure_shape(
        tf.numpy_function(targets, [values], dtype), [None, len(labels)] if is_many else [None]
    )
