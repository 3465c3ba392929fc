"""Score a fine-tuned model on labelled data.

  bert-tf evaluate --model runs/classifier/best --data test.tsv --output runs/test

Prints accuracy, F1 and Matthews' correlation; with --output writes metrics.json and
predictions.tsv. The columns are those the model was fine-tuned with.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from bert_tf.atomic import replace_file
from bert_tf.cli.progress import console, progress, typed


@dataclass(kw_only=True)
class Options:
    """Options of `bert-tf evaluate`.

    Attributes:
        model: fine-tuned model directory, such as runs/classifier/best.
        data: labelled examples: .tsv, .csv or .jsonl.
        output: folder for metrics.json and predictions.tsv; none are written without it.
        batch_size: examples predicted at once.
    """

    model: str
    data: str
    output: str | None = None
    batch_size: int = 32


def run(options: Options) -> None:
    """Runs `bert-tf evaluate`."""
    with progress("evaluating"):
        from bert_tf.tasks.sentence_classification import evaluate

        task, examples, probabilities, scores = evaluate(
            options.model, options.data, batch_size=options.batch_size
        )
    print(json.dumps(scores, indent=2))
    if options.output:
        output = Path(options.output)
        task.write_predictions(output / "predictions.tsv", examples, probabilities)
        with replace_file(output / "metrics.json") as temporary:
            temporary.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
        console.print(f"Scores and predictions: {output}", markup=False)
    console.print(
        f"Next: {typed('bert-tf')} export --model {options.model} --name classifier", markup=False
    )
