"""Models that answer raw strings, in a model directory or exported."""

import contextlib
import functools
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import yaml

from bert_tf.checkpoints.formats import CONFIG
from bert_tf.config import read_json_object, read_small_file
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.loading import load_model, save_model
from bert_tf.networks.tensorflow.int8 import ProductPlan
from bert_tf.pipelines.examples.table import Examples
from bert_tf.pipelines.examples.tagged_words import is_column_file
from bert_tf.serving.export import ASSETS, export
from bert_tf.serving.portable import export_portable
from bert_tf.serving.precisions import TYPES_FILE, types_text
from bert_tf.serving.predictor import Predictor, Progress, answer
from bert_tf.tasks.encoder_signatures import ENCODER_SIGNATURES
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.sentence_embedding import Embedding
from bert_tf.tasks.of_model import TASK_FILE, of_model, read_settings
from bert_tf.tasks.overview import kind_line
from bert_tf.tasks.reports.report import Report
from bert_tf.tasks.signatures import DEFAULT, PREDICT, Parts, RawTextModel, find_signature
from bert_tf.tasks.table import TASKS, with_options
from bert_tf.tasks.task import Task
from bert_tf.tokenization.tokenizer import BertTokenizer

METRICS_FILE = "metrics.json"


class Answering:
    """A model that answers, and how the data that it is asked with are read."""

    task: Task  # names the columns
    labels: Sequence[str]  # in the order of the outputs; empty if they are not known
    tokenizer: BertTokenizer

    def function(self, name: str = DEFAULT) -> Any:
        """The function of a signature, as of `bert_tf.serving.predictor.answer`."""
        raise NotImplementedError

    def signatures(self) -> dict[str, Any]:
        """Those that can be asked, by name."""
        known = self.task.kind.all_signatures(self.task)
        if explanation := self.task.kind.explanation(self.task):
            known["explain"] = explanation
        return known

    def inputs_of(self, signature: str | None) -> list[str]:
        found = find_signature(self.signatures(), signature or DEFAULT)
        is_text = all(each.dtype == tf.string for each in found.inputs.values())
        if not is_text or found.method_name != PREDICT:
            raise InputError(
                f"--signature {signature} takes {', '.join(found.inputs)}, not raw strings: ask a "
                "server for it, or give another signature"
            )
        return list(found.inputs)

    def reader(self, signature: str | None, path: str) -> Task:
        """The task that reads a file of strings for a signature; None for the default one."""
        task = self.task
        if signature in ENCODER_SIGNATURES:
            task = replace(task, kind=Embedding(), pair=None)
        is_text = path.lower().removesuffix(".gz").endswith(".txt") and Path(path).is_file()
        takes_texts = task.format is None and self.inputs_of(signature) == ["text"]
        if is_text and takes_texts and not is_column_file(path):
            task = replace(task, format="lines")  # a text per line
        return task

    def strings(self, examples: Examples, signature: str | None) -> dict[str, list[str]]:
        """The strings that a signature takes; None for the one that takes what is there."""
        columns = examples.columns
        if signature is not None:
            names = self.inputs_of(signature)
            if missing := [name for name in names if name not in columns]:
                raise InputError(
                    f"{examples.path} has no {' and no '.join(missing)} for --signature "
                    f"{signature}: give a file with {', '.join(names)}"
                )
        else:
            own = self.task.kind.signatures(self.task).values()
            names = list(dict.fromkeys(name for each in own for name in each.inputs))
        return {name: columns[name] for name in names if name in columns}

    def signature_for(self, inputs: Collection[str]) -> str:
        """The signature that takes inputs of these names, if there is one, or else the default."""
        own = self.task.kind.signatures(self.task)
        return next((name for name in own if own[name].inputs.keys() == set(inputs)), DEFAULT)

    def truncation(self, truncated: Sequence[int] | np.ndarray) -> str:
        """A sentence that says how many examples were truncated, by what each of them lost."""
        number = int(np.count_nonzero(truncated))
        return self.task.kind.truncation(number, len(truncated), self.task.max_length)


@dataclass(frozen=True)
class Evaluation:
    given: Answered
    scores: dict[str, float | None]  # None for an undefined one; empty without labels
    remarks: list[str]  # for a reader of the scores, a sentence each

    def report(self) -> Report:
        return self.given.task.kind.report(self.given)

    def write(self, directory: Path) -> None:
        self.given.task.kind.write_predictions(directory, self.given)
        write_json(directory / METRICS_FILE, self.scores)


@dataclass(frozen=True, eq=False)
class FineTuned(Answering):
    """A model with all that is needed to use it."""

    task: Task  # with the columns and length that the model was trained with
    model: keras.Model
    tokenizer: BertTokenizer
    labels: Sequence[str] = ()  # in the order of the outputs
    plan: ProductPlan | None = None  # of products in int8

    def __post_init__(self) -> None:
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

        `of_model` finds the task: without task.json a pre-trained model guesses masked words, an
        encoder without a head embeds texts. `settings` replace those of task.json; their
        `label_map` holds pairs "MODEL_LABEL=LABEL", and another `task` has its own columns.
        """
        given = {key: value for key, value in (settings or {}).items() if value is not None}
        model: Any = None
        task = of_model(directory, given)
        if task is None:
            model = load_model(directory, dtype=dtype)
            task = of_model(directory, given, model=model)
        assert task is not None
        if not isinstance(model, task.kind.model_class):
            model = load_model(directory, task.kind.model_class, dtype=dtype, **task.kind.head(()))
        if read_settings(directory) is None and "max_length" not in given:
            positions = model.config.max_position_embeddings
            task = task.with_settings({"max_length": min(task.max_length, positions)})
        own = [task.label_aliases.get(label, label) for label in model.label_names]
        labels = _renamed(own, given.get("label_map") or [])
        if labels != own:
            task = replace(task, kind=task.kind.renamed(dict(zip(own, labels, strict=True))))
        return cls(task, model, BertTokenizer.from_directory(directory), labels)

    def save(self, directory: str | Path) -> None:
        """Writes a model directory, with the task beside the model."""
        length = self.task.max_length
        save_model(self.model, directory, tokenizer=self.tokenizer, max_length=length)
        self.task.kind.write_files(directory)
        write_json(Path(directory) / TASK_FILE, self.task.settings())

    @property
    def inputs(self) -> list[str]:
        return self.task.kind.inputs(self.task)

    @property
    def precision(self) -> str:
        """The type of the encoder's products."""
        if self.plan is not None:
            return "int8"
        return "bfloat16" if "bfloat16" in self.model.dtype_policy.name else "float32"

    def module(self, *, explanations: bool = False) -> RawTextModel:
        """One graph of tokenizer, model and answers; InputError if it has no `explanations`."""
        parts = Parts(self.model, self.tokenizer, self.labels, self.task.max_length)
        signatures = self.task.kind.all_signatures(self.task)
        if explanations:
            explanation = self.task.kind.explanation(self.task)
            if explanation is None or not isinstance(self.model.encoder, BertEncoder):
                raise InputError(
                    "the signature explain is for classifiers of texts that are not read in "
                    "windows, without LSTMs or a second encoder: leave --explanations out"
                )
            signatures["explain"] = explanation
        if self.model.config.attention_direction == "recurrent":  # LSTMs have none
            del signatures["attention"]
        bound = {name: signature.of(parts) for name, signature in signatures.items()}
        return RawTextModel(self.tokenizer, self.model, bound, self.plan)

    def function(self, name: str = DEFAULT) -> Any:
        return self.module(explanations=name == "explain").signature(name)

    @functools.cached_property
    def _evaluated(self) -> Any:
        return self.function(self.task.kind.evaluated)

    def evaluated_strings(self, examples: Examples) -> dict[str, list[Any]]:
        return {name: examples.columns[name] for name in self.inputs}

    def answers(
        self, examples: Examples, batch_size: int, answered: Progress = lambda number: None
    ) -> Answered:
        """Answers by the function that an export saves."""
        strings = self.evaluated_strings(examples)
        lengths = self.task.kind.lengths(strings, self.tokenizer)
        found = answer(self._evaluated, strings, batch_size, lengths=lengths, answered=answered)
        return Answered(self.task, examples, found, self.labels)

    def longest(self, examples: Examples, number: int) -> Examples:
        """The longest `number` examples, which take the most memory to answer."""
        lengths = self.task.kind.lengths(self.evaluated_strings(examples), self.tokenizer)
        return examples.take(np.argsort(lengths, kind="stable")[-number:])

    def evaluate(
        self, examples: Examples, batch_size: int, answered: Progress = lambda number: None
    ) -> Evaluation:
        """Scores answers to labelled examples."""
        self.task.kind.targets(examples, self.labels)  # refuses unknown labels before the work
        return self.judged(self.answers(examples, batch_size, answered))

    def judged(self, given: Answered, *, labelled: bool = True) -> Evaluation:
        """Given answers, with their scores if the examples are labelled."""
        truncated = given.answers.get("truncated")  # a user's own kind may not tell
        remarks = given.examples.remarks()
        remarks += [] if truncated is None else [self.truncation(truncated)]
        if not labelled:
            return Evaluation(given, {}, remarks)
        scores = self.task.kind.scores(given)
        remarks += self.task.kind.remarks(given, scores)
        return Evaluation(given, {"examples": len(given.examples), **scores}, remarks)

    def tuned(self, evaluation: Evaluation) -> "FineTuned":
        """The same model with the settings of its kind that are best for these examples."""
        kind = self.task.kind.tuned(evaluation.given)
        return self if kind == self.task.kind else replace(self, task=replace(self.task, kind=kind))

    def facts(self, directory: str | Path | None = None) -> dict[str, str]:
        """Rows of a model card, subject -> text; data and scores are in the model's `directory`."""
        case = "lower-cased" if self.tokenizer.settings["do_lower_case"] else "cased"
        found = {
            "task": Path(self.task.name).name,
            "kind": kind_line(self.task),
            "labels": ", ".join(self.labels),
            **(_facts_of_run(Path(directory)) if directory else {}),
            "model": f"{self.model.config.num_hidden_layers} layers, "
            f"{self.model.config.hidden_size} wide, {self.model.count_params():,} parameters, "
            f"computed in {self.precision}",
            "text": f"{case}; at most {self.task.max_length} tokens a row",
            "vocabulary": f"{self.tokenizer.vocabulary_size:,} word pieces; "
            f"{_alphabets(self.tokenizer.vocabulary)}. The languages of the training text are not "
            "recorded.",
        }
        return {subject: text for subject, text in found.items() if text}

    def export(
        self,
        name: str,
        *,
        root: str | Path,
        version: int = 0,
        directory: str | Path | None = None,
        types: Mapping[str, int] | None = None,
        facts: Mapping[str, str] | None = None,
        explanations: bool = False,
    ) -> Path:
        """Writes a SavedModel, with the scores and data that the model's `directory` tells.

        `types` are versions of the same model by type; `facts` are added to the model card.
        """
        assets = self._files() | {Path(TYPES_FILE).name: types_text(self.precision, types or {})}
        return export(
            self.module(explanations=explanations),
            name,
            root=root,
            version=version,
            assets=assets,
            facts={**self.facts(directory), **(facts or {})},
        )

    def export_portable(
        self, path: Path, format: str, *, directory: str | Path | None = None, int8: bool = False
    ) -> Path:
        """Writes the model for another runtime; see `bert_tf.serving.portable`."""
        if getattr(self.task.kind, "long_texts", None):
            raise InputError(
                f"a model that reads long texts in windows cannot be written for {format}, which "
                "takes one window: export it for TensorFlow Serving"
            )
        return export_portable(
            self.model, path, format, files=self._files(), facts=self.facts(directory), int8=int8
        )

    def _files(self) -> dict[str, str]:
        """The vocabulary, the tokenizer's settings and the task, as files beside a model."""
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save(folder)
            write_json(Path(folder) / TASK_FILE, self.task.settings())
            return {f.name: f.read_text(encoding="utf-8") for f in Path(folder).iterdir()}


@dataclass(frozen=True)
class Exported(Answering):
    predictor: Predictor
    task: Task
    labels: Sequence[str] = ()

    @functools.cached_property
    def tokenizer(self) -> BertTokenizer:  # type: ignore[override]
        return BertTokenizer.from_directory(self.predictor.directory / ASSETS)

    def function(self, name: str = DEFAULT) -> Any:
        return self.predictor.signature(name)

    def signatures(self) -> dict[str, Any]:
        own = self.predictor.signatures
        return {name: known for name, known in super().signatures().items() if name in own}


def load(model: str | Path, settings: Mapping[str, Any]) -> Answering:
    """Loads `saved_models/<name>`, the folder of one version, or a model directory."""
    if (Path(model) / CONFIG).is_file():
        return FineTuned.from_directory(model, settings)
    predictor = Predictor(model)
    task = TASKS["classification"]
    try:
        task = of_model(predictor.directory) or task
    except InputError:  # a SavedModel does not carry the code of a task of one's own
        task = task.with_settings(read_settings(predictor.directory) or {})
    for name in ("task", "max_length", "label_map", *task.kind.settings()):
        if settings.get(name) not in (None, []):
            raise InputError(f"--{name} is fixed in a SavedModel: give it to bert-tf export")
    task = with_options(task, settings)
    if "text_pair" in predictor.inputs and task.pair is None and settings.get("input"):
        raise InputError(f"{model} takes pairs: name the second text's column with --pair_column")
    return Exported(predictor, task)


def _renamed(labels: Sequence[str], label_map: Sequence[str]) -> list[str]:
    """Labels under the names that data uses for them."""
    names = {}
    for entry in label_map:
        old, equals, new = entry.partition("=")
        if not equals or old not in labels:
            raise InputError(
                f"--label_map {entry}: give MODEL_LABEL=LABEL, with a label of the model "
                f"({', '.join(labels)})"
            )
        names[old] = new
    renamed = [names.get(label, label) for label in labels]
    if len(set(renamed)) < len(renamed):
        raise InputError(f"--label_map gives one name to two labels: {', '.join(renamed)}")
    return renamed


def run_options(directory: str | Path) -> dict[str, Any]:
    """The options of the run that wrote a model directory, as far as they are recorded."""
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        content = read_small_file(Path(directory).resolve().parent / "config.yaml")
        if isinstance(options := yaml.safe_load(content.decode("utf-8")), dict):
            return options
    return {}


def _facts_of_run(directory: Path) -> dict[str, str]:
    """Data and scores of the fine-tuning run that wrote a model directory, if it is one."""
    options = run_options(directory)
    names = ("data", "train", "validation")
    found = {"data": ", ".join(f"{n} {options[n]}" for n in names if options.get(n))}
    with contextlib.suppress(InputError):  # there is no such file
        scores = read_json_object(directory / METRICS_FILE)
        numbers = {key: value for key, value in scores.items() if isinstance(value, int | float)}
        count = numbers.pop("examples", None)
        found["scores"] = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        if found["scores"] and count:
            found["scores"] += f" ({count} validation examples, in float32)"
    return found


def _alphabets(pieces: Sequence[str]) -> str:
    """Alphabets of 1% or more of the pieces of letters, such as "Latin 93%, Cjk 4%"."""
    written = [piece for piece in pieces if not re.fullmatch(r"\[.+\]", piece)]  # no [CLS]
    letters = (re.search(r"[^\W\d_]", piece) for piece in written)
    names = [unicodedata.name(letter[0], "").split(" ")[0] for letter in letters if letter]
    counts = Counter(name for name in names if name)
    return "letters: " + ", ".join(
        f"{'Chinese characters' if name == 'CJK' else name.capitalize()} {count / len(names):.0%}"
        for name, count in counts.most_common()
        if count / len(names) >= 0.01
    )
