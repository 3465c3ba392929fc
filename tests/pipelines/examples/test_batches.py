import itertools

import numpy as np
import tensorflow as tf
from cases import for_each

from bert_tf.pipelines.examples.batches import example_batches

SECOND = [f"{50 + i} {90 + i}" for i in range(11)]
STRINGS = {"text": [*map(str, range(10, 21))], "text_pair": SECOND}
LABELS = np.array([1, 0] * 5 + [1], np.int32)


def batches(tokenizer, number=None, strings=STRINGS, size=4, targets=(LABELS,), **arguments):
    def batch(strings, arrays):
        """Stands in for a kind's batch: pieces side by side, padded."""
        ids = tf.concat([tokenizer.tokenize(values) for values in strings.values()], axis=1)
        return ({"token_ids": ids.to_tensor()}, *arrays)

    dataset = example_batches(strings, batch, size, targets=targets, **arguments)
    return list(itertools.islice(dataset.as_numpy_iterator(), number))


def test_batches_in_file_order(number_tokenizer):
    found = batches(number_tokenizer)
    assert len(found) == 3
    ids = np.concatenate([inputs["token_ids"] for inputs, _ in found])
    assert ids.tolist() == [[10 + i, 50 + i, 90 + i] for i in range(11)]
    labels = np.concatenate([labels for _, labels in found])
    assert (labels.dtype, labels.tolist()) == (np.int32, LABELS.tolist())
    (inputs,) = batches(number_tokenizer, strings={"text": ["10", "11 12", "13"]}, targets=())
    assert inputs["token_ids"].tolist() == [[10, 0], [11, 12], [13, 0]]

    weights = LABELS.astype(np.float32) / 2  # stand beside the labels
    for _, labels, of_labels in batches(number_tokenizer, 5, targets=(LABELS, weights), seed=1):
        assert (labels / 2).tolist() == of_labels.tolist()


def test_shuffled_epochs_hold_each_example_once_and_continue_at_any_step(number_tokenizer):
    stream = batches(number_tokenizer, 9, seed=3)
    rows = [[*zip(inputs["token_ids"][:, 0], labels, strict=True)] for inputs, labels in stream]
    epochs = [[*itertools.chain(*rows[first : first + 3])] for first in (0, 3, 6)]
    expected = [(10 + i, 1 - i % 2) for i in range(11)]
    assert all(sorted(epoch) == expected != epoch for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    for step in (1, 3, 7):
        rest = batches(number_tokenizer, 9 - step, seed=3, start_step=step)
        tf.nest.map_structure(np.testing.assert_array_equal, rest, stream[step:])


@for_each("count seed", (7, 0), (259, 1), (1003, 2))
def test_batches_of_like_length(number_tokenizer, count, seed):
    """Every example once an epoch; the seed alone decides; resumed anywhere; little padding."""
    size, epoch = 4, -(-count // 4)
    lengths = np.random.default_rng(seed).integers(1, 100, count)
    rows = {"text": [str(i % 90 + 10) for i in range(count)]}

    def of(steps, **more):
        options = {"targets": (np.arange(count),), "lengths": lengths, "seed": seed}
        found = batches(number_tokenizer, steps, rows, size, **options, **more)
        return [numbers.tolist() for _, numbers in found]

    stream = of(2 * epoch)
    for first in (0, epoch):
        numbers = [number for batch in stream[first : first + epoch] for number in batch]
        assert sorted(numbers) == list(range(count)) != numbers
    assert stream[:epoch] != stream[epoch:]
    for step in (1, epoch - 1, epoch + 1):
        assert of(2 * epoch - step, start_step=step) == stream[step:]
    whole = [lengths[batch] for batch in stream if len(batch) == size]
    widths = [batch.max() for batch in whole]
    for first in (0, epoch) if count >= 256 else ():
        assert max(lengths[stream[first]]) == max(max(lengths[b]) for b in stream[first:][:epoch])
    if count == 1003:
        assert sum(widths) * size < 1.05 * sum(map(sum, whole))
        # Neither the batches of an epoch nor the examples of a batch are in order of length.
        assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.2
        first, last = np.mean([batch[0] for batch in whole]), np.mean([b[-1] for b in whole])
        assert abs(first - last) < 0.02 * lengths.mean()


def test_examples_of_like_length_meet_others_and_short_epochs_are_random(number_tokenizer):
    """Sorted as a whole, 256 examples would give the same 64 batches in each epoch."""

    def of(count, steps, lengths):
        rows, targets = {"text": ["10"] * count}, (np.arange(count),)
        options = {"targets": targets, "lengths": lengths, "seed": 1}
        found = batches(number_tokenizer, steps, rows, **options)
        return [numbers.tolist() for _, numbers in found]

    together = [frozenset(numbers) for numbers in of(256, 128, np.arange(256))]
    assert len({*together[:64]} & {*together[64:]}) < 4
    assert of(252, 63, np.arange(252)) == of(252, 63, None)


@for_each("size whole_batches seed", (1, 64, 7), (2, 1, None), (3, 1, 7))
def test_workers_share_the_rows_of_each_batch(number_tokenizer, whole_batches, seed, size):
    # Batches of 3 * size for three workers: of the last one of an epoch some have no rows. 64 are
    # put together by length.
    count = whole_batches * 3 * size + 2
    strings = {"text": [str(10 + i % 90) for i in range(count)]}

    def of(size, **more):
        options = {"targets": (np.arange(count),), "start_step": whole_batches - 1}
        lengths = np.arange(count) % 4 if seed else None
        more |= {"seed": seed, "lengths": lengths}
        return batches(number_tokenizer, 9, strings, size, **options, **more)

    whole = of(3 * size)
    assert min(len(numbers) for _, numbers in whole) == 2
    shares = [of(size, worker=worker, num_workers=3) for worker in range(3)]
    assert [len(share) for share in shares] == [len(whole)] * 3
    for (inputs, labels), *parts in zip(whole, *shares, strict=True):
        expected = [len(labels[i * size : (i + 1) * size]) for i in range(3)]
        assert [len(part) for _, part in parts] == expected
        assert np.concatenate([part for _, part in parts]).tolist() == labels.tolist()
        rows = [row[row != 0].tolist() for part, _ in parts for row in part["token_ids"]]
        assert rows == [row[row != 0].tolist() for row in inputs["token_ids"]]
