import pytest

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.files import read_table


def test_labels_have_the_names_of_the_dataset_and_rows_the_published_order(tensorflow_datasets):
    rows = [
        {"premise": "b", "hypothesis": "é", "label": 2, "idx": 1},
        {"premise": "a", "hypothesis": "", "label": 0, "idx": 0},
        {"premise": "c", "hypothesis": "x", "label": 1, "idx": 2},
    ]
    columns = {"text": "premise", "text_pair": "hypothesis", "label": "label"}
    with tensorflow_datasets(rows):
        found = read_table("tfds:glue/mnli:validation_matched").examples(columns)
    columns = {"text": ["a", "b", "c"], "text_pair": ["", "é", "x"]}
    assert found.columns == {**columns, "label": ["entailment", "contradiction", "neutral"]}
    assert found.location(1) == "tfds:glue/mnli:validation_matched, example 1"
    (remark,) = found.remarks()
    assert remark.endswith(": 1 examples have a blank text, the first in example 0")


def test_unknown_labels_are_blank(tensorflow_datasets):
    with tensorflow_datasets([{"sentence": "a", "label": -1, "idx": 0}]):
        columns = read_table("tfds:glue/cola:test").examples({"label": "label"}).columns
        assert columns == {"label": [""]}


def test_what_is_not_there_is_named(tensorflow_datasets):
    with tensorflow_datasets([]):
        with pytest.raises(InputError, match=r"tfds:glue/mnly: TensorFlow Datasets cannot load"):
            read_table("tfds:glue/mnly").examples({"text": "premise"})
        with pytest.raises(InputError, match=r"tfds:glue/cola: no example"):
            read_table("tfds:glue/cola").examples({"text": "sentence"})
    with tensorflow_datasets([{"sentence": "a", "label": 0, "idx": 7}]):
        expected = r"tfds:glue/cola, example 7: no column 'text', there are: "
        with pytest.raises(InputError, match=expected):
            read_table("tfds:glue/cola").examples({"text": "text"})
