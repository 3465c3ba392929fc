"""Training and prediction on raw text, by a model's preprocessor, as Keras users know them."""

import os
from typing import Any, ClassVar

import keras

from bert_tf.errors import InputError
from bert_tf.primitives.table import halves

AUTO = "auto"
_RECIPE = "finetuning_recipe"  # name of the optimizer that each fit sets up


class TextModel(keras.Model):
    """A Keras model whose `fit`, `evaluate` and `predict` take raw text, too.

    Compiled when it is made, with the loss and the metrics of its task. Unless `compile` was given
    an optimizer, `fit` trains as `bert-tf finetune` does: AdamWeightDecay, warm-up over the first
    tenth of the steps, then linear decay.

    Attributes:
        preprocessor: a `bert_tf.BertPreprocessor`; None for a model that takes token ids alone.
    """

    # Keras' loss and metrics of the task; None for a model that is trained as part of others.
    new_loss: Any = None
    new_metrics: Any = list
    learning_rate: ClassVar[float] = 5e-5
    _is_auto = False

    @property
    def preprocessor(self) -> Any:
        """What makes token ids of raw text; None without."""
        return getattr(self, "_preprocessor", None)

    @preprocessor.setter
    def preprocessor(self, preprocessor: Any) -> None:
        self._preprocessor = preprocessor

    def compile(
        self,
        optimizer: Any = AUTO,
        loss: Any = AUTO,
        *,
        metrics: Any = None,
        weighted_metrics: Any = AUTO,
        jit_compile: Any = AUTO,
        **kwargs: Any,
    ) -> None:
        """Keras' `compile`; "auto" keeps what the task has.

        Args:
            optimizer: "auto" for the recipe of `bert-tf finetune`, set up by each `fit`.
            loss: "auto" for the task's.
            metrics: Keras'; others than the task's.
            weighted_metrics: "auto" for the task's, if there are no other metrics.
            jit_compile: "auto" is False with TensorFlow, where XLA would compile the step anew for
                every length of batch.
            kwargs: Keras' others.
        """
        if isinstance(optimizer, str) and optimizer == AUTO:
            optimizer = self._new_optimizer()
        # By its name, too: a model from a file is compiled with the optimizer's configuration.
        self._is_auto = getattr(optimizer, "name", None) == _RECIPE
        if isinstance(loss, str) and loss == AUTO:
            loss = self.new_loss() if self.new_loss else None
        if isinstance(weighted_metrics, str) and weighted_metrics == AUTO:
            weighted_metrics = None if metrics else self.new_metrics()
        if jit_compile == AUTO and keras.backend.backend() == "tensorflow":
            jit_compile = False
        super().compile(
            optimizer, loss, metrics=metrics, weighted_metrics=weighted_metrics or None,
            jit_compile=jit_compile, **kwargs,
        )  # fmt: skip

    def _new_optimizer(self, steps: int | None = None) -> Any:
        import bert_tf  # the floor above: the package itself knows where it is

        rate: Any = self.learning_rate
        if steps:
            rate = bert_tf.WarmupLinearDecay(rate, round(steps / 10), steps)
        return bert_tf.AdamWeightDecay(rate, name=_RECIPE)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        *,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        steps_per_epoch: int | None = None,
        validation_batch_size: int | None = None,
        initial_epoch: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Keras' `fit`, on raw text and labels or on token ids.

        Args:
            x: texts; for pairs a tuple of two lists, or a dict or data frame by column; or a
                `tf.data.Dataset` of batches of (texts, labels); or token ids, as in Keras.
            y: labels, by name or number; numbers for regression; labels of words, answers.
            batch_size: examples per step, by default 32.
            epochs: passes over the examples.
            validation_split: share of the examples, the last ones, to validate on.
            validation_data: (x, y) or (x, y, sample_weight), or a data set, to validate on.
            shuffle: whether each epoch has the examples in another order.
            sample_weight: weight of each example.
            steps_per_epoch: steps of an epoch; None for all examples.
            validation_batch_size: examples of a validation batch, by default `batch_size`.
            initial_epoch: as in Keras.
            kwargs: Keras' others, such as `callbacks` and `class_weight`.

        Returns:
            Keras' `History`.

        Raises:
            InputError: a text or a label cannot be used; the message names the example.
        """
        own: dict[str, Any] = {}
        if self._takes(x):
            if validation_split and validation_data is None:
                split = self.preprocessor.split(x, y, sample_weight, validation_split)
                (x, y, sample_weight), validation_data = split
            batches = self.preprocessor.batches(
                self, x, y, sample_weight, batch_size=batch_size, shuffle=shuffle
            )
            x, y, sample_weight = batches.dataset, None, None
            steps_per_epoch = steps_per_epoch or batches.steps
            own = {"batch_size": None, "shuffle": False}
        else:
            own = {
                "batch_size": batch_size, "shuffle": shuffle, "validation_split": validation_split,
                "validation_batch_size": validation_batch_size,
            }  # fmt: skip
        validation_data = self._validation(
            validation_data, validation_batch_size or batch_size, is_text=own["batch_size"] is None
        )
        self._schedule(x, steps_per_epoch, epochs, initial_epoch, batch_size)
        return super().fit(
            x, y, epochs=epochs, validation_data=validation_data, sample_weight=sample_weight,
            steps_per_epoch=steps_per_epoch, initial_epoch=initial_epoch, **own, **kwargs,
        )  # fmt: skip

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        *,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Keras' `evaluate`, on raw text and labels or on token ids; see `fit`."""
        if not self._takes(x):
            return super().evaluate(x, y, batch_size, sample_weight=sample_weight, **kwargs)
        batches = self.preprocessor.batches(self, x, y, sample_weight, batch_size=batch_size)
        return super().evaluate(batches.dataset, **kwargs)

    def predict(self, x: Any, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Keras' `predict`, on raw text or on token ids.

        Returns:
            The model's outputs: logits [E, C] of a classifier, numbers [E] of a regressor, logits
            [E, N] of a chooser, the outputs of an encoder. Of raw text a tagger gives the labels
            of each text's words, a model of questions the answers, and a language model the words
            for each [MASK], as lists of strings.
        """
        if not self._takes(x):
            return super().predict(x, batch_size, **kwargs)
        return self.preprocessor.predict(self, x, super().predict, batch_size, **kwargs)

    def test_step(self, data: Any) -> Any:
        """Keras', on both halves of a batch at the same time where cores are shared."""
        with halves(True):
            return super().test_step(data)

    def predict_step(self, data: Any) -> Any:
        """Likewise."""
        with halves(True):
            return super().predict_step(data)

    def save_to_preset(self, directory: str | os.PathLike) -> None:
        """Writes a model directory: the model, its vocabulary, its task.

        `from_preset`, `bert-tf` and Hugging Face's transformers read it.
        """
        self._with_preprocessor("save_to_preset").save(self, directory)

    def export(self, filepath: str | os.PathLike, format: str = "bert_tf", **kwargs: Any) -> Any:
        """Writes a SavedModel that answers raw strings, as `bert-tf export` does.

        Args:
            filepath: folder of the version, such as saved_models/review/1.
            format: another format is Keras' own `export`, such as "tf_saved_model" of token ids.
            kwargs: those of Keras' `export`.
        """
        if format != "bert_tf":
            return super().export(filepath, format=format, **kwargs)
        return self._with_preprocessor("export").export(self, filepath)

    def _answers(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """What `bert-tf predict` writes for each example."""
        return self._with_preprocessor("this").answers(self, x, batch_size)

    def _with_preprocessor(self, name: str) -> Any:
        if self.preprocessor is None:
            raise InputError(
                f"{name} needs the model's vocabulary: open the model with from_preset, or set "
                "model.preprocessor = bert_tf.BertPreprocessor(DIRECTORY)"
            )
        return self.preprocessor

    def _takes(self, x: Any) -> bool:
        return self.preprocessor is not None and self.preprocessor.takes(x)

    def _validation(self, data: Any, batch_size: int | None, *, is_text: bool) -> Any:
        """Validation data that Keras takes."""
        if data is None or self.preprocessor is None:
            return data
        is_set = not isinstance(data, tuple | list)
        x, y, weights = keras.utils.unpack_x_y_sample_weight((data,) if is_set else tuple(data))
        if not self._takes(x):
            return data
        return self.preprocessor.batches(self, x, y, weights, batch_size=batch_size).dataset

    def _schedule(
        self, x: Any, steps: int | None, epochs: int, initial_epoch: int, batch_size: int | None
    ) -> None:
        """Sets the optimizer up for the steps of a fit, if the user has given none."""
        if not self._is_auto or initial_epoch:
            return
        if steps is None:
            steps = _number_of_batches(x, batch_size or 32)
        self.optimizer = self._new_optimizer(steps and steps * epochs)
        self.train_function = None

    def compile_from_config(self, config: Any) -> None:
        """Keras' inverse of `get_compile_config`, which it skips for classes with a `compile`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)


def _number_of_batches(x: Any, batch_size: int) -> int | None:
    """Steps of an epoch over Keras' data, if they are known."""
    if hasattr(x, "cardinality"):
        return int(size) if (size := x.cardinality()) > 0 else None
    arrays = [each for each in keras.tree.flatten(x) if hasattr(each, "shape")]
    return -(-arrays[0].shape[0] // batch_size) if arrays and arrays[0].shape else None
