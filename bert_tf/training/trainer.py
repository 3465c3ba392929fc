"""The training step: sums over micro-batches and replicas, then one optimizer step."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.kernels import Kernels
from bert_tf.networks.tensorflow.cast_weights import CastWeights
from bert_tf.networks.tensorflow.graphs import compiled_by_xla, device_type
from bert_tf.networks.tensorflow.losses import Values
from bert_tf.training.loss_scale import LossScale, computes_in_float16
from bert_tf.training.micro_batches import sum_micro_batches
from bert_tf.training.strategy import add_counter, check_jit_compile
from bert_tf.training.updates_on_tensorflow import apply_summed
from bert_tf.training.workers import StopFlag, has_workers

# Between the dropout seeds of replicas: odd, far from layers' seeds and those of halves.
_REPLICA_SEEDS = 0x9E3779B1


class Trainer:
    """Trains a built model with an optimizer, losses and metrics, under any strategy.

    Several replicas give what one device gives on the same global batch:

    - A loss is the sum of weight * value over the sum of the weights, over the whole global batch;
      a metric is the mean over all that has a weight. The training loss is the sum of the outputs'
      losses.
    - The gradients of micro-batches and of replicas are summed, then clipped by their global norm.
    - A step with a non-finite loss or gradient is skipped: of all state only
      `optimizer.iterations`, which the learning rate follows, and the dropout seeds advance.
    - Each replica has its own dropout seeds, and so does each half of a batch on a lone CPU device,
      which computes both halves concurrently (see `bert_tf.startup.share_cores`).

    In float16 the loss is scaled (see `LossScale`). A gradient that overflows at a scale above 1
    while the loss is finite skips the step, but is not a divergence.

    Make it under the strategy's scope, as the model. Data is (inputs, labels[, weights]), with
    labels and weights by output for several. Weights are one per label, or one per example [B].

    Args:
        model: a built model with one output or a dict of outputs. The first step refuses losses of
            its layers (`add_loss`, regularizers) and variables that change in its call.
        optimizer: `AdamWeightDecay` or `Lamb`; built here. Its `apply` is not called.
        loss: (labels, outputs) -> values, one per label; a dict of these by output for several.
            Outputs without an entry have no loss.
        metrics: name -> function like `loss`; a dict of these by output for several.
        gradient_accumulation_steps: micro-batches per replica, in evaluations too.
        steps_per_execution: steps per graph call.
        jit_compile: compile the step with XLA; one device only, and fixed shapes are best.
        whole_batches: whether the loss compares the rows of a batch: it gets all of a replica's.

    Attributes:
        means: sums of weighted values, and of weights, since `reset_means`, float32 [2, means].
        nonfinite_steps: number of steps that diverged, int64 [].

    Raises InputError for `jit_compile` under a strategy that cannot have it.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        loss: Values | Mapping[str, Values],
        metrics: Mapping[str, Any] | None = None,
        gradient_accumulation_steps: int = 1,
        steps_per_execution: int = 1,
        jit_compile: bool = False,
        whole_batches: bool = False,
    ):
        self.strategy = strategy = tf.distribute.get_strategy()
        check_jit_compile(jit_compile, strategy)
        self.model = model
        self.optimizer = optimizer
        self.steps_per_execution = steps_per_execution
        self.jit_compile = jit_compile
        is_lone = strategy.num_replicas_in_sync == 1 and not jit_compile
        is_lone_cpu = is_lone and device_type(strategy) == "CPU"
        self._halves = is_lone_cpu and not whole_batches
        self._encoder_halves = is_lone_cpu and whole_batches  # where the loss needs all rows

        metrics = metrics or {}
        losses = loss if isinstance(loss, Mapping) else {None: loss}
        # For each output its name, None for the only one, and its functions, the loss first.
        self._outputs = [
            (name, {"loss": function, **(metrics.get(name, {}) if name else metrics)})
            for name, function in losses.items()
        ]
        # The means stand in one vector: their names, the numbers of their outputs, the losses.
        means = [(n, o, name) for n, (o, values) in enumerate(self._outputs) for name in values]
        self._names = [f"{output}_{name}" if output else name for _, output, name in means]
        # Of each mean the number of its weights: two for each output, of its loss and its metrics.
        self._weights_of_mean = [2 * n + (name != "loss") for n, _, name in means]
        self._losses = [self._weights_of_mean.index(2 * n) for n in range(len(self._outputs))]

        weights = {id(variable) for variable in model.weights}
        # Dropout generators; none where steps draw no random numbers.
        self.seeds = [v for v in model.variables if id(v) not in weights]
        self.means = add_counter("means", "float32", (2, len(self._names)))
        self.nonfinite_steps = add_counter("trainer/nonfinite_steps")
        self.loss_scale = LossScale() if computes_in_float16(model) else None
        self.stop_flag = StopFlag(strategy) if has_workers(strategy) else None
        self.trainable_variables = model.trainable_variables
        optimizer.build(self.trainable_variables)
        self.accumulate_gradients(gradient_accumulation_steps)

    @property
    def variables(self) -> list[keras.Variable]:
        """All state of the training but the means: the model's, the optimizer's and its own."""
        scale = self.loss_scale.variables if self.loss_scale else []
        return [*self.model.variables, self.nonfinite_steps, *scale, *self.optimizer.variables]

    def accumulate_gradients(self, steps: int | None) -> None:
        """Cuts a replica's batch into this number of micro-batches from now on; None for as now.

        The step is traced anew, from `_train_batches`.
        """
        if steps is None:
            return
        self.gradient_accumulation_steps = steps
        self._traced_train = tf.function(self._train_batches, autograph=False)
        self._traced_test = tf.function(self._on_replicas(self.test_step), autograph=False)

    def reset_means(self) -> None:
        self.means.assign(tf.zeros(self.means.shape))

    def iterate(self, batches: Iterable[Any]) -> Iterator[Any]:
        """An iterator over global batches for `train`."""
        if isinstance(batches, tf.data.Dataset):
            batches = self.strategy.experimental_distribute_dataset(batches)
        return iter(batches)

    def train(self, batches: Iterator[Any]) -> dict[str, tf.Tensor]:
        """Takes `steps_per_execution` steps on an iterator's batches; returns the logs.

        They are the same on all workers: `loss`, and each loss and metric by name, after the name
        of the output where there are several (`mlm_logits_loss`), as means since `reset_means`
        without steps of non-finite loss; `gradient_norm` of the last step, before clipping;
        `nonfinite`, 1.0 if a step counts in `nonfinite_steps`; `loss_scale` in float16; with
        several workers `stop_asked`, the sum of their `StopFlag`s.
        """
        return self._traced_train(batches)

    def evaluate(
        self,
        batches: Iterable[Any],
        *,
        limit: int | None = None,
        after: Callable[[dict[str, tf.Tensor]], object] = lambda logs: None,
    ) -> dict[str, float]:
        """The losses and metrics of a data set, or `limit` batches of it; resets the means."""
        self.reset_means()
        iterator = self.iterate(batches)
        logs: dict[str, tf.Tensor] = {}
        size = int(batches.cardinality()) if isinstance(batches, tf.data.Dataset) else None
        for number in itertools.count():
            if number in (limit, size):
                break
            try:
                logs = self._traced_test(iterator)
            except (tf.errors.OutOfRangeError, StopIteration):
                break
            after(logs)
        self.reset_means()
        return {name: float(value) for name, value in logs.items() if name != "stop_asked"}

    def _train_batches(self, iterator: Any) -> dict[str, tf.Tensor]:
        one_step = self._on_replicas(self.train_step)
        if self.steps_per_execution == 1:
            return one_step(iterator)
        names = ["loss", *self._names, "gradient_norm", "nonfinite"]
        names += ["loss_scale"] * bool(self.loss_scale) + ["stop_asked"] * bool(self.stop_flag)

        def body(number: tf.Tensor, before: dict[str, tf.Tensor]) -> tuple:
            logs = one_step(iterator)
            nonfinite = tf.maximum(before["nonfinite"], logs["nonfinite"])
            return number + 1, {**logs, "nonfinite": nonfinite}

        _, logs = tf.while_loop(
            lambda number, _: number < self.steps_per_execution,
            body,
            (tf.constant(0), {name: tf.constant(0.0) for name in names}),
            parallel_iterations=1,
        )
        return logs

    def _on_replicas(self, step: Callable) -> Callable:
        """The step on every replica's next batch, as a function of an iterator."""
        if self.jit_compile:
            step = compiled_by_xla(step)

        @tf.autograph.experimental.do_not_convert
        def one_step(iterator: Any) -> dict[str, tf.Tensor]:
            logs = self.strategy.run(step, args=(next(iterator),))
            local = self.strategy.experimental_local_results  # every replica has the same
            return {name: local(log)[0] for name, log in logs.items()}

        return one_step

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One optimizer step on this replica's part of a batch; returns the logs."""
        inputs, labels, weights = self._unpack(data)
        weight_sums = self._weight_sums(weights)
        scale = tf.convert_to_tensor(self.loss_scale.scale if self.loss_scale else 1.0)
        sums, gradients, variables = self._gradients(
            (inputs, labels, weights), lambda sums: scale * self._loss(sums, weight_sums)
        )
        sums, stop_asked, *gradients = self._all_reduce(sums, *gradients)
        if self.loss_scale:
            gradients = [gradient / scale for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)

        loss_is_finite = tf.math.is_finite(self._loss(sums, weight_sums))
        finite, diverged = self._judge(loss_is_finite, norm, scale)
        apply_summed(self.optimizer, gradients, variables, norm=norm, finite=finite)
        logs = self._logs(tf.where(loss_is_finite, tf.stack([sums, weight_sums]), 0.0))
        logs |= {"gradient_norm": norm, "nonfinite": tf.cast(diverged, tf.float32)}
        if self.loss_scale:
            logs["loss_scale"] = tf.convert_to_tensor(self.loss_scale.scale)
        return {**logs, **stop_asked}

    def _judge(
        self, loss_is_finite: tf.Tensor, norm: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether to apply a step, whether it diverged, bool []; counts it and adapts the scale."""
        finite = tf.logical_and(loss_is_finite, tf.math.is_finite(norm))
        diverged = tf.logical_not(finite)
        if self.loss_scale:
            overflow = tf.logical_and(loss_is_finite, tf.logical_and(diverged, scale > 1))
            diverged = tf.logical_and(diverged, tf.logical_not(overflow))
            self.loss_scale.update(overflow)
        self.nonfinite_steps.assign_add(tf.cast(diverged, "int64"))
        return finite, diverged

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Losses and metrics of this replica's part of a batch."""
        data = self._unpack(data)

        def run_rows(inputs: Any, labels: Any, weights: Any, states: list) -> tuple:
            return self._sums(labels, weights, self.model(inputs, training=False)), states

        # Whatever training has memory for: its micro-batches, if the rows divide into them.
        rows = keras.tree.flatten(data)[0].shape[0]
        (sums,), _ = sum_micro_batches(
            run_rows,
            lambda results: [sum(results)],
            data,
            [],
            number=math.gcd(rows or 0, self.gradient_accumulation_steps),
            halves=self._halves,
            zeros=[tf.zeros([len(self._names)])],
        )
        sums, stop_asked = self._all_reduce(sums)
        return {**self._logs(tf.stack([sums, self._weight_sums(data[2])])), **stop_asked}

    def _all_reduce(self, sums: tf.Tensor, *gradients: tf.Tensor) -> tuple:
        """Sums over all replicas: `sums`, the log `stop_asked` if there is one, and gradients."""
        if self.stop_flag:
            sums = tf.concat([sums, [self.stop_flag.asked]], 0)
        sums, *gradients = _summed_over_replicas([sums, *gradients])
        if not self.stop_flag:
            return sums, {}, *gradients
        return sums[:-1], {"stop_asked": sums[-1]}, *gradients

    def _unpack(self, data: Any) -> tuple[Any, Any, list[tf.Tensor]]:
        """Inputs, labels, and a float32 weight of the labels' shape for each output."""
        inputs, labels, sample_weights = keras.utils.unpack_x_y_sample_weight(data)
        weights = []
        for name, _ in self._outputs:
            weight = tf.ones_like(_of(name, labels), tf.float32)
            if sample_weights is not None:
                factors = tf.cast(_of(name, sample_weights), tf.float32)
                missing = [1] * (weight.shape.rank - factors.shape.rank)
                weight *= tf.reshape(factors, tf.concat([tf.shape(factors), missing], 0))
            weights.append(weight)
        return inputs, labels, weights

    def _weight_sums(self, weights: list[tf.Tensor]) -> tf.Tensor:
        """The sum of the weights behind each mean, float32 [means], over all replicas."""
        both = [
            tf.reduce_sum(values) for weight in weights for values in (weight, _is_counted(weight))
        ]
        return tf.gather(_summed_over_replicas(tf.stack(both)), self._weights_of_mean)

    def _sums(self, labels: Any, weights: list[tf.Tensor], outputs: Any) -> tf.Tensor:
        """Sums of weighted values, float32 [means]: each output's loss, then its metrics."""
        sums = []
        for (name, functions), weight in zip(self._outputs, weights, strict=True):
            counted = _is_counted(weight)
            for number, function in enumerate(functions.values()):
                values = tf.cast(function(_of(name, labels), _of(name, outputs)), tf.float32)
                if not values.shape.is_compatible_with(weight.shape):
                    raise ValueError(
                        f"{function} gives values of shape {values.shape} for labels of shape "
                        f"{weight.shape}: losses and metrics give one value per label"
                    )
                sums.append(tf.reduce_sum(values * (counted if number else weight)))
        return tf.stack(sums)

    def _loss(self, sums: tf.Tensor, weight_sums: tf.Tensor) -> tf.Tensor:
        """The sum of the outputs' mean losses, float32 []."""
        return tf.add_n([tf.math.divide_no_nan(sums[i], weight_sums[i]) for i in self._losses])

    def _logs(self, sums: tf.Tensor) -> dict[str, tf.Tensor]:
        """Adds a batch's sums [2, means]; returns the means."""
        # Added up over all replicas, they are the same in each: reading takes no communication.
        self.means.assign_add(sums)
        total, weight = tf.unstack(tf.convert_to_tensor(self.means))
        means = tf.unstack(total / weight)
        loss = tf.add_n([means[i] for i in self._losses])
        return {"loss": loss, **dict(zip(self._names, means, strict=True))}

    def _gradients(
        self, data: tuple[Any, Any, Any], loss_of: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[keras.Variable]]:
        """Sums, float32 [means], and gradients of `loss_of` these, and their variables."""
        variables = self.trainable_variables
        cast = CastWeights()
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        offsets = [tf.stack([tf.cast(replica, v.dtype) * _REPLICA_SEEDS, 0]) for v in self.seeds]
        states = [v.value + offset for v, offset in zip(self.seeds, offsets, strict=True)]

        def run_rows(inputs: Any, labels: Any, weights: Any, states: list) -> tuple:
            # Dropout states are arguments and results, so that loops and replicas have their own.
            mapping = list(zip(self.seeds, states, strict=True))
            with tf.GradientTape() as tape:

                def change(kernels: Kernels) -> Kernels:
                    # Without halves, these rows are a half already, or a device's.
                    return kernels.in_halves(self._encoder_halves).reading(cast.under(tape))

                with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                    with kernels_of(self.model, change):
                        outputs = self.model(inputs, training=True)
                    self._check_call(scope)
                sums = self._sums(labels, weights, outputs)
                loss = loss_of(sums)
            gradients = cast.gradients(tape, loss, variables)
            return (sums, gradients), [scope.get_current_value(v) for v in self.seeds]

        def add(results: list) -> list:
            sums, gradients = zip(*results, strict=True)
            return [sum(sums), *cast.summed(gradients, variables)]

        (sums, *gradients), states = sum_micro_batches(
            run_rows,
            add,
            data,
            states,
            number=self.gradient_accumulation_steps,
            halves=self._halves,
            zeros=[tf.zeros([len(self._names)]), *(tf.zeros(v.shape, v.dtype) for v in variables)],
        )
        for variable, state, offset in zip(self.seeds, states, offsets, strict=True):
            variable.assign(state - offset)
        # Variables that the loss does not depend on stay unchanged: no weight decay either.
        reached = [gradient is not None for gradient in gradients]
        gradients = list(itertools.compress(gradients, reached))
        return sums, gradients, list(itertools.compress(variables, reached))

    def _check_call(self, scope: keras.StatelessScope) -> None:
        """Refuses a model whose call does what this step would drop."""
        if scope.losses or any(v.regularizer for v in self.trainable_variables):
            raise ValueError(
                "Trainer does not add losses of layers (regularizers, `add_loss`): make them part "
                "of `loss`"
            )
        seeds = {id(variable) for variable in self.seeds}
        for variable in self.model.variables:
            if id(variable) in scope.state_mapping and id(variable) not in seeds:
                raise ValueError(
                    f"Trainer does not update {variable.path}, which changes in the forward pass: "
                    "use layers without such variables (LayerNormalization)"
                )


def _is_counted(weight: tf.Tensor) -> tf.Tensor:
    """1.0 for what metrics count, 0.0 for padding."""
    return tf.cast(tf.not_equal(weight, 0), tf.float32)


def _of(output: str | None, values: Any) -> Any:
    """The part of labels, weights or outputs that belongs to an output."""
    return values[output] if isinstance(values, Mapping) else values


def _summed_over_replicas(values: Any) -> Any:
    """Sums of tensors over all replicas, called in one of them."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
