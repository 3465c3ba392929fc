"""`BertPreprocessor`: what a model does with raw text, and raw text to what it reads, in graph."""

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
from bert_tf.pipelines.examples.batches import example_batches
from bert_tf.serving.predictor import answer_rows
from bert_tf.startup import prepare_training
from bert_tf.tasks.kinds.tagging import Tagging
from bert_tf.tasks.remarks import unlearned
from bert_tf.tasks.scoring.metrics import LabelSets, count_classes
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_table import find_task
from bert_tf.text.answerer import Answerer
from bert_tf.text.batches import (
    BATCH_SIZE,
    Batches,
    BatchOptions,
    in_memory,
    inputs_alone,
    make_batches,
)
from bert_tf.text.inputs import (
    SINGLE_TEXTS,
    by_role,
    checked_stream,
    given_examples,
    inputs_of,
    is_raw,
    label_list,
    text_columns,
    with_columns,
)
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
        is_settled: whether a model was trained for the task's number of texts; otherwise the next
            `fit` decides whether there are pairs.
        kwargs: Keras' own, such as `name`.

    Call arguments:
        x: strings [B]; for pairs and questions a tuple of such, or a dict by name (`text` and
            `text_pair`; `question` and `context`; `context` and `choices` [B, N]).
        first_pieces: for tasks that label words ("tags", "tagging"), whether to return the
            positions of the words between spaces, too.

    Returns:
        The inputs of a model, a dict of int32 [B, T] ([B, N, T] for choices). What does not fit is
        cut; of a question's context this is the first window. On request, `first_pieces` int32
        [B, W] is the position in the row of each word's first piece; 0, [CLS], for words that are
        cut and for padding.

    Raises:
        InputError: the task is unknown, or does not have such inputs, or words.

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
        # Functions of the model asked last; Keras tracks no namespace.
        self._traced = SimpleNamespace(model=None, variables=(), functions={})
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

    def settle(self, task: Task) -> None:
        """Keeps the task that a model is trained for: the number of texts is fixed from now on."""
        self._task = (task,)
        self.is_settled = True

    @property
    def learning_rate(self) -> float | None:
        """The task's peak learning rate; None where fine-tuning has none."""
        return self.task.learning_rate if self.task.kind.is_trained else None

    def __call__(self, x: Any, **kwargs: Any) -> dict[str, tf.Tensor]:
        """Takes lists and other columns of strings, too, as `fit` does."""
        if not all(isinstance(x, tf.Tensor | keras.KerasTensor) for x in tf.nest.flatten(x)):
            columns = text_columns(*given_examples(self.task, x, reads_labels=False))
            x = {name: tf.constant(values) for name, values in columns.items()}
        return super().__call__(x, **kwargs)

    def call(self, x: Any, first_pieces: bool = False) -> dict[str, tf.Tensor]:
        strings = {n: tf.convert_to_tensor(x) for n, x in by_role(self.task, x).items()}
        kind = self.task.kind
        inputs = self._kind_of_words().word_inputs if first_pieces else kind.model_inputs
        return inputs(strings, self.tokenizer, self.max_length)

    def _kind_of_words(self) -> Tagging:
        if not isinstance(self.task.kind, Tagging):
            raise InputError(
                f"the task {self.task.name} has no words for first_pieces: make the preprocessor "
                'with task="tags"'
            )
        return self.task.kind

    def compute_output_spec(self, x: Any, first_pieces: bool = False) -> dict[str, Any]:
        """Strings [B] -> int32 [B, T]."""
        specs = self.task.kind.signatures(self.task)["tokens"].inputs
        if first_pieces and self._kind_of_words():
            specs = {**specs, "first_pieces": tf.TensorSpec([None, None])}
        return {name: keras.KerasTensor(spec.shape, "int32") for name, spec in specs.items()}

    @staticmethod
    def checked(x: Any) -> tuple[Any, bool]:
        """Inputs as Keras takes them, and whether they are raw text, or a pipeline of it."""
        if isinstance(x, tf.data.Dataset):
            specs = tf.nest.flatten(inputs_alone(x.element_spec), expand_composites=True)
            return x, any(getattr(spec, "dtype", None) == tf.string for spec in specs)
        is_text = is_raw(x)
        return (x if is_text else checked_stream(x)), is_text

    @staticmethod
    @contextlib.contextmanager
    def plain_errors() -> Iterator[None]:
        """Turns errors in the graph of a tf.data pipeline into the errors of lists."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            if not (message := re.search("InputError: (.*)", str(error))):
                raise
            raise InputError(message[1]) from None

    def answerer(self, model: Any) -> Answerer:
        """The model with this task and tokenizer."""
        return Answerer.of(model, self.task, self.tokenizer)

    def batches(
        self, model: Any, x: Any, y: Any = None, weights: Any = None, **options: Any
    ) -> Batches:
        """Batches that Keras trains on or evaluates; options as of `BatchOptions`."""
        self._check(model)
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
            if self.is_settled:  # labels are reported before the first training of a new model
                settings = settings._replace(reports_labels=False)
        task, made = make_batches(model, x, y, weights, settings)
        if settings.is_training:
            self.settle(task)
        else:
            self._check_pairs(task)
        return made

    def split(self, x: Any, y: Any, weights: Any, share: float) -> tuple[tuple, tuple]:
        """The first examples, and the last ones, a share of all, as Keras' `validation_split`."""
        if isinstance(x, tf.data.Dataset):
            raise InputError("validation_split is for lists and arrays: use dataset.take and .skip")
        _, columns, y = with_columns(self.task, x, y)
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
            others = (None if values is None else values[rows] for values in (labels, weights))
            return inputs, *others

        return part(slice(None, first)), part(slice(first, None))

    def predict(
        self,
        model: Any,
        x: Any,
        keras_predict: Any,
        size: int | None,
        steps: int | None,
        **options: Any,
    ) -> Any:
        """The outputs of a model for raw text, by its `keras_predict`; see `TextModel.predict`."""
        self._check(model)
        output = model.text_output
        if isinstance(x, tf.data.Dataset):
            if output == "rows":
                unlabelled = BatchOptions(has_labels=False)
                task, made = make_batches(model, x, None, None, unlabelled)
                self._check_pairs(task)
                inputs = made.dataset.map(lambda *batch: inputs_alone(batch))
                return keras_predict(inputs, steps=steps, **options)
            x, _, _ = in_memory(x)
        size = size or BATCH_SIZE
        if output in ("answers", "vectors"):
            parts = [_main_part(row) for row in self.answers(model, x, size)]
            return np.array(parts) if output == "vectors" else parts
        columns = self._columns(x)[1]
        lengths = np.minimum(self.task.kind.lengths(columns, self.tokenizer), self.max_length)
        order = np.argsort(-lengths, kind="stable")  # the longest first: it shows what memory holds
        if steps is not None:
            order = np.arange(len(order))[: steps * size]
        ordered = {name: [values[i] for i in order] for name, values in columns.items()}
        longest = int(lengths[order].max())

        def inputs_of_batch(strings: dict[str, tf.Tensor], arrays: Any) -> tuple:
            packed = self.task.kind.model_inputs(strings, self.tokenizer, self.max_length)
            if output == "states":  # they are as long as the batch; Keras joins them
                gaps = [[0, 0], [0, longest - tf.shape(packed["token_ids"])[1]]]
                packed = {name: tf.pad(x, gaps) for name, x in packed.items()}
            return (packed,)

        outputs = keras_predict(example_batches(ordered, inputs_of_batch, size), **options)
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
        """The answers of `bert-tf predict`; `splits_words` lets the signature split strings."""
        if isinstance(x, tf.data.Dataset):
            x, _, _ = in_memory(x)
        task, strings = self._columns(x)
        if len(strings) > len(inputs_of(task)):
            raise InputError("the model reads single texts: leave the second texts out")
        if splits_words:
            is_listed = not isinstance(x, Mapping) and hasattr(x, "__getitem__")
            if is_listed and all(isinstance(text, str | bytes) for text in label_list(x)):
                strings = {"text": strings["words"]}  # else lists of words
        function = self._function(model, task, tuple(strings), signature)
        return answer_rows(function, strings, batch_size)

    def unlearned_classes(self, model: Any, validation: Any, steps: int | None) -> list[str]:
        """What a model has not learned, from `steps` batches to validate on; None for all."""
        kind = model.output_kind
        labels = self.task.canonical_labels(model.label_names)
        is_known = kind in ("classes", "labels", "words") and labels and not model.has_own_loss
        if not is_known or not isinstance(validation, tf.data.Dataset):
            return []
        sides = []
        for x, y, *weights in validation.take(-1 if steps is None else steps).as_numpy_iterator():
            logits = keras.Model.predict_on_batch(model, x)
            side = (y > 0, logits > 0) if kind == "labels" else (y, logits.argmax(-1))
            sides.append([values[weights[0] > 0] for values in side] if kind == "words" else side)
        if not sides:
            return []
        truth, predicted = map(np.concatenate, zip(*sides, strict=True))
        if kind == "labels":
            counts = LabelSets(labels, truth, predicted, predicted).counts()
        else:
            counts = count_classes(labels, truth, predicted)
        weights = 'class_weight="balanced"' if kind == "classes" else "class_weight"
        return unlearned(counts, one_each=kind != "labels", weights=weights)

    def _columns(self, x: Any) -> tuple[Task, dict[str, list[Any]]]:
        """The task, with pairs if texts are, and the columns of strings, to predict."""
        task, examples = given_examples(self.task, x, reads_labels=False)
        self._check_pairs(task)
        return task, text_columns(task, examples)

    def _function(
        self, model: Any, task: Task, names: tuple[str, ...], signature: str | None
    ) -> Any:
        """The function of strings of these names, traced once for a model and its variables."""
        variables = tuple(id(variable) for variable in model.variables)  # LoRA adds some
        if self._traced.model is not model or self._traced.variables != variables:
            self._traced = SimpleNamespace(model=model, variables=variables, functions={})
        functions = self._traced.functions
        key = (names, task.max_length, signature)
        if key not in functions:
            answerer = Answerer.of(model, task, self.tokenizer)
            functions[key] = answerer.function(signature or answerer.signature_for(names))
        return functions[key]

    def _check(self, model: Any) -> None:
        """Refuses a model without inputs of raw text, and one of windows."""
        if not model.reads_text:
            raise InputError(
                f"a {type(model).__name__} takes token ids, not texts: train it with bert-tf "
                "pretrain, and open its folder as a bert_tf.BertEncoder for vectors, or as a model "
                "of a task"
            )
        if getattr(self.task.kind, "long_texts", None):
            raise InputError(
                "a model that reads long texts in windows has no fit, evaluate or predict on raw "
                "text: use bert_tf.finetune, bert_tf.evaluate and bert_tf.predict, or its classify"
            )

    def _check_pairs(self, task: Task) -> None:
        if self.is_settled and task.pair is not None and self.task.pair is None:
            raise InputError(SINGLE_TEXTS)

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


def _main_part(row: Mapping[str, Any]) -> Any:
    """The main part of an answer: the text of a question's, labels of words, words for masks."""
    if "words" in row:
        return [word["label"] for word in row["words"]]
    if "masks" in row:
        return [mask["words"][0] for mask in row["masks"]]
    return row["vector"] if "vector" in row else row["answer"]
