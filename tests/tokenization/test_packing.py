import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.strings import MANY
from bert_tf.tokenization.tokenizer import BertTokenizer

# Special tokens with unusual ids: they must be found by name.
VOCABULARY = ["a", "[SEP]", "b", "[PAD]", "[MASK]", "[CLS]", "[UNK]"]
SEP, PAD, CLS = 1, 3, 5


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCABULARY)


def pop_longest(a, b, room):
    """What `truncate_seq_pair` of the original does, token by token."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


def pop_first(a, b, room):
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a or b).pop()
    return a, b


def pop_second(a, b, room):
    b, a = pop_first(b, a, room)
    return a, b


ORACLES = {"longest_first": pop_longest, "first_only": pop_first, "second_only": pop_second}


def packed_rows(rows_a, rows_b, max_length, truncation):
    rows = []
    for index, a in enumerate(rows_a):
        if rows_b is None:
            a = a[: max_length - 2]
            rows.append(([CLS, *a, SEP], [0] * (len(a) + 2)))
        else:
            a, b = ORACLES[truncation](a, rows_b[index], max_length - 3)
            tokens = [CLS, *a, SEP, *b, SEP]
            rows.append((tokens, [0] * (len(a) + 2) + [1] * (len(b) + 1)))
    return rows


def ragged(rows):
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([i for row in rows for i in row], tf.int32), [len(row) for row in rows]
    )


def check(tokenizer, rows_a, rows_b, max_length, truncation, pad_to_max_length):
    packer = Packer(tokenizer, max_length, truncation, pad_to_max_length)
    inputs = packer(ragged(rows_a), None if rows_b is None else ragged(rows_b))
    expected = packed_rows(rows_a, rows_b, max_length, truncation)
    # Without rows there is room for the special tokens, of which the model takes the first.
    specials = 2 if rows_b is None else 3
    longest = max((len(tokens) for tokens, _ in expected), default=specials)
    length = max_length if pad_to_max_length else longest
    assert {name: tensor.dtype for name, tensor in inputs.items()} == {
        "token_ids": tf.int32,
        "segment_ids": tf.int32,
        "padding_mask": tf.int32,
    }
    for name, rows, padding in (
        ("token_ids", [tokens for tokens, _ in expected], PAD),
        ("segment_ids", [segments for _, segments in expected], 0),
        ("padding_mask", [[1] * len(tokens) for tokens, _ in expected], 0),
    ):
        padded = [row + [padding] * (length - len(row)) for row in rows]
        np.testing.assert_array_equal(
            inputs[name], np.array(padded).reshape(len(rows), length), err_msg=name
        )


@pytest.mark.parametrize("max_length", [3, 4, 5, 8, 11, 14])
def test_every_pair_of_lengths_is_cut_as_by_the_original(tokenizer, max_length):
    lengths = [(a, b) for a in range(11) for b in range(11)]
    rows_a = [[*range(10, 10 + a)] for a, _ in lengths]
    rows_b = [[*range(30, 30 + b)] for _, b in lengths]
    for few in (slice(0), slice(MANY - 1), slice(MANY - 1, None)):  # the last one in a graph
        for truncation in ORACLES:
            check(tokenizer, rows_a[few], rows_b[few], max_length, truncation, max_length % 2 == 0)
        check(tokenizer, rows_a[few], None, max_length, truncation, max_length % 2 == 0)


def test_ranges_of_ids_are_packed(tokenizer):
    packer = Packer(tokenizer, max_length=8, pad_to_max_length=True)
    starts, lengths = tf.constant([[0, 4], [5, 0]]), tf.constant([[2, 1], [1, 3]])
    packed = packer.pack_ranges(tf.range(10, 20), tf.unstack(starts), tf.unstack(lengths))
    assert packed["token_ids"].numpy().tolist() == [
        [CLS, 10, 11, SEP, 15, SEP, PAD, PAD],
        [CLS, 14, SEP, 10, 11, 12, SEP, PAD],
    ]
    assert packed["segment_ids"].numpy().tolist() == [
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 0],
    ]


def test_shapes_in_a_data_pipeline(tokenizer):
    packer = Packer(tokenizer, max_length=8, pad_to_max_length=True)
    data = tf.data.Dataset.from_tensor_slices(["a b", "b", "a a a"]).batch(2)
    data = data.map(tokenizer.tokenize).map(packer)
    assert data.element_spec["token_ids"].shape == [None, 8]
    assert [len(batch["token_ids"]) for batch in data] == [2, 1]


def test_refusals(tokenizer):
    with pytest.raises(InputError, match=r"max_length is 1, but 2 tokens .* more than 2"):
        Packer(tokenizer, max_length=1)
    with pytest.raises(InputError, match="max_length is 2, but 3 tokens"):
        Packer(tokenizer, max_length=2)(ragged([[0]]), ragged([[2]]))
    with pytest.raises(InputError, match="'longest'; make it one of longest_first, first_only"):
        Packer(tokenizer, max_length=8, truncation="longest")
