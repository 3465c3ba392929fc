"""A table of the paper as data: systems, scores, published numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_tf.experiments.scale import Scale

Values = Mapping[str, Any]

PERPLEXITY = "masked-LM perplexity"


@dataclass(frozen=True, kw_only=True)
class System:
    """A row: a model and how it is fine-tuned. Options are given beside those of the scale.

    Attributes:
        name: name of the row.
        pretraining: options of `PretrainingOptions`.
        shards: options of `PretrainingDataOptions`.
        finetuning: options of `SearchOptions`.
        step: pre-training step of the model to fine-tune; by default the best model.
        line: line of a curve that the row is a point of.
    """

    name: str
    pretraining: Values = field(default_factory=dict)
    shards: Values = field(default_factory=dict)
    finetuning: Values = field(default_factory=dict)
    step: int | None = None
    line: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A score of every system.

    Attributes:
        title: title, as in the published numbers.
        task: name of the task; "" for the perplexity of held-out masked words.
        score: name of the score; None for the first of the task.
        features: whether the encoder is frozen, and the scale's layers of it are read.
    """

    title: str
    task: str
    score: str | None = None
    features: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper.

    Attributes:
        name: name on the command line.
        title: heading of the table.
        source: where the paper has it.
        systems: the systems to run at a scale.
        columns: the paper's scores, then those that it lacks.
        published: name of a system -> title of a column -> the paper's number.
        variants: columns of a task that is not among `columns`: suffix of the title ->
            `Column.features`.
        remarks: differences from the paper, a sentence each.
    """

    name: str
    title: str
    source: str
    systems: Callable[[Scale], Sequence[System]]
    columns: Sequence[Column]
    published: Mapping[str, Mapping[str, float]]
    variants: Mapping[str, bool] = field(default_factory=lambda: {"": False})
    remarks: Sequence[str] = ()

    def columns_of(self, tasks: Sequence[str]) -> list[Column]:
        """The columns to run: those of the given tasks, or new ones if the table has none."""
        found = [column for column in self.columns if not column.task or column.task in tasks]
        if not any(column.task for column in found):
            found += [
                Column(title=f"{task}{suffix}", task=task, features=features)
                for task in tasks
                for suffix, features in self.variants.items()
            ]
        return found
