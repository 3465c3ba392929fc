"""`bert_tf.search`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.api.data import examples_as_files
from bert_tf.api.finetune import TrainingData
from bert_tf.api.keywords import keywords
from bert_tf.api.progress import RunProgress, progress, scores_line
from bert_tf.api.result import Result, Table
from bert_tf.finetuning.finetuning_options import FinetuningOptions, SearchOptions
from bert_tf.training.listener import Listener

if TYPE_CHECKING:
    from bert_tf.finetuning.finetune import FinetuningResult
    from bert_tf.finetuning.search import Setting, Trial


@dataclass(kw_only=True)
class _Keywords(TrainingData, SearchOptions):  # type: ignore[misc]
    pass


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
        from bert_tf.finetuning.search import ranked

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
        from bert_tf.finetuning.search import table

        if self.trials:
            columns, *rows = table(self.trials)
            yield Table("Settings, the best first", columns, rows)

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        if (picture := self.output / "search.png").is_file() and self.trials:
            yield "search", picture.read_bytes()


@keywords(_Keywords)
def search(options: SearchOptions, *, shown: bool = True) -> SearchResult:
    """Finds the best batch size, learning rate and number of epochs, as `bert-tf search` does.

    Examples in memory are written to OUTPUT/data as JSON lines. The same call continues a search.

    Returns:
        The settings tried, with their scores, and where the best model is.

    Raises:
        InputError: the data, the model or the options cannot be used; the message says why.
        Preempted: SIGTERM ended a run after a checkpoint.
    """
    with examples_as_files(options) as options, progress("searching", shown=shown) as bar:
        from bert_tf.finetuning.finetune import finetune
        from bert_tf.finetuning.search import search

        def one_run(options: FinetuningOptions, listener: Listener) -> "FinetuningResult | None":
            result = finetune(options, listener)
            if result is not None and result.evaluation is not None:
                bar.show(f"  seed {options.seed}: {scores_line({result.best_by: result.score})}")
            return result

        trials = search(options, RunProgress(bar, "Setting"), one_run)
    return SearchResult(output=Path(options.output), trials=trials, notices=bar.notices)
