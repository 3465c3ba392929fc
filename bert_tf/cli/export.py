"""Write a SavedModel that takes raw strings, for TensorFlow Serving.

  bert-tf export --model runs/classifier/best --name classifier

Tokenizer, model and post-processing are one graph of ops that released servers have. Each export
is a new version, saved_models/<name>/<version>/, which a running server picks up by itself.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bert_tf.cli.progress import console, progress, typed
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from bert_tf.tasks.options import TaskOptions


@dataclass(kw_only=True)
class Options(TaskOptions):
    """Options of `bert-tf export`.

    Attributes:
        model: fine-tuned model directory, such as runs/classifier/best.
        name: name of the served model.
        output: folder of all exports.
        version: a free positive number; by default the next one.
        label_map: names to serve for labels of the model, as MODEL_LABEL=LABEL.
    """

    model: str
    name: str
    output: str = "saved_models"
    version: int = option(0, at_least=0)
    label_map: list[str] = option(factory=list)


def run(options: Options) -> None:
    folder = check_output_folder(Path(options.output) / options.name, [options.model])
    with progress("exporting"):
        from bert_tf.serving.export import check_export
        from bert_tf.tasks.fine_tuned import FineTuned

        check_export(options.name, root=folder.parent, version=options.version)
        model = FineTuned.from_directory(options.model, dataclasses.asdict(options))
        directory = model.export(folder.name, root=folder.parent, version=options.version)
    inputs = model.task.kind.signatures(model.task)["serving_default"]
    given = '--text "a raw string"' + ' --pair "another"' * (len(inputs) - 1)
    if model.task.kind.lists:
        given = "--input FILE"
    console.print(
        f"SavedModel: {options.output}/{options.name}/{directory.name}\n"
        f"Next: {typed('bert-tf')} predict --model {options.output}/{options.name} {given}"
    )
