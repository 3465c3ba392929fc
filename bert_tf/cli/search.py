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

from bert_tf.cli.progress import RunProgress, console, export_line, progress, scores_line, typed
from bert_tf.finetuning.options import FinetuningOptions
from bert_tf.finetuning.options import SearchOptions as Options
from bert_tf.training.listener import Listener


def run(options: Options) -> None:
    with progress("searching") as bar:
        from bert_tf.finetuning.finetune import FinetuningResult, finetune
        from bert_tf.finetuning.restarts import page, ranked
        from bert_tf.finetuning.search import search

        def one_run(options: FinetuningOptions, listener: Listener) -> FinetuningResult | None:
            result = finetune(options, listener)
            if result is not None and result.evaluation is not None:
                best = scores_line({result.best_by: result.score})
                bar.print(f"  seed {options.seed}: {best}")
            return result

        trials = search(options, RunProgress(bar, "Setting"), one_run)
    if not trials:  # a dry run
        return
    print(page(trials), end="")
    output = options.output
    if not ranked(trials):
        console.print("No run has the score that ranks them: give --best_by another")
        return
    best = f"{output}/best"
    lines = [
        f"Best setting: {ranked(trials)[0].setting}; best model: {best}",
        f"Table and picture: {output}/search.md, search.tsv, search.png",
        export_line(best),
        f"Curves and HParams: {typed('bert-tf')} monitor {output}",
    ]
    console.print("\n".join(lines))
