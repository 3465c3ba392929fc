"""Makes a table: plans its runs, makes what is missing, writes the result."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from bert_tf.experiments.data_runs import Corpus, TaskData
from bert_tf.experiments.estimate import Estimate
from bert_tf.experiments.plan import check_held_out, corpus_shortage, make_plan
from bert_tf.experiments.result import write_result
from bert_tf.experiments.run import Cache, Run, Show
from bert_tf.experiments.scale import Scale
from bert_tf.experiments.table import Table
from bert_tf.outputs import check_output_folder
from bert_tf.training.workers import hold_run_directory
from pipelines.examples.records import is_dataset_name


@dataclass(frozen=True)
class PlannedRun:
    """A line of a plan.

    Attributes:
        run: the run.
        is_done: whether it is finished.
        steps: training steps, 0 for runs without training.
        seconds: estimated time, 0 if it is finished.
        bytes: estimated space on the disk, 0 if it is finished.
    """

    run: Run
    is_done: bool
    steps: int
    seconds: float
    bytes: float


class Reproduction:
    """A table to make.

    Args:
        table: the table.
        scale: settings.
        corpus: text to pre-train on.
        tasks: examples to fine-tune on.
        output: folder of all tables.
        seeds: runs of every fine-tuning; None for the scale's.

    Attributes:
        plan: its runs.
        output: see above, resolved.

    Raises:
        InputError: the text, the examples or the output cannot be used.
    """

    def __init__(
        self,
        table: Table,
        scale: Scale,
        corpus: Corpus,
        tasks: Sequence[TaskData],
        output: str,
        seeds: int | None = None,
    ) -> None:
        inputs = [*corpus.given, *(data.train for data in tasks if data.train)]
        self.output = check_output_folder(
            output, [path for path in inputs if not is_dataset_name(path)]
        )
        self._cache = Cache(self.output / "runs")
        self._text_bytes = corpus.text_bytes
        self.plan = make_plan(table, scale, corpus, tasks, seeds)

    def estimate(self, notice: Callable[[str], object] = lambda line: None) -> list[PlannedRun]:
        """Every run with its time, from a few measured steps of those to make; writes nothing.

        Args:
            notice: called with a line before each measurement.
        """
        estimate = Estimate(self._text_bytes, self.plan.scale.vocabulary_size, notice)
        lines = []
        for run in self.plan.runs:
            is_done = self._cache.outcome(run) is not None
            cost = (0.0, 0.0) if is_done else (estimate.seconds(run), estimate.bytes(run))
            lines.append(PlannedRun(run, is_done, estimate.steps(run), *cost))
        return lines

    @property
    def corpus_shortage(self) -> str | None:
        """A line for the user if the corpus is too small for the plan."""
        return corpus_shortage(self.plan, self._text_bytes)

    @property
    def free_bytes(self) -> int:
        """Free space on the disk of the output."""
        place = next(each for each in (self.output, *self.output.parents) if each.exists())
        return shutil.disk_usage(place).free

    def make(self, started: Callable[[Run, int, int], Show]) -> list[list[str]]:
        """Makes the runs that are missing, one after the other, and the result.

        Args:
            started: called before each run, with its number from 1 and the number of all.

        Returns:
            The table, its header first.

        Raises:
            InputError: another process makes a table there; or the data cannot be used.
            Preempted: a run was stopped; the same call goes on with it.
        """
        runs = self.plan.runs
        with hold_run_directory(self.output, tf.distribute.get_strategy()):
            for number, run in enumerate(runs, 1):
                if self._cache.outcome(run) is None:
                    self._cache.make(run, started(run, number, len(runs)))
                check_held_out(self._cache.outcome(run) or {})
            return write_result(self.plan, self._cache, self.output / self.plan.table.name)
