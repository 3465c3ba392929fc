"""Options of a task and its files. Importing this module is quick, as `--help` needs it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, PathName, option


@dataclass(kw_only=True)
class StrideOptions(CheckedOptions):
    """Options for windows."""

    doc_stride: int | None = option(None, at_least=1, identity=False)
    """word pieces between the starts of two windows, for SQuAD and --long_texts windows."""


@dataclass(kw_only=True)
class LongTextOptions(StrideOptions):
    """Options for long texts; those not given keep the kind's settings."""

    long_texts: Literal["windows"] | None = option(None, identity=False)
    """windows reads texts longer than --max_length whole, in windows whose outputs are pooled; by
    default they are truncated. For classification and regression of single texts, and for
    embeddings."""
    window_pooling: Literal["mean", "max"] | None = option(None, identity=False)
    """pooling of the outputs of a text's windows: their mean, the default, or their maximum."""


@dataclass(kw_only=True)
class SpanOptions(StrideOptions):
    """Options for question answering; those not given keep the kind's settings."""

    max_query_length: int | None = option(None, at_least=1, identity=False)
    """maximum word pieces of a question, for SQuAD; longer questions are truncated."""
    max_answer_length: int | None = option(None, at_least=1, identity=False)
    """maximum word pieces of an answer, for SQuAD."""


@dataclass(kw_only=True)
class MultiLabelOptions(LongTextOptions):
    """Options for multi-label classification; those not given keep the kind's settings."""

    label_separator: str | None = option(None, identity=False)
    """separator between the labels of an example; "," by default."""


@dataclass(kw_only=True)
class EmbeddingOptions(LongTextOptions):
    """Options for sentence embeddings; those not given keep the kind's settings."""

    embedding_loss: Literal["infonce", "cosent", "cosine", "simcse"] | None = option(
        None, identity=False
    )
    """training loss of sentence embeddings: infonce for pairs, with the other texts of the batch as
    negatives (the default); cosent or cosine for scored pairs; simcse for single texts."""
    negatives: str | None = option(None, identity=False)
    """column of a hard negative for each pair, for infonce; "negative*" for negative0,
    negative1."""
    pooling: Literal["mean", "cls", "max", "last"] | None = option(None, identity=False)
    """pooling of a text's token vectors: their mean or max, the vector of [CLS], or that of the
    last token; by default what the model directory records, or mean."""
    normalize: bool | None = option(None, identity=False)
    """whether to normalize embeddings to length 1; by default what the model directory records."""
    scale: float | None = option(None, above=0, identity=False)
    """inverse temperature of infonce, simcse and cosent; 20 by default."""


@dataclass(kw_only=True)
class TaskOptions(MultiLabelOptions, EmbeddingOptions, SpanOptions):
    """Options of a task."""

    task: str | None = option(None, first=True)
    """a task or data set that `bert-tf tasks` lists, or a Python file that defines TASK; by default
    what task.json beside the model says, or classification."""
    pair_column: str | None = option(None, identity=False)
    """column of the second text of a pair, by name or by number counted from 0."""
    max_length: int | None = option(None, at_least=3)
    """maximum tokens per example, [CLS] and [SEP] included; longer texts are truncated. By default
    what the model was fine-tuned with, 128 for a new one."""


@dataclass(kw_only=True)
class FileOptions(CheckedOptions):
    """Options for reading files of texts."""

    text_column: str | None = option(None, identity=False)
    """column of the text, or of the first text of a pair, by name or by number counted from 0; by
    default what the model was fine-tuned with, or "text"."""
    format: Literal["tsv", "csv", "jsonl", "lines", "conll"] | None = option(None, identity=False)
    """file format: tsv without quotes, csv with quotes, jsonl with one object per line, lines with
    one text each, or conll with one word each; by default the extension decides."""
    header: bool = option(True, identity=False)
    """whether the first line of a table names the columns."""


def check_stored(values: Mapping[str, Any]) -> None:
    """Refuses values of a task.json that are no values of the options; others are a kind's own."""
    options = {field.name for field in fields(EvaluationOptions)}
    known = {name: value for name, value in values.items() if name in options}
    try:
        EvaluationOptions(data="-", **known)
    except InputError as error:
        raise InputError(f"{str(error).removeprefix('--')}, or restore the file") from None


@dataclass(kw_only=True)
class EvaluationOptions(TaskOptions, FileOptions):
    """Options that `bert-tf evaluate` and `ensemble` share."""

    data: PathName = option(path=True)
    """examples: a .tsv, .csv or .jsonl file; the folder of a data set's published files; or its
    name in TensorFlow Datasets, such as tfds:glue/mrpc; "-" for standard input."""
    label_column: str | None = None
    """column of the label, by name or number."""
    label_map: list[str] = option(factory=list)
    """names that the model's labels have in the data, as MODEL_LABEL=LABEL."""
    output: PathName | None = option(None, writes="folder")
    """folder for metrics.json, the task's predictions and the report; by default none."""
    batch_size: int = option(32, at_least=1)
    """examples per batch."""
