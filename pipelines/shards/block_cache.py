"""A cache of blocks of remote shards, in files on this machine, of bounded size.

A block is a file of its own: TensorFlow reads it as it reads a shard. Blocks are fetched many at
once; the ones used longest ago go first.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_tf.mirror import cache_bytes, cache_folder
from bert_tf.storage import fetch_ranges

_CLEARED_SHARE = 0.1  # of the bound, at once


class BlockCache:
    """Blocks in a folder, which processes of this machine may share."""

    def __init__(self, folder: Path, most_bytes: int):
        self._folder, self._most = folder, most_bytes
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._bytes = sum(path.stat().st_size for path in folder.glob("*.block"))

    @classmethod
    def by_default(cls) -> "BlockCache":
        return cls(cache_folder("blocks"), cache_bytes())

    def fetch(
        self, urls: Sequence[str], hashes: Sequence[str], offsets: np.ndarray, sizes: np.ndarray
    ) -> list[str]:
        """The local files of blocks, by the URLs and checksums of their shards and their places."""
        paths = []
        for checksum, offset, size in zip(hashes, offsets, sizes, strict=True):
            key = hashlib.sha256(f"{checksum} {offset} {size}".encode()).hexdigest()
            paths.append(self._folder / f"{key}.block")
        missing = []
        for number, path in enumerate(paths):
            try:
                os.utime(path)  # used now
            except FileNotFoundError:
                missing.append(number)
        contents = fetch_ranges(
            [urls[n] for n in missing],
            [int(offsets[n]) for n in missing],
            [int(offsets[n] + sizes[n]) for n in missing],
        )
        for number, content in zip(missing, contents, strict=True):
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(content)
            Path(file.name).replace(paths[number])
        with self._lock:
            self._bytes += sum(map(len, contents))
            if self._bytes > self._most:
                self._make_room(set(paths))
        return [str(path) for path in paths]

    def _make_room(self, needed: set[Path]) -> None:
        """Removes the blocks that were used longest ago, except those that are needed now."""
        found = []
        for path in self._folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:  # another process was first
                continue
            found.append((status.st_mtime_ns, status.st_size, path))
        self._bytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if self._bytes <= self._most * (1 - _CLEARED_SHARE):
                break
            if path not in needed:
                path.unlink(missing_ok=True)
                self._bytes -= size
