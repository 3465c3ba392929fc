"""Exports of a fine-tuned model in float32, bfloat16 and int8: compared, measured."""

import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.commands.int8_calibration import compare, make_plan_for, read_calibration
from bert_tf.errors import InputError
from bert_tf.serving.export import check_export, set_labels
from bert_tf.serving.precisions import milliseconds, versions
from bert_tf.serving.warmup_requests import example_texts
from bert_tf.tasks.signatures import DEFAULT, Step
from bert_tf.text.answerer import Answerer
from bert_tf.text.opening import open_answerer


def export_types(
    model: Answerer, folder: Path, options: Any, load: Callable[[str], Answerer], step: Step
) -> tuple[dict[str, int], list[str]]:
    """Writes versions of a float32 model into its `folder`; numbers them by type, with remarks.

    `options` are the command's, with a `precision` of int8, auto or all; `load` opens the model
    with a Keras dtype policy. InputError if int8 is asked for and cannot be had.
    """
    precision = options.precision
    models = {"float32": model}
    remarks: list[str] = []
    int8_fact = ""
    if precision != "int8":
        models["bfloat16"] = load("mixed_bfloat16")
    try:
        models["int8"], int8_remarks, int8_fact = _in_int8(model, options, step)
        remarks += int8_remarks
    except InputError as error:
        if precision != "auto" or options.calibration:
            raise
        remarks.append(f"without int8: {error}")
    times = {}
    for number, (name, answerer) in enumerate(models.items()):
        step("measuring the time of each type", number, len(models))
        times[name] = _times(answerer)
    shown = "; ".join(f"{name} {_shown(works)}" for name, works in times.items())
    if precision == "auto":
        fastest = min(times, key=lambda name: geometric_mean(times[name].values()))
        remarks.append(f"precision: {fastest} ({shown}); another processor may differ")
        names = ("float32", "int8") if fastest == "int8" else (fastest,)
        models = {name: models[name] for name in names}
    first = options.version or max(versions(folder), default=0) + 1
    numbers = {name: first + index for index, name in enumerate(models)}
    for number in numbers.values():
        check_export(folder.name, root=folder.parent, version=number)
    sizes: list[str] = []
    for name, answerer in models.items():
        facts = {"times": f"{shown}; on the exporting machine, another processor may differ"}
        if name == "int8":
            twin = f"elsewhere use version {numbers['float32']}, the same in float32"
            facts = {"int8": f"{int8_fact}; {twin}", **facts}
        if sizes:
            facts["other types"] = ", ".join(sizes)
        path = answerer.export(
            folder.name,
            root=folder.parent,
            version=numbers[name],
            directory=options.model,
            types=numbers,
            facts=facts,
            twin=(model if name == "bfloat16" else answerer) if options.twin else None,
            # ONNX Runtime has no bfloat16 on CPUs.
            twin_formats=[x for x in options.twin if (name, x) != ("bfloat16", "onnx")],
            step=lambda what, *parts, name=name: step(f"{name}, {what}", *parts),
        )
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        sizes.append(f"version {numbers[name]} in {name}, {size / 1e6:,.0f} MB")
    if precision == "all" and not set_labels(folder.parent, folder.name, numbers):
        labels = ", ".join(f"{name} {number}" for name, number in numbers.items())
        remarks.append(
            f"{folder.parent}/models.config has settings of yours for {folder.name}: set its "
            f"version_labels to {labels}, and its specific {{ versions }} to the same"
        )
    return numbers, remarks


def export_openvino(
    model: Answerer, folder: Path, options: Any, step: Step
) -> tuple[Path, list[str]]:
    """Writes a float32 model for OpenVINO as a version in its `folder`; the file, and remarks.

    InputError if it is asked for in int8 and loses more than `options.max_loss` points.
    """
    # As OpenVINO Model Server wants it: NAME/VERSION/model.xml.
    path = folder / str(options.version or max(versions(folder), default=0) + 1)
    write: Any = functools.partial(
        Answerer.export_portable, format="openvino", directory=options.model
    )
    if options.precision != "int8":
        return write(model, path, bfloat16=options.precision == "bfloat16"), []
    with tempfile.TemporaryDirectory() as temporary:

        def opened(int8: Answerer) -> Answerer:
            file = write(int8, Path(temporary) / "model.xml")
            return replace(open_answerer(file), task=model.task)

        int8, remarks, fact = _in_int8(model, options, step, opened)
    return write(int8, path, facts={"int8": fact}), remarks


def _in_int8(
    model: Answerer, options: Any, step: Step, opened: Callable[[Answerer], Answerer] = lambda x: x
) -> tuple[Answerer, list[str], str]:
    """The model in int8, remarks on it, and a fact for its card; refuses one that loses much.

    `opened` is what answers in int8.
    """
    rows = read_calibration(model, options.calibration, options.model)
    step(f"setting the ranges of int8 from {len(rows.ranges):,} rows", 0, 1)
    plan = make_plan_for(model, rows)
    int8 = replace(model, plan=plan)
    step(f"comparing int8 with float32 on {len(rows.scored):,} rows", 0, 1)
    loss = compare(model, opened(int8), rows)
    if loss.points > options.max_loss:
        raise InputError(
            f"int8 loses {loss.points:.2f} points ({loss}), more than --max_loss "
            f"{options.max_loss:g}: calibrate it with other rows, or export in float32 or bfloat16"
        )
    fact = (
        f"{len(plan.ranges)} of {plan.products} products of the encoder, ranges from "
        f"{len(rows.ranges):,} rows of {rows.ranges.path}; {loss} of {rows.scored.path} that set "
        "no range"
    )
    return int8, [*rows.remarks(), f"int8: {loss}"], fact


def _times(model: Answerer) -> dict[str, float]:
    """Milliseconds by work, of the function that an export saves."""
    function: Any = model.module().signatures([DEFAULT])[DEFAULT]
    names = model.task.kind.signatures(model.task)[DEFAULT].inputs
    texts = example_texts(names, function.structured_outputs)

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = function(**{name: tf.constant(x, tf.string) for name, x in inputs.items()})
        return [x.numpy() for x in outputs.values()]

    return milliseconds(run, texts)


def _shown(times: dict[str, float]) -> str:
    return ", ".join(f"{work} {t:,.{1 if t < 100 else 0}f} ms" for work, t in times.items())
