r"""Score a fine-tuned model on labelled data.

  bert-tf evaluate --model runs/classifier/best --data test.tsv --output runs/test

Prints the scores of the model's task as JSON: accuracy, F1 and Matthews' correlation for
classification, Pearson's and Spearman's correlation for regression. F1 is that of the second of
two labels; for more labels it is the mean over all, macro_f1. docs/task-files.md leads to the
scores and files of other tasks; --task masked_words scores a pre-trained model on plain text. With
--output it writes metrics.json, the predictions, such as predictions.tsv, and a report: scores of
each label, confusion matrix, calibration and the worst errors, as tables (report.md, .tsv),
pictures (.png) and in TensorBoard. Columns and length are by default those of the fine-tuning.

A classifier of Hugging Face's works too; name its columns, and its labels where they differ:
  bert-tf evaluate --model models/nli --data dev.tsv --text_column premise \
    --pair_column hypothesis --label_map LABEL_0=contradiction LABEL_1=neutral LABEL_2=entailment
"""

import json

import rich.table

from bert_tf.api.evaluate import EvaluateOptions as Options
from bert_tf.api.evaluate import evaluate
from bert_tf.api.progress import console, export_line, typed
from bert_tf.api.result import MOST_ROWS
from bert_tf.serving.packed_weights import pack_weights


def prepare(options: Options) -> None:
    pack_weights(["float32"])


def run(options: Options) -> None:
    result = evaluate.of(options)
    print(json.dumps(result.scores, indent=2))
    from bert_tf.tasks.reports.report import Picture

    for part in result.report:
        if isinstance(part, Picture):
            continue
        if part.brief:
            shown = rich.table.Table(*part.columns, title=part.title, title_justify="left")
            for row in part.texts()[:MOST_ROWS]:
                shown.add_row(*row)
            console.print(shown)
        if part.note:
            console.print(f"{part.title}: {part.note}")
    for line in result.lines()[1:]:  # without the scores
        console.print(line)
    if result.output is not None and result.report:
        console.print(f"Pictures: {typed('bert-tf')} monitor {options.output}")
    console.print(export_line(options.model, f" --task {options.task}" * bool(options.task)))
