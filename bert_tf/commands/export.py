r"""Write a SavedModel that takes raw strings, for TensorFlow Serving.

  bert-tf export --model runs/classifier/best --name classifier

Tokenizer, model and post-processing are one graph of ops that released servers have. Each export
is a new version, saved_models/<name>/<version>/, which a running server picks up by itself. It
holds warm-up requests for every signature, which have been run, parameters for batching and a model
card, README.md. saved_models/models.config lists the models for TensorFlow Serving.

--precision bfloat16 is faster on processors that multiply bfloat16 (AVX512-BF16, AMX, Arm's BF16)
and slow on others. int8 is the fastest on most x86-64 processors; it is calibrated on examples of
the task, compared with float32 on others, and refused if it loses more than --max_loss points:

  bert-tf export --model runs/classifier/best --name classifier --precision int8 \
    --calibration train.tsv

For runtimes other than TensorFlow (docs/other-runtimes.md):

  bert-tf export --model runs/classifier/best --name classifier --format openvino
"""

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import command_line, console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.files.mirror import joined, mirrored
from bert_tf.files.outputs import check_output_folder
from bert_tf.options import PathName, option
from bert_tf.startup import pack_weights
from bert_tf.tasks.task_options import TaskOptions

if TYPE_CHECKING:
    from bert_tf.text.answerer import Answerer


@dataclass(kw_only=True)
class Options(CommandOptions, TaskOptions):
    """Options of `bert-tf export`."""

    model: PathName = option(path=True, model=True)
    """fine-tuned model directory, such as runs/classifier/best, its URL, or a model of the Hugging
    Face hub, ORG/NAME."""
    name: str
    """name of the served model."""
    output: PathName | None = None
    """folder of all exports, or its URL; by default saved_models, or exports with --format."""
    format: Literal["saved_model", "litert", "onnx", "openvino"] = "saved_model"
    """saved_model for TensorFlow Serving; the others run without TensorFlow: openvino, which takes
    raw strings, too, and onnx for the lowest latency on single short texts, litert on phones."""
    version: int = option(0, at_least=0)
    """version number, positive and unused; by default the next one."""
    precision: Literal["float32", "bfloat16", "int8", "auto", "all"] = "float32"
    """compute precision of the served model. int8 comes with a version in float32, for processors
    without it; auto measures all types and takes the fastest on this machine; all writes a version
    of each."""
    calibration: PathName | None = option(None, path=True)
    """labelled examples: half of them set the ranges of int8, the others score it. By default the
    examples that the model was fine-tuned and validated with."""
    max_loss: float = option(0.5, at_least=0, at_most=100)
    """maximum number of points of the score that int8 may lose."""
    tokenizer_ops: Literal["auto", "tf_text", "core"] = "auto"
    """operations of the tokenizer's graph. core are TensorFlow's own: any TensorFlow loads the
    export without TF Text, and its tokenizer is slower. auto takes TF Text's if it is installed."""
    explanations: bool = False
    """add the signature explain: how much each word piece contributes to a classifier's answer."""
    twin: list[Literal["openvino", "onnx"]] = option(factory=list)
    """add the same model for OpenVINO, ONNX Runtime or both to the version: bert-tf serve and
    Predictor answer single texts by the fastest engine. Needs the packages of that --format."""
    label_map: list[str] = option(factory=list)
    """new names for the model's labels, as MODEL_LABEL=LABEL."""


@dataclass(kw_only=True, repr=False, eq=False)
class ExportResult(Result):
    """The outcome of `export_model`.

    Attributes:
        path: folder of the version, or its URL, saved_models/NAME/VERSION; the newest of several.
        versions: type -> number of its version; none of other formats than saved_model.
        inputs: input of the default signature -> its axes: 1 for a string per example, 2 for lists.
        remarks: on the precision, if there are any to make.
    """

    path: Path | str
    inputs: dict[str, int]
    versions: dict[str, int]
    remarks: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        lines = list(self.remarks)
        if len(self.versions) > 1:
            numbers = (f"{name} is version {number}" for name, number in self.versions.items())
            lines.append(", ".join(numbers))
        if not self.versions:
            return [*lines, f"Model: {self.path}, its model card in {Path(self.path).stem}.md"]
        return [*lines, f"SavedModel: {self.path}, its model card in README.md"]


def prepare_process(options: Options) -> None:
    if options.precision in ("auto", "all"):  # types are compared as servers compute them
        pack_weights()


def run(options: Options) -> ExportResult:
    """Writes a SavedModel that takes raw strings, for TensorFlow Serving, as `bert-tf export` does.

    Returns:
        The folder of the new version.
    """
    is_portable = options.format != "saved_model"
    takes_rows = options.precision in ("int8", "auto", "all")
    _check(options, takes_rows)
    output = options.output or ("exports" if is_portable else "saved_models")
    with (
        mirrored(output, top_alone=True),
        progress("exporting", total=1, shown=options.shown) as bar,
    ):
        from bert_tf.commands.export_precisions import export_types
        from bert_tf.serving.export import MODELS_CONFIG, check_export, pinned_versions

        folder = check_output_folder(joined(output, options.name), [options.model])
        check_export(options.name, root=folder.parent, version=options.version)
        load = functools.partial(_load, options)
        bar.step("reading the model", 0, 1)
        if is_portable:
            others = folder.iterdir() if folder.is_dir() else iter(())
            if options.format == "openvino":  # its versions may stand beside each other
                others = folder.glob("*/saved_model.pb")
            if any(others):
                raise InputError(
                    f"{joined(output, options.name)} is not empty, and exports are never "
                    "overwritten: give another --name or --output"
                )
            from bert_tf.commands.export_precisions import export_openvino

            model = load()
            bar.step(f"writing the model for {options.format}", 0, 1)
            remarks: list[str] = []
            if options.format == "openvino":
                file, remarks = export_openvino(model, folder, options, bar.step)
            else:
                is_int8 = options.precision == "int8"
                file = model.export_portable(
                    folder, options.format, directory=options.model, int8=is_int8
                )
            path = joined(output, options.name, *file.relative_to(folder).parts)
            return ExportResult(
                path=path, versions={}, inputs={}, remarks=remarks, notices=bar.notices
            )
        if not takes_rows:
            dtype, remark = dtype_policy(options.precision)
            model = load(dtype)
            directory = model.export(
                folder.name,
                root=folder.parent,
                version=options.version,
                directory=options.model,
                explanations=options.explanations,
                step=bar.step,
                twin=load() if options.twin else None,
                twin_formats=options.twin,
            )
            versions: dict[str, int] = {options.precision: int(directory.name)}
            remarks = [remark] if remark else []
        else:
            model = load()
            versions, remarks = export_types(model, folder, options, load, bar.step)
        pinned = pinned_versions(folder.parent, options.name)
        if pinned and (missing := set(versions.values()) - pinned):
            remarks.append(
                _not_served(joined(output, MODELS_CONFIG), options.name, pinned, missing)
            )
    inputs = model.task.kind.signatures(model.task)["serving_default"].inputs
    return ExportResult(
        path=joined(output, options.name, str(max(versions.values()))),
        versions=versions,
        inputs={name: spec.shape.rank for name, spec in inputs.items()},
        remarks=remarks,
        notices=bar.notices,
    )


def _not_served(config: Path | str, name: str, pinned: set[int], missing: set[int]) -> str:
    served, new = (", ".join(map(str, sorted(x))) for x in (pinned, missing))
    return (
        f"{config} serves only the versions {served} of {name}: add {new} to its "
        "model_version_policy to have it served"
    )


def _load(options: Options, *dtype: str) -> "Answerer":
    """The model, by default in float32, with the tokenizer's operations that are asked for."""
    from bert_tf.text.opening import load_answerer

    model = load_answerer(options.model, _settings(options), *dtype)
    if options.tokenizer_ops == "auto":
        return model
    return replace(model, tokenizer=model.tokenizer.with_ops(options.tokenizer_ops))


def _settings(options: Options) -> dict[str, Any]:
    """The options that a task has, too, without `format`, which is the model's here."""
    return {name: value for name, value in vars(options).items() if name != "format"}


def _check(options: Options, takes_rows: bool) -> None:
    """Refuses options that cannot be combined."""
    if options.format == "saved_model":
        if "onnx" in options.twin and options.precision == "bfloat16":
            raise InputError("ONNX Runtime has no bfloat16 on CPUs: leave --twin onnx out")
        if options.calibration and not takes_rows:
            raise InputError(
                f"--calibration is for int8: give --precision int8, not {options.precision}"
            )
        if options.explanations and takes_rows:
            raise InputError(
                "--explanations needs gradients, which int8 has none of: give --precision float32 "
                f"or bfloat16, not {options.precision}"
            )
        return
    precisions = {
        "litert": ("float32", "int8"),
        "onnx": ("float32",),
        "openvino": ("float32", "bfloat16", "int8"),
    }[options.format]
    is_calibrated = options.format == "openvino" and options.precision == "int8"
    for name, is_set in {
        "--version": options.version and options.format != "openvino",
        "--explanations": options.explanations,
        "--twin": bool(options.twin),
        "--calibration": options.calibration and not is_calibrated,
        "--tokenizer_ops": options.tokenizer_ops != "auto",
        f"--precision {options.precision}": options.precision not in precisions,
    }.items():
        if is_set:
            raise InputError(
                f"--format {options.format} and {name} cannot be combined: leave one of them out"
            )


def dtype_policy(precision: str) -> tuple[str, str]:
    """Keras' dtype policy of float32 or bfloat16, and a remark on it, if there is one to make."""
    if precision == "float32":
        return "float32", ""
    import tensorflow as tf

    from bert_tf.training.device_speed import fast_precision

    fast, measured = fast_precision(tf.distribute.get_strategy())
    reason = measured or "it does not multiply bfloat16"
    slow = f"the model will be slow on processors like this one: {reason}"
    return "mixed_bfloat16", slow if fast == "float32" else ""


def show(result: ExportResult, options: Options) -> None:
    console.print(str(result))
    if not result.versions:
        console.print("Next: the card has lines of Python that ask the model")
        return
    texts = ["--text", "a raw string"]
    if any(rank > 1 for rank in result.inputs.values()):
        texts = ["--input", "FILE"]
    elif len(result.inputs) > 1:
        texts += ["--pair", "another"]
    output = options.output or "saved_models"
    ask = command_line("predict", "--model", joined(output, options.name), *texts)
    serve = f"{command_line('serve', output)}; docs/serving.md has TensorFlow Serving"
    console.print(f"Next: {ask}\n  or: {serve}")


COMMAND = Command(
    name="export",
    help=__doc__,
    options=Options,
    run=run,
    show=show,
    prepare_process=prepare_process,
)
export_model = COMMAND.function("export_model")
