"""Training and prediction on raw text, by a model's preprocessor, as Keras users know them."""

import contextlib
import operator
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import keras

from bert_tf.errors import InputError
from bert_tf.models.class_weights import check_weights, weights_by_place, weights_of_labels
from bert_tf.models.metrics import of_model
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.layer_state import state_of
from bert_tf.networks.losses import of_logits

AUTO = "auto"
_BATCH_SIZE = 32
_RUNTIMES = ("litert", "onnx", "openvino")
_WARMUP_SHARE = 0.1
_WHOLE = 2**20  # rows, more than anybody gives as one batch
# Keras warns of variables without a gradient. Where a head reads tokens, the pooler has none.
_OF_THE_POOLER = r"Gradients do not exist for variables \[('[^']*\bpooler\b[^']*'(, )?)+\]"
# Callbacks that set the learning rate, which the schedule of a fit has already set.
_SET_THE_RATE = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class TextModel(keras.Model):
    """A Keras model whose `fit`, `evaluate` and `predict` take raw text, too.

    Compiled when it is made, with the loss and the metrics of its task. Unless `compile` was given
    an optimizer, each `fit` trains as `bert-tf finetune` does: AdamWeightDecay, warm-up over the
    first tenth of its steps, then linear decay to 0.

    Attributes:
        preprocessor: a `bert_tf.BertPreprocessor`; None for a model that takes token ids alone.
    """

    # Keras' loss of the task, None for a part of other models; and how metrics read the output, as
    # `bert_tf.models.metrics` has it, a dict for several.
    new_loss: Any = None
    output_kind: Any = None
    learning_rate: ClassVar[float] = 5e-5  # peak, unless the preprocessor's task has one
    optimizer: Any
    _compile_config: Any  # as Keras keeps it for files
    # Arguments of `compile` that are the task's, now and in the file that the model is read from.
    _auto: tuple[str, ...] = ()
    _auto_of_file: tuple[str, ...] = ()
    _step_made_with = ""  # optimizer, trainable variables and switches of the last fit's step

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
        loss_weights: Any = None,
        metrics: Any = AUTO,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = AUTO,
        auto_scale_loss: bool = True,
    ) -> None:
        """Keras' `compile`, in which "auto" keeps what the task has.

        An "auto" optimizer is the recipe of `bert-tf finetune`, set up by each `fit`. "auto"
        metrics are the task's `accuracy`, if it has one, the loss is the task's, too, and no others
        are given; `metrics=None` has none. Weights of examples and classes count in the loss and in
        `weighted_metrics` alone; padding counts nowhere. Keras' metrics get the probabilities and
        labels that they expect: see `bert_tf.models.metrics`. Names of losses are of logits, as the
        outputs are; InputError for a loss of probabilities. `jit_compile` is False with TensorFlow,
        where XLA would compile every length of batch anew.
        """
        given = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
        auto = [name for name, value in given.items() if isinstance(value, str) and value == AUTO]
        self._auto, self._step_made_with = tuple(auto), ""
        if "optimizer" in auto:
            optimizer = self._new_optimizer(total_steps=None)
        if "metrics" in auto:
            has_own = "loss" in auto and weighted_metrics is None and self.output_kind is not None
            kinds = self.output_kind
            own = dict.fromkeys(kinds, "accuracy") if isinstance(kinds, dict) else ["accuracy"]
            metrics = own if has_own else None
        if "loss" in auto:
            loss = self.new_loss() if self.new_loss else None
        elif self.new_loss:
            loss = of_logits(loss, self.new_loss)
        # A file has metrics as they are given, to be adapted when it is read.
        plain = {"metrics": metrics, "weighted_metrics": weighted_metrics}
        metrics, weighted_metrics = of_model(self, metrics, weighted_metrics)
        if jit_compile == AUTO and keras.backend.backend() == "tensorflow":
            jit_compile = False
        # Keras keeps these where a further call has none.
        self.loss = self._compile_loss = self._compile_metrics = None
        super().compile(
            optimizer,
            loss,
            loss_weights,
            metrics,
            weighted_metrics,
            run_eagerly,
            steps_per_execution,
            jit_compile,
            auto_scale_loss,
        )
        made = self._compile_config
        self._compile_config = type(made)(**made.config | plain)
        if optimizer is not None:
            self._load_whole(self.optimizer)

    def _load_whole(self, optimizer: Any) -> None:
        """Has an optimizer without variables make them to load those of a file."""
        load = optimizer.load_own_variables

        def load_as_saved(store: Any) -> None:
            # An optimizer that has not trained was saved without means of the weights.
            number = len(store.keys())
            if number > len(optimizer.variables):
                optimizer.build(self.trainable_variables)
            if number + 1 == len(optimizer.variables) and "optimizer" in self._auto:
                # That of a fit has a schedule in place of a variable; the next one sets its own.
                rate = float(optimizer.learning_rate)
                constant = keras.optimizers.schedules.PolynomialDecay(rate, 1, rate)
                optimizer.learning_rate = constant
            load(store)

        optimizer.load_own_variables = load_as_saved

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Keras' `save`, into a .keras file; InputError for HDF5, which Keras could not read."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise InputError(
                f"{filepath}: Keras writes this model as HDF5 but cannot read it again: save it as "
                "model.keras, or its weights alone with save_weights"
            )
        super().save(filepath, *args, **kwargs)

    @property
    def has_own_loss(self) -> bool:
        """Whether `compile` replaced the task's loss, so that targets may be others, too."""
        return "loss" not in self._auto

    def _new_optimizer(self, total_steps: int | None) -> Any:
        """The optimizer of `bert-tf finetune`; without a number of steps the rate is constant."""
        import bert_tf  # the floor above: the package itself knows where it is

        rate: Any = self.learning_rate
        if self.preprocessor is not None:
            rate = self.preprocessor.learning_rate or rate
        if total_steps:
            rate = bert_tf.WarmupLinearDecay(rate, round(total_steps * _WARMUP_SHARE), total_steps)
        if keras.backend.backend() != "tensorflow":
            return keras.optimizers.AdamW(
                rate, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
            )
        return bert_tf.AdamWeightDecay(rate)

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
            verbose: as in Keras.
            callbacks: as in Keras.
            validation_split: share of the examples to validate on, the last ones.
            validation_data: (x, y) or (x, y, sample_weight), or a data set, to validate on.
            shuffle: whether each epoch has the examples in another order; batches of many
                examples are of similar length.
            class_weight: weight of each label, by name or by number.
            sample_weight: weight of each example [E]; not for taggers and questions.
            initial_epoch: as in Keras.
            steps_per_epoch: steps of an epoch; None for all examples.
            validation_steps: as in Keras.
            validation_batch_size: examples of a validation batch, by default `batch_size`.
            validation_freq: as in Keras.
        """
        x, is_text = self._checked(x, batch_size, y)
        if is_text:
            if validation_split and validation_data is None:
                split = self.preprocessor.split(x, y, sample_weight, validation_split)
                (x, y, sample_weight), validation_data = split
            x, steps = self.preprocessor.batches(
                self,
                x,
                y,
                sample_weight,
                class_weight=class_weight,
                batch_size=batch_size,
                shuffle=shuffle,
                is_training=True,
                repeats=steps_per_epoch is not None,
                reports_labels=bool(verbose),
            )
            y = sample_weight = class_weight = None
            steps_per_epoch = steps_per_epoch or steps
        sample_weight, class_weight = self._weights(y, sample_weight, class_weight)
        validation_data = self._validation(validation_data, validation_batch_size or batch_size)
        if is_text:
            batch_size, shuffle, validation_split = None, False, 0.0
        if "optimizer" in self._auto:
            _check_callbacks(callbacks)
            steps = steps_per_epoch or _number_of_batches(x, batch_size, validation_split)
            self._schedule(steps and steps * epochs, initial_epoch)
        with self._messages(is_text):
            return super().fit(
                x,
                y,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=shuffle,
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )

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

        Loss and metrics are those of training: a tagger's count words, those of questions windows
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

        Without an optimizer in `compile` the learning rate is that of the last `fit`, or constant.
        """
        given = self._one_batch(
            x, y, sample_weight, class_weight=class_weight, is_training=True, shuffle=True
        )
        given = given or (x, y, *self._weights(y, sample_weight, class_weight))
        with self._messages(is_text=False):
            return super().train_on_batch(*given, return_dict=return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Keras' `test_on_batch`, on raw text and labels or on token ids, as of `evaluate`."""
        check_weights(sample_weight)
        given = self._one_batch(x, y, sample_weight) or (x, y, sample_weight)
        return super().test_on_batch(*given, return_dict=return_dict)

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
        self._with_preprocessor("save_to_preset").save(self, directory)

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
        model card stand beside it. `int8=True` stores LiteRT's weights in int8. With another
        `format`, or without a preprocessor, it is Keras' `export` of token ids.
        """
        if self.preprocessor is not None:
            if format is None:
                return self.preprocessor.export(self, filepath)
            if format in _RUNTIMES and input_signature is None:
                return self.preprocessor.export_portable(self, filepath, format, **kwargs)
        return super().export(
            filepath,
            format=format or "tf_saved_model",
            verbose=verbose,
            input_signature=input_signature,
            **kwargs,
        )

    def _answers(self, name: str, x: Any, batch_size: int, **options: Any) -> list[dict[str, Any]]:
        """What `bert-tf predict` writes for each example; `name` is the method that asks."""
        return self._with_preprocessor(name).answers(self, x, batch_size, **options)

    def _with_preprocessor(self, name: str) -> Any:
        if self.preprocessor is None:
            raise InputError(
                f"{name} needs the model's vocabulary: open the model with from_preset, or set "
                "model.preprocessor = bert_tf.BertPreprocessor(DIRECTORY)"
            )
        return self.preprocessor

    def _checked(self, x: Any, batch_size: Any, y: Any = None) -> tuple[Any, bool]:
        """The inputs, and whether they are raw text."""
        try:
            fits = batch_size is None or operator.index(batch_size) > 0
        except TypeError:
            fits = False
        if not fits:
            raise InputError(f"batch_size is {batch_size!r:.40}: give a whole number, at least 1")
        _check_ids(x)
        if isinstance(x, Iterator) and y is not None:
            raise InputError(
                "the inputs come from a generator: give them as a list, list(texts); batches of "
                "token ids come with their labels, (x, y)"
            )
        return (x, False) if self.preprocessor is None else self.preprocessor.checked(x)

    def _weights(self, y: Any, sample_weight: Any, class_weight: Any) -> tuple[Any, Any]:
        """Weights of examples, and of classes by number, of token ids, as Keras takes them."""
        check_weights(sample_weight)
        if class_weight is None:
            return sample_weight, None
        kind = self.output_kind
        if kind not in ("classes", "words") or not self.label_names:
            raise InputError("class_weight is for labels that are classes: leave it out")
        if self.preprocessor is not None:
            weights = self.preprocessor.class_weights(self, class_weight)
        else:
            weights = weights_by_place(class_weight, self.label_names)
        if y is not None:
            return weights_of_labels(y, sample_weight, weights, kind), None
        if kind == "words":
            raise InputError(
                "class_weight of words is for arrays: give the data set's words weights, "
                "(x, y, sample_weight)"
            )
        return None, dict(enumerate(weights))

    def _one_batch(self, x: Any, y: Any, weights: Any, **options: Any) -> tuple | None:
        """Inputs, targets and weights of raw text, as arrays; None for other inputs."""
        x, is_text = self._checked(x, None)
        if not is_text:
            return None
        made = self.preprocessor.batches(self, x, y, weights, batch_size=_WHOLE, **options)
        with self._messages(is_text):
            return next(made.dataset.as_numpy_iterator())

    def _validation(self, data: Any, batch_size: int | None) -> Any:
        if data is None or self.preprocessor is None:
            return data
        is_x = not isinstance(data, tuple | list) or all(isinstance(each, str) for each in data)
        x, y, weights = keras.utils.unpack_x_y_sample_weight((data,) if is_x else tuple(data))
        x, is_text = self._checked(x, batch_size, y)
        if not is_text:
            check_weights(weights)
            return x if is_x else data
        return self.preprocessor.batches(self, x, y, weights, batch_size=batch_size).dataset

    def _schedule(self, total_steps: int | None, initial_epoch: int) -> None:
        """Sets the task's optimizer up for the steps of a fit."""
        strategy = getattr(self, "_distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            made = self._new_optimizer(total_steps)
            scales = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
            variables = [id(variable) for variable in self.trainable_variables]
            made_with = repr((made.get_config(), state_of(self), variables, self.run_eagerly))
            if made_with == self._step_made_with and total_steps and not scales:
                if not initial_epoch:  # a new optimizer would have the step traced anew
                    for variable in self.optimizer.variables:
                        variable.assign(keras.ops.zeros_like(variable))
                return
            if initial_epoch and self.optimizer.built:
                inner = self.optimizer.inner_optimizer if scales else self.optimizer
                inner.learning_rate = made._learning_rate
            else:
                self.optimizer = keras.optimizers.LossScaleOptimizer(made) if scales else made
                # `BackupAndRestore` reads its variables before the first step.
                self.optimizer.build(self.trainable_variables)
        self.train_function = None
        self._step_made_with = made_with

    @contextlib.contextmanager
    def _messages(self, is_text: bool) -> Iterator[None]:
        """Errors of a graph of strings in a line, and no warning of poolers."""
        of_text = self.preprocessor.plain_errors() if is_text else contextlib.nullcontext()
        with warnings.catch_warnings(), of_text:
            warnings.filterwarnings("ignore", _OF_THE_POOLER)
            yield

    def get_compile_config(self) -> Any:
        """Keras', with the optimizer as it is now."""
        config = super().get_compile_config()
        if config and "optimizer" in self._auto:
            config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        return config

    def compile_from_config(self, config: Any) -> None:
        """Keras' inverse of `get_compile_config`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self._auto = self._auto_of_file


def _check_ids(x: Any) -> None:
    """Refuses ids that are floats, of arrays or of a data set: models would cut them off."""
    inputs = getattr(x, "element_spec", x)
    inputs = inputs[0] if isinstance(inputs, tuple) and inputs else inputs
    for name in ("token_ids", "segment_ids", "mask_positions"):
        dtype = str(getattr(inputs.get(name), "dtype", "")) if isinstance(inputs, Mapping) else ""
        if "float" in dtype:
            raise InputError(f"{name} are {dtype}: give integers, such as {name}.astype('int32')")


def _check_callbacks(callbacks: Any) -> None:
    for callback in callbacks if isinstance(callbacks, list | tuple) else [callbacks]:
        if isinstance(callback, _SET_THE_RATE):
            raise InputError(
                f"{type(callback).__name__} sets the learning rate, which fit's schedule sets: "
                "give compile an optimizer, such as keras.optimizers.AdamW(5e-5)"
            )


def _number_of_batches(x: Any, batch_size: int | None, validation_split: float) -> int | None:
    """Steps of an epoch over Keras' data, if they are known."""
    if hasattr(x, "cardinality"):
        return int(size) if (size := x.cardinality()) > 0 else None
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches
    arrays = [each for each in keras.tree.flatten(x) if hasattr(each, "shape")]
    if not arrays or not arrays[0].shape:
        return None
    return -(-int(arrays[0].shape[0] * (1.0 - validation_split)) // (batch_size or _BATCH_SIZE))
