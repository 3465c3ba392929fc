import os
import struct
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import for_each, refused

from bert_tf.pipelines.shards import block_cache
from bert_tf.pipelines.shards.block_cache import BlockCache


def a_record(size):
    return struct.pack("<Q", size - 16) + b"x" * (size - 8)


@pytest.fixture
def fetched(monkeypatch):
    """The places of the blocks that caches did not have."""
    fetched = []

    def fetch_ranges(urls, starts, ends):
        fetched.extend(starts)
        return [a_record(end - start) for start, end in zip(starts, ends, strict=True)]

    monkeypatch.setattr("bert_tf.pipelines.shards.block_cache.fetch_ranges", fetch_ranges)
    return fetched


def fetch_from(cache, *places):
    n, offsets = len(places), np.array(places)
    paths = cache.fetch(["s3://a"] * n, ["hash"] * n, offsets, offsets * 0 + 100)
    time.sleep(0.01)  # times of use differ
    return paths


def held(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_blocks_stay_while_they_are_read_whoever_clears_the_cache(tmp_path, fetched):
    """Two windows are read at once, and another source, or process, has a window of its own."""
    folder = tmp_path / "blocks"
    cache, other = BlockCache(folder, 1000), BlockCache(folder, 1000)
    windows = [fetch_from(cache, *range(0, 8)), fetch_from(cache, *range(8, 16))]
    fetch_from(other, *range(16, 24))
    assert held(folder) <= 1000
    for path in (path for window in windows for path in window):
        assert Path(path).stat().st_size == 100
    for place in range(8):
        fetch_from(cache, place)
    assert not any(Path(path).exists() for window in windows for path in window)


@for_each(
    "content",
    a_record(60),
    a_record(100)[1:] + b"x",
    b"",
    ids=["another record", "within a record", "past the end"],
)
def test_blocks_of_a_shard_that_was_replaced_are_not_kept(tmp_path, fetched, monkeypatch, content):
    cache = BlockCache(tmp_path / "blocks", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(block_cache, "fetch_ranges", lambda urls, starts, ends: [content])
        refused("s3://a: bytes 3 to 103 have changed since the run", fetch_from, cache, 3)
    (path,) = fetch_from(cache, 3)  # of the shard as it was
    (kept,) = (tmp_path / "blocks").iterdir()
    kept.write_bytes(b"")  # as a power failure may leave it
    (path,) = fetch_from(cache, 3)
    assert Path(path).stat().st_size == kept.stat().st_size == 100
    assert fetched == [3, 3]


def test_what_a_killed_reader_left_is_removed_whatever_the_clock_says(tmp_path, fetched):
    folder = tmp_path / "blocks"
    cache = BlockCache(folder, 1000)
    (path,) = fetch_from(cache, 0)
    (reading,) = tmp_path.glob(".bert-tf-reading-*")
    os.utime(reading, (0, 0))  # as if the clock had jumped from 1970 to today
    left = tmp_path / ".bert-tf-reading-left"
    (left / "load").mkdir(parents=True)
    BlockCache(folder, 1000)
    assert Path(path).exists() and not left.exists()
    cache._reading.close()  # as when its process is killed
    BlockCache(folder, 1000)
    assert not Path(path).exists()


@for_each("sources blocks at_once", (2, 6, 6), (3, 9, 1))
def test_sources_share_the_bound_of_a_cache(tmp_path, fetched, sources, blocks, at_once):
    """Also those of other processes: none of the first two has added more than the bound."""
    folder = tmp_path / "blocks"
    caches = [BlockCache(folder, 1000) for _ in range(sources)]
    for place in range(0, blocks, at_once):
        for number, cache in enumerate(caches):
            fetch_from(cache, *range(100 * number + place, 100 * number + place + at_once))
    slack = 100 * sources if at_once == 1 else 0  # each may add a tenth before it looks again
    assert 0 < held(folder) <= 1000 + slack


def test_a_cache_keeps_what_was_used_last(tmp_path, fetched):
    cache = BlockCache(tmp_path, 1000)
    fetch = partial(fetch_from, cache)
    for place in range(9):
        (path,) = fetch(place)
        assert Path(path).stat().st_size == 100
    fetch(0)
    assert fetched == list(range(9))
    fetch(10, 11)  # 1,100 bytes: the oldest ones go
    fetch(0)
    assert fetched == [*range(9), 10, 11]
    fetch(1)
    assert fetched[-1] == 1
    assert held(tmp_path) <= 1000
    assert BlockCache(tmp_path, 1000)._bytes == cache._bytes
