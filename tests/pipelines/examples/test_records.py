"""Records of TensorFlow Datasets: columns, label names and the published order."""

import pytest

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.files import read_examples, read_table
from bert_tf.pipelines.examples.tagged_words import read_words


def test_labels_have_the_names_of_the_dataset_and_rows_the_published_order(tensorflow_datasets):
    rows = [
        {"premise": "b", "hypothesis": "é", "label": 2, "idx": 1},
        {"premise": "a", "hypothesis": "", "label": 0, "idx": 0},
        {"premise": "c", "hypothesis": "x", "label": 1, "idx": 2},
    ]
    columns = {"text": "premise", "text_pair": "hypothesis", "label": "label"}
    with tensorflow_datasets(rows):
        found = read_examples("tfds:glue/mnli:validation_matched", columns)
    assert found.columns == {
        "text": ["a", "b", "c"],
        "text_pair": ["", "é", "x"],
        "label": ["entailment", "contradiction", "neutral"],
    }
    assert found.location(1) == "tfds:glue/mnli:validation_matched, example 1"
    (remark,) = found.remarks()
    assert remark.endswith(": 1 examples have a blank text, the first in example 0")


def test_numbers_are_as_in_the_file_and_unknown_labels_blank(tensorflow_datasets):
    with tensorflow_datasets([{"sentence1": "a", "sentence2": "b", "label": 3.8, "idx": 0}]):
        assert read_examples("tfds:glue/stsb", {"label": "label"}).columns == {"label": ["3.8"]}
    with tensorflow_datasets([{"sentence": "a", "label": -1, "idx": 0}]):
        assert read_examples("tfds:glue/cola:test", {"label": "label"}).columns == {"label": [""]}


def test_words_and_their_labels(tensorflow_datasets):
    words = {"tokens": ["Wolff", "in", "Bonn"], "ner": [1, 0, 5]}
    rest = {"pos": [0, 0, 0], "chunks": [0, 0, 0]}
    with tensorflow_datasets([{**words, **rest}]):
        found = read_words(read_table("tfds:conll2003:dev"), {"text": "tokens", "label": "ner"})
    assert found.columns == {"words": ["Wolff in Bonn"], "label": ["B-PER O B-LOC"]}


def test_what_is_not_there_is_named(tensorflow_datasets):
    with tensorflow_datasets([]):
        with pytest.raises(InputError, match=r"tfds:glue/mnly: TensorFlow Datasets cannot load"):
            read_examples("tfds:glue/mnly", {"text": "premise"})
        with pytest.raises(InputError, match=r"tfds:glue/cola: no example"):
            read_examples("tfds:glue/cola", {"text": "sentence"})
    with tensorflow_datasets([{"sentence": "a", "label": 0, "idx": 7}]):
        expected = r"tfds:glue/cola, example 7: no column 'text', there are: "
        with pytest.raises(InputError, match=expected):
            read_examples("tfds:glue/cola", {"text": "text"})
