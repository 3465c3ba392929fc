import csv
import json

from bert_tf.commands.answer_files import beside, write_answers

ROWS = [
    {"id": "7", "text": 'a, "b"\tc\nd', "label": "x", "probabilities": {"y": 0.25, "x": 0.75}},
    {"id": "8", "text": "", "label": "y", "probabilities": {"y": 1.0, "x": 0.0}, "words": [1]},
]


def test_a_csv_holds_every_column_and_value_and_a_tsv_no_quotes(tmp_path):
    write_answers(tmp_path / "x.CSV", ROWS)
    with (tmp_path / "x.CSV").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shares = {"probabilities_x": "0.75", "probabilities_y": "0.25"}
    assert rows[0] == {"id": "7", "text": ROWS[0]["text"], "label": "x", **shares, "words": ""}
    assert rows[1]["words"] == "[1]"
    write_answers(tmp_path / "x.tsv", ROWS)
    header, first, _ = (tmp_path / "x.tsv").read_text().splitlines()
    assert header.split("\t")[:3] == ["id", "text", "label"]
    assert first.split("\t")[:3] == ["7", 'a, "b" c d', "x"]
    write_answers(tmp_path / "x.jsonl", ROWS)
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == ROWS


def test_columns_of_the_input_are_never_overwritten(tmp_path):
    inputs = {"text": 1, "label": 2, "input_label": 3, "probabilities_x": 4}
    answer = {"label": "x", "probabilities": {"x": 0.5}}
    row = beside(inputs, answer, {"text": "sea"})
    kept = {"input_text": 1, "input_input_label": 2, "input_label": 3, "input_probabilities_x": 4}
    assert row == {"text": "sea", **kept, **answer}
    words = beside({"input_words": 1}, {"words": []}, {"words": "a b"})
    assert words == {"input_words": "a b", "input_input_words": 1, "words": []}
    write_answers(tmp_path / "a.csv", [row])
    with (tmp_path / "a.csv").open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert (found["probabilities_x"], found["input_probabilities_x"]) == ("0.5", "4")
