"""Write a SavedModel that takes raw strings, for TensorFlow Serving.

  bert-tf export --model runs/classifier/best --name classifier

Tokenizer, model and post-processing are one graph of ops that released servers have. Each export
is a new version, saved_models/<name>/<version>/, which a running server picks up by itself. It
holds warm-up requests for every signature, which have been run, parameters for batching and a model
card, README.md. saved_models/models.config lists the models for TensorFlow Serving.

--precision bfloat16 is faster on processors that multiply bfloat16 (AVX512-BF16, AMX, Arm's BF16)
and slow on others.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert_tf.cli.progress import console, progress, typed
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from bert_tf.tasks.options import TaskOptions


@dataclass(kw_only=True)
class Options(TaskOptions):
    """Options of `bert-tf export`."""

    model: str = option(path=True, model=True)
    """fine-tuned model directory, such as runs/classifier/best, or a model of the Hugging Face hub,
    ORG/NAME."""
    name: str
    """name of the served model."""
    output: str = "saved_models"
    """folder of all exports."""
    version: int = option(0, at_least=0)
    """a free positive number; by default the next one."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """compute precision of the served model; auto takes bfloat16 where this machine multiplies it
    fast."""
    label_map: list[str] = option(factory=list)
    """names to serve for labels of the model, as MODEL_LABEL=LABEL."""


def run(options: Options) -> None:
    folder = check_output_folder(Path(options.output) / options.name, [options.model])
    with progress("exporting"):
        from bert_tf.serving.export import check_export
        from bert_tf.trained.fine_tuned import FineTuned

        check_export(options.name, root=folder.parent, version=options.version)
        dtype, remark = _dtype(options.precision)
        model = FineTuned.from_directory(options.model, dataclasses.asdict(options), dtype)
        directory = model.export(
            folder.name, root=folder.parent, version=options.version, directory=options.model
        )
    inputs = model.task.kind.signatures(model.task)["serving_default"].inputs.values()
    given = '--text "a raw string"' + ' --pair "another"' * (len(inputs) - 1)
    if any(each.shape.rank > 1 for each in inputs):
        given = "--input FILE"
    if remark:
        console.print(remark)
    saved_model = f"{options.output}/{options.name}"
    console.print(
        f"SavedModel: {saved_model}/{directory.name}, its model card in README.md\n"
        f"Next: {typed('bert-tf')} predict --model {saved_model} {given}\n"
        f"  or: {typed('bert-tf')} serve {options.output}; docs/serving.md has TensorFlow Serving"
    )


def _dtype(precision: str) -> tuple[str, str]:
    """Keras' dtype policy of a precision, and a remark on it, if there is one to make."""
    if precision == "float32":
        return "float32", ""
    import tensorflow as tf

    from bert_tf.training.device_speed import fast_precision

    fast, measured = fast_precision(tf.distribute.get_strategy())
    if precision == "auto":
        return fast, measured and f"precision: {fast} ({measured})"
    reason = measured or "it does not multiply bfloat16"
    slow = f"the model will be slow on processors like this one: {reason}"
    return "mixed_bfloat16", slow if fast == "float32" else ""
