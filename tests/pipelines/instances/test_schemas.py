import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from hypothesis import given, settings
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertPreTrainer
from bert_tf.commands.inspect import displayed_instances
from bert_tf.models.encoder import encoder_for
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances import schemas
from bert_tf.pipelines.instances.schemas import row_predictions, serialize_examples
from bert_tf.pipelines.shards.folder import open_shards
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.pipelines.shards.run import write_shards

LENGTH, MOST = 64, 4


def options(**changed):
    settings = {"max_seq_length": LENGTH, "short_seq_prob": 0.9, "num_shards": 2}
    return PretrainingDataOptions(**{**settings, "held_out_share": 0, **changed})


def least_room_first(lengths, most):
    """Each instance, the longest first, in the first row of those with the least room."""
    room, free, rows = [], [], [0] * len(lengths)
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        fitting = [r for r, left in enumerate(room) if left >= lengths[index] and free[r]]
        if not fitting:
            fitting = [len(room)]
            room.append(LENGTH)
            free.append(most)
        row = min(fitting, key=lambda r: (room[r], r))
        room[row] -= lengths[index]
        free[row] -= 1
        rows[index] = row
    return rows


@given(lengths=st.lists(st.integers(3, LENGTH), max_size=60), most=st.sampled_from([2, MOST]))
@settings(deadline=None, max_examples=60)
def test_instances_go_where_the_least_room_is_left(lengths, most):
    rows = schemas._fill_rows(np.array(lengths, np.int32), options(instances_per_row=most))
    assert rows.tolist() == least_room_first(lengths, most)


@for_each("lengths rows", ([], 0), ([9], 1), ([60, 60, 4], 2))
def test_no_row_is_empty(lengths, rows):
    records = tf.constant([b"record"] * len(lengths), tf.string)
    how = options(instances_per_row=MOST), tf.zeros(2, tf.int32)
    made = schemas.serialize_rows(records, tf.constant(lengths, tf.int32), *how)
    assert made.shape == (rows,)


@given(lengths=st.lists(st.integers(3, LENGTH), min_size=1, max_size=MOST))
def test_slots_hold_the_predictions_of_any_row(lengths):
    if sum(lengths) > LENGTH:
        return
    for probability in (0.01, 0.15, 0.5):
        made = options(instances_per_row=MOST, masked_lm_prob=probability)
        most = made.max_predictions_per_seq
        predictions = sum(min(most, max(1, round(probability * each))) for each in lengths)
        assert predictions <= row_predictions(made)


@pytest.fixture(scope="module")
def tokenizer(number_tokenizer):
    return type(number_tokenizer)(vocabulary_size=4000)


@pytest.fixture(scope="module", params=["static", slow("dynamic")])
def folders(request, made_once, number_corpus, tokenizer):
    """The same instances in shards of their own, and in shards of rows."""

    def make(path):
        path.mkdir()
        (path / "corpus.txt").write_text(number_corpus(25))
        for name, most in (("alone", 1), ("rows", MOST)):
            made = options(masking=request.param, instances_per_row=most)
            write_shards(path / "corpus.txt", path / name, tokenizer, made)

    folder = made_once(f"rows_{request.param}", make)
    return folder / "alone", folder / "rows"


def whole_epoch(folder, tokenizer):
    count = open_shards(folder).instances
    batches = pretraining_batches(folder, count, shuffle=False, repeat=False, tokenizer=tokenizer)
    return next(iter(batches))


def instances_of(batch):
    """Each instance: ids as they were before masking, segments, label; in any order."""
    inputs, labels, weights = tf.nest.map_structure(lambda x: x.numpy(), batch)
    found = []
    for row, ids in enumerate(inputs["token_ids"]):
        ids, numbers = ids.copy(), inputs["padding_mask"][row]
        predicted = weights["mlm_logits"][row] > 0
        positions = inputs["mask_positions"][row][predicted]
        assert len(set(positions)) == len(positions)
        ids[positions] = labels["mlm_logits"][row][predicted]
        next_sentences = np.atleast_1d(labels["nsp_logits"][row])
        counted = np.atleast_1d(weights["nsp_logits"][row])
        assert counted.sum() == numbers.max()
        for number in range(1, numbers.max() + 1):
            place = np.flatnonzero(numbers == number)
            assert (np.diff(place) == 1).all()
            if "position_ids" in inputs:
                assert inputs["first_positions"][row][number - 1] == place[0]
                assert (inputs["position_ids"][row][place] == np.arange(len(place))).all()
            assert predicted[np.isin(inputs["mask_positions"][row], place) & predicted].any()
            segments = inputs["segment_ids"][row][place]
            found.append((*ids[place], -1, *segments, next_sentences[number - 1]))
    return sorted(found)


def test_rows_hold_the_instances_of_shards_without(folders, tokenizer):
    alone, rows = folders
    batches = [whole_epoch(folder, tokenizer) for folder in folders]
    assert instances_of(batches[0]) == instances_of(batches[1])
    inputs, *_ = batches[1]
    assert inputs["token_ids"].shape[1] == LENGTH
    assert (inputs["padding_mask"].numpy() > 1).any()
    manifests = Manifest.load(alone), Manifest.load(rows)
    assert manifests[1].instances() < 0.7 * manifests[0].instances()
    assert manifests[0].statistics == manifests[1].statistics
    full = [np.mean(batch[0]["padding_mask"].numpy() > 0) for batch in batches]
    assert full[0] < 0.7 < 0.85 < full[1]


def test_each_instance_of_a_row_is_shown_alone(folders, tokenizer):
    class Readable(type(tokenizer)):
        id_to_token = staticmethod(str)

    found = displayed_instances(open_shards(folders[1]), Readable(4000), count=20, seed=1)
    assert len(found) == 20
    for instance in found:
        shown = [token.shown for token in instance.tokens]
        assert (shown[0], shown[-1], shown.count("2")) == ("2", "3", 1)
        hidden = sum(token.hidden is not None for token in instance.tokens)
        assert hidden == max(1, round(0.15 * len(shown)))
    assert {instance.label for instance in found} == {"IsNext", "NotNext"}


def loss_and_gradients(model, batch):
    inputs, labels, weights = batch
    with tf.GradientTape() as tape:
        logits = model(inputs, training=True)
        losses = []
        for name, target in labels.items():
            each = keras.losses.sparse_categorical_crossentropy(target, logits[name], True)
            losses.append(tf.reduce_sum(each * weights[name]) / tf.reduce_sum(weights[name]))
        loss = tf.add_n(losses)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return loss.numpy(), [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


@for_each("folders", "static", indirect=True)
def test_loss_and_gradients_are_those_of_the_instances_alone(folders, tokenizer):
    config = tiny_config(4000, "1x16x2", max_position_embeddings=LENGTH, dropout=0)
    model = BertPreTrainer(config, seed=1)
    batches = [whole_epoch(folder, tokenizer) for folder in folders]
    (loss, gradients), (in_rows, of_rows) = (loss_and_gradients(model, each) for each in batches)
    # Two blocks and the head; then a sum over all words, in a gradient one over all tokens.
    words = int(batches[0][2]["mlm_logits"].shape[0] * batches[0][2]["mlm_logits"].shape[1])
    tokens = batches[0][0]["token_ids"].numpy().size
    np.testing.assert_allclose(in_rows, loss, rtol=rounding(40, 32) + rounding(2, words))
    assert len(gradients) == len(of_rows) == len(model.trainable_variables)
    # A bias of the keys changes no probability: its gradient is what rounding leaves of the terms.
    least = 1e-2 * max(np.abs(each).max() for each in gradients)
    share = rounding(80, 32) + rounding(2, tokens)
    for ours, theirs in zip(of_rows, gradients, strict=True):
        size = max(np.abs(theirs).max(), least)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=share * size)
        assert np.abs(theirs).max() > 0


def test_a_token_sees_its_own_instance_alone():
    direction = "left_to_right+right_to_left"  # the test above is of both
    config = tiny_config(50, "2x16x2", max_position_embeddings=8, attention_direction=direction)
    encoder, _ = encoder_for(config, 1, None)
    ids = np.array([[2, 7, 3, 2, 8, 9, 3, 0]])
    inputs = {"token_ids": ids, "segment_ids": 0 * ids}
    inputs["padding_mask"] = np.array([[1, 1, 1, 2, 2, 2, 2, 0]])
    inputs["position_ids"] = np.array([[0, 1, 2, 0, 1, 2, 3, 0]])
    before = encoder(inputs)["sequence_output"].numpy()
    other = {**inputs, "token_ids": np.array([[2, 7, 3, 2, 30, 31, 3, 5]])}
    after = encoder(other)["sequence_output"].numpy()
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (np.abs(before[:, 3:7] - after[:, 3:7]).max(-1) > 1e-4).all()
    alone = {name: values[:, 3:7] for name, values in inputs.items() if name != "position_ids"}
    found = encoder(alone)["sequence_output"]
    size = np.abs(found).max()  # of a normalized state
    np.testing.assert_allclose(found, before[:, 3:7], rtol=0, atol=rounding(40, 32, size))


def test_an_empty_batch_gives_no_records():
    assert serialize_examples({"ids": tf.zeros([0, 4], tf.int64)}).shape == [0]
