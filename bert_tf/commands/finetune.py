r"""Fine-tune a model from labelled examples: classify, score, choose, tag or answer.

  bert-tf finetune --model runs/pretrained/best --train train.tsv --output runs/classifier
  bert-tf finetune --model models/base --task mrpc --data glue/MRPC --output runs/mrpc
  bert-tf finetune --model models/base --task regression --train sts.csv --label_column score \
    --pair_column sentence2 --text_column sentence1 --output runs/sts

The examples are a .tsv or .csv file with a header, or .jsonl; name the columns with
--text_column, --pair_column and --label_column. For other files see --format and --no_header. A
task with a name (--task mrpc, squad, swag, conll2003) knows its columns, labels and scores; see
docs/task-files.md, and docs/adding-a-task.md to write one. The paper tries batches of 16 and 32,
learning rates of 5e-5, 3e-5 and 2e-5, and 2 to 4 epochs. The same command resumes a stopped run.
"""

from bert_tf.api.finetune import finetune
from bert_tf.api.progress import console, export_line, typed
from bert_tf.finetuning.finetuning_options import FinetuningOptions as Options

COMMON = (
    "model", "train", "validation", "data", "task", "output", "epochs", "batch_size",
    "learning_rate", "max_length",
)  # fmt: skip


def run(options: Options) -> None:
    result = finetune.of(options)
    if result.best is None:  # a dry run, or a worker other than the chief
        return
    console.print(str(result))
    console.print(export_line(str(result.best)))
    console.print(f"Curves: {typed('bert-tf')} monitor {options.output}")
