"""Training and prediction on raw text, by a model's preprocessor, as Keras users know them."""

import contextlib
import operator
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from bert_tf.errors import InputError
from bert_tf.models.class_weights import (
    BALANCED,
    check_weights,
    weights_by_class,
    weights_of_labels,
)
from bert_tf.models.compiled_model import (
    AUTO,
    CompiledModel,
    check_callbacks,
    number_of_batches,
    refuse_hdf5,
)
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.startup import prepare_training

_RUNTIMES = ("litert", "onnx", "openvino")
_WHOLE = 2**20  # rows, more than anybody gives as one batch
# Keras warns of variables without a gradient. Where a head reads tokens, the pooler has none.
_OF_THE_POOLER = r"Gradients do not exist for variables \[('[^']*\bpooler\b[^']*'(, )?)+\]"
_VOCABULARY = (
    "needs the model's vocabulary: open the model with from_preset, or set "
    "model.preprocessor = bert_tf.BertPreprocessor(DIRECTORY)"
)


class TextModel(CompiledModel):
    """A Keras model whose `fit`, `evaluate` and `predict` take raw text, too.

    Attributes:
        preprocessor: a `bert_tf.BertPreprocessor`; None for a model that takes token ids alone.
        text_output: form of the outputs of `predict` for raw text: "rows", a target and an output
            of Keras for each example; "states", outputs as long as a batch; "vectors" of texts; or
            "answers".
    """

    reads_text: ClassVar[bool] = True  # else token ids alone
    text_output: ClassVar[str] = "answers"
    optional_inputs: ClassVar[tuple[str, ...]] = ()  # of a call, beside those in `input`

    @property
    def preprocessor(self) -> Any:
        """What makes token ids of raw text; None without."""
        return getattr(self, "_preprocessor", None)

    @preprocessor.setter
    def preprocessor(self, preprocessor: Any) -> None:
        self._preprocessor = preprocessor

    @property
    def peak_learning_rate(self) -> float:
        rate = None if self.preprocessor is None else self.preprocessor.learning_rate
        return rate or self.learning_rate

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Keras' `save`, into a .keras file; InputError for HDF5, which Keras could not read."""
        refuse_hdf5(filepath)
        super().save(filepath, *args, **kwargs)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = AUTO,
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> Any:
        """Keras' `fit`, on raw text and labels, or on token ids.

        With `initial_epoch`, the learning rate schedule of the fit before goes on. `random`, as
        `keras.utils.set_random_seed` seeds it, decides the order of the examples. Returns Keras'
        `History`; raises InputError, naming the example, for a text or label that cannot be used.

        Args:
            x: texts, as a list, a NumPy array or a pandas series. For pairs of texts, questions
                (`question`, `context`) and choices (`context`, `choices`) a tuple of columns, a
                list of tuples, or a dict or data frame by column. For taggers lists of words, or
                strings with spaces between the words. A finite `tf.data.Dataset` of batches of
                strings, (x, y) or (x, y, sample_weight); for taggers and questions it is read into
                lists first. Or token ids, as Keras takes them.
            y: labels, by name or by number; numbers for regression and choices; a list of labels
                for each text of a tagger; for questions the answer's text, or SQuAD's `answers`.
                Encoders' masked words need none; a `BertPreTrainer` takes 1 for a pair whose second
                text is random, else 0. None where x holds a column of labels.
            batch_size: examples per step; None for 32.
            epochs: passes over the examples.
            verbose: as in Keras; unless it is 0, `fit` also prints how often each label occurs, and
                at the end which classes of the validation data are never predicted.
            callbacks: as in Keras.
            validation_split: share of the examples to validate on, the last ones.
            validation_data: (x, y) or (x, y, sample_weight), or a data set, to validate on.
            shuffle: whether each epoch has the examples in another order; batches of many
                examples are of similar length.
            class_weight: weight of each label, by name or by number; "balanced", for lists and
                arrays of a label for each text, gives all labels the same total weight.
            sample_weight: weight of each example [E]; not for taggers and questions.
            initial_epoch: as in Keras.
            steps_per_epoch: steps of an epoch; None for all examples.
            validation_steps: as in Keras.
            validation_batch_size: examples of a validation batch, by default `batch_size`.
            validation_freq: as in Keras.
        """
        prepare_training()
        x, is_text = self._checked(x, batch_size, y)
        data = {"x": x, "y": y, "sample_weight": sample_weight, "class_weight": class_weight}
        data |= {"batch_size": batch_size, "shuffle": shuffle, "steps_per_epoch": steps_per_epoch}
        data |= {"validation_data": validation_data, "validation_split": validation_split}
        if is_text:
            data = self._batches_to_fit(data, reports_labels=bool(verbose))
        weights = self._weights(data["y"], data["sample_weight"], data["class_weight"])
        data["sample_weight"], data["class_weight"] = weights
        validation = self._validation(data["validation_data"], validation_batch_size or batch_size)
        data["validation_data"] = validation
        check_callbacks(callbacks, sets_rate="optimizer" in self._auto)
        self._set_up_recipe(data, epochs, initial_epoch)
        with self._messages(is_text):
            history = super().fit(
                **data,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                initial_epoch=initial_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )
        if is_text and verbose and validation is not None:
            for remark in self.preprocessor.unlearned_classes(self, validation, validation_steps):
                print(remark)
        return history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = AUTO,
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Keras' `evaluate`, on raw text and labels or on token ids; arguments as of `fit`.

        Loss and metrics are training's: a tagger's count words, a question model's count windows
        of the context. `bert-tf evaluate` has the official scores. Masked words stay the same.
        """
        x, is_text = self._checked(x, batch_size, y)
        if is_text:
            x, _ = self.preprocessor.batches(self, x, y, sample_weight, batch_size=batch_size)
            y = sample_weight = batch_size = None
        check_weights(sample_weight)
        with self._messages(is_text):
            return super().evaluate(
                x,
                y,
                batch_size=batch_size,
                verbose=verbose,
                sample_weight=sample_weight,
                steps=steps,
                callbacks=callbacks,
                return_dict=return_dict,
                **kwargs,
            )

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = AUTO,
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Keras' `predict`, on raw text or on token ids; `x` and errors as of `fit`.

        Returns the model's outputs: logits [E, C] of a classifier, numbers [E] of a regressor,
        logits [E, N] of a chooser, the outputs of an encoder, padded to the longest text. Of raw
        text a sentence encoder gives vectors [E, W], a tagger the labels of each text's words, a
        model of questions the answers, and a language model the words for each [MASK], as lists of
        strings; `verbose`, `steps` and `callbacks` have no meaning then.
        """
        x, is_text = self._checked(x, batch_size)
        keras_own = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        with self._messages(is_text):
            if is_text:
                return self.preprocessor.predict(self, x, super().predict, batch_size, **keras_own)
            return super().predict(x, batch_size, **keras_own)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Keras' `train_on_batch`, on raw text and labels or on token ids, as of `fit`.

        Without an optimizer in `compile` the learning rate is the last `fit`'s, or constant.
        """
        batch = self._one_batch(
            x, y, sample_weight, class_weight=class_weight, is_training=True, shuffle=True
        )
        batch = batch or (x, y, *self._weights(y, sample_weight, class_weight))
        with self._messages(is_text=False):
            return super().train_on_batch(*batch, return_dict=return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Keras' `test_on_batch`, on raw text and labels or on token ids, as of `evaluate`."""
        check_weights(sample_weight)
        batch = self._one_batch(x, y, sample_weight) or (x, y, sample_weight)
        return super().test_on_batch(*batch, return_dict=return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras' `predict_on_batch`, on raw text or on token ids; see `predict`."""
        if self._checked(x, None)[1]:
            return self.predict(x, verbose=0)
        return super().predict_on_batch(x)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Keras', on both halves of a batch at the same time where cores are shared."""
        with kernels_of(self, lambda kernels: kernels.in_halves(True)):
            return super().test_step(*args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        with kernels_of(self, lambda kernels: kernels.in_halves(True)):
            return super().predict_step(*args, **kwargs)

    def save_to_preset(self, directory: str | os.PathLike) -> None:
        """Writes a model directory, for `from_preset`, `bert-tf` and Hugging Face transformers."""
        self._answerer("save_to_preset").save(directory)

    def export(
        self,
        filepath: str | os.PathLike,
        format: str | None = None,
        verbose: Any = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Writes a SavedModel that answers raw strings, as `bert-tf export` does.

        Returns its folder, `filepath`, such as saved_models/review/1.

        With the `format` "litert", "onnx" or "openvino", writes a file of that name and suffix, or
        `model` in a folder of that name, that takes token ids of any size; vocabulary, task and a
        model card stand beside it. `int8=True` stores LiteRT's weights in int8. With an
        `input_signature`, another `format`, or neither preprocessor nor format, it is Keras'
        `export` of token ids.
        """
        if format in _RUNTIMES and input_signature is None:
            return self._answerer("export").export_portable(Path(filepath), format, **kwargs)
        if format is None and self.preprocessor is not None:
            return self._answerer("export").export_version(filepath)
        return super().export(
            filepath,
            format=format or "tf_saved_model",
            verbose=verbose,
            input_signature=input_signature,
            **kwargs,
        )

    def _answers(self, name: str, x: Any, batch_size: int, **options: Any) -> list[dict[str, Any]]:
        """What `bert-tf predict` writes for each example; `name` is the method that asks."""
        self._answerer(name)
        return self.preprocessor.answers(self, x, batch_size, **options)

    def _answerer(self, name: str) -> Any:
        """The model's `Answerer`; `name` is the method that asks for it."""
        if self.preprocessor is None:
            raise InputError(f"{name} {_VOCABULARY}")
        return self.preprocessor.answerer(self)

    def _checked(self, x: Any, batch_size: Any, y: Any = None) -> tuple[Any, bool]:
        """The inputs, and whether they are raw text."""
        try:
            fits = batch_size is None or operator.index(batch_size) > 0
        except TypeError:
            fits = False
        if not fits:
            raise InputError(f"batch_size is {batch_size!r:.40}: give a whole number, at least 1")
        self._check_ids(x)
        if isinstance(x, Iterator) and y is not None:
            raise InputError(
                "the inputs come from a generator: give them as a list, list(texts); batches of "
                "token ids come with their labels, (x, y)"
            )
        if self.preprocessor is not None:
            x, is_text = self.preprocessor.checked(x)
        elif is_text := _is_text(x):
            raise InputError(f"raw text {_VOCABULARY}")
        if not is_text and not self.has_own_loss:
            self._check_labels(y)
        return x, is_text

    def _check_labels(self, y: Any) -> None:
        """Refuses numbers in an array that are no classes: TensorFlow names no example."""
        is_of_words = self.output_kind == "words"
        if self.output_kind != "classes" and not is_of_words:
            return
        classes = self.output_shape[-1]
        if classes is None or not isinstance(y, np.ndarray) or y.dtype.kind not in "iuf":
            return
        is_odd = (y < 0) | (y >= classes)
        if is_of_words:
            is_odd &= y != -100
        if is_odd.any():
            place = tuple(np.argwhere(is_odd)[0])
            more = ", and -100 is a word without a label" * is_of_words
            raise InputError(
                f"the label of example {place[0]} is {y[place]}: the model's {classes} classes "
                f"have the numbers 0 to {classes - 1}{more}"
            )

    def _weights(self, y: Any, sample_weight: Any, class_weight: Any) -> tuple[Any, Any]:
        """Weights of examples, and of classes by number, of token ids, as Keras takes them."""
        check_weights(sample_weight)
        if class_weight is None:
            return sample_weight, None
        kind = self.output_kind
        if kind not in ("classes", "words") or not self.label_names:
            raise InputError("class_weight is for labels that are classes: leave it out")
        if class_weight == BALANCED and kind == "classes" and y is not None:
            return weights_of_labels(y, sample_weight, None, kind), None
        weights = self.weights_of_classes(class_weight).tolist()
        if y is not None:
            return weights_of_labels(y, sample_weight, weights, kind), None
        if kind == "words":
            raise InputError(
                "class_weight of words is for arrays: give the data set's words weights, "
                "(x, y, sample_weight)"
            )
        return None, dict(enumerate(weights))

    def weights_of_classes(self, class_weight: Any) -> Any:
        """Weights of the labels, float32 [C]; labels have the names of the task, too."""
        aliases = self.preprocessor.task.label_aliases if self.preprocessor is not None else {}
        names = [aliases.get(label, label) for label in self.label_names]
        return weights_by_class(class_weight, names, aliases)

    def _batches_to_fit(self, data: dict[str, Any], *, reports_labels: bool) -> dict[str, Any]:
        """Arguments of Keras' `fit`, for arguments with raw text."""
        given = (data["x"], data["y"], data["sample_weight"])
        validation = data["validation_data"]
        if data["validation_split"] and validation is None:
            given, validation = self.preprocessor.split(*given, data["validation_split"])
        dataset, steps = self.preprocessor.batches(
            self,
            *given,
            **{name: data[name] for name in ("class_weight", "batch_size", "shuffle")},
            is_training=True,
            repeats=data["steps_per_epoch"] is not None,
            reports_labels=reports_labels,
        )
        return {
            **dict.fromkeys(data),
            "x": dataset,
            "validation_split": 0.0,
            "validation_data": validation,
            "shuffle": False,
            "steps_per_epoch": data["steps_per_epoch"] or steps,
        }

    def _set_up_recipe(self, data: dict[str, Any], epochs: int, initial_epoch: int) -> None:
        """Makes the optimizer for the steps of a `fit`, unless `compile` was given one."""
        if "optimizer" not in self._auto:
            return
        steps = data["steps_per_epoch"] or number_of_batches(
            data["x"], data["batch_size"], data["validation_split"]
        )
        if not steps:
            warnings.warn(
                "the data does not say how many batches it has: the learning rate stays at "
                f"{self.peak_learning_rate:g}, without warm-up and decay. Give steps_per_epoch "
                "with data that repeats, or "
                "dataset.apply(tf.data.experimental.assert_cardinality(BATCHES))",
                stacklevel=3,
            )
        self.set_up_optimizer(steps and steps * epochs, initial_epoch)

    def _one_batch(self, x: Any, y: Any, weights: Any, **options: Any) -> tuple | None:
        """Inputs, targets and weights of raw text, as arrays; None for other inputs."""
        x, is_text = self._checked(x, None, y)
        if not is_text:
            return None
        batches = self.preprocessor.batches(self, x, y, weights, batch_size=_WHOLE, **options)
        with self._messages(is_text):
            return next(batches.dataset.as_numpy_iterator())

    def _validation(self, data: Any, batch_size: int | None) -> Any:
        if data is None or self.preprocessor is None:
            return data
        is_x = not isinstance(data, tuple | list) or all(isinstance(x, str) for x in data)
        x, y, weights = keras.utils.unpack_x_y_sample_weight((data,) if is_x else tuple(data))
        x, is_text = self._checked(x, batch_size, y)
        if not is_text:
            check_weights(weights)
            return x if is_x else data
        return self.preprocessor.batches(self, x, y, weights, batch_size=batch_size).dataset

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Refuses inputs that the model does not have.

        Keras would sort the names and read the first ones as the model's (issue 23258).
        """
        known = {*self.input, *self.optional_inputs}
        if others := [name for name in inputs if name not in known]:
            raise InputError(
                f"{type(self).__name__} takes no {' and no '.join(map(str, others))}: give a dict "
                f"of {', '.join(self.input)} alone"
            )

    def _check_ids(self, x: Any) -> None:
        """Refuses ids under other names, and floats, of arrays or of a data set."""
        inputs = getattr(x, "element_spec", x)
        inputs = inputs[0] if isinstance(inputs, tuple) and inputs else inputs
        if not isinstance(inputs, Mapping) or _is_text(inputs):
            return
        leaves = keras.tree.flatten(inputs)
        are_arrays = leaves and all(hasattr(leaf, "dtype") for leaf in leaves)
        if "token_ids" not in inputs and not are_arrays:
            return
        self.check_inputs(inputs)
        for name in ("token_ids", "segment_ids", "mask_positions"):
            dtype = str(getattr(inputs.get(name), "dtype", ""))
            if "float" in dtype:  # models would cut them off
                raise InputError(
                    f"{name} are {dtype}: give integers, such as {name}.astype('int32')"
                )

    @contextlib.contextmanager
    def _messages(self, is_text: bool) -> Iterator[None]:
        """Errors of a graph of strings in a line, and no warning of poolers."""
        errors = self.preprocessor.plain_errors() if is_text else contextlib.nullcontext()
        with warnings.catch_warnings(), errors:
            warnings.filterwarnings("ignore", _OF_THE_POOLER)
            yield


def _is_text(x: Any) -> bool:
    """Whether inputs, of a data set or not, are strings."""
    inputs = getattr(x, "element_spec", x)
    inputs = inputs[0] if isinstance(inputs, tuple) and inputs else inputs
    return any(
        isinstance(leaf, str) or re.search("str|object|[<|][US]", str(getattr(leaf, "dtype", "")))
        for leaf in keras.tree.flatten(inputs)
    )
