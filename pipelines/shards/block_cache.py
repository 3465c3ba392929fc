"""Blocks of remote shards in a local cache of bounded size, which TensorFlow reads as shards."""

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bert_tf.errors import InputError
from bert_tf.files.cache import cache_bytes, cache_folder, make_room
from bert_tf.files.lock import locked
from bert_tf.files.storage import fetch_ranges, is_remote
from bert_tf.pipelines.shards.folder import ShardFolder
from bert_tf.pipelines.shards.record_blocks import are_records

LOADS_AT_ONCE = 2  # windows
_KEPT_LOADS = 2 * LOADS_AT_ONCE  # two iterators may overlap
_CLEARED_SHARE = 0.1  # of the bound of a cache, at once
_LINKS = ".bert-tf-reading-"  # beginning of a folder's name
Fetcher = Callable[..., np.ndarray]


class BlockCache:
    """Blocks of remote shards in a folder of bounded size, which sources and processes share.

    Each is a file of its own, which TensorFlow reads as a shard; those used longest ago go first.
    Readers get hard links, which keep a block that anyone removes from the cache.
    """

    def __init__(self, folder: Path, most_bytes: int):
        self._folder = folder
        self._most = most_bytes
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent, waits=True):  # else the new folder is free for a moment
            for left in folder.parent.glob(f"{_LINKS}*"):
                with locked(left) as is_mine:
                    if is_mine:  # its process has ended
                        shutil.rmtree(left, ignore_errors=True)
            self._links = tempfile.TemporaryDirectory(prefix=_LINKS, dir=folder.parent)
            self._reading = contextlib.ExitStack()  # until this process ends
            self._reading.enter_context(locked(Path(self._links.name)))
        self._loads: deque[str] = deque()  # folders of the links of the last calls
        self._bytes = self._added = 0  # in the cache, and by this process since it was counted
        self._make_room()

    def fetch(
        self, urls: Sequence[str], hashes: Sequence[str], offsets: np.ndarray, sizes: np.ndarray
    ) -> list[str]:
        """The local files of blocks, by the URLs and checksums of their shards and their places.

        They stay until `_KEPT_LOADS` further calls. InputError for a shard that was replaced.
        """
        load = tempfile.mkdtemp(dir=self._links.name)
        paths: list[Path] = []
        missing: list[int] = []
        for number, block in enumerate(zip(hashes, offsets, sizes, strict=True)):
            key = hashlib.sha256(" ".join(map(str, block)).encode()).hexdigest()
            paths.append(Path(load, f"{key}.block"))
            try:
                os.link(self._folder / paths[-1].name, paths[-1])
                os.utime(paths[-1])  # used now
                if paths[-1].stat().st_size != sizes[number]:  # a power failure cut it
                    (self._folder / paths[-1].name).unlink(missing_ok=True)
                    paths[-1].unlink()
                    missing.append(number)
            except FileNotFoundError:
                missing.append(number)
        starts, ends = (values[missing].tolist() for values in (offsets, offsets + sizes))
        contents = fetch_ranges([urls[n] for n in missing], starts, ends)
        for number, content in zip(missing, contents, strict=True):
            if len(content) != sizes[number] or not are_records(content):
                raise InputError(
                    f"{urls[number]}: bytes {offsets[number]} to {offsets[number] + sizes[number]} "
                    "have changed since the run began: restore the shard, or make it again"
                )
            paths[number].write_bytes(content)
            with contextlib.suppress(FileExistsError):  # another source was first
                os.link(paths[number], self._folder / paths[number].name)
        with self._lock:
            self._loads.append(load)
            if len(self._loads) > _KEPT_LOADS:
                shutil.rmtree(self._loads.popleft())
            added = sum(map(len, contents))
            self._bytes += added
            self._added += added
            # Others add blocks, too: count again after a part of the bound.
            if self._bytes > self._most or self._added > self._most * _CLEARED_SHARE:
                self._make_room()
        return [str(path) for path in paths]

    def _make_room(self) -> None:
        left = 1 - _CLEARED_SHARE
        self._bytes = make_room(self._folder, "*.block", self._most, left=left)
        self._added = 0


def block_fetcher(shards: ShardFolder) -> Fetcher | None:
    """Gets local files of remote blocks, by the indices of their files and their places in them."""
    if not is_remote(str(shards.directory)):
        return None
    cache = BlockCache(cache_folder("blocks"), cache_bytes())
    written = shards.manifest.shards[shards.split]

    def fetch(file: np.ndarray, offset: np.ndarray, size: np.ndarray) -> np.ndarray:
        urls = [shards.files[n] for n in file]
        hashes = [written[n].sha256 for n in file]
        try:
            return np.array(cache.fetch(urls, hashes, offset, size), object)
        except (InputError, OSError) as error:  # which TensorFlow raises as an error of its own
            shards.failures.append(error)
            raise

    return fetch
