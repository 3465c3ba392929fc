import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_files import rewrite as write

from bert_tf.pipelines.shards import record_blocks
from bert_tf.pipelines.shards.record_blocks import DAMAGED, FRAME_BYTES, RecordBlocks, scan

SLOW_START = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BLOCK = 4


@pytest.fixture(autouse=True)
def blocks_of_four(monkeypatch):
    monkeypatch.setattr(record_blocks, "BLOCK_RECORDS", BLOCK)


def scanned_blocks(paths):
    return RecordBlocks.of_shards(paths[0].parent, [scan(path) for path in paths])


def read(blocks):
    return [blocks.read(n, count).numpy().tolist() for n, count in enumerate(blocks.records)]


def in_blocks(records):
    return [records[i : i + BLOCK] for i in range(0, len(records), BLOCK)]


@SLOW_START
@given(st.lists(st.binary(max_size=40), max_size=30))
def test_a_scan_finds_what_was_written(tmp_path, records):
    blocks = scanned_blocks([write(tmp_path / "x", records)])
    assert read(blocks) == in_blocks(records)
    assert blocks.records.tolist() == [len(block) for block in in_blocks(records)]
    sizes = [sum(len(record) + FRAME_BYTES for record in block) for block in in_blocks(records)]
    assert blocks.size.tolist() == sizes
    assert blocks.first_damaged(0, tf.identity) is None


@SLOW_START
@given(st.data())
def test_no_damaged_record_is_in_a_sound_block(tmp_path, data):
    records = data.draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30))
    path = write(tmp_path / "x", records)
    content = bytearray(path.read_bytes())
    places = data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4, unique=True))
    for place in places:
        content[place] ^= data.draw(st.integers(1, 255))
    kept = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:kept])
    ends = np.cumsum([len(record) + FRAME_BYTES for record in records])
    damaged = {int(np.searchsorted(ends, place, side="right")) for place in places}
    damaged.update(np.flatnonzero(ends > kept).tolist())
    starts = [0, *ends.tolist()]

    blocks = scanned_blocks([path])
    sound = [n for n in range(len(blocks.records)) if blocks.fault(n, tf.identity) is None]
    for n in sound:  # what is read was written, whatever the lengths say
        first = starts.index(blocks.offset[n])
        count = int(blocks.records[n])
        assert blocks.read(n, count).numpy().tolist() == records[first : first + count]
    if kept in starts:  # cut between two records, which the file alone cannot tell
        damaged = {n for n in damaged if ends[n] <= kept}
    first = min(damaged, default=None)
    found = None if first is None else (first, DAMAGED)
    assert blocks.first_damaged(0, tf.identity) == found
    if first is not None:  # the blocks before are read
        assert [n for n in sound if n < first // BLOCK] == list(range(first // BLOCK))


def test_what_a_damaged_length_hides_is_estimated(tmp_path):
    path = write(tmp_path / "x", [b"12345"] * 100)
    content = bytearray(path.read_bytes())
    content[41 * (5 + FRAME_BYTES) + 6] = 1
    path.write_bytes(content)
    assert scanned_blocks([path]).records.tolist() == [4] * 10 + [60]


def test_blocks_are_dealt_to_workers(tmp_path):
    names = [[f"{file}.{i}".encode() for i in range(10)] for file in range(3)]
    blocks = scanned_blocks([write(tmp_path / str(i), each) for i, each in enumerate(names)])
    whole = read(blocks)
    assert [len(block) for block in whole] == 3 * [4, 4, 2]
    assert blocks.of_file(1).tolist() == [3, 4, 5]
    for worker in range(4):
        assert read(blocks.dealt(worker, 4)) == whole[worker::4]


@for_each("content", b"\0" * 5, b"\0" * 100, b"text\n" * 1000)
def test_files_that_hold_no_records(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    blocks = scanned_blocks([tmp_path / "x"])
    assert blocks.first_damaged(0, tf.identity) == (0, DAMAGED)
