import gzip
import shutil
import zlib

import numpy as np
import pytest
import tensorflow as tf
from shard_files import (
    arrays,
    records_of,
    refusal,
    rewrite,
    starts_of,
    stored,
    without_blocks,
)

from bert_tf.errors import InputError
from bert_tf.pipelines.shards.folder import open_shards
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def foreign(static, tmp_path):
    """Files as the original's script writes them."""
    (tmp_path / "foreign").mkdir()
    for number, shard in enumerate(Manifest.load(static).shards["train"]):
        shutil.copy(static / shard.file, tmp_path / "foreign" / f"{number}.tfrecord")
    return tmp_path / "foreign"


def test_folders_that_are_no_shards_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: no such folder"):
        open_shards(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"neither manifest\.json nor \*\.tfrecord"):
        open_shards(tmp_path)
    example = tf.train.Example()
    example.features.feature["other"].int64_list.value.append(1)
    rewrite(tmp_path / "x.tfrecord", [example.SerializeToString()])
    with pytest.raises(InputError, match=r"x\.tfrecord: records have no input_ids"):
        open_shards(tmp_path)
    (tmp_path / "x.tfrecord").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        open_shards(tmp_path)


def renamed(records, names):
    for record in records:
        example = tf.train.Example.FromString(record)
        features = example.features.feature
        for old, new in names.items():
            features[new].CopyFrom(features.pop(old))
        yield example.SerializeToString()


@pytest.mark.parametrize(
    "name", ["{}.tf_record", "{}.tfrecords", "part-0000{}-of-00003", "x.tfrecord-{}-of-3"]
)
def test_files_of_other_programs_are_found(foreign, name):
    expected = stored(open_shards(foreign))
    for path in list(foreign.iterdir()):
        path.rename(foreign / name.format(path.stem))
    for other in ("0.tfrecord.index", "model.ckpt.data-00000-of-00001", "notes.txt"):
        (foreign / other).write_text("0 1234\n")
    assert stored(open_shards(foreign)) == expected


def test_newer_names_of_features_are_read(foreign):
    def parsed():
        shards = open_shards(foreign)
        return tf.nest.map_structure(lambda x: x.numpy(), shards.parse(stored(shards)))

    expected = parsed()
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    for path in foreign.iterdir():
        rewrite(path, list(renamed(records_of(path), names)))
    np.testing.assert_equal(parsed(), expected)


def test_files_of_several_lengths_are_named(foreign):
    path = foreign / "1.tfrecord"
    example = tf.train.Example.FromString(records_of(path)[0])
    example.features.feature["input_ids"].int64_list.value.append(0)
    rewrite(path, [example.SerializeToString()])
    with pytest.raises(
        InputError, match=r"0\.tfrecord has 32 tokens .* 1\.tfrecord has 33 tokens .* own folder"
    ):
        open_shards(foreign)
    with pytest.raises(InputError, match=rf"is a file: give the folder that holds it, {foreign}"):
        open_shards(path)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_compressed_files_are_refused(foreign, compress):
    file = foreign / "1.tfrecord"
    file.write_bytes(compress(file.read_bytes()))
    with pytest.raises(InputError, match=r"1\.tfrecord: is (gzip|zlib)-compressed"):
        open_shards(foreign)


def test_damage_without_manifest_is_named_and_left_out(foreign, number_tokenizer):
    file = foreign / "1.tfrecord"
    whole_file = file.read_bytes()
    content = bytearray(whole_file)
    records = records_of(file)
    whole = open_shards(foreign)
    starts = starts_of(records)
    content[starts[3] + 60] ^= 1  # of its data
    file.write_bytes(content)
    assert "1.tfrecord: record 4 is" in refusal(foreign, number_tokenizer)
    content[starts[9] + 1] ^= 1  # of its length
    file.write_bytes(content)
    content[starts[3] + 60] ^= 1
    for damaged, number in ((bytes(content), 10), (whole_file[:-5], len(records))):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"1\.tfrecord: record {number} is"):
            open_shards(foreign)  # by the lengths alone
        sound = open_shards(foreign, skip_corrupt=True)
        kept = without_blocks(records, range(number - 1, len(records)))
        before = [
            record
            for path in sorted(foreign.iterdir())
            for record in (kept if path == file else records_of(path))
        ]
        assert stored(sound) == before
        # What a damaged length hides is counted by its bytes.
        lost = whole.instances - len(before)
        assert sound.left_out == {str(file): pytest.approx(lost, abs=0.1 * lost)}
    file.write_bytes(b"")
    assert open_shards(foreign, skip_corrupt=True).left_out == {}


def test_shards_without_manifest_are_read(static, foreign):
    shards = open_shards(foreign)
    assert (shards.options.max_seq_length, shards.options.max_predictions_per_seq) == (32, 5)
    assert shards.instances == Manifest.load(static).instances()
    for shuffle in (False, True):  # in blocks as they were written, so in the same order
        ours, written = (
            arrays(pretraining_batches(folder, 4, repeat=False, shuffle=shuffle))
            for folder in (foreign, static)
        )
        np.testing.assert_equal(ours, written)
    assert pretraining_batches(foreign, 4, split="held_out") is None
