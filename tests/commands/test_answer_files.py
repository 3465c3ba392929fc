"""Answers beside the columns of the input."""

import csv
import json

import pytest

from bert_tf.commands.answer_files import beside, write_answers
from bert_tf.pipelines.examples.files import read_columns_of, read_table
from bert_tf.pipelines.examples.tagged_words import is_column_file

ROWS = [
    {"id": "7", "text": 'a, "b"\tc\nd', "label": "x", "probabilities": {"y": 0.25, "x": 0.75}},
    {"id": "8", "text": "", "label": "y", "probabilities": {"y": 1.0, "x": 0.0}, "words": [1]},
]


def test_a_csv_holds_every_column_and_value(tmp_path):
    write_answers(tmp_path / "x.CSV", ROWS)
    with (tmp_path / "x.CSV").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "id": "7",
        "text": ROWS[0]["text"],
        "label": "x",
        "probabilities_x": "0.75",
        "probabilities_y": "0.25",
        "words": "",
    }
    assert rows[1]["words"] == "[1]"


def test_a_tsv_has_no_quotes_and_other_names_are_json_lines(tmp_path):
    write_answers(tmp_path / "x.tsv", ROWS)
    header, first, _ = (tmp_path / "x.tsv").read_text().splitlines()
    assert header.split("\t")[:3] == ["id", "text", "label"]
    assert first.split("\t")[:3] == ["7", 'a, "b" c d', "x"]
    write_answers(tmp_path / "x.jsonl", ROWS)
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == ROWS


def test_columns_of_the_input_are_never_overwritten(tmp_path):
    """By other columns of the input, by a text that was read, or by the columns of a table."""
    inputs = {"text": 1, "label": 2, "input_label": 3, "probabilities_x": 4}
    row = beside(inputs, {"label": "x", "probabilities": {"x": 0.5}}, {"text": "sea"})
    assert row == {
        "text": "sea",
        "input_text": 1,
        "input_input_label": 2,
        "input_label": 3,
        "input_probabilities_x": 4,
        "label": "x",
        "probabilities": {"x": 0.5},
    }
    words = beside({"input_words": 1}, {"words": []}, {"words": "a b"})
    assert words == {"input_words": "a b", "input_input_words": 1, "words": []}
    write_answers(tmp_path / "a.csv", [row])
    with (tmp_path / "a.csv").open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert (found["probabilities_x"], found["input_probabilities_x"]) == ("0.5", "4")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "id\ttext\n\n1\tsea\n2\tcow\n"),
        ("a.csv", 'id,text\n1,"sea"\n2,cow\n'),
        ("a.jsonl", '{"id": "1", "text": "sea"}\n\n{"id": "2", "text": "cow"}\n'),
    ],
)
def test_all_columns_of_a_file_are_read(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    examples = read_table(tmp_path / name).examples({"text": "text"})
    found = read_columns_of(examples)
    assert found == {"id": ["1", "2"], "text": ["sea", "cow"]}


def test_the_role_of_a_column_is_known_by_its_name(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "x", "b": ["y"], "b1": "z", "label": 1}\n')
    source = read_table(tmp_path / "a.jsonl").examples({"context": "a", "choices": "b*"}).source
    roles = [source.role_of(name) for name in ("a", "b", "b1", "b_1", "label")]
    assert roles == ["context", "choices", "choices", None, None]


def test_columns_without_a_header_are_numbered(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tsea\n2\tcow\n")
    examples = read_table(tmp_path / "a.tsv", header=False).examples({"text": "1"})
    assert read_columns_of(examples)["0"] == ["1", "2"]


@pytest.mark.parametrize(
    ("lines", "is_column"),
    [
        (["EU B-ORG", "rejects O", "", "Peter B-PER"], True),
        (["EU NNP I-NP B-ORG", "rejects VBZ I-VP O"], True),
        (["-DOCSTART- -X- -X- O", "", "EU NNP"], True),
        (["EU", "rejects", "", "Peter"], True),
        (["the ship sailed", "the wheat grew"], False),
        (["EU rejects German call", "Peter Blackburn"], False),
        (["ship", "wheat"], False),
    ],
)
def test_texts_are_told_from_words_in_columns(tmp_path, lines, is_column):
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    assert is_column_file(tmp_path / "a.txt") is is_column
