"""Exports of a fine-tuned model in several types: float32, bfloat16 and int8."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.export import check_export, set_labels
from bert_tf.serving.precisions import milliseconds, versions
from bert_tf.serving.signatures import DEFAULT
from bert_tf.serving.warmup_requests import example_texts
from bert_tf.trained import int8_calibration
from bert_tf.trained.fine_tuned import FineTuned


@dataclass(frozen=True)
class Exports:
    versions: dict[str, int]  # by type
    remarks: list[str]


def export_types(
    model: FineTuned,
    folder: Path,
    *,
    version: int,
    directory: str,
    precision: str,
    calibration: str | None,
    max_loss: float,
    other: Callable[[str], FineTuned],
) -> Exports:
    """Writes versions of a float32 model as `--precision` int8, auto or all say.

    Args:
        model: in float32.
        folder: the folder of the model's versions.
        version: number of the first one; 0 for the next free.
        directory: the model's, which names its training and validation examples.
        precision: "int8", "auto" or "all".
        calibration: file of examples in their place.
        max_loss: points that int8 may lose.
        other: makes the model with a Keras dtype policy.

    Raises InputError if int8 is asked for and cannot be had.
    """
    models, facts, remarks = {"float32": model}, {}, []
    if precision != "int8":
        models["bfloat16"] = other("mixed_bfloat16")
    try:
        rows = int8_calibration.read_calibration(model, calibration, directory)
        plan = int8_calibration.make_plan_for(model, rows)
        models["int8"] = replace(model, plan=plan)
        compared = int8_calibration.compare(model, models["int8"], rows)
        if compared.points > max_loss:
            raise InputError(
                f"int8 loses {compared.points:.2f} points ({compared}), more than --max_loss "
                f"{max_loss:g}: calibrate it with other rows, or export in float32 or bfloat16"
            )
        remarks += rows.remarks()
        facts = {
            "int8": f"{len(plan.ranges)} of {plan.products} products of the encoder, ranges from "
            f"{len(rows.ranges):,} rows of {rows.ranges.path}; {compared}"
        }
        remarks.append(f"int8: {compared}")
    except InputError as error:
        if precision != "auto" or calibration:
            raise
        remarks.append(f"without int8: {error}")
    times = {name: _times(each) for name, each in models.items()}
    shown = "; ".join(
        f"{name} "
        + ", ".join(f"{work} {t:,.{1 if t < 100 else 0}f} ms" for work, t in each.items())
        for name, each in times.items()
    )
    facts["times"] = f"{shown}; on the exporting machine, another processor may differ"
    if precision == "auto":
        fastest = min(times, key=lambda name: geometric_mean(times[name].values()))
        remarks.append(f"precision: {fastest} ({shown}); another processor may differ")
        kept = {"int8": ("float32", "int8")}.get(fastest, (fastest,))
        models = {name: each for name, each in models.items() if name in kept}
    first = version or max(versions(folder), default=0) + 1
    numbers = {name: first + place for place, name in enumerate(models)}
    for number in numbers.values():
        check_export(folder.name, root=folder.parent, version=number)
    sizes: dict[str, str] = {}
    for name, each in models.items():
        own = {key: text for key, text in facts.items() if key != "int8" or name == "int8"}
        if name == "int8":
            own["int8"] += f"; elsewhere use version {numbers['float32']}, the same in float32"
        if sizes:
            own["other types"] = ", ".join(sizes.values())
        path = each.export(
            folder.name, root=folder.parent, version=numbers[name], directory=directory,
            types=numbers, facts=own,
        )  # fmt: skip
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        sizes[name] = f"version {numbers[name]} in {name}, {size / 1e6:,.0f} MB"
    if precision == "all" and not set_labels(folder.parent, folder.name, numbers):
        remarks.append(
            f"{folder.parent}/models.config lists {folder.name} already: set its version_labels "
            f"to {', '.join(f'{name} {number}' for name, number in numbers.items())}"
        )
    return Exports(numbers, remarks)


def _times(model: FineTuned) -> dict[str, float]:
    """Milliseconds by work, of the function that an export saves."""
    function: Any = model.module().signatures([DEFAULT])[DEFAULT]
    names = model.task.kind.signatures(model.task)[DEFAULT].inputs
    texts = example_texts(names, function.structured_outputs)

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = function(**{name: tf.constant(x, tf.string) for name, x in inputs.items()})
        return [x.numpy() for x in outputs.values()]

    return milliseconds(run, texts)
