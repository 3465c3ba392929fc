import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.shards.record_blocks import (
    FRAME_BYTES,
    RecordBlocks,
    find_unsound,
    join_blocks,
    read_run,
    scan_records,
    scanned_blocks,
)

SLOW_START = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            file.write(record)
    return path


def read(blocks: RecordBlocks):
    """By block, the records of its runs."""
    runs = iter(zip(blocks.file, blocks.offset, blocks.size, blocks.records, strict=True))
    found = []
    for count in blocks.runs:
        found.append([])
        for _ in range(count):
            file, offset, size, records = next(runs)
            run = read_run(tf.constant(blocks.files[file]), offset, size, records)
            found[-1] += run.batch(records).get_single_element().numpy().tolist()
            assert size == sum(len(record) + FRAME_BYTES for record in found[-1][-records:])
    assert next(runs, None) is None
    return found


def anything(records: tf.Tensor) -> tf.Tensor:
    return records


@SLOW_START
@given(st.lists(st.binary(max_size=40), max_size=30))
def test_a_scan_finds_what_was_written(tmp_path, records):
    path = write(tmp_path / "x", records)
    scan = scan_records(path, after_damage=False)
    assert scan.sizes.tolist() == [len(record) + FRAME_BYTES for record in records]
    assert scan.end == path.stat().st_size
    assert not len(scan.gaps)
    sound = np.ones(len(records), bool)
    blocks = join_blocks([path], [scanned_blocks(scan, scan.offsets[::4], sound)])
    assert read(blocks) == [records[i : i + 4] for i in range(0, len(records), 4)]
    assert blocks.block_records.tolist() == [len(block) for block in read(blocks)]


@SLOW_START
@given(st.data())
def test_all_but_the_damaged_records_are_found(tmp_path, data):
    records = data.draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30))
    path = write(tmp_path / "x", records)
    content = bytearray(path.read_bytes())
    places = data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4, unique=True))
    for place in places:
        content[place] ^= data.draw(st.integers(1, 255))
    kept = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:kept])
    ends = np.cumsum([len(record) + FRAME_BYTES for record in records])
    hit = {int(np.searchsorted(ends, place, side="right")) for place in places}
    sound = [i for i in range(len(records)) if i not in hit and ends[i] <= kept]

    scan = scan_records(path, after_damage=True)
    unsound = find_unsound(path, scan, anything)
    starts = np.concatenate([[0], ends[:-1]])
    assert scan.offsets[~unsound].tolist() == starts[sound].tolist()
    blocks = join_blocks([path], [scanned_blocks(scan, starts[::4], ~unsound)])
    assert read(blocks) == [
        [records[i] for i in sound if i // 4 == block] for block in range(len(starts[::4]))
    ]
    undamaged = not hit and kept == ends[-1]
    assert undamaged == (not len(scan.gaps) and scan.end == ends[-1] and not unsound.any())

    until_damage = scan_records(path, after_damage=False)
    assert until_damage.offsets.tolist() == scan.offsets[: len(until_damage.offsets)].tolist()
    assert not len(until_damage.gaps)


def test_records_of_another_kind_are_found(tmp_path):
    records = [str(number).encode() for number in range(1000)]
    records[300] = records[301] = records[999] = b"x"
    path = write(tmp_path / "x", records)
    scan = scan_records(path, after_damage=False)
    unsound = find_unsound(path, scan, tf.strings.to_number)
    assert np.flatnonzero(unsound).tolist() == [300, 301, 999]


def test_blocks_are_dealt_to_workers(tmp_path):
    paths = [
        write(tmp_path / str(file), [f"{file}.{i}".encode() for i in range(50)])
        for file in range(3)
    ]
    is_sound = np.ones(50, bool)
    is_sound[[0, 5, 17, *range(24, 32)]] = False  # the fourth block of 8 is lost
    blocks = join_blocks(
        paths,
        [
            scanned_blocks(scan, scan.offsets[::8], is_sound)
            for scan in (scan_records(path, after_damage=False) for path in paths)
        ],
    )
    whole = read(blocks)
    assert [len(block) for block in whole] == 3 * [6, 8, 7, 0, 8, 8, 2]
    assert blocks.runs.tolist() == 3 * [2, 1, 2, 0, 1, 1, 1]
    for worker in range(4):
        assert read(blocks.dealt(worker, 4)) == whole[worker::4]


@pytest.mark.parametrize("content", [b"", b"\0" * 5, b"\0" * 100, b"text\n" * 1000])
def test_files_that_hold_no_records(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    for after_damage in (False, True):
        scan = scan_records(tmp_path / "x", after_damage=after_damage)
        assert not len(scan.offsets) and scan.end == 0
