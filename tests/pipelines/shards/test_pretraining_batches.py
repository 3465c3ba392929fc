import copy
import itertools
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_files import arrays, examples, joined, records_of, unmasked

from bert_tf.errors import InputError
from bert_tf.paper.architectures import SideBySide
from bert_tf.pipelines.shards import pretraining_batches as reading
from bert_tf.pipelines.shards.folder import open_shards
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.pretraining_batches import (
    Masking,
    Share,
    _records,
    held_out_batches,
    pretraining_batches,
)

pytestmark = pytest.mark.usefixtures("small_blocks")

BLOCK = 8  # of `small_blocks`


def test_held_out_samples_come_from_all_files_and_stay_the_same(static):
    shards = open_shards(static, "train")  # larger than the held-out split
    sample = arrays(held_out_batches(shards, 8, 12))  # three windows of blocks
    np.testing.assert_equal(sample, arrays(held_out_batches(shards, 8, 12)))
    rows = {tuple(row) for inputs, _, _ in sample for row in inputs["token_ids"].tolist()}
    assert len(rows) == 96
    for file in shards.files:
        _, masked, _ = shards.parse(records_of(Path(file)))
        assert rows.intersection(map(tuple, masked.token_ids.numpy().tolist()))
    whole = arrays(held_out_batches(static, 8, 1000))
    assert sorted(unmasked(whole)) == sorted(
        unmasked(arrays(pretraining_batches(static, 8, split="held_out", repeat=False)))
    )


def test_batches_hold_what_was_written_by_the_models_names(static):
    dataset = pretraining_batches(static, 8, shuffle=False, repeat=False, split="held_out")
    expected = list(examples(static, "held_out"))
    assert len(dataset) == -(-len(expected) // 8)
    inputs, labels, weights = joined(dataset)
    for values, name in (
        (inputs["token_ids"], "input_ids"),
        (inputs["segment_ids"], "segment_ids"),
        (inputs["padding_mask"], "input_mask"),
        (inputs["mask_positions"], "masked_lm_positions"),
        (labels["mlm_logits"], "masked_lm_ids"),
        (weights["mlm_logits"], "masked_lm_weights"),
        (labels["nsp_logits"][:, None], "next_sentence_labels"),
    ):
        np.testing.assert_array_equal(values, [example[name] for example in expected])
        assert values.dtype == (np.float32 if name == "masked_lm_weights" else np.int32)
    assert (weights["nsp_logits"] == 1).all()


def test_compact_records_are_masked_and_padded_when_read(dynamic, batches, number_tokenizer):
    batch = inputs, labels, weights = joined(batches(dynamic, 5, shuffle=False, repeat=False))
    expected = list(examples(dynamic))
    texts = [example["input_ids"] for example in expected]
    assert unmasked([batch]) == [(*ids, *[0] * (32 - len(ids))) for ids in texts]
    lengths = np.array([[len(ids)] for ids in texts])
    firsts = np.array([example["first_segment_length"] for example in expected])
    places = np.arange(32)
    np.testing.assert_array_equal(inputs["padding_mask"], places < lengths)
    np.testing.assert_array_equal(inputs["segment_ids"], (places >= firsts) & (places < lengths))
    labelled = [example["next_sentence_labels"][0] for example in expected]
    np.testing.assert_array_equal(labels["nsp_logits"], labelled)
    is_predicted = weights["mlm_logits"] > 0
    predictions = np.clip(np.round(0.15 * lengths[:, 0]), 1, 5)
    np.testing.assert_array_equal(is_predicted.sum(1), predictions)
    shown = np.take_along_axis(inputs["token_ids"], inputs["mask_positions"], 1)[is_predicted]
    assert 0.7 < np.mean(shown == number_tokenizer.mask_token_id) < 0.9
    other = copy.copy(number_tokenizer)
    other.pad_token_id = 7
    ((inputs, *_),) = arrays(pretraining_batches(dynamic, 64, tokenizer=other), 1)
    padding = inputs["token_ids"][inputs["padding_mask"] == 0]
    assert padding.size and (padding == 7).all()


def test_masks_are_fresh_in_every_epoch_and_the_same_in_every_run(dynamic, batches, monkeypatch):
    instances = open_shards(dynamic).instances
    # Unshuffled, so that a seed that is the same for every batch masks the same places.
    stream = arrays(batches(dynamic, instances, seed=4, shuffle=False), 3)
    other = arrays(batches(dynamic, instances, seed=5, shuffle=False), 1)
    # Another worker, with the same text.
    monkeypatch.setattr(reading, "_blocks_of", lambda shards, share: shards.blocks)
    other += arrays(batches(dynamic, instances, seed=4, shuffle=False, share=Share(1, 2)), 1)
    assert unmasked(stream) == unmasked(stream[:1]) * 3
    assert unmasked(other) == unmasked(stream[:2])
    places = [batch[0]["mask_positions"] for batch in [*stream, *other]]
    for one, two in itertools.combinations(places, 2):
        assert np.mean((one == two).all(1)) < 0.2
    np.testing.assert_equal(arrays(batches(dynamic, instances, seed=4, shuffle=False), 3), stream)


@pytest.mark.slow
def test_masking_can_be_changed_for_compact_records_alone(dynamic, static, batches):
    def masked(folder=dynamic, **changed):
        return joined(batches(folder, 16, masking=Masking(**changed), shuffle=False, repeat=False))

    inputs, _, weights = masked(masked_lm_prob=0.5)
    assert weights["mlm_logits"].shape[1] == 16  # half of 32
    lengths = inputs["padding_mask"].sum(1)
    np.testing.assert_array_equal(weights["mlm_logits"].sum(1), np.round(lengths * 0.5))
    inputs, _, weights = masked(whole_word_masking=True)
    assert weights["mlm_logits"].any(1).all()  # what words are is tested where masks are
    spans = inputs, _, weights = masked(max_ngram=3)
    assert unmasked([spans]) == unmasked([masked()])
    gaps = np.diff(inputs["mask_positions"])[weights["mlm_logits"][:, 1:] > 0]
    assert np.mean(gaps == 1) > 0.3  # of tokens chosen apart, about a seventh
    inputs, labels, weights = masked(mask_token_share=0.0, random_token_share=0.0)
    shown = np.take_along_axis(inputs["token_ids"], inputs["mask_positions"], 1)
    real = weights["mlm_logits"] > 0
    np.testing.assert_array_equal(shown[real], labels["mlm_logits"][real])
    with pytest.raises(InputError, match=r"random_token_share 0\.1 are more than 1"):
        masked(mask_token_share=1.0)  # the other share is that of the shards
    refused(r"remove masked_lm_prob and max_ngram", masked, static, masked_lm_prob=0.2, max_ngram=3)
    refused(r"masked_lm_prob is 1\.5", masked, masked_lm_prob=1.5)


def test_the_tokenizer_of_the_shards_is_needed(dynamic, static, number_tokenizer):
    other = copy.copy(number_tokenizer)
    other.vocabulary_hash = "f" * 64
    for folder in (dynamic, static, open_shards(static, "held_out")):
        refused("made with another vocabulary", pretraining_batches, folder, 4, tokenizer=other)
    with pytest.raises(InputError, match=r"vocab\.txt"):  # which this tokenizer has not saved
        pretraining_batches(dynamic, 4)


def test_instances_that_are_no_pairs_give_the_next_sentence_no_weight(dynamic, batches, tmp_path):
    folder = shutil.copytree(dynamic, tmp_path / "shards")
    manifest = Manifest.load(folder)
    manifest.options["instances"] = "full_sentences"
    manifest.save(folder)
    for _, _, weights in arrays(batches(folder, 4), 3):
        assert not weights["nsp_logits"].any()
        assert weights["mlm_logits"].any()


@for_each("most_shuffled", 2**30, 1)
def test_an_epoch_has_each_instance_in_its_own_order(dynamic, batches, monkeypatch, most_shuffled):
    """Also where the blocks are too many to be shuffled whole."""
    monkeypatch.setattr(reading, "MOST_SHUFFLED", most_shuffled)
    instances = open_shards(dynamic).instances
    batch_size = next(b for b in range(3, 9) if instances % b)  # batches run across epochs
    stream = unmasked(arrays(batches(dynamic, batch_size, seed=3), 3 * instances // batch_size))
    in_order = unmasked(arrays(batches(dynamic, 5, shuffle=False, repeat=False)))
    assert len(in_order) == instances
    first, second = stream[:instances], stream[instances : 2 * instances]
    other = unmasked(arrays(batches(dynamic, 5, seed=4, repeat=False)))
    assert sorted(first) == sorted(second) == sorted(other) == sorted(in_order)
    assert len(set(map(tuple, (first, second, other, in_order)))) == 4
    step = instances // batch_size - 1
    rest = unmasked(arrays(batches(dynamic, batch_size, seed=3, start_step=step), 2))
    assert rest == stream[step * batch_size :][: len(rest)]


@pytest.mark.slow
def test_mixed_shards_continue_at_any_step(dynamic, number_shards, batches, monkeypatch):
    monkeypatch.setattr(reading, "MIXED", 50)
    others = [number_shards(masking="dynamic", seed=seed) for seed in (2, 3)]
    mixed = [(open_shards(folder), share) for folder, share in zip(others, (0.3, 0.1), strict=True)]
    whole = arrays(batches(dynamic, 7, seed=5, mixed=mixed), 75)
    np.testing.assert_equal(whole, arrays(batches(dynamic, 7, seed=5, mixed=mixed), 75))
    for step in (1, 7, 50, 71):
        rest = arrays(batches(dynamic, 7, seed=5, mixed=mixed, start_step=step), 75 - step)
        np.testing.assert_equal(rest, whole[step:])
    masks = {tuple(inputs["mask_positions"].ravel()) for inputs, _, _ in whole}
    assert len(masks) == len(whole)
    workers = [
        unmasked(arrays(batches(dynamic, 7, seed=5, mixed=mixed, share=Share(n, 2)), 10))
        for n in range(2)
    ]
    assert not set(workers[0]) & set(workers[1])


@settings(max_examples=4, deadline=None)
@given(
    step=st.integers(0, 10**9),
    batch_size=st.integers(1, 300),
    seed=st.integers(-(2**63), 2**63 - 1),
    workers=st.integers(1, 6),
)
def test_any_step_follows_the_last(dynamic, number_tokenizer, step, batch_size, seed, workers):
    def start(step):
        share = Share(workers - 1, workers)
        named = {"seed": seed, "start_step": step, "share": share, "tokenizer": number_tokenizer}
        return pretraining_batches(dynamic, batch_size, **named)

    np.testing.assert_equal(arrays(start(step), 3)[1:], arrays(start(step + 1), 2))


def test_a_late_start_reads_nothing_of_what_came_before(static, tmp_path):
    for path in static.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = arrays(pretraining_batches(static, 8, shuffle=False, repeat=False))
    # The blocks of windows before the last are made unreadable.
    shards = Manifest.load(tmp_path).shards["train"]
    step = sum(shard.instances for shard in shards[:-1]) // 8 + 4
    for shard in shards[:-1]:
        (tmp_path / shard.file).write_bytes(bytes(shard.bytes))
    late = pretraining_batches(tmp_path, 8, shuffle=False, repeat=False, start_step=step)
    np.testing.assert_equal(arrays(late), whole[step:])
    with pytest.raises(tf.errors.DataLossError):
        arrays(pretraining_batches(tmp_path, 8, shuffle=False, repeat=False))


def test_instances_of_a_block_are_spread_over_the_window(static):
    in_order = arrays(pretraining_batches(static, 8, shuffle=False, repeat=False))
    place = {instance: i for i, instance in enumerate(unmasked(in_order))}
    shards = open_shards(static)
    records = shards.blocks.records
    block = np.repeat(np.arange(len(records)), records)
    stream = unmasked(arrays(pretraining_batches(static, 8, seed=1), shards.instances // 8))
    of_stream = block[[place[instance] for instance in stream]]
    in_window = len(records) // -(-len(records) // 4)
    assert in_window > 2
    # A window's blocks are of random places and come together, before any other block.
    _, firsts = np.unique(of_stream, return_index=True)
    first_window = np.argsort(firsts)[:in_window]
    end = records[first_window].sum()
    assert set(of_stream[:end]) == set(first_window)
    assert set(first_window) != set(range(in_window))
    neighbours = np.mean(of_stream[1:] == of_stream[:-1])
    assert neighbours < 0.5  # 1/4 by chance; in the order of files 7/8


@for_each("most_shuffled", 2**30, 1)
def test_no_two_windows_and_no_two_epochs_are_shuffled_alike(static, monkeypatch, most_shuffled):
    monkeypatch.setattr(reading, "MOST_SHUFFLED", most_shuffled)
    blocks = open_shards(static).blocks
    windows = -(-len(blocks.records) // 4)
    two_epochs = _records((blocks, None), tf.constant([1, 2], tf.int64), 0, True).take(2 * windows)
    records, places = zip(*two_epochs.as_numpy_iterator(), strict=True)
    orders = [each % 2**32 for each in places]
    shortest = min(map(len, orders))
    assert len({tuple(order[order < shortest]) for order in orders}) == 2 * windows > 2
    assert set(records[0]) != set(records[windows])


def test_mixed_sources_and_parts_have_orders_of_their_own(monkeypatch):
    seeds = []

    def source_alone(source, seed, *, first, repeat):
        seeds.append(tuple(seed.numpy()))
        return tf.data.Dataset.from_tensors(([source], [0])).repeat()

    monkeypatch.setattr(reading, "_records", source_alone)
    monkeypatch.setattr(reading, "MIXED", 50)
    mixed = reading._mixed_records("abc", (0.3, 0.1), tf.constant([1, 2], tf.int64), 0)
    found = b"".join(record for record, _ in mixed.take(200).as_numpy_iterator())
    parts = [found[place : place + 50] for place in range(0, 200, 50)]
    assert [Counter(part) for part in parts] == [Counter(b"a" * 30 + b"b" * 15 + b"c" * 5)] * 4
    assert len(set(parts)) == 4
    assert len(set(seeds)) == 3


def test_workers_share_the_shards(static, batches):
    num_workers = 3
    in_order = unmasked(arrays(batches(static, 5, shuffle=False, repeat=False)))
    shares = []
    for worker in range(num_workers):
        mine = Share(worker, num_workers)
        share = unmasked(arrays(batches(static, 7, repeat=False, share=mine)))
        stream = batches(static, len(share), seed=2, share=mine)
        assert stream.cardinality() == tf.data.INFINITE_CARDINALITY
        first, second = arrays(stream, 2)
        assert sorted(unmasked([first])) == sorted(unmasked([second])) == sorted(share)
        assert unmasked([first]) != unmasked([second])
        np.testing.assert_equal(arrays(stream, 2), [first, second])
        shares.append(share)
    assert sorted(itertools.chain(*shares)) == sorted(in_order)
    sizes = [len(share) for share in shares]
    # At most one block more, and the last block of each of the three files may have one instance.
    assert max(sizes) - min(sizes) <= BLOCK + 3 * (BLOCK - 1)

    def policy(**named):
        options = pretraining_batches(static, 4, **named).options()
        return options.experimental_distribute.auto_shard_policy

    policies = tf.data.experimental.AutoShardPolicy
    assert policy() == policies.DATA
    assert policy(share=Share(1, 2)) == policies.OFF


def test_too_many_workers_are_refused(static):
    blocks = len(open_shards(static).blocks.records)
    last = Share(blocks - 1, blocks)
    assert len(arrays(pretraining_batches(static, 4, share=last), 2)) == 2
    with pytest.raises(InputError, match=f"{blocks} blocks .* too few for {blocks + 1}"):
        pretraining_batches(static, 4, share=Share(blocks, blocks + 1))
    for worker in (-1, 2):
        refused("number the workers from 0", pretraining_batches, static, 4, share=Share(worker, 2))


def test_lengths_are_known(dynamic, batches):
    instances = open_shards(dynamic).instances
    assert len(batches(dynamic, 7, repeat=False, drop_remainder=True)) == instances // 7
    late = batches(dynamic, 7, repeat=False, start_step=3)
    assert len(late) == len(arrays(late)) == -(-instances // 7) - 3
    ended = batches(dynamic, 7, repeat=False, start_step=10**6)
    assert len(ended) == len(arrays(ended)) == 0
    endless = batches(dynamic, 7)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    spec = endless.element_spec
    assert spec[0]["token_ids"].shape == (7, 32)
    assert spec[0]["mask_positions"].shape == spec[1]["mlm_logits"].shape == (7, 5)
    assert spec[1]["nsp_logits"].shape == (7,)
    refused("fill a batch of 100000", batches, dynamic, 100_000, repeat=False, drop_remainder=True)


def test_the_order_is_that_of_its_own_seed_alone(dynamic, batches):
    found = []
    for global_seed in (7, 0):  # with 0 TensorFlow's shuffle fails
        tf.random.set_seed(global_seed)
        found.append(arrays(batches(dynamic, 8, seed=1), batches=12))
    np.testing.assert_equal(*found)


@for_each("shape", "dynamic", slow("rows"))
def test_language_models_predict_the_neighbours_of_tokens(shape, request, number_shards, batches):
    """Of the text without masks, whatever the shards hold."""
    if shape == "rows":
        options = {"instances": "full_sentences", "instances_per_row": 4, "short_seq_prob": 0.9}
        folder = number_shards(masking="dynamic", **options)
    else:
        folder = request.getfixturevalue(shape)
    named = {"split": "held_out", "shuffle": False, "repeat": False}
    masked = arrays(batches(folder, 8, **named))
    named["make_examples"] = SideBySide.make_examples
    inputs, labels, weights = joined(batches(folder, 8, **named))
    ids, instances = inputs["token_ids"], inputs["padding_mask"]
    assert list(map(tuple, ids)) == unmasked(masked)
    assert (inputs["mask_positions"] == np.arange(32)).all()
    for name, step in (("ltr_logits", 1), ("rtl_logits", -1)):
        neighbours, theirs = (np.roll(values, -step, axis=1) for values in (ids, instances))
        theirs[:, -1 if step == 1 else 0] = 0  # outside of the row
        is_same = (instances > 0) & (theirs == instances)
        np.testing.assert_array_equal(weights[name], is_same)
        np.testing.assert_array_equal(labels[name], np.where(is_same, neighbours, 0))
    assert (instances.max() > 1) == (shape == "rows")
