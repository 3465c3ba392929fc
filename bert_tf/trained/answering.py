"""Models that answer raw strings, and how the data that they are asked with are read."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.encoder_signatures import ENCODER_SIGNATURES
from bert_tf.serving.signatures import DEFAULT, PREDICT, find_signature
from bert_tf.tasks.kinds.embedding import Embedding
from bert_tf.tasks.task import Task
from pipelines.examples.labelled_text import Examples
from pipelines.examples.tagged_words import is_column_file


class Answering:
    """A model that answers, from a model directory or a SavedModel."""

    task: Task  # names the columns
    labels: Sequence[str]  # in the order of the outputs; empty if they are not known

    def function(self, name: str = DEFAULT) -> Any:
        """The function of a signature, as of `bert_tf.serving.predictor.answer`."""
        raise NotImplementedError

    def inputs_of(self, signature: str | None) -> list[str]:
        """Names of the strings that a signature takes; None for the default one."""
        found = find_signature(self.task.kind.all_signatures(self.task), signature or DEFAULT)
        is_text = all(each.dtype == tf.string for each in found.inputs.values())
        if not is_text or found.method_name != PREDICT:
            raise InputError(
                f"--signature {signature} takes {', '.join(found.inputs)}, not raw strings: ask a "
                "server for it, or give another signature"
            )
        return list(found.inputs)

    def reader(self, signature: str | None, path: str) -> Task:
        """The task that reads a file of strings for a signature; None for the default one.

        A .txt file is a text per line, unless it holds words in columns.
        """
        task = self.task
        if signature in ENCODER_SIGNATURES:
            task = replace(task, kind=Embedding(), pair=None)
        is_text = path.lower().removesuffix(".gz").endswith(".txt") and Path(path).is_file()
        takes_texts = task.format is None and self.inputs_of(signature) == ["text"]
        if is_text and takes_texts and not is_column_file(path):
            task = replace(task, format="lines")
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
        fits = (name for name in own if own[name].inputs.keys() == set(inputs))
        return next(fits, DEFAULT)

    def truncation(self, truncated: Sequence[int] | np.ndarray) -> str:
        """A sentence that says how many examples were truncated, by what each of them lost."""
        number = int(np.count_nonzero(truncated))
        return self.task.kind.truncation(number, len(truncated), self.task.max_length)
