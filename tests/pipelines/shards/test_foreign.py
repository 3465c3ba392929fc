import gzip
import re
import shutil
import zlib

import numpy as np
import pytest
import shard_files
import tensorflow as tf
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.pipelines.shards.folder import open_shards, shard_errors
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def foreign(static, tmp_path):
    (tmp_path / "foreign").mkdir()
    for number, shard in enumerate(Manifest.load(static).shards["train"]):
        shutil.copy(static / shard.file, tmp_path / "foreign" / f"{number}.tfrecord")
    return tmp_path / "foreign"


def test_folders_that_are_no_shards_are_refused(tmp_path):
    refused(r"nowhere: no such folder", open_shards, tmp_path / "nowhere")
    refused(r"neither manifest\.json nor \*\.tfrecord", open_shards, tmp_path)
    example = tf.train.Example()
    example.features.feature["other"].int64_list.value.append(1)
    shard_files.rewrite(tmp_path / "x.tfrecord", [example.SerializeToString()])
    refused(r"x\.tfrecord: records have no input_ids", open_shards, tmp_path)
    (tmp_path / "x.tfrecord").write_bytes(b"")
    refused("empty", open_shards, tmp_path)


def renamed(records, names):
    for record in records:
        example = tf.train.Example.FromString(record)
        features = example.features.feature
        for old, new in names.items():
            features[new].CopyFrom(features.pop(old))
        yield example.SerializeToString()


def test_files_of_other_programs_are_found(foreign):
    expected, files = shard_files.stored(open_shards(foreign)), sorted(foreign.iterdir())
    for other in ("0.tfrecord.index", "model.ckpt.data-00000-of-00001", "notes.txt"):
        (foreign / other).write_text("0 1234\n")
    for name in ("{}.tf_record", "{}.tfrecords", "part-0000{}-of-00003", "x.tfrecord-{}-of-3"):
        files = [path.rename(foreign / name.format(i)) for i, path in enumerate(files)]
        assert shard_files.stored(open_shards(foreign)) == expected, name


def test_newer_names_of_features_are_read(foreign):
    def parsed():
        shards = open_shards(foreign)
        return tf.nest.map_structure(lambda x: x.numpy(), shards.parse(shard_files.stored(shards)))

    expected = parsed()
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    for path in foreign.iterdir():
        shard_files.rewrite(path, list(renamed(shard_files.records_of(path), names)))
    np.testing.assert_equal(parsed(), expected)


def test_files_of_several_lengths_are_named(foreign):
    path = foreign / "1.tfrecord"
    example = tf.train.Example.FromString(shard_files.records_of(path)[0])
    example.features.feature["input_ids"].int64_list.value.append(0)
    shard_files.rewrite(path, [example.SerializeToString()])
    refused("has 32 tokens .* 1.tfrecord has 33 tokens .* own folder", open_shards, foreign)
    refused(rf"is a file: give the folder that holds it, {foreign}", open_shards, path)


@for_each("compress", gzip.compress, zlib.compress, ids=["gzip", "zlib"])
def test_compressed_files_are_refused(foreign, compress):
    file = foreign / "1.tfrecord"
    file.write_bytes(compress(file.read_bytes()))
    refused(r"1\.tfrecord: is (gzip|zlib)-compressed", open_shards, foreign)


def test_damage_without_manifest_is_named_and_left_out(foreign, number_tokenizer):
    file = foreign / "1.tfrecord"
    whole_file = file.read_bytes()
    content = bytearray(whole_file)
    records = shard_files.records_of(file)
    whole = open_shards(foreign)
    starts = shard_files.starts_of(records)
    content[starts[3] + 60] ^= 1  # of its data
    file.write_bytes(content)
    assert "1.tfrecord: record 4 is" in shard_files.refusal(foreign, number_tokenizer)
    content[starts[9] + 1] ^= 1  # of its length
    file.write_bytes(content)
    content[starts[3] + 60] ^= 1
    for damaged, number in ((bytes(content), 10), (whole_file[:-5], len(records))):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"1\.tfrecord: record {number} is"):
            open_shards(foreign)  # by the lengths alone
        sound = open_shards(foreign, skip_corrupt=True)
        kept = shard_files.without_blocks(records, range(number - 1, len(records)))
        before = [
            record
            for path in sorted(foreign.iterdir())
            for record in (kept if path == file else shard_files.records_of(path))
        ]
        assert shard_files.stored(sound) == before
        # What a damaged length hides is counted by its bytes.
        lost = whole.instances - len(before)
        assert sound.left_out == {str(file): pytest.approx(lost, abs=0.1 * lost)}
    file.write_bytes(b"")
    assert open_shards(foreign, skip_corrupt=True).left_out == {}


FAULTS = [
    ("next_sentence_labels", 0, 2, "next_sentence_labels not from 0 to 1"),
    ("input_ids", 3, -1, "input_ids outside the vocabulary"),
    ("masked_lm_ids", 0, -100, "masked_lm_ids outside the vocabulary"),
    ("input_ids", 3, 2**32, "input_ids outside the vocabulary"),
    ("masked_lm_positions", 0, 32, "masked_lm_positions not from 0 to 31"),
    ("segment_ids", 1, 2, "segment_ids not from 0 to 1"),
    ("masked_lm_weights", 0, float("nan"), "masked_lm_weights not from 0 to 1"),
    ("input_mask", slice(0, 32), 0, "(input_mask|masked_lm_positions) of no token"),
]


def test_values_out_of_range_name_the_record(foreign, number_tokenizer):
    file = foreign / "1.tfrecord"
    records = shard_files.records_of(file)
    for feature, place, value, fault in FAULTS:
        example = tf.train.Example.FromString(records[5])
        written = example.features.feature[feature]
        values = written.float_list.value or written.int64_list.value
        values[place] = [value] * len(values) if isinstance(place, slice) else value
        shard_files.rewrite(file, [*records[:5], example.SerializeToString(), *records[6:]])
        assert re.search(
            rf"1\.tfrecord: record 6 has {fault}", shard_files.refusal(foreign, number_tokenizer)
        )
    assert open_shards(foreign, skip_corrupt=True).left_out == {str(file): 8}


def test_ids_are_of_the_vocabulary_that_is_known(foreign, number_tokenizer):
    shards = open_shards(foreign)
    shards.vocabulary_size = 3000
    fault = r"record \d+ has (input_ids|masked_lm_ids) outside the vocabulary"
    with pytest.raises(InputError, match=fault), shard_errors(shards):
        shard_files.read_all(shards, number_tokenizer)


def test_shards_without_manifest_are_read(static, foreign):
    shards = open_shards(foreign)
    assert (shards.options.max_seq_length, shards.options.max_predictions_per_seq) == (32, 5)
    assert shards.instances == Manifest.load(static).instances()
    for shuffle in (False, True):  # in blocks as they were written, so in the same order
        ours, written = (
            shard_files.arrays(pretraining_batches(folder, 4, repeat=False, shuffle=shuffle))
            for folder in (foreign, static)
        )
        np.testing.assert_equal(ours, written)
    assert pretraining_batches(foreign, 4, split="held_out") is None
