"""Models that answer raw strings: an exported SavedModel or a fine-tuned model directory."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints.formats import CONFIG
from bert_tf.errors import InputError
from bert_tf.serving.encoder_signatures import ENCODER_SIGNATURES
from bert_tf.serving.export import ASSETS
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.signatures import DEFAULT, PREDICT, find_signature
from bert_tf.tasks.kinds.embedding import Embedding
from bert_tf.tasks.table import TASKS, find_task, with_options
from bert_tf.tasks.task import Task
from bert_tf.tokenization.tokenizer import VOCABULARY_FILE, BertTokenizer
from bert_tf.trained.fine_tuned import TASK_FILE, FineTuned, read_settings
from pipelines.examples.labelled_text import Examples
from pipelines.examples.tagged_words import is_column_file


@dataclass(frozen=True)
class Answering:
    """A model that answers, and how its data are read.

    Attributes:
        signature: gives the function of a name, as of `bert_tf.serving.predictor.answer`.
        task: dataset that names the columns.
        labels: label names in the order of the outputs; empty if they are not known.
        tokenizer: the model's tokenizer; None if a SavedModel has no copy of it.
    """

    signature: Callable[[str], Any]
    task: Task
    labels: Sequence[str] = ()
    tokenizer: BertTokenizer | None = None

    def cut(self, strings: Mapping[str, Sequence[Any]]) -> tuple[int, str]:
        """How many inputs are cut, as of `Kind.cut`; no sentence if it is not known."""
        if self.tokenizer is None:
            return 0, ""
        return self.task.kind.cut(strings, self.tokenizer, self.task.max_length)

    def inputs(self, signature: str | None) -> list[str]:
        """Names of the strings that a signature takes; None for the default one.

        Raises:
            InputError: there is no such signature, or it takes no raw strings.
        """
        found = find_signature(self.task.kind.all_signatures(self.task), signature or DEFAULT)
        is_text = all(each.dtype == tf.string for each in found.inputs.values())
        if not is_text or found.method_name != PREDICT:
            raise InputError(
                f"--signature {signature} takes {', '.join(found.inputs)}, not raw strings: ask a "
                "server for it, or give another signature"
            )
        return list(found.inputs)

    def reader(self, signature: str | None, path: str) -> Task:
        """What reads a file of strings for a signature; None for the default one.

        A .txt file is a text per line, unless it holds words in columns.
        """
        task = self.task
        if signature in ENCODER_SIGNATURES:
            task = replace(task, kind=Embedding(), pair=None)
        is_text = path.lower().removesuffix(".gz").endswith(".txt") and Path(path).is_file()
        takes_texts = task.format is None and self.inputs(signature) == ["text"]
        if is_text and takes_texts and not is_column_file(path):
            task = replace(task, format="lines")
        return task

    def strings(self, examples: Examples, signature: str | None) -> dict[str, list[str]]:
        """The strings that a signature takes; None for the one that takes what is there.

        Raises:
            InputError: the signature takes strings that are not there.
        """
        columns = examples.columns
        if signature is not None:
            names = self.inputs(signature)
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
        names = (DEFAULT, *own)
        return next((name for name in names if own[name].inputs.keys() == set(inputs)), DEFAULT)


def load(model: str | Path, settings: Mapping[str, Any]) -> Answering:
    """Loads a SavedModel or a fine-tuned model directory.

    Args:
        model: `saved_models/<name>`, the folder of one version, or a model directory.
        settings: see `FineTuned.from_directory`.

    Raises:
        InputError: neither is there, or a setting cannot be changed in a SavedModel.
    """
    if (Path(model) / CONFIG).is_file():
        tuned = FineTuned.from_directory(model, settings)
        return Answering(tuned.module().signature, tuned.task, tuned.labels, tuned.tokenizer)
    predictor = Predictor(model)
    assets = predictor.directory / ASSETS
    stored = read_settings(assets / TASK_FILE) or {}
    try:
        task = find_task(stored.get("task", "classification"), brought_by=predictor.directory)
    except InputError:  # a SavedModel does not carry the code of a task of one's own
        task = TASKS["classification"]
    for name in ("task", "max_length", "label_map", *task.kind.settings()):
        if settings.get(name):
            raise InputError(f"--{name} is fixed in a SavedModel: give it to bert-tf export")
    task = with_options(task.with_settings(stored), settings)
    if "text_pair" in predictor.inputs and task.pair is None and settings.get("input"):
        raise InputError(f"{model} takes pairs: name the second text's column with --pair_column")
    has_tokenizer = (assets / VOCABULARY_FILE).is_file()
    tokenizer = BertTokenizer.from_directory(assets) if has_tokenizer else None
    return Answering(predictor.signature, task, tokenizer=tokenizer)
