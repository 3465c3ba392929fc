import dataclasses
import errno
import itertools
import json
import shutil
from array import array
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_files import (
    examples,
    file_of,
    flip,
    read_all,
    records_of,
    refusal,
    rewrite,
    starts_of,
    stored,
    without_blocks,
)

from bert_tf.errors import InputError
from bert_tf.files.storage import Folder, open_folder
from bert_tf.pipelines.shards import pretraining_batches as batches_module
from bert_tf.pipelines.shards.folder import open_shards, shard_errors, tokenizer_of_shards
from bert_tf.pipelines.shards.manifest import Manifest, verify
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.tokenization import BertTokenizer

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def copied(dynamic, tmp_path):
    return Path(shutil.copytree(dynamic, tmp_path / "shards"))


def test_what_is_written_is_found(made):
    for split in ("train", "held_out"):
        shards = open_shards(made, split)
        written = Manifest.load(made).shards[split]
        expected = [record for shard in written for record in records_of(made / shard.file)]
        assert stored(shards) == expected
        assert shards.instances == len(expected)
        assert open_shards(made, split, skip_corrupt=True).left_out == {}
        assert stored(open_shards(made, split, skip_corrupt=True)) == expected


def test_missing_held_out_split_is_none(copied):
    manifest = Manifest.load(copied)
    del manifest.shards["held_out"]
    manifest.save(copied)
    assert open_shards(copied, "held_out") is None
    assert pretraining_batches(copied, 4, split="held_out") is None
    refused("train, held_out", open_shards, copied, "test")


def test_a_folder_of_several_lengths_is_refused_by_their_names(dynamic, tmp_path):
    for length in ("128", "512"):
        (tmp_path / length).mkdir()
        shutil.copy(dynamic / "manifest.json", tmp_path / length)
    refused(r"name one of them \(128, 512\)", open_shards, tmp_path)


def test_a_tokenizer_with_other_switches_is_refused(static, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    folder = Path(shutil.copytree(static, tmp_path / "shards"))
    BertTokenizer(pieces, strip_accents=True).save(tmp_path / "same")
    assert tokenizer_of_shards(folder, tmp_path / "same").vocabulary == pieces
    BertTokenizer(pieces, do_lower_case=False).save(tmp_path / "cased")
    with pytest.raises(InputError, match=r"cased: .*do_lower_case \(False, not True\)"):
        tokenizer_of_shards(folder, tmp_path / "cased")


def test_an_unfinished_folder_is_named(tmp_path):
    (tmp_path / "shards" / ".journal").mkdir(parents=True)
    (tmp_path / "shards" / ".journal" / "lock").touch()
    (tmp_path / "shards" / "128").mkdir()
    for name in ("", "128", "512"):
        refused(r"not finished there: the same command", open_shards, tmp_path / "shards" / name)
    shutil.rmtree(tmp_path / "shards" / ".journal")
    (tmp_path / "shards" / "128").rmdir()
    refused("no such folder", open_shards, tmp_path / "shards" / "128")


def test_damaged_manifests_are_named(copied):
    manifest = Manifest.load(copied)
    dataclasses.replace(manifest, format=99).save(copied)
    refused(r"manifest\.json: format 99", open_shards, copied)
    for content in ("{", "[]", "{}", f'{{"format": {manifest.format}, "shards": {{}}}}'):
        (copied / "manifest.json").write_text(content)
        refused(r"manifest\.json: damaged", open_shards, copied)


def test_truncated_and_missing_shards_are_named_before_training(copied):
    shard = file_of(copied)
    shard.write_bytes(shard.read_bytes()[:-30])
    for check in (verify, open_shards):
        refused(rf"{shard.name}: truncated", check, copied)
    shard.unlink()
    for skip_corrupt in (False, True):
        refused(f"{shard.name}: .* missing", open_shards, copied, skip_corrupt=skip_corrupt)


@for_each("byte", 0, 40, ids=["length", "data"])
def test_a_flipped_byte_is_named_by_file_and_record(copied, number_tokenizer, byte):
    shard = file_of(copied)
    flip(shard, starts_of(records_of(shard))[11] + byte)
    assert f"{shard.name}: record 12 is" in refusal(copied, number_tokenizer)
    sound = open_shards(copied, skip_corrupt=True)
    assert sound.left_out == {str(shard): 8}
    batches = read_all(sound, number_tokenizer)
    assert sum(len(inputs["token_ids"]) for inputs, _, _ in batches) == sound.instances


def test_records_that_are_no_instances_are_named(copied, number_tokenizer):
    shard = file_of(copied)
    records = records_of(shard)
    longer = tf.train.Example.FromString(records[5])
    longer.features.feature["input_ids"].int64_list.value[:] = range(40)
    empty = tf.train.Example().SerializeToString()
    for content in (b"\xff\xff\xff", empty, longer.SerializeToString()):
        rewrite(shard, [*records[:5], content, *records[6:]])
        manifest = Manifest.load(copied)
        entry = next(s for s in manifest.shards["train"] if s.file == shard.name)
        # Of the manifest's size, so that what is in it decides.
        entry.bytes = shard.stat().st_size
        starts = starts_of(records_of(shard))
        entry.block_bytes = array("I", np.diff(np.append(starts[:-1:8], starts[-1])).tolist())
        manifest.save(copied)
        assert f"{shard.name}: record 6 is" in refusal(copied, number_tokenizer)
        assert open_shards(copied, skip_corrupt=True).left_out == {str(shard): 8}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_whatever_happens_to_a_shard_the_other_blocks_are_read(dynamic, copied, data):
    shard = file_of(dynamic)
    content = bytearray(shard.read_bytes())
    records = records_of(shard)
    ends = starts_of(records)[1:]
    first = data.draw(st.integers(0, len(content) - 1), "first byte overwritten")
    last = data.draw(st.integers(first, min(first + 300, len(content) - 1)), "last one")
    kept = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))), "bytes kept")
    overwritten = bytes(byte ^ 0x55 for byte in content[first : last + 1])
    content[first : last + 1] = overwritten
    (copied / shard.name).write_bytes(content[:kept])
    first_hit, last_hit = np.searchsorted(ends, [first, last], side="right")
    cut = np.flatnonzero(ends > kept)
    sound = without_blocks(records, {*range(first_hit, last_hit + 1), *cut.tolist()})

    shards = open_shards(copied, skip_corrupt=True)
    assert shards.left_out == {str(copied / shard.name): len(records) - len(sound)}
    assert stored(shards, copied / shard.name) == sound
    whole = open_shards(dynamic)
    assert np.array_equal(shards.blocks.offset, whole.blocks.offset)  # in its place
    is_other = shards.blocks.file != shards.files.index(str(copied / shard.name))
    assert np.array_equal(shards.blocks.records[is_other], whole.blocks.records[is_other])


def test_the_blocks_that_are_left_keep_their_order(static, tmp_path, monkeypatch):
    copied = Path(shutil.copytree(static, tmp_path / "shards"))
    monkeypatch.setattr(batches_module, "WINDOW_BLOCKS", 1)
    texts = (tuple(example["input_ids"]) for example in examples(copied))
    shards = Manifest.load(copied).shards["train"]
    block = {next(texts): (x.file, i // 8) for x in shards for i in range(x.instances)}

    def blocks_in_turn(**named):
        batches = pretraining_batches(open_shards(copied, **named), 1, seed=3, repeat=False)
        texts = [tuple(inputs["token_ids"][0].numpy()) for inputs, _, _ in batches]
        return [key for key, _ in itertools.groupby(block[text] for text in texts)]

    before = blocks_in_turn()
    assert before != sorted(before)
    shard = file_of(copied)
    content = bytearray(shard.read_bytes())
    begin, end = starts_of(records_of(shard))[8:17:8]
    content[begin:end] = bytes(end - begin)
    shard.write_bytes(content)
    assert blocks_in_turn(skip_corrupt=True) == [b for b in before if b != (shard.name, 1)]


def test_a_split_without_a_sound_record_is_refused(copied):
    for shard in Manifest.load(copied).shards["held_out"]:
        (copied / shard.file).write_bytes(bytes(shard.bytes))
    message = "every block of the held_out shards holds a corrupt record"
    refused(message, open_shards, copied, "held_out", skip_corrupt=True)
    assert open_shards(copied, skip_corrupt=True).left_out == {}


def test_a_shard_of_another_run_is_named(copied, number_tokenizer):
    shard = file_of(copied)
    records = records_of(shard)
    rewrite(shard, [records[1], records[0], *records[2:]])  # sound, of the same size
    flip(file_of(copied, 0), 100)
    assert f"{file_of(copied, 0).name}: record" in refusal(copied, number_tokenizer)
    flip(file_of(copied, 0), 100)
    with (
        pytest.raises(InputError, match=rf"{shard.name}: checksum mismatch"),
        shard_errors(open_shards(copied)),
    ):
        raise tf.errors.DataLossError(None, None, "as if a read had failed")


def stored_at(place, shards):
    folder = open_folder(place)
    for path in shards.iterdir():
        folder.write(path.name, path.read_bytes())
    return folder


def emptied(folder):
    shards = json.loads(folder.read("manifest.json"))["shards"]["train"]
    folder.remove(["manifest.json", *(shard["file"] for shard in shards)])
    return f"{folder}: its shards were replaced or removed while they were read"


def replaced(folder):
    """By those of fewer instances, under the same names."""
    manifest = json.loads(folder.read("manifest.json"))
    replaced = json.dumps({**manifest, "documents": 0}).encode()
    emptied(folder)
    for shard in manifest["shards"]["train"]:
        folder.write(shard["file"], bytes(shard["bytes"] // 2))
    folder.write("manifest.json", replaced)
    return f"{folder}: its shards were replaced or removed while they were read"


def without_a_shard(folder):
    name = json.loads(folder.read("manifest.json"))["shards"]["train"][0]["file"]
    folder.remove([name])
    return f"{name}: the shard is missing"


@for_each("place", "disk", "memory://bucket/shards")
@for_each("change", emptied, replaced, without_a_shard)
def test_what_happens_to_shards_while_they_are_read_is_named(
    dynamic, number_tokenizer, tmp_path, monkeypatch, place, change
):
    monkeypatch.setattr(batches_module, "WINDOW_BLOCKS", 1)
    monkeypatch.setenv("BERT_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERT_TF_CACHE_GB", "0")
    folder = stored_at(place if "://" in place else tmp_path / place, dynamic)
    opened = open_shards(str(folder))
    batches = iter(pretraining_batches(opened, 4, tokenizer=number_tokenizer))
    next(batches)
    message = change(folder)
    with pytest.raises(InputError, match=message), shard_errors(opened):
        for _ in range(1000):
            next(batches)


def test_a_store_that_fails_in_between_is_named(dynamic, number_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_TF_CACHE", str(tmp_path / "cache"))
    opened = open_shards(str(stored_at("memory://bucket/failing", dynamic)))

    def fail(*ranges):
        raise OSError(errno.EIO, "the store failed", "memory://bucket/failing")

    monkeypatch.setattr("bert_tf.pipelines.shards.block_cache.fetch_ranges", fail)
    with (
        pytest.raises(OSError, match="the store failed: 'memory://bucket/failing'"),
        shard_errors(opened),
    ):
        list(pretraining_batches(opened, 4, repeat=False, tokenizer=number_tokenizer))


def test_shards_and_a_manifest_that_a_list_lacks_are_looked_for(dynamic, monkeypatch):
    stored_at("memory://bucket/late", dynamic)
    monkeypatch.setattr(Folder, "sizes", lambda folder: {})
    assert open_shards("memory://bucket/late").manifest == Manifest.load(dynamic)


def test_other_errors_stay_as_they_are(dynamic):
    shards = open_shards(dynamic)
    with pytest.raises(tf.errors.InvalidArgumentError), shard_errors(shards):
        tf.gather([1, 2], tf.constant(7))
    with pytest.raises(tf.errors.DataLossError), shard_errors(shards):
        raise tf.errors.DataLossError(None, None, "the shards are sound, though")
    with pytest.raises(KeyError), shard_errors(shards):
        raise KeyError
