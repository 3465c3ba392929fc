"""Files of features: TFRecord, NumPy's .npy and JSON lines; docs/features.md has their fields."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.atomic import replace_file
from bert_tf.errors import InputError

Write = Callable[[dict[str, Any]], object]


def check_format(path: str | Path) -> None:
    """Refuses a file whose name does not tell its format."""
    if Path(path).suffix not in _FORMATS:
        raise InputError(f"{path}: unknown format: name a file {', '.join(_FORMATS)}")


def written_files(path: Path, per: str) -> list[Path]:
    """The files that `feature_file` writes for a vector of every `per`."""
    more = path.suffix == ".npy" and per != "text"
    return [path, *([path.with_name(f"{path.name}.jsonl")] if more else [])]


def how_to_read(path: str | Path) -> str:
    """Python that opens the file."""
    return _FORMATS[Path(path).suffix][1].format(path)


def feature_file(path: Path, width: int) -> AbstractContextManager[Write]:
    """Yields a function that writes a record of `FeatureExtractor`; the file appears at the end.

    A .npy file holds the vectors, of this `width`, of all records one after another. Where a text
    has several, a second file, <path>.jsonl, holds the other fields of each record.
    """
    return _FORMATS[path.suffix][0](path, width)


@contextmanager
def _json_lines(path: Path, width: int) -> Iterator[Write]:
    """Numbers have six decimals, as in the original's extract_features.py."""

    def plain(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return (value.astype(np.float64) if value.dtype.kind == "f" else value).round(6).tolist()

    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:

        def write(record: dict[str, Any]) -> None:
            values = {name: plain(value) for name, value in record.items()}
            file.write(json.dumps(values, ensure_ascii=False) + "\n")

        yield write


@contextmanager
def _tfrecord(path: Path, width: int) -> Iterator[Write]:
    def feature(value: Any) -> tf.train.Feature:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=value.ravel()))
        if isinstance(value, np.ndarray):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        texts = [value] if isinstance(value, str) else value
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))

    with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:

        def write(record: dict[str, Any]) -> None:
            fields = {name: feature(value) for name, value in record.items()}
            example = tf.train.Example(features=tf.train.Features(feature=fields))
            writer.write(example.SerializeToString())

        yield write


@contextmanager
def _npy(path: Path, width: int) -> Iterator[Write]:
    rows = 0

    def write_header() -> None:
        # NumPy leaves room in it for the first axis to grow.
        file.seek(0)
        description = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, description)

    with ExitStack() as stack:
        # The vectors appear last: where they are, the other file is.
        file = stack.enter_context(stack.enter_context(replace_file(path)).open("wb"))
        write_others: Write | None = None
        write_header()

        def write(record: dict[str, Any]) -> None:
            nonlocal rows, write_others
            others = dict(record)
            vectors = others.pop("vectors" if "vectors" in others else "vector")
            rows += len(np.atleast_2d(vectors)) if vectors.size else 0
            file.write(vectors.astype("<f4").tobytes())
            if "vectors" in record:
                if write_others is None:
                    beside = written_files(path, "")[1]
                    write_others = stack.enter_context(_json_lines(beside, width))
                write_others(others)

        yield write
        write_header()


# Extension -> what writes it, and Python that opens it.
_FORMATS: dict[str, tuple[Callable[[Path, int], AbstractContextManager[Write]], str]] = {
    ".npy": (_npy, 'np.load("{}", mmap_mode="r")'),
    ".jsonl": (_json_lines, '[json.loads(line) for line in open("{}")]'),
    ".tfrecord": (_tfrecord, 'tf.data.TFRecordDataset("{}")'),
}
