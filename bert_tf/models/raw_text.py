"""What a model with a preprocessor does with raw text, for the methods of `TextModel`."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.extensions import added
from bert_tf.models.answerer import Answerer
from bert_tf.models.text_batches import (
    BATCH_SIZE,
    Batches,
    BatchOptions,
    in_memory,
    inputs_alone,
    make_batches,
    streamed,
)
from bert_tf.models.text_inputs import (
    SINGLE_TEXTS,
    checked_stream,
    given_examples,
    inputs_of,
    is_raw,
    text_columns,
    with_columns,
)
from bert_tf.models.text_values import label_list
from bert_tf.pipelines.examples.batches import example_batches
from bert_tf.serving.predictor import answer_rows
from bert_tf.startup import prepare_training
from bert_tf.tasks.task import Task


def checked(x: Any) -> tuple[Any, bool]:
    """Inputs as Keras takes them, and whether they are raw text, or a pipeline of it."""
    if isinstance(x, tf.data.Dataset):
        specs = tf.nest.flatten(inputs_alone(x.element_spec), expand_composites=True)
        return x, any(getattr(spec, "dtype", None) == tf.string for spec in specs)
    is_text = is_raw(x)
    return (x if is_text else checked_stream(x)), is_text


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turns errors in the graph of a tf.data pipeline into those of lists."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if not (message := re.search("InputError: (.*)", str(error))):
            raise
        raise InputError(message[1]) from None


def batches(model: Any, x: Any, y: Any = None, weights: Any = None, **options: Any) -> Batches:
    """What Keras trains on or evaluates; `options` are those of `text_batches.BatchOptions`."""
    preprocessor = model.preprocessor
    _check(model)
    if model.text_output == "states":
        raise InputError(
            f"{type(model).__name__} is an encoder, which learns no labels: put the model of a "
            "task on it, such as bert_tf.BertClassifier"
        )
    if model.text_output == "vectors":
        raise InputError(
            "a BertSentenceEncoder compares the texts of a batch: train it with "
            'bert_tf.finetune(task="embedding", ...)'
        )
    settings = BatchOptions(**options)
    if settings.is_training:
        prepare_training()
        if preprocessor.is_settled:  # labels are reported before the first training of a new model
            settings = settings._replace(reports_labels=False)
    task, made = make_batches(Answerer.of(model), x, y, weights, settings)
    if settings.is_training:
        preprocessor.settle(task)
    else:
        _check_pairs(preprocessor, task)
    return made


def split(task: Task, x: Any, y: Any, weights: Any, share: float) -> tuple[tuple, tuple]:
    """The first examples, and the last ones, a share of all, as Keras' `validation_split`."""
    if isinstance(x, tf.data.Dataset):
        raise InputError("validation_split is for lists and arrays: use dataset.take and .skip")
    _, columns, y = with_columns(task, x, y)
    count = len(next(iter(columns.values())))
    first = math.floor(count * (1 - share))
    if not 0 < first < count:
        raise InputError(
            f"validation_split {share} of {count} examples leaves one side empty: give another "
            "share, or validation_data"
        )
    labels = None if y is None else label_list(y, many=task.many_labels)
    weights = None if weights is None else label_list(weights)
    for name, values in {"labels": labels, "values of sample_weight": weights}.items():
        if values is not None and len(values) != count:
            raise InputError(f"{len(values)} {name} for {count} examples: give one for each")

    def part(rows: slice) -> tuple[Any, ...]:
        inputs = {name: values[rows] for name, values in columns.items()}
        return inputs, *(None if values is None else values[rows] for values in (labels, weights))

    return part(slice(None, first)), part(slice(first, None))


def predict(
    model: Any, x: Any, keras_predict: Any, size: int | None, steps: int | None, **options: Any
) -> Any:
    """The outputs of a model for raw text, see `TextModel.predict`, by that of Keras."""
    preprocessor, output = model.preprocessor, model.text_output
    _check(model)
    if isinstance(x, tf.data.Dataset):
        if output == "rows":
            task, made = streamed(Answerer.of(model), x, BatchOptions(has_labels=False))
            _check_pairs(preprocessor, task)
            inputs = made.dataset.map(lambda *batch: inputs_alone(batch))
            return keras_predict(inputs, steps=steps, **options)
        x, _, _ = in_memory(x)
    size = size or BATCH_SIZE
    if output in ("answers", "vectors"):
        parts = [_main_part(row) for row in answers(model, x, size)]
        return np.array(parts) if output == "vectors" else parts
    kind, tokenizer = preprocessor.task.kind, preprocessor.tokenizer
    columns = _columns(preprocessor, x)[1]
    lengths = np.minimum(kind.lengths(columns, tokenizer), preprocessor.max_length)
    order = np.argsort(-lengths, kind="stable")  # the longest first: it shows what memory holds
    if steps is not None:
        order = np.arange(len(order))[: steps * size]
    ordered = {name: [values[i] for i in order] for name, values in columns.items()}
    longest = int(lengths[order].max())

    def inputs_of_batch(strings: dict[str, tf.Tensor], arrays: Any) -> tuple:
        packed = kind.model_inputs(strings, tokenizer, preprocessor.max_length)
        if output == "states":  # they are as long as the batch; Keras joins them
            gaps = [[0, 0], [0, longest - tf.shape(packed["token_ids"])[1]]]
            packed = {name: tf.pad(x, gaps) for name, x in packed.items()}
        return (packed,)

    outputs = keras_predict(example_batches(ordered, inputs_of_batch, size), **options)
    back = np.argsort(order)
    return keras.tree.map_structure(lambda values: values[back], outputs)


def answers(
    model: Any,
    x: Any,
    batch_size: int = BATCH_SIZE,
    *,
    splits_words: bool = False,
    signature: str | None = None,
) -> list[dict[str, Any]]:
    """What `bert-tf predict` writes; with `splits_words` the signature splits strings of words."""
    if isinstance(x, tf.data.Dataset):
        x, _, _ = in_memory(x)
    task, strings = _columns(model.preprocessor, x)
    if len(strings) > len(inputs_of(task)):
        raise InputError("the model reads single texts: leave the second texts out")
    if splits_words:
        is_listed = not isinstance(x, Mapping) and hasattr(x, "__getitem__")
        if is_listed and all(isinstance(text, str | bytes) for text in label_list(x)):
            strings = {"text": strings["words"]}  # else lists of words
    function = _function(model, task, tuple(strings), signature)
    return answer_rows(function, strings, batch_size)


def _columns(preprocessor: Any, x: Any) -> tuple[Task, dict[str, list[Any]]]:
    """The task, with pairs if texts are, and the columns of strings, to predict."""
    task, examples = given_examples(preprocessor.task, x, reads_labels=False)
    _check_pairs(preprocessor, task)
    return task, text_columns(task, examples)


def _function(model: Any, task: Task, names: tuple[str, ...], signature: str | None) -> Any:
    """The function of strings of these names, traced once for a model and its variables."""
    preprocessor = model.preprocessor
    variables = tuple(id(variable) for variable in model.variables)  # LoRA adds some
    if preprocessor.traced.model is not model or preprocessor.traced.variables != variables:
        preprocessor.traced = SimpleNamespace(model=model, variables=variables, functions={})
    functions, key = preprocessor.traced.functions, (names, task.max_length, signature)
    if key not in functions:
        answerer = Answerer.of(model, task)
        functions[key] = answerer.function(signature or answerer.signature_for(names))
    return functions[key]


def _check(model: Any) -> None:
    """Refuses a model without inputs of raw text, and one of windows."""
    if isinstance(model, added("models")):
        raise InputError(
            f"a {type(model).__name__} takes token ids, not texts: train it with bert-tf pretrain, "
            "and open its folder as a bert_tf.BertEncoder for vectors, or as a model of a task"
        )
    if getattr(model.preprocessor.task.kind, "long_texts", None):
        raise InputError(
            "a model that reads long texts in windows has no fit, evaluate or predict on raw text: "
            "use bert_tf.finetune, bert_tf.evaluate and bert_tf.predict, or its classify"
        )


def _check_pairs(preprocessor: Any, task: Task) -> None:
    if preprocessor.is_settled and task.pair is not None and preprocessor.task.pair is None:
        raise InputError(SINGLE_TEXTS)


def _main_part(row: Mapping[str, Any]) -> Any:
    """The main part of an answer: the text of a question's, labels of words, words for masks."""
    if "words" in row:
        return [word["label"] for word in row["words"]]
    if "masks" in row:
        return [mask["words"][0] for mask in row["masks"]]
    return row["vector"] if "vector" in row else row["answer"]
