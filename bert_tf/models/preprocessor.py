"""`BertPreprocessor`: raw text to what a model reads, in graph, and what Keras does with it."""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.extensions import added
from bert_tf.models import text_inputs
from bert_tf.models.answerer import Answerer
from bert_tf.models.pretrained_model import Encoder
from bert_tf.models.task_models import BertSentenceEncoder, BertTagger
from bert_tf.models.text_batches import (
    BATCH_SIZE,
    ROW_MODELS,
    Batches,
    BatchOptions,
    class_table,
    in_memory,
    inputs_alone,
    make_batches,
    streamed,
)
from bert_tf.models.text_values import label_list
from bert_tf.pipelines.examples.batches import example_batches
from bert_tf.serving.predictor import answer_rows
from bert_tf.startup import prepare_training
from bert_tf.tasks.table import find_task
from bert_tf.tasks.task import Task
from bert_tf.tokenization.tokenizer import BertTokenizer


@keras.saving.register_keras_serializable(package="bert_tf")
class BertPreprocessor(keras.layers.Layer):
    """The tokenizer and the packing of a task: strings to token ids, in graph.

    A model's `preprocessor` does this for raw text in `fit`, `evaluate` and `predict`; map it over
    a tf.data pipeline to do it there. Its vocabulary is saved with it.

    Args:
        tokenizer: a `BertTokenizer`, or a directory that holds one.
        task: name of a task (`bert-tf tasks`), or a `Task`: what a row is made of.
        max_length: most tokens of a row; None for the task's.
        is_settled: whether the task's number of texts is that of a trained model; otherwise the
            next `fit` decides whether there are pairs.
        kwargs: Keras' own, such as `name`.

    Call arguments:
        x: strings [B]; for pairs and questions a tuple of such, or a dict by name (`text` and
            `text_pair`; `question` and `context`; `context` and `choices` [B, N]).

    Returns:
        The inputs of a model, a dict of int32 [B, T] ([B, N, T] for choices). What does not fit is
        cut; of a question's context this is the first window.

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
        is_settled: bool = False,
        **kwargs: Any,
    ):
        super().__init__(trainable=False, **kwargs)
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = BertTokenizer.from_directory(tokenizer)
        task = find_task(task) if isinstance(task, str) else task
        self._task = (task.with_settings({"max_length": max_length}),)  # a tuple: not to be tracked
        self._tokenizer = (tokenizer,)
        self.is_settled = is_settled
        # Traced functions of the model asked last; Keras tracks nothing in a namespace.
        self._asked = SimpleNamespace(model=None, variables=(), functions={})
        self.built = True

    @property
    def task(self) -> Task:
        """What a row is made of."""
        return self._task[0]

    @property
    def tokenizer(self) -> BertTokenizer:
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
    def learning_rate(self) -> float | None:
        """The task's peak learning rate; None where fine-tuning has none."""
        return self.task.learning_rate if self.task.kind.is_trained else None

    def __call__(self, x: Any, **kwargs: Any) -> dict[str, tf.Tensor]:
        """Takes lists and other columns of strings, too, as `fit` does."""
        if not all(isinstance(x, tf.Tensor | keras.KerasTensor) for x in tf.nest.flatten(x)):
            columns = text_inputs.text_columns(
                *text_inputs.given_examples(self.task, x, reads_labels=False)
            )
            x = {name: tf.constant(values) for name, values in columns.items()}
        return super().__call__(x, **kwargs)

    def call(self, x: Any) -> dict[str, tf.Tensor]:
        strings = {n: tf.convert_to_tensor(x) for n, x in text_inputs.by_role(self.task, x).items()}
        return self.task.kind.model_inputs(strings, self.tokenizer, self.max_length)

    def compute_output_spec(self, x: Any) -> dict[str, Any]:
        """Strings [B] -> int32 [B, T]."""
        specs = self.task.kind.signatures(self.task)["tokens"].inputs.items()
        return {name: keras.KerasTensor(spec.shape, "int32") for name, spec in specs}

    def get_config(self) -> dict[str, Any]:
        """The task's settings; the vocabulary and the tokenizer's switches are assets."""
        return {"name": self.name, "task": self.task.settings(), "is_settled": self.is_settled}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a preprocessor whose vocabulary `load_assets` reads; files hold no code."""
        settings = config["task"]
        task = find_task(settings["task"], brought_by="the Keras file").with_settings(settings)
        return cls(None, task, is_settled=config["is_settled"], name=config["name"])

    def save_assets(self, directory: str) -> None:
        """Writes the vocabulary and the tokenizer's switches; Keras calls it."""
        self.tokenizer.save(directory)

    def load_assets(self, directory: str) -> None:
        """Reads what `save_assets` wrote; Keras calls it."""
        self._tokenizer = (BertTokenizer.from_directory(directory),)

    def checked(self, x: Any) -> tuple[Any, bool]:
        """Inputs as Keras takes them, and whether they are raw text, or a pipeline of it."""
        if isinstance(x, tf.data.Dataset):
            specs = tf.nest.flatten(inputs_alone(x.element_spec), expand_composites=True)
            return x, any(getattr(spec, "dtype", None) == tf.string for spec in specs)
        is_text = text_inputs.is_raw(x)
        return (x if is_text else text_inputs.checked_stream(x)), is_text

    @contextlib.contextmanager
    def plain_errors(self) -> Iterator[None]:
        """Turns errors in the graph of a tf.data pipeline into those of lists."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            if not (message := re.search("InputError: (.*)", str(error))):
                raise
            raise InputError(message[1]) from None

    def batches(
        self, model: Any, x: Any, y: Any = None, weights: Any = None, **options: Any
    ) -> Batches:
        """What Keras trains on or evaluates; `options` are those of `text_batches.BatchOptions`."""
        _check(model, self.task)
        if isinstance(model, Encoder):
            raise InputError(
                f"{type(model).__name__} is an encoder, which learns no labels: put the model of a "
                "task on it, such as bert_tf.BertClassifier"
            )
        if isinstance(model, BertSentenceEncoder):
            raise InputError(
                "a BertSentenceEncoder compares the texts of a batch: train it with "
                'bert_tf.finetune(task="embedding", ...)'
            )
        settings = BatchOptions(**options)
        if settings.is_training:
            prepare_training()
            if self.is_settled:  # labels are reported before the first training of a new model
                settings = settings._replace(reports_labels=False)
        task, batches = make_batches(Answerer.of(model), x, y, weights, settings)
        if settings.is_training:
            self._task, self.is_settled = (task,), True
        else:
            self._check_pairs(task)
        return batches

    def class_weights(self, model: Any, class_weight: Any) -> list[float]:
        """The weight of each label, given by name or by number, as of texts."""
        return class_table(class_weight, Answerer.of(model)).tolist()

    def _check_pairs(self, task: Task) -> None:
        if self.is_settled and task.pair is not None and self.task.pair is None:
            raise InputError(
                "the model reads single texts, and these are pairs: leave the second texts out, or "
                "train it on pairs"
            )

    def split(self, x: Any, y: Any, weights: Any, share: float) -> tuple[tuple, tuple]:
        """The first examples, and the last ones, a share of all, as Keras' `validation_split`."""
        if isinstance(x, tf.data.Dataset):
            raise InputError("validation_split is for lists and arrays: use dataset.take and .skip")
        _, columns, y = text_inputs.with_columns(self.task, x, y)
        count = len(next(iter(columns.values())))
        first = math.floor(count * (1 - share))
        if not 0 < first < count:
            raise InputError(
                f"validation_split {share} of {count} examples leaves one side empty: give another "
                "share, or validation_data"
            )
        labels = None if y is None else label_list(y, many=self.task.many_labels)
        weights = None if weights is None else label_list(weights)
        for name, values in {"labels": labels, "values of sample_weight": weights}.items():
            if values is not None and len(values) != count:
                raise InputError(f"{len(values)} {name} for {count} examples: give one for each")

        def part(rows: slice) -> tuple[Any, ...]:
            inputs = {name: values[rows] for name, values in columns.items()}
            return inputs, *(
                None if values is None else values[rows] for values in (labels, weights)
            )

        return part(slice(None, first)), part(slice(first, None))

    def predict(
        self, model: Any, x: Any, predict: Any, size: int | None, steps: int | None, **kwargs: Any
    ) -> Any:
        """The outputs of a model for raw text; `predict` is Keras'. See `TextModel.predict`."""
        _check(model, self.task)
        reads_rows = isinstance(model, ROW_MODELS)
        if isinstance(x, tf.data.Dataset):
            if reads_rows:
                task, batches = streamed(Answerer.of(model), x, BatchOptions(has_labels=False))
                self._check_pairs(task)
                inputs = batches.dataset.map(lambda *batch: inputs_alone(batch))
                return predict(inputs, steps=steps, **kwargs)
            x, _, _ = in_memory(x)
        size = size or BATCH_SIZE
        if not reads_rows and not isinstance(model, Encoder):
            answers = [_main_part(row) for row in self.answers(model, x, size)]
            return np.array(answers) if isinstance(model, BertSentenceEncoder) else answers
        task, examples = text_inputs.given_examples(self.task, x, reads_labels=False)
        self._check_pairs(task)
        columns = text_inputs.text_columns(task, examples)
        lengths = np.minimum(self.task.kind.lengths(columns, self.tokenizer), self.max_length)
        order = np.argsort(-lengths, kind="stable")  # the longest first: it shows what memory holds
        if steps is not None:
            order = np.arange(len(order))[: steps * size]
        ordered = {name: [values[i] for i in order] for name, values in columns.items()}
        longest = int(lengths[order].max())

        def inputs_of_batch(strings: dict[str, tf.Tensor], arrays: Any) -> tuple:
            packed = self.task.kind.model_inputs(strings, self.tokenizer, self.max_length)
            if not reads_rows:  # an encoder's outputs are as long as the batch; Keras joins them
                gaps = [[0, 0], [0, longest - tf.shape(packed["token_ids"])[1]]]
                packed = {name: tf.pad(x, gaps) for name, x in packed.items()}
            return (packed,)

        outputs = predict(example_batches(ordered, inputs_of_batch, size), **kwargs)
        back = np.argsort(order)
        return keras.tree.map_structure(lambda values: values[back], outputs)

    def answers(
        self,
        model: Any,
        x: Any,
        batch_size: int = BATCH_SIZE,
        *,
        splits_words: bool = False,
        signature: str | None = None,
    ) -> list[dict[str, Any]]:
        """What `bert-tf predict` writes; with `splits_words` a tagger splits strings itself."""
        if isinstance(x, tf.data.Dataset):
            x, _, _ = in_memory(x)
        task, examples = text_inputs.given_examples(self.task, x, reads_labels=False)
        self._check_pairs(task)
        strings = text_inputs.text_columns(task, examples)
        if len(strings) > len(text_inputs.inputs_of(task)):
            raise InputError("the model reads single texts: leave the second texts out")
        if splits_words and isinstance(model, BertTagger):
            is_listed = not isinstance(x, Mapping) and hasattr(x, "__getitem__")
            if is_listed and all(isinstance(text, str | bytes) for text in label_list(x)):
                strings = {"text": strings["words"]}  # else lists of words
        function = self._function(model, task, tuple(strings), signature)
        return answer_rows(function, strings, batch_size)

    def _function(
        self, model: Any, task: Task, names: tuple[str, ...], signature: str | None
    ) -> Any:
        """The function of strings of these names, traced once for a model and its variables."""
        variables = tuple(id(variable) for variable in model.variables)  # LoRA adds some
        if self._asked.model is not model or self._asked.variables != variables:
            self._asked = SimpleNamespace(model=model, variables=variables, functions={})
        key = (names, task.max_length, signature)
        if key not in self._asked.functions:
            answerer = Answerer.of(model, task)
            self._asked.functions[key] = answerer.function(
                signature or answerer.signature_for(names)
            )
        return self._asked.functions[key]


def _check(model: Any, task: Task) -> None:
    """Refuses a model without inputs of raw text, and one of windows."""
    if isinstance(model, added("models")):
        raise InputError(
            f"a {type(model).__name__} takes token ids, not texts: train it with bert-tf pretrain, "
            "and open its folder as a bert_tf.BertEncoder for vectors, or as a model of a task"
        )
    if getattr(task.kind, "long_texts", None):
        raise InputError(
            "a model that reads long texts in windows has no fit, evaluate or predict on raw text: "
            "use bert_tf.finetune, bert_tf.evaluate and bert_tf.predict, or its classify"
        )


def _main_part(row: Mapping[str, Any]) -> Any:
    """The main part of an answer: the text of a question's, labels of words, words for masks."""
    if "words" in row:
        return [word["label"] for word in row["words"]]
    if "masks" in row:
        return [mask["words"][0] for mask in row["masks"]]
    return row["vector"] if "vector" in row else row["answer"]
