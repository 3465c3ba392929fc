"""A model that answers raw strings: a Keras model or an export, with its task."""

import functools
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.sentence_files import write_prompts
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json
from bert_tf.files.model_files import TASK_FILE
from bert_tf.models.saving import save_model
from bert_tf.networks.tensorflow.int8 import ProductPlan
from bert_tf.pipelines.examples.table import Examples
from bert_tf.pipelines.examples.tagged_words import is_column_file
from bert_tf.serving.engines import TWINS
from bert_tf.serving.export import export
from bert_tf.serving.portable import SUFFIXES, check_portable, export_portable, write_portable
from bert_tf.serving.precisions import TYPES_FILE, types_text
from bert_tf.serving.predictor import Predictor, Progress, answer
from bert_tf.tasks.encoder_signatures import ENCODER_SIGNATURES, all_signatures
from bert_tf.tasks.explanations import explanation
from bert_tf.tasks.kinds.choice import Choice
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.kinds.regression import Regression
from bert_tf.tasks.kinds.sentence_embedding import RECORDED, Embedding, SentenceEmbedding
from bert_tf.tasks.predictions import write_predictions
from bert_tf.tasks.remarks import remarks_on_classes, remarks_on_scores, truncation
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.reports.tables import Report
from bert_tf.tasks.signatures import (
    DEFAULT,
    PREDICT,
    RawTextModel,
    Step,
    find_signature,
    no_step,
)
from bert_tf.tasks.task import Task
from bert_tf.text.model_facts import METRICS_FILE, model_facts

_OF_WHOLE_TEXTS = (Classification, Regression, MultiLabel, Choice, Embedding, SentenceEmbedding)


@dataclass(frozen=True)
class Evaluation:
    """Examples with their answers, and the scores of these."""

    answered: Answered
    scores: dict[str, float | None]  # None for an undefined one; empty without labels
    remarks: list[str]  # for a reader of the scores, a sentence each

    def report(self) -> Report:
        return report(self.answered.task.kind, self.answered)

    def write(self, directory: Path) -> None:
        write_predictions(self.answered.task.kind, directory, self.answered)
        write_json(directory / METRICS_FILE, self.scores)


@dataclass(frozen=True, eq=False)
class Answerer:
    """A model that answers raw strings, with its task and tokenizer.

    Args:
        task: the task, with the columns and the length that the model was trained with.
        model: a Keras model, or the `Predictor` of an export.
        tokenizer: a `BertTokenizer`; None for an export, whose graph has it.
        labels: labels in the order of the outputs; none if they are unknown.
        plan: products to compute in int8; None for none.
    """

    task: Task
    model: Any
    tokenizer: Any
    labels: Sequence[str] = ()
    plan: ProductPlan | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model, keras.Model):
            pairs = self.task.pair is not None
            self.model.config.check_fits(length=self.max_length, pairs=pairs)

    @classmethod
    def of(cls, model: Any, task: Task | None = None, tokenizer: Any = None) -> "Answerer":
        """The answerer of a Keras model, by default with the task and tokenizer that it carries.

        Labels have the task's names.
        """
        task = task or model.preprocessor.task
        labels = task.canonical_labels(model.label_names)
        return cls(task, model, tokenizer or model.preprocessor.tokenizer, labels)

    @property
    def max_length(self) -> int:
        return self.task.max_length

    @property
    def inputs(self) -> list[str]:
        """Names of the strings that evaluation asks with."""
        return self.task.inputs

    @property
    def precision(self) -> str:
        """The type of the encoder's products."""
        if self.plan is not None:
            return "int8"
        return "bfloat16" if "bfloat16" in self.model.dtype_policy.name else "float32"

    def predict(self, rows: Any) -> Any:
        """The Keras model's outputs for rows of tokens, in graph."""
        return self.model(rows, training=False)

    def signatures(self) -> dict[str, Any]:
        """The signatures that can be asked, by name."""
        signatures = all_signatures(self.task)
        if explained := explanation(self.task):
            signatures["explain"] = explained
        if isinstance(self.model, Predictor):
            return {name: x for name, x in signatures.items() if name in self.model.signatures}
        return signatures

    def function(self, name: str = DEFAULT) -> Any:
        """The function of a signature, for `bert_tf.serving.predictor.answer`."""
        if isinstance(self.model, Predictor):
            return self.model.signature(name)
        return self.module(explanations=name == "explain").signature(name)

    def module(self, *, explanations: bool = False) -> RawTextModel:
        """One graph of tokenizer, model and answers; InputError if it has no `explanations`."""
        signatures = all_signatures(self.task)
        if explanations:
            explained = explanation(self.task)
            if explained is None or not self.model.encoder.is_explained:
                raise InputError(
                    "the signature explain is for classifiers of texts that are not read in "
                    "windows, without LSTMs or a second encoder: leave --explanations out"
                )
            signatures["explain"] = explained
        if not getattr(self.model, "encoder", self.model).has_attention:
            del signatures["attention"]
        return RawTextModel(replace(self, model=self.model.answering_model()), signatures)

    def inputs_of(self, signature: str | None) -> list[str]:
        """Names of the strings that a signature takes; InputError if it takes others."""
        asked = find_signature(self.signatures(), signature or DEFAULT)
        is_text = all(spec.dtype == tf.string for spec in asked.inputs.values())
        if not is_text or asked.method_name != PREDICT:
            raise InputError(
                f"--signature {signature} takes {', '.join(asked.inputs)}, not raw strings: ask a "
                "server for it, or give another signature"
            )
        return list(asked.inputs)

    def signature_for(self, inputs: Collection[str]) -> str:
        """The signature that takes inputs of these names, if there is one, or else the default."""
        signatures = self.task.kind.signatures(self.task).items()
        names = (name for name, x in signatures if x.inputs.keys() == set(inputs))
        return next(names, DEFAULT)

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
        if signature is not None:
            names = self.inputs_of(signature)
            if missing := [name for name in names if name not in examples.columns]:
                raise InputError(
                    f"{examples.path} has no {' and no '.join(missing)} for --signature "
                    f"{signature}: give a file with {', '.join(names)}"
                )
        else:
            signatures = self.task.kind.signatures(self.task).values()
            names = list(dict.fromkeys(name for x in signatures for name in x.inputs))
        return {name: examples.columns[name] for name in names if name in examples.columns}

    def evaluated_strings(self, examples: Examples) -> dict[str, list[Any]]:
        return {name: examples.columns[name] for name in self.inputs}

    def longest(self, examples: Examples, number: int) -> Examples:
        """The longest `number` examples, which take the most memory to answer."""
        lengths = self.task.kind.lengths(self.evaluated_strings(examples), self.tokenizer)
        return examples.take(np.argsort(lengths, kind="stable")[-number:])

    @functools.cached_property
    def _evaluated(self) -> Any:
        return self.function(self.task.kind.evaluated)

    def answers(
        self, examples: Examples, batch_size: int, answered: Progress = lambda number: None
    ) -> Answered:
        """Answers by the function that an export saves."""
        strings = self.evaluated_strings(examples)
        lengths = self.task.kind.lengths(strings, self.tokenizer)
        answers = answer(self._evaluated, strings, batch_size, lengths=lengths, answered=answered)
        return Answered(self.task, examples, answers, self.labels)

    def evaluate(
        self, examples: Examples, batch_size: int, answered: Progress = lambda number: None
    ) -> Evaluation:
        """Scores answers to labelled examples."""
        self.task.kind.targets(examples, self.labels)  # refuses unknown labels before the work
        return self.judged(self.answers(examples, batch_size, answered))

    def judged(self, answered: Answered, *, labelled: bool = True) -> Evaluation:
        """Evaluates answers; there are scores if the examples are labelled."""
        truncated = answered.answers.get("truncated")  # a user's own kind may lack it
        remarks = answered.examples.remarks()
        remarks += [] if truncated is None else [self.truncation(truncated)]
        if not labelled:
            return Evaluation(answered, {}, remarks)
        scores = self.task.kind.scores(answered)
        remarks += [*remarks_on_scores(answered, scores), *remarks_on_classes(answered)]
        return Evaluation(answered, {"examples": len(answered.examples), **scores}, remarks)

    def truncation(self, truncated: Sequence[int] | np.ndarray) -> str:
        """A sentence that says how many examples were truncated, by the pieces that each lost."""
        return truncation(self.task.kind, truncated, self.max_length)

    def tuned(self, evaluation: Evaluation) -> "Answerer":
        """The same model with the settings of its kind that are best for these examples."""
        kind = self.task.kind.tuned(evaluation.answered)
        return self if kind == self.task.kind else replace(self, task=replace(self.task, kind=kind))

    def save(self, directory: str | Path) -> None:
        """Writes a model directory, with the task beside the model."""
        save_model(self.model, directory, tokenizer=self.tokenizer, max_length=self.max_length)
        if isinstance(self.task.kind, SentenceEmbedding):
            write_prompts(directory, **{name: getattr(self.task.kind, name) for name in RECORDED})
        write_json(Path(directory) / TASK_FILE, self.task.settings())

    def export_version(self, folder: str | Path) -> Path:
        """Writes a SavedModel as the folder NAME/VERSION; InputError if it cannot be one."""
        folder = Path(folder)
        if format := {suffix: name for name, suffix in SUFFIXES.items()}.get(folder.suffix):
            raise InputError(f'{folder} is a {format} file: add format="{format}"')
        models = folder.parent
        version = folder.name
        if not version.isdecimal() or not int(version):
            raise InputError(f"{folder}: TensorFlow Serving wants a number: give {folder}/1")
        return self.export(models.name, root=models.parent, version=int(version))

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
        step: Step = no_step,
        twin: "Answerer | None" = None,
        twin_formats: Sequence[str] = (),
    ) -> Path:
        """Writes a SavedModel, with the scores and data that the model's `directory` records.

        `types` are versions of the same model by type; `facts` are added to the model card. `twin`
        is the same model in float32, or with the same plan, to stand beside in `twin_formats`, of
        `engines.TWINS`.
        """
        assets = self._files() | {Path(TYPES_FILE).name: types_text(self.precision, types or {})}
        return export(
            self.module(explanations=explanations),
            name,
            root=root,
            version=version,
            assets=assets,
            facts={**model_facts(self, directory), **(facts or {})},
            step=step,
            write_beside=self._twin_writer(twin, twin_formats) if twin else lambda folder: None,
        )

    def _twin_writer(self, twin: "Answerer", formats: Sequence[str]) -> Callable[[Path], object]:
        for format in formats:
            check_portable(twin.model, format)
            twin.check_whole_texts(format)
        if type(twin.task.kind) not in _OF_WHOLE_TEXTS:
            raise InputError(
                "a model whose answers have places in the text has no twin: leave --twin out"
            )

        def write(folder: Path) -> None:
            is_half = self.precision == "bfloat16"
            for format in formats:
                path = folder / TWINS[format]
                path.parent.mkdir()
                write_portable(twin.model, path, format, answerer=twin, bfloat16=is_half)

        return write

    def check_whole_texts(self, format: str) -> None:
        """Raises InputError for a model that reads windows, which a format cannot do."""
        if getattr(self.task.kind, "long_texts", None):
            raise InputError(
                f"a model that reads long texts in windows cannot be written for {format}, which "
                "takes one window: export it for TensorFlow Serving"
            )

    def export_portable(
        self,
        path: Path,
        format: str,
        *,
        directory: str | Path | None = None,
        int8: bool = False,
        bfloat16: bool = False,
        facts: Mapping[str, str] | None = None,
    ) -> Path:
        """Writes the model for another runtime; see `bert_tf.serving.portable`.

        `facts` are added to the model card.
        """
        reads_text = self.reads_text_in(format)
        if (bfloat16 or self.plan) and not reads_text:
            raise InputError(
                f"{'bfloat16' if bfloat16 else 'int8'} is for models that take raw strings in "
                "OpenVINO, not for this one: leave it out"
            )
        self.check_whole_texts(format)
        facts = {**model_facts(self, directory), **(facts or {})}
        return export_portable(
            self.model,
            path,
            format,
            files=self._files(),
            facts=facts | ({"precision": "bfloat16"} if bfloat16 else {}),
            int8=int8,
            answerer=self if reads_text else None,
            bfloat16=bfloat16,
        )

    def reads_text_in(self, format: str) -> bool:
        """Whether an export in this format takes raw strings, as all SavedModels do.

        Not where an answer has places in the text: OpenVINO's operations tell none.
        """
        return format == "openvino" and type(self.task.kind) in _OF_WHOLE_TEXTS

    def _files(self) -> dict[str, str]:
        """The vocabulary, the tokenizer's settings and the task, as files beside a model."""
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save(folder)
            write_json(Path(folder) / TASK_FILE, self.task.settings())
            return {f.name: f.read_text(encoding="utf-8") for f in Path(folder).iterdir()}
