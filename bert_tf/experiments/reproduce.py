"""Makes a table: plans its stages, makes what is missing, writes the result."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.result import write_result
from bert_tf.experiments.stage import Cache, Show, Stage
from bert_tf.experiments.step_speed import StepSpeed
from bert_tf.outputs import check_output_folder
from bert_tf.training.workers import hold_run_directory
from pipelines.examples.records import is_dataset_name


@dataclass(frozen=True)
class PlannedStage:
    """A stage, and the time and the space on the disk that it still takes, estimated."""

    stage: Stage
    is_done: bool
    seconds: float
    bytes: float


class Reproduction:
    """A table to make, from its plan; `output` is the folder of all tables."""

    def __init__(self, plan: Plan, output: str) -> None:
        inputs = [*plan.corpus.given, *(data.train for data in plan.tasks if data.train)]
        self.output = check_output_folder(
            output, [path for path in inputs if not is_dataset_name(path)]
        )
        self.plan = plan
        self._cache = Cache(self.output / "runs")

    def estimate(self, notice: Callable[[str], object] = lambda line: None) -> list[PlannedStage]:
        """Every stage with its cost; `notice` gets a line before each measurement of a step."""
        speed = StepSpeed(notice)
        lines = []
        for stage in self.plan.stages:
            is_done = self._cache.outcome(stage) is not None
            cost = (0.0, 0.0) if is_done else (stage.seconds(speed), stage.bytes)
            lines.append(PlannedStage(stage, is_done, *cost))
        return lines

    @property
    def free_bytes(self) -> int:
        place = next(each for each in (self.output, *self.output.parents) if each.exists())
        return shutil.disk_usage(place).free

    def make(self, started: Callable[[Stage, int, int], Show]) -> list[list[str]]:
        """Makes the missing stages in order and writes the result; returns the table.

        `started` is called before each stage, with its number from 1 and the number of all; it
        returns what shows the stage's progress. After Preempted, the same call resumes.
        """
        stages = self.plan.stages
        with hold_run_directory(self.output, tf.distribute.get_strategy()):
            for number, stage in enumerate(stages, 1):
                if self._cache.outcome(stage) is None:
                    self._cache.make(stage, started(stage, number, len(stages)))
                counts = (self._cache.outcome(stage) or {}).get("instances", [])
                if not all(count["held_out"] for count in counts):
                    raise InputError(
                        "no text was held out to evaluate on: give a corpus of more documents"
                    )
            return write_result(self.plan, self._cache, self.output / self.plan.table.name)
