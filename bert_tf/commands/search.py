r"""Find the best batch size, learning rate and number of epochs of a fine-tuning.

  bert-tf search --model models/base --task rte --data glue/RTE --output runs/rte
  bert-tf search --model models/base --task rte --data glue/RTE --output runs/rte --seeds 3
  bert-tf search --model models/base --task rte --data glue/RTE --output runs/rte --trials 40

Fine-tunes with every combination of 2 batch sizes, 4 learning rates and 3 numbers of epochs, as the
paper did, and ranks them by their score on the validation examples, the mean over --seeds runs.
Other values: --batch_size 32 --learning_rate 1e-4 5e-5 --epochs 3. --trials proposes
settings within these ranges from the scores so far; settings already tried count. best/ is the
best model of the best setting; search.tsv, search.md and search.png show all. The same command
continues a stopped search without repeating finished runs; with more values, seeds or trials it
extends a finished one. All other options are as in bert-tf finetune.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.commands.command import Command
from bert_tf.commands.data_in_memory import examples_as_files
from bert_tf.commands.finetuning_options import FinetuningOptions, refuse_bad_rows
from bert_tf.commands.finetuning_options import SearchOptions as Options
from bert_tf.commands.progress import (
    RunProgress,
    command_line,
    console,
    export_line,
    progress,
    scores_line,
)
from bert_tf.commands.result import Result, Table
from bert_tf.files.owners import SEARCH
from bert_tf.training.watcher import Watcher

if TYPE_CHECKING:
    from bert_tf.commands.finetuning_run import FinetuningResult
    from bert_tf.commands.settings_search import Setting, Trial


@dataclass(kw_only=True, repr=False, eq=False)
class SearchResult(Result):
    """The outcome of `search`.

    Attributes:
        output: folder of the search, with search.tsv, search.md and search.png.
        trials: the settings tried, with the scores of their runs; none after a dry run.
    """

    output: Path
    trials: "list[Trial]"

    @property
    def best_setting(self) -> "Setting | None":
        """The setting with the best mean score; None if no run has the score."""
        from bert_tf.commands.settings_search import ranked

        return next((trial.setting for trial in ranked(self.trials)), None)

    @property
    def best(self) -> Path | None:
        """The directory of the best setting's best model."""
        return None if self.best_setting is None else self.output / "best"

    def lines(self) -> list[str]:
        if not self.trials:
            return []
        if not any(scores for trial in self.trials for scores in trial.runs.values()):
            return ["Every run diverged: give smaller --learning_rate values"]
        if self.best is None:
            return ["No run has the score that ranks them: give --best_by another"]
        files = f"Table and picture: {self.output}/search.md, search.tsv, search.png"
        return [f"Best setting: {self.best_setting}; best model: {self.best}", files]

    def tables(self) -> Iterable[Table]:
        from bert_tf.commands.settings_search import table

        if self.trials:
            columns, *rows = table(self.trials)
            yield Table("Settings, the best first", columns, rows)

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        if (picture := self.output / "search.png").is_file() and self.trials:
            yield "search", picture.read_bytes()


def run(options: Options) -> SearchResult:
    """Finds the best batch size, learning rate and number of epochs, as `bert-tf search` does.

    Examples in memory are written to OUTPUT/data as JSON lines. The same call continues a search.

    Returns:
        The settings tried, with their scores, and where the best model is.

    Raises:
        Preempted: SIGTERM ended a run after a checkpoint.
    """
    with (
        examples_as_files(options, SEARCH) as options,
        progress("searching", shown=options.shown) as bar,
    ):
        from bert_tf.commands.finetuning_run import run_finetuning
        from bert_tf.commands.settings_search import search

        def one_run(options: FinetuningOptions, watcher: Watcher) -> "FinetuningResult | None":
            result = run_finetuning(options, watcher)
            if result is not None and result.evaluation is not None:
                bar.show(f"  seed {options.seed}: {scores_line({result.best_by: result.score})}")
            return result

        trials = search(options, RunProgress(bar, "Setting"), one_run)
    return SearchResult(output=Path(options.output), trials=trials, notices=bar.notices)


def show(result: SearchResult, options: Options) -> None:
    if not result.trials:  # a dry run
        return
    from bert_tf.commands.settings_search import page

    print(page(result.trials), end="")
    console.print(str(result))
    if result.best is not None:
        console.print(export_line(result.best))
        console.print(f"Curves and HParams: {command_line('monitor', options.output)}")


COMMAND = Command(
    name="search",
    help=__doc__,
    options=Options,
    run=run,
    show=show,
    prepare=refuse_bad_rows,
    common="model train data task output batch_size learning_rate epochs seeds trials",
)
search = COMMAND.function("search")
