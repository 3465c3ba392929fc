import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from pipelines.examples.labelled_text import LabelledText, read_labelled_text, text_batches


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_tsv_takes_quotes_as_they_are(tmp_path):
    path = write(
        tmp_path, "a.tsv", '\ufefflabel\tsentence\r\n1\t"so he said\r\n0\tok "\u2028end\r\n'
    )
    assert read_labelled_text(path, "sentence", label_column="label") == LabelledText(
        texts=['"so he said', 'ok "\u2028end'], labels=["1", "0"]
    )


def test_csv_takes_quotes_for_quotes(tmp_path):
    path = write(tmp_path, "a.csv", 'a,b,label\n"x, ""y""\nz",w,yes\n,"",no\n')
    assert read_labelled_text(path, "a", "b", "label") == LabelledText(
        texts=['x, "y"\nz', ""], pairs=["w", ""], labels=["yes", "no"]
    )


def test_jsonl(tmp_path):
    rows = [{"q": "é\n", "n": 1, "x": None}, {"n": 2.5, "q": "b"}]
    path = write(tmp_path, "a.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n")
    assert read_labelled_text(path, "q", label_column="n") == LabelledText(
        texts=["é\n", "b"], labels=["1", "2.5"]
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "text\tlabel\na\t1\n", r"a\.tsv: no column 'sentence', there are: text, label"),
        ("a.csv", "text,label\n", r"a\.csv: no column 'sentence', there are: text, label"),
        ("a.tsv", "sentence\tlabel\na\t1\nb\n", r"line 3: 1 columns where the first line names 2"),
        ("a.csv", 'sentence,label\na,1\n"b\n\n', r"line 4: unexpected end of data"),
        ("a.csv", "sentence,label\na,1,2\n", r"line 2: 3 columns"),
        ("a.tsv", "sentence\tlabel\tlabel\n", "two columns of one name"),
        ("a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence"\n', r"line 2: not JSON"),
        ("a.jsonl", '{"sentence": "a"}\n', r"line 1: no column 'label', there are: sentence"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", '{"sentence": ["a"], "label": 1}\n', r"'sentence' is \[\"a\"\]"),
        ("a.tsv", b"sentence\tlabel\na\t1\n\xff\t1\n", r"a\.tsv, line 3: invalid UTF-8"),
        ("a.tsv", " \n", "the file is empty"),
        ("a.tsv", "sentence\tlabel\n", "only a line of column names"),
        ("a.txt", "sentence\tlabel\na\t1\n", r"extension \.txt"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=message) as raised:
        read_labelled_text(path, "sentence", label_column="label")
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.tsv: cannot be read"):
        read_labelled_text(tmp_path / "gone.tsv", "sentence")


def pack(ids_a, ids_b=None):
    """Stands in for `bert_tf.tokenization.packing.Packer`: pieces side by side, padded."""
    ids = ids_a if ids_b is None else tf.concat([ids_a, ids_b], axis=1)
    return {"token_ids": ids.to_tensor()}


EXAMPLES = LabelledText(
    texts=[str(10 + i) for i in range(11)],
    pairs=[f"{50 + i} {90 + i}" for i in range(11)],
    labels=["no", "yes"] * 5 + ["no"],
)


def batches(tokenizer, number=None, examples=EXAMPLES, **arguments):
    dataset = text_batches(examples, tokenizer, pack, 4, labels=["yes", "no"], **arguments)
    return list(itertools.islice(dataset.as_numpy_iterator(), number))


def test_batches_in_file_order(number_tokenizer):
    dataset = text_batches(EXAMPLES, number_tokenizer, pack, 4, labels=["yes", "no"])
    found = list(dataset.as_numpy_iterator())
    assert len(dataset) == len(found) == 3
    ids = np.concatenate([inputs["token_ids"] for inputs, _ in found])
    assert ids.tolist() == [[10 + i, 50 + i, 90 + i] for i in range(11)]
    labels = np.concatenate([labels for _, labels in found])
    assert labels.dtype == np.int32
    assert labels.tolist() == [1, 0] * 5 + [1]


def test_batches_without_labels_hold_inputs_alone(number_tokenizer):
    singles = LabelledText(texts=["10", "11 12", "13"])
    (inputs,) = batches(number_tokenizer, examples=singles)
    assert inputs["token_ids"].tolist() == [[10, 0], [11, 12], [13, 0]]


def test_shuffled_epochs_hold_each_example_once_and_continue_at_any_step(number_tokenizer):
    stream = batches(number_tokenizer, 9, seed=3)
    epochs = [
        [
            (ids[0], label)
            for inputs, labels in stream[first : first + 3]
            for ids, label in zip(inputs["token_ids"], labels, strict=True)
        ]
        for first in (0, 3, 6)
    ]
    expected = [(10 + i, 1 - i % 2) for i in range(11)]
    assert all(sorted(epoch) == expected != epoch for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    for step in (1, 3, 7):
        rest = batches(number_tokenizer, 9 - step, seed=3, start_step=step)
        tf.nest.map_structure(np.testing.assert_array_equal, rest, stream[step:])


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_workers_share_the_rows_of_each_batch(number_tokenizer, seed, size):
    # Batches of 3 * size for three workers: of the last one of an epoch some have no rows.
    def batches(size, **more):
        dataset = text_batches(
            EXAMPLES, number_tokenizer, pack, size, labels=["no", "yes"], seed=seed, start_step=1,
            **more,
        )  # fmt: skip
        return list(dataset.take(9).as_numpy_iterator())

    whole = batches(3 * size)
    shares = [batches(size, worker=worker, num_workers=3) for worker in range(3)]
    assert [len(share) for share in shares] == [len(whole)] * 3
    for (inputs, labels), *parts in zip(whole, *shares, strict=True):
        assert [len(own) for _, own in parts] == [
            len(labels[i * size : (i + 1) * size]) for i in range(3)
        ]
        assert np.concatenate([own for _, own in parts]).tolist() == labels.tolist()
        rows = [row[row != 0].tolist() for own, _ in parts for row in own["token_ids"]]
        assert rows == [row[row != 0].tolist() for row in inputs["token_ids"]]


def test_unknown_labels_are_named(number_tokenizer):
    with pytest.raises(InputError, match=r"label 'maybe' of example 2 .*\(yes, no\)"):
        batches(number_tokenizer, examples=LabelledText(["1", "2"], labels=["no", "maybe"]))


def test_take(number_tokenizer):
    assert EXAMPLES.take(np.array([3, 0])) == LabelledText(
        ["13", "10"], ["53 93", "50 90"], ["yes", "no"]
    )
    assert LabelledText(["a", "b"]).take([1]) == LabelledText(["b"])
    assert len(EXAMPLES) == 11
