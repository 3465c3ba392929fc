r"""Find the best batch size, learning rate and number of epochs of a fine-tuning.

  bert-tf search --model models/base --task rte --data glue/RTE --output runs/rte
  bert-tf search --model models/base --task rte --data glue/RTE --output runs/rte --seeds 3
  bert-tf search --model models/base --task rte --data glue/RTE --output runs/rte --trials 40

Fine-tunes with every combination of 2 batch sizes, 4 learning rates and 3 numbers of epochs, as the
paper did, and ranks them by their score on the validation examples, the mean over --seeds runs.
Other values: --batch_size 32 --learning_rate 1e-4 5e-5 --epochs 3. With --trials it proposes
settings within these ranges from the scores so far, and counts those already tried. best/ is the
best model of the best setting; search.tsv, search.md and search.png show all. The same command
continues a stopped search, without repeating finished runs; with more values, seeds or trials it
extends a finished one. All other options are those of bert-tf finetune.
"""

from bert_tf.api.progress import console, export_line, typed
from bert_tf.api.search import search
from bert_tf.finetuning.finetuning_options import SearchOptions as Options

COMMON = (
    "model", "train", "data", "task", "output", "batch_size", "learning_rate", "epochs", "seeds",
    "trials",
)  # fmt: skip


def run(options: Options) -> None:
    result = search.of(options)
    if not result.trials:  # a dry run
        return
    from bert_tf.finetuning.search import page

    print(page(result.trials), end="")
    console.print(str(result))
    if result.best is not None:
        console.print(export_line(str(result.best)))
        console.print(f"Curves and HParams: {typed('bert-tf')} monitor {options.output}")
