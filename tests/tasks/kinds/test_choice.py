import json

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused

from bert_tf import BertTokenizer
from bert_tf.errors import InputError
from bert_tf.pipelines.examples.table import Examples
from bert_tf.serving.predictor import answer
from bert_tf.tasks.predictions import write_predictions
from bert_tf.tasks.remarks import doubts
from bert_tf.tasks.task_table import TASKS

SWAG = """\
,video-id,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,a,"A man, old. He",A man.,He,gold,sings.,"eats, too.",is a tree.,flies.,1
1,b,x,Rain falls.,,gold,It is wet.,It is dry.,a,b,0
"""


@pytest.fixture
def read(tmp_path):
    def read(name: str, content: str, **settings):
        task = TASKS["swag" if name.endswith(".csv") else "choice"]
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return task.read(path, "train", **settings)

    return read


def test_swag_as_published(read):
    examples = read("val.csv", SWAG)
    assert examples.columns == {
        "context": ["A man.", "Rain falls."],
        "choices": [
            ["He sings.", "He eats, too.", "He is a tree.", "He flies."],
            ["It is wet.", "It is dry.", "a", "b"],
        ],
        "label": ["1", "0"],
    }
    assert TASKS["swag"].kind.targets(examples, []).tolist() == [1, 0]
    assert "label" not in read("val.csv", SWAG, labelled=False).columns


def test_choices_of_a_data_frame_s_file(tmp_path):
    (tmp_path / "d.csv").write_text("context,choices,label\na,\"['x', 'y']\",1.0\n")
    examples = TASKS["choice"].read(tmp_path / "d.csv", "train")
    assert examples.columns["choices"] == [["x", "y"]]
    assert TASKS["choice"].kind.targets(examples, []).tolist() == [1]


@for_each(
    "change expected",
    ({"choices": ["x", " "]}, "line 2: choice 1 is empty"),
    ({"choices": ["x", "y", "z"]}, "line 2: 3 choices where line 1 has 2"),
    ({"choices": ["x", None]}, "line 2: 'choices1' is null"),
    ({"choices": "x"}, "line 2: no column 'choices*'"),
    ({"label": 2}, "line 2: the label '2' is no choice; give a number from 0 to 1"),
    ({"label": "x"}, "line 2: the label 'x' is no choice"),
)
def test_bad_rows_are_named(change, expected, read):
    row = {"context": "c", "choices": ["x", "y"], "label": 0}
    content = "\n".join(map(json.dumps, (row, {**row, **change})))
    with pytest.raises(InputError, match=r"data\.jsonl") as error:
        TASKS["choice"].kind.targets(read("data.jsonl", content), [])
    assert expected in str(error.value)


@for_each(
    "columns option", ("sent1,sent2,label", "--pair_column"), ("q,ending0,label", "--text_column")
)
def test_a_missing_column_names_its_option(columns, option, read):
    refused(f"give {option} one of these", read, "data.csv", f"{columns}\n0,0,0\n")


LETTERS = (["A", "C", "B"], [0, 2, 1], False)


@for_each("labels targets is_doubted", LETTERS, ([*"121"], [1, 2, 1], True), (["0"], [0], False))
def test_letters_are_choices_and_counting_from_1_is_doubted(labels, targets, is_doubted):
    columns = {"context": ["x"], "choices": [["a", "b", "c"]]}
    columns = {name: values * len(labels) for name, values in columns.items()}
    kind = TASKS["choice"].kind
    examples = Examples("d.csv", [*range(len(labels))], {**columns, "label": labels})
    assert kind.targets(examples, []).tolist() == targets
    assert any("subtract 1" in doubt for doubt in doubts(kind, examples)) is is_doubted


def test_every_choice_is_a_row_with_the_context():
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
    contexts, choices = tf.constant(["a", "b b"]), tf.constant([["c", ""], ["a", "b"]])
    strings = {"context": contexts, "choices": choices}
    inputs = TASKS["choice"].kind.model_inputs(strings, tokenizer, 8)
    first, second = inputs["token_ids"].numpy().tolist()
    assert first == [[2, 5, 3, 7, 3, 0], [2, 5, 3, 3, 0, 0]]
    assert second == [[2, 6, 6, 3, 5, 3], [2, 6, 6, 3, 6, 3]]
    assert inputs["segment_ids"].numpy()[1, 1].tolist() == [0, 0, 0, 0, 1, 1]


def test_answers_are_a_softmax_and_predictions_have_every_choice(tmp_path, answered):
    columns = {"context": ["a", "b"], "choices": [["x", "y"]] * 2, "label": ["0", "1"]}
    found = answered(TASKS["choice"], columns, [[0.0, np.log(3.0)], [1.0, 1.0]])
    assert found.answers["choice"].tolist() == [1, 0]
    np.testing.assert_allclose(found.answers["probability"], [0.75, 0.5], atol=1e-6)
    write_predictions(found.task.kind, tmp_path, found)
    assert (tmp_path / "predictions.tsv").read_text().splitlines() == [
        "label\tcontext\tchoices0\tchoices1\tpredicted\tprobability0\tprobability1",
        "0\ta\tx\ty\t1\t0.250000\t0.750000",
        "1\tb\tx\ty\t0\t0.500000\t0.500000",
    ]


@for_each("strings", {"text": ["a"]}, {"context": ["a"], "choices": ["b"]})
def test_texts_for_a_model_of_choices_are_refused(strings):
    signature = tf.function(lambda **strings: {"choice": strings["context"]}).get_concrete_function(
        context=tf.TensorSpec([None], tf.string, "context"),
        choices=tf.TensorSpec([None, None], tf.string, "choices"),
    )
    refused("takes choices and context: give --input a file of them", answer, signature, strings, 8)


def test_blank_choices_have_no_probability_unless_all_are():
    scores = tf.constant([[1.0], [3.0], [1.0], [3.0]])
    answers = TASKS["choice"].kind.choose(scores, tf.constant([[False, True], [True, True]]))
    both = np.exp([1.0, 3.0]) / np.exp([1.0, 3.0]).sum()
    np.testing.assert_allclose(answers["probabilities"], [[1, 0], both], rtol=1e-6)
