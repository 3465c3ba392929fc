"""From the options of a training command to a run, its trainer and its plan."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from bert_tf.files.storage import is_remote
from bert_tf.options import identity
from bert_tf.training import schedule
from bert_tf.training.monitoring import Histograms, HyperParameters, Profile
from bert_tf.training.optimizer import AdamWeightDecay, Lamb
from bert_tf.training.run import Run
from bert_tf.training.strategy import compiles_step, reader_count
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TrainingOptions
from bert_tf.version import TRAJECTORY

_COMPARED_IF_KNOWN = (  # not recorded by earlier versions, or recorded without dropout, too
    "version",
    "workers",
    "devices",
    "jit_compile",
    "rematerialize",
    "model_content",
    "dropout",
    "gradient_accumulation_steps",
    "long.gradient_accumulation_steps",
    "model",
)


def _layer_factors(layers: int, decay: float) -> dict[str, float]:
    """Learning rate factors by parameter path: 1 for the heads, less with each layer below."""
    if decay == 1:
        return {}
    factors = {rf"(^|/)layer_{n}/": decay ** (layers - n) for n in range(layers)}
    return {**factors, r"(^|/)embeddings/": decay ** (layers + 1)}


def dropout_settings(dropout: float | None) -> dict[str, Any]:
    """The settings of `BertConfig` that an option `dropout` changes."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return {} if dropout is None else dict.fromkeys(names, dropout)


def prepare(
    run: Run,
    model: Any,
    options: TrainingOptions,
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
) -> Trainer:
    """Makes a trainer of `model`, prepares the entered run for it and adds TensorBoard's watchers.

    Like the options that are its identity, `settings` must be the same when the run is resumed.
    TensorBoard shows `values` beside them, the best `score`, and activations for some `examples`.
    """
    if options.freeze_layers is not None:
        model.encoder.freeze_layers(options.freeze_layers)
    model.encoder.rematerialize = options.rematerialize
    options_identity = {**identity(options), "precision": run.precision}  # "auto" is resolved
    jit_compile = compiles_step(
        options.jit_compile,
        run.strategy,
        fixed_shapes=fixed_shapes,
        deterministic=options.deterministic,
    )
    # None, not the default's value, is in the options: runs begun before it was one resume.
    epsilon = {} if options.epsilon is None else {"epsilon": options.epsilon}
    # The options admit it for the one schedule that takes it.
    decay = {} if options.decay_share is None else {"decay_share": options.decay_share}
    schedule_class = schedule.named(options.schedule)
    layers = model.encoder.config.num_hidden_layers
    with run.strategy.scope():
        optimizer = {"adam": AdamWeightDecay, "lamb": Lamb}[options.optimizer](
            learning_rate=schedule_class(learning_rate, warmup_steps, total_steps, **decay),
            learning_rate_factors=_layer_factors(layers, options.layer_decay),
            weight_decay_rate=options.weight_decay,
            clip_norm=options.clip_norm,
            bias_correction=options.bias_correction or options.optimizer == "lamb",
            **epsilon,
        )
        trainer = Trainer(
            model,
            optimizer,
            loss=loss,
            metrics=metrics,
            gradient_accumulation_steps=options.gradient_accumulation_steps,
            steps_per_execution=options.steps_per_execution,
            jit_compile=jit_compile,
            whole_batches=whole_batches,
        )
    run.prepare(
        trainer,
        settings={**options_identity, **settings, **_data_order(trainer, options)},
        compared_if_known=_COMPARED_IF_KNOWN,
        implied=options.implied(),
        keep=options.keep,
        keep_every=options.keep_every,
    )
    values = {"gradient_accumulation_steps": options.gradient_accumulation_steps, **values}
    name = options.output if is_remote(options.output) else str(run.directory)
    run.watch(HyperParameters(run.state, run.logs, name, options_identity | values, score))
    if options.histograms_every is not None:

        @functools.cache  # the same examples each time
        def inputs() -> dict[str, tf.Tensor]:
            batch, *_ = next(iter(examples()))
            # Of several texts an example, [B, N, T], each is a row, unless it is all padding.
            rows = {
                n: tf.reshape(x, [-1, tf.shape(x)[-1]])
                for n, x in batch.items()
                if not n.endswith("_positions")
            }
            is_text = tf.reduce_any(rows["padding_mask"] != 0, -1)
            return {n: tf.boolean_mask(x, is_text) for n, x in rows.items()}

        def activations() -> dict[str, tf.Tensor]:
            states = model.encoder(inputs(), training=False)["hidden_states"]
            return {f"hidden_state_{layer}": values for layer, values in enumerate(states)}

        run.watch(Histograms(run.state, run.logs, options.histograms_every, model, activations))
    if options.profiled is not None:
        run.watch(Profile(run.state, run.logs, *options.profiled))
    return trainer


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
