"""`BertPreprocessor`: raw text to what a model reads, in graph."""

import os
from types import SimpleNamespace
from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models import text_inputs
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_table import find_task
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
        # Of the model asked last, for `bert_tf.models.raw_text`; Keras tracks no namespace.
        self.traced = SimpleNamespace(model=None, variables=(), functions={})
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
        self._task, self.is_settled = (task,), True

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
