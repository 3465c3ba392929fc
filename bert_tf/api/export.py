"""`bert_tf.export_model`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert_tf.api.keywords import PathName, Verbosity, keywords
from bert_tf.api.progress import progress
from bert_tf.api.result import Result
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from bert_tf.tasks.options import TaskOptions


@dataclass(kw_only=True)
class ExportOptions(TaskOptions):
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


@dataclass(kw_only=True)
class _Keywords(Verbosity, ExportOptions):
    model: PathName = option(path=True)  # type: ignore[assignment]
    output: PathName = "saved_models"  # type: ignore[assignment]


@dataclass(kw_only=True, repr=False, eq=False)
class ExportResult(Result):
    """The outcome of `export_model`.

    Attributes:
        path: folder of the version, saved_models/NAME/VERSION.
        inputs: input of the default signature -> the number of its axes: 1 for a string per
            example, 2 for a list of strings.
        remark: on the precision, if there is one to make.
    """

    path: Path
    inputs: dict[str, int]
    remark: str = ""

    def lines(self) -> list[str]:
        remarks = [self.remark] if self.remark else []
        return [*remarks, f"SavedModel: {self.path}, its model card in README.md"]


def run(options: ExportOptions, *, shown: bool = True) -> ExportResult:
    folder = check_output_folder(Path(options.output) / options.name, [options.model])
    with progress("exporting", shown=shown) as bar:
        from bert_tf.serving.export import check_export
        from bert_tf.trained.fine_tuned import FineTuned

        check_export(options.name, root=folder.parent, version=options.version)
        dtype, remark = dtype_policy(options.precision)
        model = FineTuned.from_directory(options.model, dataclasses.asdict(options), dtype)
        directory = model.export(
            folder.name, root=folder.parent, version=options.version, directory=options.model
        )
    inputs = model.task.kind.signatures(model.task)["serving_default"].inputs
    return ExportResult(
        path=Path(options.output) / options.name / directory.name,
        inputs={name: each.shape.rank for name, each in inputs.items()},
        remark=remark,
        notices=bar.notices,
    )


def dtype_policy(precision: str) -> tuple[str, str]:
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


@keywords(_Keywords)
def export_model(options: ExportOptions, *, shown: bool) -> ExportResult:
    """Writes a SavedModel that takes raw strings, for TensorFlow Serving, as `bert-tf export` does.

    Returns:
        The folder of the new version.

    Raises:
        InputError: the model, the name or the version cannot be used; the message says why.
    """
    return run(options, shown=shown)
