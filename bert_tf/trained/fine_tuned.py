"""A fine-tuned model of any kind: loading, saving, evaluation, prediction, export."""

import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bert_tf.atomic import write_json
from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.errors import InputError
from bert_tf.serving.export import export
from bert_tf.serving.predictor import answer
from bert_tf.serving.signatures import RawTextModel
from bert_tf.tasks.kinds.kind import Answers
from bert_tf.tasks.reports.report import Report
from bert_tf.tasks.table import TASKS, find_task, with_options
from bert_tf.tasks.task import Task
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.trained.model_facts import model_facts
from pipelines.examples.labelled_text import Examples

TASK_FILE = "task.json"


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        examples: examples.
        answers: the model's answers to them.
        scores: scores by name, None for an undefined one; empty without labels.
        remarks: notes for a reader of the scores, a sentence each.
    """

    examples: Examples
    answers: Answers
    scores: dict[str, float | None]
    remarks: list[str]


@dataclass(frozen=True, eq=False)
class FineTuned:
    """A model with all that is needed to use it.

    Attributes:
        task: dataset with the columns and length that the model was trained with.
        model: the model, with its kind's head.
        tokenizer: the model's tokenizer.
        labels: label names in the order of the outputs.
    """

    task: Task
    model: keras.Model
    tokenizer: BertTokenizer
    labels: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuses a task that does not fit the model."""
        pairs = self.task.pair is not None
        self.model.config.check_fits(length=self.task.max_length, pairs=pairs)

    @classmethod
    def from_directory(
        cls,
        directory: str | Path,
        settings: Mapping[str, Any] | None = None,
        dtype: str = "float32",
    ) -> "FineTuned":
        """Loads what `save` wrote, or any model directory that a task can use.

        Without task.json the model decides: a pre-trained one guesses masked words, an encoder
        without a head embeds texts.

        Args:
            directory: model directory.
            settings: values that replace those of task.json, such as `pair_column`; `label_map`
                holds pairs "MODEL_LABEL=LABEL". Another `task` has its own columns.
            dtype: Keras dtype policy.

        Raises:
            InputError: the directory holds no such model, or it cannot be read.
        """
        given = {key: value for key, value in (settings or {}).items() if value is not None}
        stored = read_settings(Path(directory) / TASK_FILE)
        if name := given.get("task") or (stored and stored.get("task", "classification")):
            brought_by = None if "task" in given else directory
            task = find_task(name, brought_by=brought_by).with_model_settings(stored or {})
            model = load_model(directory, task.kind.model_class, dtype=dtype)
        else:
            model = load_model(directory, dtype=dtype)
            fits = (
                task
                for task in TASKS.values()
                if isinstance(model, (task.kind.model_class, *task.kind.opens))
            )
            task = next(fits, TASKS["classification"])
            if not isinstance(model, task.kind.model_class):
                model = load_model(directory, task.kind.model_class, dtype=dtype)
        if not stored:
            positions = model.config.max_position_embeddings
            task = task.with_settings({"max_length": min(task.max_length, positions)})
        own = [task.label_aliases.get(label, label) for label in model.label_names]
        labels = _renamed(own, given.get("label_map") or [])
        tokenizer = BertTokenizer.from_directory(directory)
        return cls(with_options(task, given), model, tokenizer, labels)

    def save(self, directory: str | Path) -> None:
        """Writes a model directory, with the task beside the model."""
        save_model(self.model, directory, tokenizer=self.tokenizer)
        write_json(Path(directory) / TASK_FILE, self.task.settings())

    @property
    def inputs(self) -> list[str]:
        """Names of the strings that evaluation asks with."""
        return self.task.kind.inputs(self.task)

    def module(self) -> RawTextModel:
        """Tokenizer, model and answers in one graph."""
        arguments = {
            "model": self.model,
            "tokenizer": self.tokenizer,
            "labels": self.labels,
            "max_length": self.task.max_length,
        }
        signatures = self.task.kind.all_signatures(self.task)
        if self.model.config.attention_direction == "recurrent":  # LSTMs have none
            del signatures["attention"]
        bound = {name: signature.of(**arguments) for name, signature in signatures.items()}
        return RawTextModel(self.tokenizer, self.model, bound)

    @functools.cached_property
    def signature(self) -> Any:
        """The function that answers examples, as an export saves it."""
        return self.module().signature(self.task.kind.evaluated)

    def _strings(self, examples: Examples) -> dict[str, list[Any]]:
        return {name: examples.columns[name] for name in self.inputs}

    def answers(
        self,
        examples: Examples,
        batch_size: int,
        answered: Callable[[int], object] = lambda number: None,
    ) -> Answers:
        """Answers to examples, by the function that an export saves.

        `answered` is called after each batch with the number of examples that have been answered.
        """
        strings = self._strings(examples)
        lengths = self.task.kind.lengths(strings, self.tokenizer)
        return answer(self.signature, strings, batch_size, lengths=lengths, answered=answered)

    def longest(self, examples: Examples, number: int) -> Examples:
        """The longest `number` examples, which take the most memory to answer."""
        lengths = self.task.kind.lengths(self._strings(examples), self.tokenizer)
        return examples.take(np.argsort(lengths, kind="stable")[-number:])

    def evaluate(
        self,
        examples: Examples,
        batch_size: int,
        answered: Callable[[int], object] = lambda number: None,
    ) -> Evaluation:
        """Scores answers to labelled examples; `answered` as of `answers`."""
        self.task.kind.targets(examples, self.labels)  # refuses unknown labels before the work
        return self.scored(examples, self.answers(examples, batch_size, answered))

    def scored(self, examples: Examples, answers: Answers) -> Evaluation:
        """Scores given answers to labelled examples."""
        kind = self.task.kind
        scores = kind.scores(self.task, examples, answers, self.labels)
        remarks = self._remarks(examples) + kind.remarks(self.task, scores, self.labels)
        return Evaluation(examples, answers, {"examples": len(examples), **scores}, remarks)

    def unscored(self, examples: Examples, answers: Answers) -> Evaluation:
        """Given answers to examples without labels."""
        return Evaluation(examples, answers, {}, self._remarks(examples))

    def _remarks(self, examples: Examples) -> list[str]:
        kind, strings = self.task.kind, self._strings(examples)
        _, cut = kind.cut(strings, self.tokenizer, self.task.max_length)
        return [*examples.remarks(), cut]

    def tuned(self, evaluation: Evaluation) -> "FineTuned":
        """The same model with the settings of its kind that are best for these examples."""
        kind = self.task.kind.tuned(evaluation.examples, evaluation.answers)
        return self if kind == self.task.kind else replace(self, task=replace(self.task, kind=kind))

    def report(self, evaluation: Evaluation) -> Report:
        """Tables and pictures beside the scores."""
        examples, answers = evaluation.examples, evaluation.answers
        return self.task.kind.report(self.task, examples, answers, self.labels)

    def write(self, evaluation: Evaluation, directory: Path) -> None:
        """Writes metrics.json and the kind's predictions."""
        examples, answers = evaluation.examples, evaluation.answers
        self.task.kind.write_predictions(directory, self.task, examples, answers, self.labels)
        write_json(directory / "metrics.json", evaluation.scores)

    def export(
        self,
        name: str,
        *,
        root: str | Path,
        version: int = 0,
        directory: str | Path | None = None,
    ) -> Path:
        """Writes a SavedModel; see `bert_tf.serving.export`.

        The model card has the scores and the data that the model's `directory` tells.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save(folder)
            write_json(Path(folder) / TASK_FILE, self.task.settings())
            assets = {f.name: f.read_text(encoding="utf-8") for f in Path(folder).iterdir()}
        facts = model_facts(self, directory)
        return export(self.module(), name, root=root, version=version, assets=assets, facts=facts)


def read_settings(path: Path) -> dict[str, Any] | None:
    """The contents of a task.json; None if there is none.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError("no JSON object")
        return settings
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore or delete it") from error


def _renamed(labels: Sequence[str], label_map: Sequence[str]) -> list[str]:
    """Labels under the names that data uses for them."""
    pairs = [entry.partition("=") for entry in label_map]
    names = {old: new for old, equals, new in pairs if equals}
    for entry, (old, equals, _) in zip(label_map, pairs, strict=True):
        if not equals or old not in labels:
            raise InputError(
                f"--label_map {entry}: give MODEL_LABEL=LABEL, with a label of the model "
                f"({', '.join(labels)})"
            )
    renamed = [names.get(label, label) for label in labels]
    if len(set(renamed)) < len(renamed):
        raise InputError(f"--label_map gives one name to two labels: {', '.join(renamed)}")
    return renamed
