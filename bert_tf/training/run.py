"""One training run: its devices, precision, seed, directory, state and watchers."""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as tf_config
from tensorflow.python.framework import ops

from bert_tf.device_errors import memory_errors
from bert_tf.files.outputs import check_output_folder
from bert_tf.files.owners import RUN
from bert_tf.files.storage import is_remote
from bert_tf.options import identity
from bert_tf.startup import keep_freed_memory_for_good, share_cores
from bert_tf.training import schedule, workers
from bert_tf.training.device_speed import fast_precision
from bert_tf.training.loop import TrainingLoop, TrainingResult
from bert_tf.training.monitoring import Histograms, HyperParameters, Profile, hidden_states
from bert_tf.training.optimizer import AdamWeightDecay, Lamb
from bert_tf.training.phases import Phase
from bert_tf.training.resuming import TrainingState, stored_settings
from bert_tf.training.strategy import (
    compiles_step,
    device_names,
    gpu_warning,
    make_strategy,
    reader_count,
)
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TrainingOptions
from bert_tf.training.watcher import Watcher
from bert_tf.version import TRAJECTORY

_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")

_SMALLER = (
    "give a larger --gradient_accumulation_steps, --rematerialize, a smaller --batch_size or a "
    "smaller --max_length"
)


class Run(AbstractContextManager):
    """Everything a training run needs, made once; leaving it restores the process.

    Enter it before TensorFlow runs its first op, as several workers must connect first, then call
    `make_trainer`, `watch`, `open` and `train`. Nothing is written before `open`. Inside, layers
    are made in `precision`, and Python's and NumPy's random numbers start from the options' seed.
    Raises InputError if the options' output or strategy cannot be used here, or the output touches
    one of the `inputs`; Preempted if another worker has gone.
    """

    strategy: tf.distribute.Strategy  # make models and optimizers under its `scope()`
    trainer: Trainer  # what takes the steps, and its state; made by `make_trainer`
    state: TrainingState

    def __init__(
        self,
        options: TrainingOptions,
        watcher: Watcher | None = None,
        inputs: Iterable[str | None] = (),
    ) -> None:
        self.directory = check_output_folder(options.output, inputs)
        self.logs = self.directory / "logs"
        # Keras dtype policy; of "auto" that of the run's checkpoints, else the fastest one here.
        self.precision: str = options.precision
        self._options = options
        self._watchers = [watcher or Watcher()]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.enter_context(workers.lost_worker_errors())
            stack.enter_context(memory_errors(_SMALLER))
            stack.callback(_forget_gradients, set(ops.gradient_registry.list()))
            if self._options.deterministic and not tf_config.is_op_determinism_enabled():
                stack.callback(tf_config.disable_op_determinism)
                tf.config.experimental.enable_op_determinism()
            # XLA and workers compute no halves of a batch that could share the cores.
            if self._options.strategy in ("auto", "one") and self._options.jit_compile is not True:
                share_cores()
            self.strategy = make_strategy(self._options.strategy)
            if warning := gpu_warning():
                self.notice(warning)
            if not self.is_chief:  # the chief logs what all workers would
                logger = logging.getLogger("bert_tf")
                stack.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.ERROR)
            if self.precision == "auto":
                self.precision = self._resolved_precision()
            stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
            keras.config.set_dtype_policy(self.precision)
            stack.callback(random.setstate, random.getstate())
            stack.callback(np.random.set_state, np.random.get_state())
            random.seed(self._options.seed)
            np.random.seed(self._options.seed)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        if error[0] is None:
            self._stack.callback(workers.leave, self.strategy)
        return self._stack.__exit__(*error)

    def _resolved_precision(self) -> str:
        """The policy for "auto"; the chief decides for all workers."""
        policy = "float32"
        if self.is_chief:
            policy = stored_settings(self.directory / "checkpoints").get("precision", "")
            if policy not in _POLICIES:
                policy, measured = fast_precision(self.strategy)
                if measured:
                    self.notice(f"precision: {policy} ({measured})")
        return _POLICIES[workers.from_all_replicas(self.strategy, _POLICIES.index(policy))[0]]

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and reports."""
        return workers.is_chief(self.strategy)

    @property
    def devices(self) -> str:
        """Devices and precision in a few words, such as "2 x NVIDIA H200, mixed_bfloat16"."""
        return f"{device_names(self.strategy)}, {self.precision}"

    def notice(self, line: str) -> None:
        """Shows the user a line, on the chief worker."""
        if self.is_chief:
            self._watchers[0].notice(line)

    def working(self, what: str, completed: int, total: int) -> None:
        """Shows the user, on the chief worker, how far work that is no training step has come."""
        if self.is_chief:
            self._watchers[0].working(what, completed, total)

    def make_trainer(
        self,
        model: Any,
        *,
        learning_rate: float,
        total_steps: int,
        warmup_steps: int,
        loss: Any,
        metrics: Any,
        settings: dict[str, Any],
        examples: Callable[[], Iterable[Any]],
        values: dict[str, Any],
        score: str,
        fixed_shapes: bool,
        whole_batches: bool = False,
    ) -> None:
        """Makes a trainer of `model` with the state of the run, and adds TensorBoard's watchers.

        Like the options that are its identity, `settings` must be the same when the run is resumed.
        TensorBoard shows `values` beside them, the best `score`, and activations of `examples`.
        """
        options = self._options
        if options.freeze_layers is not None:
            model.encoder.freeze_layers(options.freeze_layers)
        model.encoder.rematerialize = options.rematerialize
        jit_compile = compiles_step(
            options.jit_compile,
            self.strategy,
            fixed_shapes=fixed_shapes,
            deterministic=options.deterministic,
        )
        layers = model.encoder.config.num_hidden_layers
        with self.strategy.scope():
            trainer = Trainer(
                model,
                _new_optimizer(options, layers, learning_rate, warmup_steps, total_steps),
                loss=loss,
                metrics=metrics,
                gradient_accumulation_steps=options.gradient_accumulation_steps,
                steps_per_execution=options.steps_per_execution,
                jit_compile=jit_compile,
                whole_batches=whole_batches,
            )
        # "auto" is resolved.
        options_identity = {**identity(options), "precision": self.precision}
        self.keep_state(
            trainer,
            settings={**options_identity, **settings, **_data_order(trainer, options)},
            implied=options.implied(),
            keep=options.keep,
            keep_every=options.keep_every,
        )
        values = {"gradient_accumulation_steps": options.gradient_accumulation_steps, **values}
        self._watch_on_tensorboard(model, options_identity | values, score, examples)

    def _watch_on_tensorboard(
        self,
        model: Any,
        values: dict[str, Any],
        score: str,
        examples: Callable[[], Iterable[Any]],
    ) -> None:
        """Adds the watchers of hyper-parameters, and of histograms and a profile if asked for."""
        options = self._options
        name = options.output if is_remote(options.output) else str(self.directory)
        self.watch(HyperParameters(self.state, self.logs, name, values, score))
        if options.histograms_every is not None:
            activations = hidden_states(model.encoder, examples)
            every = options.histograms_every
            self.watch(Histograms(self.state, self.logs, every, model, activations))
        if options.profiled is not None:
            self.watch(Profile(self.state, self.logs, *options.profiled))

    def keep_state(self, trainer: Trainer, *, settings: dict[str, Any], **keep: Any) -> None:
        """Makes the state, not yet restored, of a trainer; `keep` is of `TrainingState`."""
        if self._options.deterministic:  # the last bits of sums differ
            settings = {**settings, "deterministic": True}
        self.trainer = trainer
        self.state = TrainingState(
            trainer, self.directory / "checkpoints", settings=settings, notice=self.notice, **keep
        )

    def watch(self, *watchers: Watcher) -> None:
        """Adds watchers to the training, on the chief worker."""
        if self.is_chief:
            self._watchers += watchers

    def open(self) -> None:
        """Locks the run directory until the `with` block ends, and restores the state, if any."""
        hold = workers.hold_run_directory(self.directory, self.strategy, RUN)
        mark = self._stack.enter_context(hold)
        override = self._options.override
        if not self.state.restore(override=override) and mark is not None:
            self.state.check_models(mark, override=override)
        if mark is not None:
            mark.settings = self.state.settings
            mark.write()

    def train(self, phases: Sequence[Phase], **arguments: Any) -> TrainingResult:
        """Trains to the end of the last phase; takes further arguments of `TrainingLoop`."""
        keep_freed_memory_for_good()
        return TrainingLoop(
            phases,
            state=self.state,
            directory=self.directory,
            options=self._options,
            watchers=self._watchers,
            **arguments,
        ).run()

    def meet(self) -> None:
        """Waits for all workers, so that none leaves while the chief still works."""
        workers.meet(self.strategy)


def _forget_gradients(before: set[str]) -> None:
    """Frees the graphs of a run, which TensorFlow registers with custom gradients for good."""
    for name in set(ops.gradient_registry.list()) - before:
        if name.startswith("CustomGradient-"):
            del ops.gradient_registry._registry[name]


def _new_optimizer(
    options: TrainingOptions,
    layers: int,
    learning_rate: float,
    warmup_steps: int,
    total_steps: int,
) -> keras.optimizers.Optimizer:
    """The options' optimizer, with their schedule, for an encoder of a number of layers."""
    # None, not the default's value, is in the options: runs begun before it was one resume.
    epsilon = {} if options.epsilon is None else {"epsilon": options.epsilon}
    # The options admit it for the one schedule that takes it.
    decay = {} if options.decay_share is None else {"decay_share": options.decay_share}
    schedule_class = schedule.named(options.schedule)
    return {"adam": AdamWeightDecay, "lamb": Lamb}[options.optimizer](
        learning_rate=schedule_class(learning_rate, warmup_steps, total_steps, **decay),
        learning_rate_factors=_layer_factors(layers, options.layer_decay),
        weight_decay_rate=options.weight_decay,
        clip_norm=options.clip_norm,
        bias_correction=options.bias_correction or options.optimizer == "lamb",
        **epsilon,
    )


def _layer_factors(layers: int, decay: float) -> dict[str, float]:
    """Learning rate factors by parameter path: 1 for the heads, less with each layer below."""
    if decay == 1:
        return {}
    factors = {rf"(^|/)layer_{n}/": decay ** (layers - n) for n in range(layers)}
    return {**factors, r"(^|/)embeddings/": decay ** (layers + 1)}


def _data_order(trainer: Trainer, options: TrainingOptions) -> dict[str, Any]:
    """Settings that decide the order of the data and, with dropout, each step's draws."""
    order: dict[str, Any] = {"version": TRAJECTORY, "workers": reader_count(trainer.strategy)}
    if trainer.seeds:
        order |= {
            "devices": trainer.strategy.num_replicas_in_sync,
            "gradient_accumulation_steps": options.gradient_accumulation_steps,
            "long.gradient_accumulation_steps": getattr(
                options, "long_gradient_accumulation_steps", None
            ),
            "jit_compile": trainer.jit_compile,
            "rematerialize": options.rematerialize,
        }
    return order
