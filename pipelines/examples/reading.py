"""Text files, and the records of JSON lines and of TensorFlow Datasets."""

import functools
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.corpus.sources import TFDS, dataset_errors, open_dataset, tensorflow_datasets
from bert_tf.pipelines.corpus.text_files import BLOCK_BYTES, check_is_text
from bert_tf.pipelines.examples.memory import plain

Record = tuple[int, dict[str, Any]]  # line, or number in a data set; fields


def read_text(path: StrPath) -> str:
    """Reads a UTF-8 file, plain or gzip; "-" is standard input. It must not be empty."""
    try:
        content = _read_once(sys.stdin) if str(path) == "-" else Path(path).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        check_is_text(shown_name(path), content[:BLOCK_BYTES])
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: invalid UTF-8; save the file as UTF-8, or convert it from its "
            "encoding, such as iconv -f WINDOWS-1252 -t UTF-8 for Western languages"
        ) from error
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); check the path") from error
    if not text.strip():
        raise InputError(f"{path}: the file is empty; give one with examples")
    return text


@functools.lru_cache(maxsize=1)
def _read_once(stream: TextIO) -> bytes:
    """The content of standard input, which can be asked for again."""
    return stream.buffer.read()


def shown_name(path: object) -> str:
    return "standard input" if str(path) == "-" else str(path)


def is_dataset_name(path: object) -> bool:
    return str(path).startswith(TFDS)


def split_in(name: str) -> str | None:
    """The split that a name of TensorFlow Datasets ends with, such as "test"; None without one."""
    last = name.removeprefix(TFDS).rpartition(":")
    return last[2] if last[0] and not last[2][:1].isdecimal() else None  # a number is the version


def add_fault(fault: InputError, faults: list[InputError] | None) -> None:
    """Adds a fault to the others, or raises it if nobody takes them."""
    if faults is None:
        raise fault
    faults.append(fault)


def read_records(path: StrPath, faults: list[InputError] | None = None) -> Iterator[Record]:
    """Reads JSON lines, "-" for standard input, or `tfds:NAME/CONFIG:SPLIT`, by default `train`.

    In a dataset, a class label becomes its name, by the dataset's own list of names, or "" if it is
    unknown (-1). What is stored is shuffled: records with a field `idx`, the row in the published
    file, come in that order and have that number. Lines that are no objects are skipped and added
    to `faults`; without it InputError names the first.
    """
    if is_dataset_name(path):
        for number, record in enumerate(_dataset_records(str(path))):
            yield record.get("idx", number), record
        return
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            location = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                add_fault(
                    InputError(f"{location}: not JSON ({error}); write one object a line"), faults
                )
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                fault = f"{location}: not a JSON object; write one object a line"
                add_fault(InputError(fault), faults)


def _dataset_records(name: str) -> list[dict[str, Any]]:
    with dataset_errors(name):
        builder, split = open_dataset(name)
        features = builder.info.features
        names = {key: _label_names(name, feature) for key, feature in features.items()}
        records = [
            {key: _named(plain(value, "replace"), names[key]) for key, value in record.items()}
            for record in builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator()
        ]
    return sorted(records, key=lambda record: record["idx"]) if "idx" in features else records


def _label_names(name: str, feature: Any) -> list[str] | None:
    """The names of a class label, or of the labels in a list; None for other features."""
    feature = getattr(feature, "feature", feature)  # of a list
    is_label = isinstance(feature, tensorflow_datasets(name).features.ClassLabel)
    return feature.names if is_label else None


def _named(value: Any, names: list[str] | None) -> Any:
    if names is None:
        return value
    if isinstance(value, list):
        return [_named(x, names) for x in value]
    return names[value] if value >= 0 else ""
