"""Write a SavedModel that takes raw strings, for TensorFlow Serving.

  bert-tf export --model runs/classifier/best --name classifier

Tokenizer, model and post-processing are one graph of ops that released servers have. Each export
is a new version, saved_models/<name>/<version>/, which a running server picks up by itself.
"""

from dataclasses import dataclass

from bert_tf.cli.progress import console, progress, typed


@dataclass(kw_only=True)
class Options:
    """Options of `bert-tf export`.

    Attributes:
        model: fine-tuned model directory, such as runs/classifier/best.
        name: of the served model.
        output: folder of all exports.
        version: a positive number that is still free; by default the next one.
    """

    model: str
    name: str
    output: str = "saved_models"
    version: int = 0


def run(options: Options) -> None:
    """Runs `bert-tf export`."""
    with progress("exporting"):
        from bert_tf.serving.export import export
        from bert_tf.serving.signatures import TextClassifier
        from bert_tf.tasks.sentence_classification import SentenceClassification

        task = SentenceClassification.from_directory(options.model)
        module = TextClassifier(
            task.tokenizer,
            task.model,
            task.labels,
            max_length=task.data.max_length,
            takes_pairs=task.data.pair_column is not None,
        )
        directory = export(module, options.name, root=options.output, version=options.version)
    pair = ' --pair "another"' if task.data.pair_column else ""
    console.print(
        f"SavedModel: {directory}\n"
        f"Next: {typed('bert-tf')} predict --model {directory.parent} "
        f'--text "a raw string"{pair}',
        markup=False,
    )
