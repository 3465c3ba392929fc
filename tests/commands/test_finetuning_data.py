"""Batches of training rows, for every way that a kind makes rows."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.commands.finetuning_data import FinetuningData
from bert_tf.tasks.table import TASKS

LENGTH, SIZE = 16, 4
WORDS = ["a", "b", "c", "##c"]
TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
TEXTS = [" ".join(["a", "bc"] * (1 + i % 5)) for i in range(10)]  # 3, 6, 9, 12 or 15 pieces
OTHERS = ["b" + " c" * (i % 3) for i in range(10)]
CLASSES = np.zeros(10, np.int32)
# Task -> columns, targets; whether each row's length is known exactly.
ROWS = {
    "classification": ({"text": TEXTS, "text_pair": OTHERS}, CLASSES, True),
    "choice": ({"context": TEXTS, "choices": [[t, "a b c a"] for t in OTHERS]}, CLASSES, True),
    "squad": (
        {"question": OTHERS, "context": TEXTS, "window": np.zeros(10, np.int32)},
        np.zeros([10, 2], np.int32),
        False,
    ),
    "tagging": (
        {"words": TEXTS},
        np.array([[i % 3 if i < len(t.split()) else -1 for i in range(10)] for t in TEXTS]),
        False,
    ),
}


def data(task: str) -> FinetuningData:
    columns, targets, _ = ROWS[task]
    dataset = TASKS[task].with_settings({"max_length": LENGTH, "pair_column": "p"})
    return FinetuningData(dataset, TOKENIZER, [], None, None, [], columns, [targets])


@pytest.mark.parametrize(
    "task", [pytest.param(x, marks=[pytest.mark.slow] * (x == "squad")) for x in ROWS]
)
def test_fixed_lengths_add_nothing_but_padding(task):
    """XLA and TPUs compile for every shape: there is one."""
    rows = data(task)
    fixed = rows.batches(2, seed=1, fixed_length=True).take(5)
    tokens = {**fixed.element_spec[0], "": None}
    assert {spec.shape[-1] for name, spec in tokens.items() if name} == {LENGTH}
    shorter = 0
    for padded, batch in zip(fixed, rows.batches(2, seed=1), strict=False):
        shorter += batch[0]["token_ids"].shape[-1] < LENGTH
        for ours, expected in zip(tf.nest.flatten(padded), tf.nest.flatten(batch), strict=True):
            gaps = np.subtract(ours.shape, expected.shape)
            np.testing.assert_array_equal(ours, np.pad(expected, [(0, gap) for gap in gaps]))
    assert shorter


@pytest.mark.parametrize("task", [task for task, (*_, exact) in ROWS.items() if exact])
def test_lengths_are_those_of_the_rows(task):
    rows = data(task)
    uncut = rows.task.kind.lengths(rows.columns, TOKENIZER)
    assert (uncut > LENGTH).any() and (uncut < LENGTH).any()
    strings = {name: tf.constant(values) for name, values in rows.columns.items()}
    (inputs, _) = rows.task.kind.batch(strings, [CLASSES], TOKENIZER, LENGTH)
    found = tf.reduce_sum(inputs["padding_mask"], -1)
    found = found if found.shape.rank == 1 else tf.reduce_max(found, -1)
    np.testing.assert_array_equal(found, rows.lengths)
    np.testing.assert_array_equal(rows.lengths, np.minimum(uncut, LENGTH))


@pytest.mark.parametrize("task", ROWS)
def test_batches_are_of_like_length_where_each_row_has_one_loss(task):
    """A tagger's loss is a mean over the words of a batch: it would favour short sentences."""
    columns, targets, _ = ROWS[task]
    many = {name: list(values) * 32 for name, values in columns.items()}
    rows = replace(data(task), columns=many, arrays=[np.concatenate([targets] * 32)])
    real = widest = 0
    for inputs, *_ in rows.batches(SIZE, seed=1).take(80):
        mask = inputs["padding_mask"].numpy()
        real, widest = real + mask.sum(), widest + mask.size
    padding = 1 - real / widest
    assert padding > 0.2 if task == "tagging" else padding < 0.15, padding
