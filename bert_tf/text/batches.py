"""Batches that Keras trains on, evaluates and predicts, of raw text and labels."""

import dataclasses
import functools
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.class_weights import BALANCED, checked_weight, class_weights
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.examples.batches import example_batches
from bert_tf.pipelines.instances.masking import mask_tokens
from bert_tf.tasks.kinds.kind import text_pieces
from bert_tf.tasks.remarks import baseline, doubts, label_counts, listed_counts
from bert_tf.tasks.signatures import Tensors
from bert_tf.tasks.task import Task
from bert_tf.text.inputs import by_role, given_examples, label_list, text_columns
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
    class_weight: Mapping[Any, float] | str | None = None


def make_batches(
    model: Any, x: Any, y: Any, weights: Any, options: BatchOptions
) -> tuple[Task, Batches]:
    """Batches of raw text for a model, by its preprocessor; and the task, with pairs if texts are.

    Shuffled lists repeat without end. A data set keeps its batches, except for models whose targets
    are made of whole texts, such as taggers: it is read into lists.
    """
    preprocessor = model.preprocessor
    has_pairs = preprocessor.task.pair is not None
    model.config.check_fits(length=preprocessor.max_length, pairs=has_pairs)
    is_masked = "mask_positions" in model.input
    if is_masked and (weights is not None or options.class_weight):
        raise InputError("weights are for models with labels, not for masked words: leave them out")
    if isinstance(x, tf.data.Dataset) and not is_masked and model.text_output != "rows":
        x, y, weights = in_memory(x)
    is_stream = isinstance(x, tf.data.Dataset)
    is_random = is_masked and options.is_training if is_stream else options.shuffle
    seed = random.randrange(2**31) if is_random else None
    pack = functools.partial(_batch_of_pieces if is_masked else _batch, preprocessor)
    steps = None
    if is_stream:
        task, dataset = _from_stream(model, x, options, pack)
    else:
        task, dataset, steps = _from_lists(model, x, y, weights, options, pack, seed)
    if is_masked:
        dataset = masked(preprocessor, dataset, seed)
    elif options.class_weight and (is_stream or not _balances(model, options)):
        dataset = _weighted(model, dataset, options.class_weight)
    if is_stream:
        dataset = dataset.prefetch(2)
    elif options.repeats and not options.shuffle:
        dataset = dataset.repeat()
    return task, Batches(dataset, steps if options.shuffle or options.repeats else None)


def _from_lists(
    model: Any,
    x: Any,
    y: Any,
    weights: Any,
    options: BatchOptions,
    pack: Callable[[Tensors, list[tf.Tensor]], tuple],
    seed: int | None,
) -> tuple[Task, tf.data.Dataset, int]:
    """Packed batches of lists with targets and weights; and the number of an epoch's batches."""
    task = model.preprocessor.task
    tokenizer = model.preprocessor.tokenizer
    kind = task.kind
    is_masked = "mask_positions" in model.input
    own_targets = None
    if model.has_own_loss and model.text_output == "rows":
        own_targets = _own_targets(y)
    labels = task.canonical_labels(model.label_names)
    reads_labels = own_targets is None and not is_masked
    task, examples = given_examples(task, x, y, labels, reads_labels=reads_labels)
    if options.is_training:
        has_labels = "label" in examples.columns
        for doubt in doubts(kind, examples) if has_labels else examples.remarks():
            warnings.warn(doubt, stacklevel=6)
    columns: Mapping[str, Sequence[Any]] = text_columns(task, examples)
    if is_masked:
        arrays = _masked_targets(model, columns, y)
    elif own_targets is not None:
        arrays = [own_targets]
    elif "label" in examples.columns or "answers" in examples.columns:
        columns, targets = kind.training_rows(task, examples, labels, tokenizer)
        arrays = [targets]
        if options.reports_labels and labels:
            counts = listed_counts(labels, label_counts(targets, labels))
            print(f"{len(examples):,} training examples: {counts}")
            print(*baseline(labels, targets, targets, "training examples"), sep="\n")
    else:
        raise InputError("there are no labels: give y, or a column of labels")
    lengths = None
    if not is_masked:
        arrays += _example_weights(model, len(examples), weights, options, arrays[0])
        if options.shuffle and kind.losses.mean_over == "rows":
            lengths = np.minimum(kind.lengths(columns, tokenizer), task.max_length)
    size = options.batch_size or BATCH_SIZE
    dataset = example_batches(columns, pack, size, targets=arrays, lengths=lengths, seed=seed)
    return task, dataset, math.ceil(len(next(iter(columns.values()))) / size)


def _from_stream(
    model: Any,
    dataset: tf.data.Dataset,
    options: BatchOptions,
    pack: Callable[[Tensors, list[tf.Tensor]], tuple],
) -> tuple[Task, tf.data.Dataset]:
    """Packed batches of a data set of batches of strings, with its targets and weights if any."""
    check_batched(dataset)
    task = model.preprocessor.task
    labels = task.canonical_labels(model.label_names)
    inputs = inputs_alone(dataset.element_spec)
    if "text_pair" in by_role(task, inputs) and task.pair is None:
        task = task.with_settings({"pair_column": "text_pair"})
    is_masked = "mask_positions" in model.input
    reads_labels = isinstance(model.output, dict) if is_masked else options.has_labels
    has_labels = isinstance(dataset.element_spec, tuple) and len(dataset.element_spec) > 1
    has_labels |= isinstance(inputs, Mapping) and not {task.label, "label"}.isdisjoint(inputs)
    if reads_labels and not has_labels:
        missing = "there are no labels: give batches of (texts, labels)"
        raise InputError(_NO_PAIR_LABELS if is_masked else missing)

    @tf.autograph.experimental.do_not_convert
    def prepare(x: Any, y: Any = None, weights: Any = None) -> Any:
        if y is None and isinstance(x, Mapping):
            y = x.get(task.label, x.get("label"))
        arrays = []
        if is_masked and reads_labels:
            arrays = [tf.cast(y, tf.int32)]
        elif not is_masked and y is not None:
            is_own = model.has_own_loss and y.dtype != tf.string
            arrays = [y if is_own else _targets(y, task, labels)]
            arrays += [] if weights is None else [weights]
        tensors = pack(by_role(task, x), arrays)
        return tensors if arrays else tensors[0]

    return task, dataset.map(prepare, num_parallel_calls=2, deterministic=True)


def _batch(preprocessor: Any, strings: Tensors, arrays: list[tf.Tensor]) -> tuple:
    task = preprocessor.task
    return task.kind.batch(strings, arrays, preprocessor.tokenizer, task.max_length)


def _balances(model: Any, options: BatchOptions) -> bool:
    """Whether the counts of the labels decide the weights of the examples."""
    is_row = model.text_output == "rows"
    return bool(options.class_weight == BALANCED and is_row and model.label_names)


def _check_classes(targets: Any) -> None:
    """Refuses targets, an array or a tensor's spec, that are no class ids [E]."""
    is_column = tf.TensorShape(targets.shape).rank in (None, 1)
    if not is_column or not tf.as_dtype(targets.dtype).is_integer:
        raise InputError("class_weight is for labels that are classes: leave it out")


def _example_weights(
    model: Any, count: int, weights: Any, options: BatchOptions, targets: np.ndarray
) -> list[np.ndarray]:
    """Weights of examples, float32 [E], if there are any."""
    product = None
    if weights is not None:
        numbers = label_list(weights)
        if len(numbers) != count:
            raise InputError(
                f"sample_weight has {len(numbers)} numbers for {count} examples: give a weight for "
                "each"
            )
        product = np.array(
            [checked_weight(x, f"sample_weight {i}") for i, x in enumerate(numbers)], np.float32
        )
        if model.text_output != "rows":
            raise InputError(
                "sample_weight is for models of an answer per example: leave it out, or repeat "
                "examples that shall count more"
            )
    if _balances(model, options):
        _check_classes(targets)
        factors = class_weights(targets)
        product = factors if product is None else factors * product
    return [] if product is None else [product]


def _weighted(
    model: Any, batches: tf.data.Dataset, class_weight: Mapping[Any, float] | str
) -> tf.data.Dataset:
    """Batches whose weights are multiplied by the weights of their classes."""
    if model.text_output == "rows":
        _check_classes(batches.element_spec[1])
    table = model.weights_of_classes(class_weight)

    @tf.autograph.experimental.do_not_convert
    def weigh(x: Any, y: tf.Tensor, weights: Any = 1.0) -> tuple:
        return x, y, tf.gather(table, tf.cast(y, tf.int32)) * tf.cast(weights, tf.float32)

    return batches.map(weigh, num_parallel_calls=2)


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


def _masked_targets(model: Any, columns: Mapping[str, Any], y: Any) -> list[np.ndarray]:
    """Labels of pairs, int32 [E], 0 or 1 each, of a model that predicts next sentences."""
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


def _batch_of_pieces(preprocessor: Any, strings: Tensors, arrays: list[tf.Tensor]) -> tuple:
    tokenizer = preprocessor.tokenizer
    pieces = text_pieces(strings, tokenizer)
    return (Packer(tokenizer, preprocessor.max_length)(*pieces), *arrays)


def masked(preprocessor: Any, packed: tf.data.Dataset, seed: int | None) -> tf.data.Dataset:
    """Masks words of packed rows, anew in each batch; without a seed, every pass masks the same."""
    options = PretrainingDataOptions(max_seq_length=preprocessor.max_length)

    @tf.autograph.experimental.do_not_convert
    def mask(step: tf.Tensor, batch: Any) -> tuple:
        inputs, *arrays = batch if isinstance(batch, tuple) else (batch,)
        key = tf.stack([tf.constant(seed or 0, tf.int64), step])
        ids = inputs["token_ids"]
        hidden = mask_tokens(ids, inputs["padding_mask"], preprocessor.tokenizer, options, key)
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


def _targets(y: Any, task: Task, labels: Sequence[str]) -> tf.Tensor:
    """The targets of a batch of labels, as lists have them; numbers without names stay."""
    is_text = y.dtype == tf.string
    is_many = task.many_labels
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
