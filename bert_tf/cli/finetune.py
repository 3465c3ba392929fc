r"""Fine-tune a model from labelled examples: classify, score, choose, tag or answer.

  bert-tf finetune --model runs/pretrained/best --train train.tsv --output runs/classifier
  bert-tf finetune --model models/base --task mrpc --data glue/MRPC --output runs/mrpc
  bert-tf finetune --model models/base --task regression --train sts.csv --label_column score \
    --pair_column sentence2 --text_column sentence1 --output runs/sts

The examples are a .tsv or .csv file with a header, or .jsonl; name the columns with
--text_column, --pair_column and --label_column. For other files see --format and --no_header. A
task with a name (--task mrpc, squad, swag, conll2003) knows its columns, labels and scores; see
docs/tasks.md, and docs/adding-a-task.md to write one. The paper tries batches of 16 and 32,
learning rates of 5e-5, 3e-5 and 2e-5, and 2 to 4 epochs. The same command resumes a stopped run.
"""

from bert_tf.cli.progress import (
    RunProgress,
    console,
    export_line,
    outcome_lines,
    progress,
    scores_line,
    typed,
)
from bert_tf.finetuning.options import FinetuningOptions as Options


def run(options: Options) -> None:
    with progress("fine-tuning") as bar:
        from bert_tf.finetuning.finetune import finetune
        from bert_tf.finetuning.restarts import finetune_seeds

        shown = RunProgress(bar)
        if options.seeds > 1:
            lines, result = [*finetune_seeds(options, shown).lines()], None
        else:
            lines, result = [], finetune(options, shown)
    if result is not None and result.evaluation is not None:
        lines = [
            *outcome_lines(result.training, shown.total_steps),
            f"Fine-tuned on {result.train_examples:,} examples; validation: "
            f"{scores_line(result.evaluation.scores)}",
            *result.evaluation.remarks,
        ]
    if not lines:  # a dry run, or a worker other than the chief
        return
    best = f"{options.output}/best"
    lines += [
        f"Best model: {best}",
        export_line(best),
        f"Curves: {typed('bert-tf')} monitor {options.output}",
    ]
    console.print("\n".join(lines))
