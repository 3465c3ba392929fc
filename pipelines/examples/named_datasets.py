"""Records of TensorFlow Datasets, as JSON would have them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipelines.corpus.sources import dataset_errors, open_dataset


def dataset_records(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each record of a dataset and its place, for messages.

    Args:
        name: `tfds:NAME/CONFIG:SPLIT`; without a split `train`.

    Raises:
        InputError: TensorFlow Datasets is not installed, or has no such dataset or split.
    """
    with dataset_errors(name):
        builder, split = open_dataset(name)
        records = builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator()
    for number, record in enumerate(records):
        yield f"{name}, example {number}", _plain(record)


def _plain(value: Any) -> Any:
    """Dicts, lists, strings and numbers in place of NumPy's."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value
