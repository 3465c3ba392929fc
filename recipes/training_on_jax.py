"""Trains a model on JAX: what pretrain_on_jax.py and finetune_on_jax.py share.

Several devices share each batch. With --model_devices they also share the layers, as LAYOUT says.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import jax
import keras
import numpy as np
import safetensors
import safetensors.numpy
from jax import numpy as jnp

from bert_tf import AdamWeightDecay

# Paths of variables, as regular expressions, with the mesh axis that splits each of their axes.
LAYOUT = {
    ".*/attention/(query|key|value)/kernel": (None, "model"),
    ".*/attention/(query|key|value)/bias": ("model",),
    ".*/attention/output/kernel": ("model", None),
    ".*/intermediate/kernel": (None, "model"),
    ".*/intermediate/bias": ("model",),
    ".*/feed_forward/output/kernel": ("model", None),
    ".*/word_embeddings/embeddings": (None, "model"),
}
_OPTIONS = (
    ("batch_size", 256, "rows of a step, on all devices together"),
    ("micro_batches", 1, "parts of a batch, one after the other; their gradients are summed"),
    ("model_devices", 1, "devices that share each layer; the rest shares the batch"),
    ("learning_rate", 1e-4, "at the end of the warm-up"),
    ("precision", "mixed_bfloat16", "Keras dtype policy"),
    ("seed", 1, "random seed for weight initialization, dropout and data order"),
    ("save_every", 1000, "steps between checkpoints"),
    ("log_every", 100, "steps between losses that are printed and logged"),
)


_MAY_CHANGE = ("output", "cpu", "model_devices", "save_every", "log_every")  # in a run that resumes


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the options of every training."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", required=True, help="folder of the run")
    options.add_argument("--cpu", action="store_true", help="train without a GPU or a TPU")
    for name, default, text in _OPTIONS:
        options.add_argument(f"--{name}", type=type(default), default=default, help=text)
    return options


def distribute(options: argparse.Namespace, devices: Sequence[str] | None = None) -> None:
    """Sets the precision and the distribution of later models, over all devices or these."""
    if keras.backend.backend() != "jax":
        raise SystemExit(f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=jax")
    if jax.default_backend() == "cpu" and not options.cpu:
        raise SystemExit('JAX sees no GPU or TPU: pip install "jax[cuda13]", or give --cpu')
    devices, model = devices or keras.distribution.list_devices(), options.model_devices
    if len(devices) % model:
        raise SystemExit(f"--model_devices {model} does not divide {len(devices)} devices")
    replicas = len(devices) // model
    if options.batch_size % (replicas * options.micro_batches):
        raise SystemExit(
            f"a batch of {options.batch_size} does not divide among {replicas} devices and "
            f"{options.micro_batches} micro-batches: give a multiple of "
            f"{replicas * options.micro_batches}"
        )
    keras.config.set_dtype_policy(options.precision)
    if model == 1:
        distribution: Any = keras.distribution.DataParallel(devices=devices)
    else:
        mesh = keras.distribution.DeviceMesh((replicas, model), ("batch", "model"), devices)
        layouts = keras.distribution.LayoutMap(mesh)
        for pattern, axes in LAYOUT.items():
            layouts[pattern] = axes
        distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    keras.distribution.set_distribution(distribution)


def training_step(model: Any, optimizer: Any, micro_batches: int = 1) -> tuple[list, Callable]:
    """The state of a training and a compiled function of it and a batch.

    The function returns the next state and the mean loss of each output; the state is used up. The
    gradients of micro-batches are summed into the step that the whole batch gives.
    """
    for pattern in LAYOUT:
        if not any(re.fullmatch(pattern, variable.path) for variable in model.variables):
            paths = ", ".join(variable.path for variable in model.trainable_variables[:3])
            raise SystemExit(
                f"{pattern!r} in LAYOUT names no variable: write it as of {paths}, ..."
            )
    optimizer.build(model.trainable_variables)
    parts = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    state = [[variable.value for variable in part] for part in parts]

    def loss(trainable: Any, others: Any, batch: Any, totals: Any) -> tuple[Any, Any]:
        inputs, labels, weights = batch
        outputs, others = model.stateless_call(trainable, others, inputs, training=True)

        def mean(logits: Any, labels: Any, weights: Any, total: Any) -> Any:
            values = keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return keras.ops.divide_no_nan(keras.ops.sum(values * weights), total)

        outputs = outputs if isinstance(outputs, dict) else {"loss": outputs}
        losses = {
            name: mean(x, labels[name], weights[name], totals[name]) for name, x in outputs.items()
        }
        return sum(losses.values()), (losses, others)

    def update(state: list, batch: Any) -> tuple[list, Any]:
        trainable, others, moments = state
        totals = jax.tree.map(jnp.sum, batch[2])

        def piece(others: Any, batch: Any) -> tuple[Any, Any]:
            differentiate = jax.value_and_grad(loss, has_aux=True)
            (_, (losses, others)), gradients = differentiate(trainable, others, batch, totals)
            return others, (gradients, losses)

        def add(carry: Any, batch: Any) -> tuple[Any, None]:
            others, sums = piece(carry[0], batch)
            return (others, jax.tree.map(jnp.add, carry[1], sums)), None

        if micro_batches == 1:
            others, (gradients, losses) = piece(others, batch)
        else:  # rows in turns: every device has some of each micro-batch
            pieces = jax.tree.map(
                lambda x: jnp.swapaxes(x.reshape(-1, micro_batches, *x.shape[1:]), 0, 1), batch
            )
            zeros = jax.tree.map(jnp.zeros_like, (trainable, totals))
            (others, (gradients, losses)), _ = jax.lax.scan(add, (others, zeros), pieces)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return [trainable, others, moments], losses

    shardings = jax.tree.map(lambda x: x.sharding, state)
    return state, jax.jit(update, donate_argnums=0, out_shardings=(shardings, None))


def shared(batch: Any) -> Any:
    """A batch, on each device its share of the rows."""
    distribution = keras.distribution.distribution()
    layouts = jax.tree.map(lambda x: distribution.get_data_layout(x.shape), batch)
    return jax.tree.map(keras.distribution.distribute_tensor, batch, layouts)


def ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches, of which a thread reads the next ones while the devices compute."""
    queue: Queue = Queue(64)

    def fill() -> None:
        try:
            for batch in batches:
                queue.put(batch)
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    Thread(target=fill, daemon=True).start()
    while (batch := queue.get()) is not None:
        if isinstance(batch, BaseException):
            raise batch
        yield batch


def train(model: Any, rate: Any, read: Callable[[int], Iterator], options: Any) -> Iterator[int]:
    """Trains on the batches that `read` yields after a number of steps; resumes a stopped run.

    Yields the number of steps at each checkpoint, when the model has their weights.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    optimizer = AdamWeightDecay(rate)
    state, update = training_step(model, optimizer, options.micro_batches)
    variables = [*model.trainable_variables, *model.non_trainable_variables, *optimizer.variables]
    path, done = Path(options.output, "checkpoint.safetensors"), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: x for name, x in vars(options).items() if name not in _MAY_CHANGE}
    if path.exists():
        with safetensors.safe_open(path, "numpy") as saved:
            theirs = json.loads(saved.metadata()["settings"])
            for name in (name for name, x in settings.items() if theirs.get(name) != x):
                raise SystemExit(
                    f"{path} was saved with --{name} {theirs.get(name)}: give that, or another "
                    "--output"
                )
            done = int(saved.get_tensor("step"))
            leaves, tree = jax.tree.flatten(state)
            arrays = [saved.get_tensor(str(n)) for n in range(len(leaves))]
        shardings = [leaf.sharding for leaf in leaves]
        state = tree.unflatten(map(jax.device_put, arrays, shardings))
        print(f"resumed after {done} steps", flush=True)
    if done >= rate.total_steps:
        raise SystemExit(f"{path.parent}: the run is complete: give another --output")
    writer, begun, before = EventFileWriter(str(path.parent)), time.monotonic(), done
    for step, batch in enumerate(ahead(read(done)), done + 1):
        state, losses = update(state, shared(batch))
        is_last = step == rate.total_steps
        if is_last or step % options.log_every == 0:
            values = {name: float(x) for name, x in losses.items()}
            seconds, begun = time.monotonic() - begun, time.monotonic()
            values["sequences per second"] = (step - before) * options.batch_size / seconds
            before = step
            print(f"step {step}", *(f"{name} {x:.4f}" for name, x in values.items()), flush=True)
            summary = Summary(
                value=[Summary.Value(tag=n, simple_value=x) for n, x in values.items()]
            )
            writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
            if not all(map(math.isfinite, values.values())):
                raise SystemExit(f"the loss diverged by step {step}: lower --learning_rate")
        if is_last or step % options.save_every == 0:
            arrays = {str(n): np.asarray(x) for n, x in enumerate(jax.tree.leaves(state))}
            new = path.with_suffix(".new")
            arrays["step"] = np.array(step)
            safetensors.numpy.save_file(arrays, new, {"settings": json.dumps(settings)})
            new.replace(path)  # all of it or nothing
            writer.flush()
            for variable, value in zip(variables, jax.tree.leaves(state), strict=True):
                variable.assign(value)
            yield step
        if is_last:
            return
