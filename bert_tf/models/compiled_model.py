"""Loss, metrics and optimizer that Keras trains a model with, by default its task's.

Outputs are logits. An output has a kind, which says how Keras' metrics read it:
    "classes": labels int [...], logits [..., C].
    "words": the same, for tokens; tokens of weight 0 are padding and never count.
    "labels": labels 0 or 1 [B, C], a logit for each.
    "spans": starts and ends, int [B, 2], logits [B, T, 2].
    "numbers": numbers [B], as columns [B, 1] to metrics without an axis.

The scores of tasks are in `bert_tf.tasks.scoring.metrics`.
"""

import contextlib
import functools
from typing import Any, ClassVar

import keras
from keras import ops

from bert_tf.errors import InputError
from bert_tf.networks.bert_layer import state_of
from bert_tf.networks.losses import LabelAccuracy, adapted, labelled, logits_loss
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.schedule import WarmupLinearDecay
from bert_tf.training.warmup import warmup_steps

AUTO = "auto"
_BATCH_SIZE = 32
_SET_THE_RATE = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class CompiledModel(keras.Model):
    """A Keras model that is compiled when it is made, with the loss and the metrics of its task.

    Unless `compile` was given an optimizer, each `fit` trains as `bert-tf finetune` does:
    AdamWeightDecay, warm-up over the first tenth of its steps, then linear decay to 0.
    """

    # Keras' loss of the task, None for a part of other models; and the kind of the output, a dict
    # of kinds for several.
    new_loss: Any = None
    output_kind: Any = None
    learning_rate: ClassVar[float] = 5e-5  # peak, unless `peak_learning_rate` has another
    optimizer: Any
    _compile_config: Any  # as Keras keeps it for files
    # Arguments of `compile` that are the task's, now and in the file that the model is read from.
    _auto: tuple[str, ...] = ()
    _auto_of_file: tuple[str, ...] = ()
    _step_made_with = ""  # optimizer, trainable variables and switches of the last fit's step

    @property
    def peak_learning_rate(self) -> float:
        """The peak of the learning rate of `fit`."""
        return self.learning_rate

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
        `weighted_metrics` alone; padding counts nowhere, and neither does a word whose label is
        -100. Keras' metrics get the probabilities and labels that they expect: see `adapt`. Names
        of losses are of logits, as the outputs are; InputError for a loss of probabilities.
        `jit_compile` is False with TensorFlow, where XLA would compile every length of batch anew.
        """
        arguments = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
        auto = tuple(
            n for n, value in arguments.items() if isinstance(value, str) and value == AUTO
        )
        self._auto = auto
        self._step_made_with = ""
        if "optimizer" in auto:
            optimizer = self._new_optimizer(total_steps=None)
        if "metrics" in auto:
            kinds = self.output_kind
            is_plain = "loss" in auto and weighted_metrics is None
            if not is_plain or kinds in (None, "numbers"):
                metrics = None
            else:
                is_dict = isinstance(kinds, dict)
                metrics = dict.fromkeys(kinds, "accuracy") if is_dict else ["accuracy"]
        if "loss" in auto:
            loss = self.new_loss() if self.new_loss else None
        elif self.new_loss:
            loss = logits_loss(loss, self.new_loss)
        # A file has them as they are given, to be adapted when it is read.
        plain = {"loss": loss, "metrics": metrics, "weighted_metrics": weighted_metrics}
        kind = keras.tree.flatten(self.output_kind)[0]  # of all outputs
        loss = keras.tree.map_structure(lambda leaf: adapted(leaf, kind), loss)
        metrics, weighted_metrics = adapt_metrics(self, metrics, weighted_metrics)
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
        self.loss = plain["loss"]
        config = self._compile_config
        self._compile_config = type(config)(**config.config | plain)
        if optimizer is not None:
            self._load_whole(self.optimizer)

    def _load_whole(self, optimizer: Any) -> None:
        """Lets an optimizer without variables make them before it loads a file's."""
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

    @property
    def has_own_loss(self) -> bool:
        """Whether `compile` replaced the task's loss, so that targets may be others, too."""
        return "loss" not in self._auto

    def _new_optimizer(self, total_steps: int | None) -> Any:
        """The optimizer of `bert-tf finetune`; without a number of steps the rate is constant."""
        rate: Any = self.peak_learning_rate
        if total_steps:
            rate = WarmupLinearDecay(rate, warmup_steps(total_steps), total_steps)
        if keras.backend.backend() != "tensorflow":
            return keras.optimizers.AdamW(
                rate, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
            )
        return AdamWeightDecay(rate)

    def set_up_optimizer(self, total_steps: int | None, initial_epoch: int) -> None:
        """Makes the optimizer of the task for the steps of a fit, or reuses the last one."""
        strategy = getattr(self, "_distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer = self._new_optimizer(total_steps)
            scales = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
            variables = [id(variable) for variable in self.trainable_variables]
            made_with = repr((optimizer.get_config(), state_of(self), variables, self.run_eagerly))
            if made_with == self._step_made_with and total_steps and not scales:
                if not initial_epoch:  # a new optimizer would have the step traced anew
                    for variable in self.optimizer.variables:
                        variable.assign(keras.ops.zeros_like(variable))
                return
            if initial_epoch and self.optimizer.built:
                inner = self.optimizer.inner_optimizer if scales else self.optimizer
                inner.learning_rate = optimizer._learning_rate
            else:
                if scales:
                    optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
                self.optimizer = optimizer
                # `BackupAndRestore` reads its variables before the first step.
                self.optimizer.build(self.trainable_variables)
        self.train_function = None
        self._step_made_with = made_with

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


def check_callbacks(callbacks: Any, *, sets_rate: bool) -> None:
    """Refuses callbacks that write HDF5, and those that set a learning rate that `fit` sets."""
    callbacks = getattr(callbacks, "callbacks", callbacks)  # of a list of Keras
    for callback in callbacks if isinstance(callbacks, list | tuple) else [callbacks]:
        if sets_rate and isinstance(callback, _SET_THE_RATE):
            raise InputError(
                f"{type(callback).__name__} sets the learning rate, which fit's schedule sets: "
                "give compile an optimizer, such as keras.optimizers.AdamW(5e-5)"
            )
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_weights_only:
            refuse_hdf5(callback.filepath)


def refuse_hdf5(path: Any) -> None:
    """Refuses to save a whole model as HDF5: Keras would write a file that it cannot read."""
    if str(path).endswith((".h5", ".hdf5")):
        raise InputError(
            f"{path}: Keras writes this model as HDF5 but cannot read it again: save it as "
            "model.keras, or its weights alone with save_weights"
        )


def number_of_batches(x: Any, batch_size: int | None, validation_split: float) -> int | None:
    """Steps of an epoch over Keras' data, if they are known."""
    if hasattr(x, "cardinality"):
        return int(size) if (size := x.cardinality()) > 0 else None
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches
    arrays = [array for array in keras.tree.flatten(x) if hasattr(array, "shape")]
    if not arrays or not arrays[0].shape:
        return None
    return -(-int(arrays[0].shape[0] * (1.0 - validation_split)) // (batch_size or _BATCH_SIZE))


def adapt_metrics(model: Any, metrics: Any, weighted: Any) -> tuple[Any, Any]:
    """A model's metrics and weighted metrics, as `compile` takes them, adapted to its outputs."""
    kinds = model.output_kind
    if kinds is None:
        return metrics, weighted
    if isinstance(kinds, str):
        return _of_output(kinds, metrics, weighted)
    by_name: list[Any] = []
    for value in (metrics, weighted):
        if isinstance(value, list | tuple):
            if len(value) != len(kinds):
                return metrics, weighted  # Keras says what it expects
            value = dict(zip(sorted(kinds), value, strict=True))  # the order of Keras
        by_name.append(value or {})
    adapted = {n: _of_output(kind, *(x.get(n) for x in by_name)) for n, kind in kinds.items()}
    plain, extra = ({n: pair[i] for n, pair in adapted.items() if pair[i]} for i in (0, 1))
    return plain or None, extra or None


def _of_output(kind: str, metrics: Any, weighted: Any) -> tuple[Any, Any]:
    """An output's metrics; metrics of words are weighted ones to Keras, to leave padding out."""

    def adapted(metrics: Any, is_weighted: bool) -> list[Any]:
        flat = [metric for metric in keras.tree.flatten(metrics) if metric is not None]
        return [adapt(metric, kind, is_weighted=is_weighted) for metric in flat]

    plain = adapted(metrics, False)
    extra = adapted(weighted, True)
    if kind != "words":
        return plain or None, extra or None
    for metric in extra:
        if metric.name in {other.name for other in plain}:
            metric.name = f"weighted_{metric.name}"  # as Keras names it beside the other
    return None, [*plain, *extra] or None


def adapt(metric: Any, kind: str, *, is_weighted: bool) -> Any:
    """A metric, from one of Keras, a name or a function, for outputs of a kind.

    "accuracy" is the task's. Keras' own metrics get probabilities, and one-hot labels unless they
    are sparse ones. Metrics of true and false positives, such as `AUC`, count label number 1 where
    there are two. Others get labels and logits.
    """
    name = metric if isinstance(metric, str) else ""
    if name.lower() in ("accuracy", "acc") and kind != "numbers":
        accuracy = LabelAccuracy if kind == "labels" else keras.metrics.SparseCategoricalAccuracy
        metric = accuracy(name=name)
    else:
        metric = keras.metrics.get(metric)
        name = name or getattr(metric, "name", None) or metric.__name__
    is_users = not getattr(metric, "__module__", "").startswith("keras.")
    if not isinstance(metric, keras.metrics.Metric):
        metric = keras.metrics.MeanMetricWrapper(metric)
    metric.name = name
    update = functools.partial(type(metric).update_state, metric)

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true = ops.convert_to_tensor(y_true)
        y_pred = ops.cast(y_pred, "float32")
        if kind == "words":
            y_true, sample_weight = labelled(y_true, y_pred, sample_weight)
            if not is_weighted:
                sample_weight = ops.not_equal(sample_weight, 0)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
        if not is_users and kind == "numbers":
            if metric.get_config().get("axis") is None:  # else of all examples, on either axis
                y_true = ops.reshape(y_true, (-1, 1))
                y_pred = ops.reshape(y_pred, (-1, 1))
        elif not is_users:
            if kind in ("words", "spans"):
                y_true, y_pred, sample_weight = _in_one_row(kind, y_true, y_pred, sample_weight)
            y_true, y_pred = _compared(metric, kind, y_true, y_pred)
        return update(y_true, y_pred, sample_weight=sample_weight)

    metric.update_state = update_state
    return metric


def _in_one_row(kind: str, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Labels [N], logits [N, C] and weights [N] of all words, or of starts and ends."""
    if kind == "spans":
        y_pred = ops.transpose(y_pred, (0, 2, 1))  # (B, 2, T)
    if sample_weight is not None:
        missing = (1,) * (len(y_true.shape) - len(sample_weight.shape))
        sample_weight = ops.reshape(sample_weight, (*ops.shape(sample_weight), *missing))
        sample_weight = ops.reshape(ops.broadcast_to(sample_weight, ops.shape(y_true)), (-1,))
    logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))
    return ops.reshape(y_true, (-1,)), logits, sample_weight


def _compared(metric: Any, kind: str, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Labels and outputs as one of Keras' metrics compares them."""
    takes_logits = getattr(metric, "from_logits", getattr(metric, "_from_logits", False))
    if kind == "labels":
        return y_true, y_pred if takes_logits else ops.sigmoid(y_pred)
    logits = y_pred
    count = ops.shape(logits)[-1]
    y_pred = logits if takes_logits else ops.softmax(logits)
    is_one_hot = len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] != 1
    if len(y_true.shape) == len(y_pred.shape) and not is_one_hot:  # a column
        y_true = ops.squeeze(y_true, -1)
    if type(metric).__name__.startswith("Sparse"):
        return ops.argmax(y_true, -1) if is_one_hot else y_true, y_pred
    if not is_one_hot:
        y_true = ops.equal(ops.cast(y_true, "int32")[..., None], ops.arange(count, dtype="int32"))
    y_true = ops.cast(y_true, "float32")
    modules = {base.__module__.rpartition(".")[2] for base in type(metric).__mro__}
    chooses = getattr(metric, "class_id", None) is not None
    chooses |= bool(getattr(metric, "multi_label", False))
    if "confusion_metrics" in modules and count == 2 and not chooses:
        y_pred = logits[..., 1] - logits[..., 0] if takes_logits else y_pred[..., 1]
        return y_true[..., 1], y_pred
    return y_true, y_pred
