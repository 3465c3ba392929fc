import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from pipelines import pretraining_batches as module
from pipelines.manifest import Manifest, verify
from pipelines.options import PretrainingDataOptions
from pipelines.pretraining_batches import open_shards, pretraining_batches, shard_errors
from pipelines.shards import write_shards


@pytest.fixture(scope="module")
def made(tmp_path_factory, number_corpus, number_tokenizer):
    """A folder of shards that tests must not change."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "corpus.txt").write_text(number_corpus(60))
    options = PretrainingDataOptions(max_seq_length=32, num_shards=3, held_out_share=0.1)
    write_shards(folder / "corpus.txt", folder / "shards", number_tokenizer, options)
    return folder / "shards"


@pytest.fixture
def copied(made, tmp_path):
    """A folder of shards to damage."""
    (tmp_path / "shards").mkdir()
    for path in made.iterdir():
        (tmp_path / "shards" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "shards"


def arrays(dataset, batches=None):
    return list(itertools.islice(dataset.as_numpy_iterator(), batches))


def assert_equal(batches, others):
    assert len(batches) == len(others)
    tf.nest.map_structure(np.testing.assert_array_equal, batches, others)


def rows(batches):
    return sorted(tuple(row) for inputs, _, _ in batches for row in inputs["token_ids"])


def test_batches_hold_what_was_written_by_the_models_names(made):
    dataset = pretraining_batches(made, 8, shuffle=False, repeat=False, split="held_out")
    records = tf.data.TFRecordDataset(str(made / "held_out-00000-of-00001.tfrecord"))
    expected = [
        {
            name: np.array(feature.int64_list.value or feature.float_list.value)
            for name, feature in tf.train.Example.FromString(record).features.feature.items()
        }
        for record in records.as_numpy_iterator()
    ]
    batches = arrays(dataset)
    assert len(dataset) == len(batches) == -(-len(expected) // 8)
    found = iter(expected)
    for inputs, labels, weights in batches:
        assert inputs["token_ids"].dtype == labels["mlm_logits"].dtype == np.int32
        for i in range(len(inputs["token_ids"])):
            example = next(found)
            for values, name in (
                (inputs["token_ids"], "input_ids"),
                (inputs["segment_ids"], "segment_ids"),
                (inputs["padding_mask"], "input_mask"),
                (inputs["mask_positions"], "masked_lm_positions"),
                (labels["mlm_logits"], "masked_lm_ids"),
                (weights["mlm_logits"], "masked_lm_weights"),
            ):
                np.testing.assert_array_equal(values[i], example[name])
            assert labels["nsp_logits"][i] == example["next_sentence_labels"][0]
            assert weights["nsp_logits"][i] == 1
    assert next(found, None) is None


def test_an_epoch_holds_each_instance_once_in_an_order_of_its_own(made):
    instances = open_shards(made).instances
    batch_size = next(b for b in range(3, 9) if instances % b)  # batches run across epochs
    stream = arrays(pretraining_batches(made, batch_size, seed=3), 3 * instances // batch_size)
    stream = [tuple(row) for inputs, _, _ in stream for row in inputs["token_ids"]]
    in_order = rows(arrays(pretraining_batches(made, 5, shuffle=False, repeat=False)))
    assert len(in_order) == instances
    first, second = stream[:instances], stream[instances : 2 * instances]
    assert sorted(first) == sorted(second) == in_order
    assert first != second


def test_a_run_continues_at_any_step(made, monkeypatch):
    monkeypatch.setattr(module, "SHUFFLE_RECORDS", 50)
    steps = 2 * open_shards(made).instances // 7 + 3
    whole = arrays(pretraining_batches(made, 7, seed=5), steps)
    for step in (1, steps // 2 - 1, steps // 2 + 1, steps - 1):
        rest = arrays(pretraining_batches(made, 7, seed=5, start_step=step), steps - step)
        assert_equal(rest, whole[step:])
    other = arrays(pretraining_batches(made, 7, seed=6), steps)
    assert any(
        not np.array_equal(a[0]["token_ids"], b[0]["token_ids"])
        for a, b in zip(whole, other, strict=True)
    )


def test_lengths_are_known(made):
    instances = open_shards(made).instances
    assert len(pretraining_batches(made, 7, repeat=False, drop_remainder=True)) == instances // 7
    late = pretraining_batches(made, 7, repeat=False, start_step=3)
    assert len(late) == len(arrays(late)) == -(-instances // 7) - 3
    ended = pretraining_batches(made, 7, repeat=False, start_step=10**6)
    assert len(ended) == len(arrays(ended)) == 0
    endless = pretraining_batches(made, 7)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    assert endless.element_spec[0]["token_ids"].shape == (7, 32)


def test_shards_without_manifest_are_read(made, tmp_path):
    for path in made.glob("train-*.tfrecord"):
        (tmp_path / path.name.replace("train", "tf_examples")).write_bytes(path.read_bytes())
    shards = open_shards(tmp_path)
    assert (shards.max_seq_length, shards.max_predictions_per_seq) == (32, 5)
    assert shards.instances == Manifest.load(made).instances()
    assert rows(arrays(pretraining_batches(tmp_path, 4, repeat=False))) == (
        rows(arrays(pretraining_batches(made, 4, repeat=False)))
    )
    assert pretraining_batches(tmp_path, 4, split="held_out") is None


def test_missing_held_out_split_is_none(copied):
    manifest = Manifest.load(copied)
    del manifest.shards["held_out"]
    manifest.save(copied)
    assert pretraining_batches(copied, 4, split="held_out") is None
    with pytest.raises(InputError, match="train, held_out"):
        pretraining_batches(copied, 4, split="test")


def one_line(raised):
    assert "\n" not in str(raised.value)


def test_another_vocabulary_is_refused(made, number_tokenizer):
    pretraining_batches(made, 4, vocabulary_hash=number_tokenizer.vocabulary_hash)
    with pytest.raises(InputError, match="made with another vocabulary") as raised:
        pretraining_batches(made, 4, vocabulary_hash="f" * 64)
    one_line(raised)


def test_folders_that_are_no_shards_are_refused(tmp_path, made):
    with pytest.raises(InputError, match=r"nowhere: no such folder"):
        pretraining_batches(tmp_path / "nowhere", 4)
    with pytest.raises(InputError, match=r"neither manifest\.json nor \*\.tfrecord"):
        pretraining_batches(tmp_path, 4)
    with pytest.raises(InputError, match="do not fill a batch of 100000"):
        pretraining_batches(made, 100_000, repeat=False, drop_remainder=True)
    example = tf.train.Example()
    example.features.feature["other"].int64_list.value.append(1)
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as file:
        file.write(example.SerializeToString())
    with pytest.raises(InputError, match=r"x\.tfrecord: records have no input_ids"):
        pretraining_batches(tmp_path, 4)


def test_truncated_and_missing_shards_are_named_before_training(copied):
    shard = copied / "train-00001-of-00003.tfrecord"
    content = shard.read_bytes()
    shard.write_bytes(content[:-30])
    for check in (verify, lambda folder: pretraining_batches(folder, 4)):
        with pytest.raises(
            InputError, match=r"train-00001-of-00003\.tfrecord: truncated"
        ) as raised:
            check(copied)
        one_line(raised)
    shard.unlink()
    with pytest.raises(InputError, match=r"train-00001.* missing"):
        pretraining_batches(copied, 4)


def test_damaged_shards_are_named_when_read(copied):
    shard = copied / "train-00002-of-00003.tfrecord"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"train-00002.* damaged"):
        verify(copied)
    batches = pretraining_batches(copied, 4, repeat=False)  # of the right size
    with pytest.raises(InputError, match=r"train-00002.* damaged") as raised, shard_errors(copied):
        arrays(batches)
    one_line(raised)


def test_damaged_shards_without_manifest_are_named(tmp_path, made):
    content = (made / "train-00000-of-00003.tfrecord").read_bytes()
    (tmp_path / "cut.tfrecord").write_bytes(content[:-7])
    with pytest.raises(InputError, match=r"cut\.tfrecord: damaged after record \d+"):
        pretraining_batches(tmp_path, 4)
    (tmp_path / "cut.tfrecord").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        pretraining_batches(tmp_path, 4)


def test_damaged_manifests_are_named(copied):
    manifest = Manifest.load(copied)
    dataclasses.replace(manifest, format=99).save(copied)
    with pytest.raises(InputError, match=r"manifest\.json: format 99"):
        pretraining_batches(copied, 4)
    for content in ("{", "[]", "{}", '{"format": 1, "shards": {}}'):
        (copied / "manifest.json").write_text(content)
        with pytest.raises(InputError, match=r"manifest\.json: damaged") as raised:
            pretraining_batches(copied, 4)
        one_line(raised)


def test_the_order_is_that_of_its_own_seed_alone(made):
    found = []
    for global_seed in (7, 0):  # with 0 TensorFlow's shuffle failed
        tf.random.set_seed(global_seed)
        found.append(arrays(pretraining_batches(made, 8, seed=1), batches=12))
    assert_equal(*found)
