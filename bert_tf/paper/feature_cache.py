"""Vectors of a frozen encoder, cached on disk: each text passes through the encoder once."""

import functools
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.weight_names import named_weights
from bert_tf.paper.feature_encoder import FrozenLayers

_ENTRY = np.dtype([("key", "V16"), ("first", "<i8"), ("count", "<i8")])  # of the index
_SPARE = 0.1  # share of the free space that stays free


class FeatureCache:
    """Stores the vectors that `FrozenLayers` have computed, by the tokens of each row.

    A run that was killed reads them again from `folder`; None for temporary files. A cache of other
    weights or layers is replaced. Once nine tenths of the free space are used, vectors that are
    missing are computed each time.
    """

    def __init__(self, features: FrozenLayers, folder: Path | None) -> None:
        self.full = False  # whether there was no room for some vectors
        self._features = features
        self._vector_bytes = features.width * np.dtype(np.float32).itemsize
        self._folder = folder
        self._limit = 0  # bytes of vectors; known with the files
        self._entries: dict[bytes, tuple[int, int]] = {}  # key -> first vector, count
        self._end = 0  # number of vectors
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def remember(
        self, inputs: dict[str, tf.Tensor], compute: Callable[[Any], tf.Tensor]
    ) -> tf.Tensor:
        """Vectors [R, T, W] of model inputs [R, T] each; runs in graph. See `FrozenLayers`.

        If a row is missing all are computed: the cache must not change a batch's numbers.
        """
        rows = [inputs[name] for name in ("token_ids", "segment_ids", "padding_mask")]
        stored, complete = tf.numpy_function(self._read, rows, [tf.float32, tf.bool])

        def computed() -> tf.Tensor:
            vectors = tf.cast(compute(inputs), tf.float32)
            written = tf.numpy_function(self._write, [*rows, vectors], tf.bool)
            with tf.control_dependencies([written]):
                return tf.identity(vectors)

        vectors = tf.cond(tf.ensure_shape(complete, []), lambda: stored, computed)
        vectors = tf.ensure_shape(vectors, [*rows[0].shape, self._features.width])
        return tf.cast(vectors, self._features.compute_dtype)

    def close(self) -> None:
        with self._lock:
            self._stack.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, *rows: np.ndarray) -> tuple[np.ndarray, np.bool_]:
        """The vectors, zero at padding, and whether all were stored."""
        with self._lock:
            file, _ = self._files
            entries = [self._entries[key] for key, _ in _keys(*rows) if key in self._entries]
        if len(entries) < len(rows[0]):
            return np.zeros((0, 0, self._features.width), np.float32), np.bool_(False)
        vectors = np.zeros((*rows[0].shape, self._features.width), np.float32)
        for row, (first, count) in zip(vectors, entries, strict=True):
            os.preadv(file.fileno(), [row[:count]], first * self._vector_bytes)
        return vectors, np.bool_(True)

    def _write(self, *arrays: np.ndarray) -> np.bool_:
        """Stores the vectors of new rows if there is room; returns whether there was."""
        *rows, computed = arrays
        with self._lock:
            vectors, index = self._files
            entries = {}
            new = []
            end = self._end
            for (key, count), row in zip(_keys(*rows), computed, strict=True):
                if key not in self._entries and key not in entries:
                    entries[key] = end, count
                    new.append(row[:count])
                    end += count
            self.full |= bool(new) and end * self._vector_bytes > self._limit
            if self.full:
                return np.bool_(False)
            try:
                vectors.writelines(row.tobytes() for row in new)
                vectors.flush()
                os.fsync(vectors.fileno())
                # After the vectors: a killed run leaves no entry without them.
                records = [(key, *entry) for key, entry in entries.items()]
                index.write(np.array(records, _ENTRY).tobytes())
                index.flush()
            except OSError:  # the disk is full
                self.full = True
                return np.bool_(False)
            self._entries |= entries
            self._end = end
            return np.bool_(True)

    @functools.cached_property
    def _files(self) -> tuple[IO[bytes], IO[bytes]]:
        """The files of vectors and index, at their ends, after a killed run's entries are read."""
        folder = self._folder or Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        vectors, index = (
            self._stack.enter_context((folder / name).open("a+b")) for name in ("vectors", "index")
        )
        identity = _identity(self._features)
        index.seek(0)
        if index.read(len(identity)) == identity:
            stored = os.fstat(vectors.fileno()).st_size // self._vector_bytes
            data = index.read()
            for key, first, count in np.frombuffer(data, _ENTRY, len(data) // _ENTRY.itemsize):
                if first + count <= stored:
                    self._entries[key.tobytes()] = int(first), int(count)
                    self._end = max(self._end, int(first + count))
        vectors.truncate(self._end * self._vector_bytes)
        size = len(identity) + len(self._entries) * _ENTRY.itemsize
        index.truncate(size if self._entries else 0)
        if not self._entries:
            index.write(identity)
        free = shutil.disk_usage(folder).free
        self._limit = self._end * self._vector_bytes + int((1 - _SPARE) * free)
        return vectors, index


def _keys(*rows: np.ndarray) -> Iterator[tuple[bytes, int]]:
    """The key of each row of tokens, and the number of its tokens."""
    for token_ids, segment_ids, mask in zip(*rows, strict=True):
        count = int(mask.sum())
        tokens = np.stack([token_ids[:count], segment_ids[:count]]).astype("<i4")
        yield hashlib.blake2b(tokens.tobytes(), digest_size=16).digest(), count


def _identity(features: FrozenLayers) -> bytes:
    """A hash of what the vectors depend on, 32 bytes."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(repr((features.chosen, features.compute_dtype)).encode())
    for weight in named_weights(features.encoder):
        digest.update(weight.to_tensor().tobytes())
    return digest.digest()
