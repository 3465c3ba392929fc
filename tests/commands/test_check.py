"""bert-tf check: findings of every kind, the report, the cleaned copy."""

import json

import numpy as np
import pytest
from command_line import words
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, save_model

LONG = "the ship left the harbour at dawn and was far out at sea before noon"
TRAIN = [
    (LONG, "Sea"),
    (f"{LONG}!", "Sea"),  # a duplicate
    ("the old cow stands in the barn and eats hay all day", "Land"),  # a leak
    ("a quiet farm with two barns and a dozen brown cows", "land"),
    (" ", "Land"),
    ("schÃ¶n ist das Meer", "Sea"),
    ("корабль ушёл в море", "Sea"),
    ("one and the same words", "Land"),
    ("one and the same words", "Sea"),
]
TEST = ["the old cow stands in the barn and eats hay all day long", "nothing like it anywhere"]


@pytest.fixture
def files(tmp_path):
    lines = [f"{i}\t{text}\t{label}" for i, (text, label) in enumerate(TRAIN)]
    (tmp_path / "train.tsv").write_text("\n".join(["id\ttext\tlabel", *lines]) + "\n")
    (tmp_path / "test.tsv").write_text("\n".join(["text", *TEST]) + "\n")
    return words("", train=tmp_path / "train.tsv", test=tmp_path / "test.tsv")


def rows_of(file):
    return [line.split("\t") for line in file.read_text().splitlines()[1:]]


def test_every_kind_is_found_and_cleaned(files, tmp_path, call):
    output = tmp_path / "checked"
    assert "checked 9 train, 2 test examples" in call("check --clean", *files, output=output)[1]
    findings = {file.stem: rows_of(file) for file in output.glob("*.tsv")}
    assert {kind: len(rows) for kind, rows in findings.items()} == {
        "empty": 1,
        "damaged": 1,
        "script": 1,
        "spelling": 1,
        "conflict": 2,
        "leak": 1,
        "duplicate": 2,
    }
    assert findings["duplicate"][0][1:3] == [f"{files[1]}, line 3", f"100% of {files[1]}, line 2"]
    assert findings["leak"][0][2].startswith(f"like {files[3]}, line 2: the old cow")
    assert findings["spelling"][0][2] == "'land' for 'Land'"
    assert findings["script"][0][2] == "cyrillic, where most are latin"
    report = (output / "report.md").read_text()
    assert "## Near-duplicates within a split: 2" in report and "line 3" in report
    # The very rows, but for the label that was spelt in another way.
    read = (tmp_path / "train.tsv").read_text().replace("\tland\n", "\tLand\n").splitlines(True)
    kept = [read[0], *(read[1 + number] for number in (0, 3, 5, 6, 7, 8))]
    assert (output / "cleaned" / "train.tsv").read_text() == "".join(kept)
    assert findings["duplicate"][1][2].endswith(", line 9 (another label)")
    cleaned = (output / "cleaned" / "test.tsv").read_text()
    assert cleaned == (tmp_path / "test.tsv").read_text()


SEA, LIKE_SEA = LONG, f"{LONG}!"
HAY, SKY = "the old cow stands in the barn and eats hay all day", "a sky without any cloud at all"


def question(number, text, **more):
    return {"id": number, "question": text, "answers": [{"text": "t", "answer_start": 0}]} | more


def squad(*paragraphs):
    rows = [{"context": c, "qas": [question(*x) for x in qas], "more": 1} for c, *qas in paragraphs]
    data = [{"title": "é", "paragraphs": rows}]
    return json.dumps({"version": "v", "data": data}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("line", "name", "content", "cleaned"),
    [
        (
            "--task squad",
            "train.json",
            squad((SEA, (1, "who left?"), (2, SKY), (3, f"{SKY}?")), (HAY, (4, SKY))),
            squad((SEA, (1, "who left?"), (2, SKY)), (HAY, (4, SKY))) + "\n",
        ),
        (
            "--task squad",
            "train.jsonl",
            "\n".join(json.dumps(question(n, SKY, context=SEA)) for n in range(2)) + "\n\n",
            json.dumps(question(0, SKY, context=SEA)) + "\n\n",
        ),
        (
            "--task tags",
            "train.conll",
            "# id = 1\nthe DT\nsea NN\nrises VB\n\n# id = 2\nthe DT\nsea NN\nrises VB\n\nno UH\n",
            "# id = 1\nthe DT\nsea NN\nrises VB\n\nno UH\n",
        ),
        (
            "--task tags",
            "train.jsonl",
            '{"words": ["the", "sea"], "label": ["a", "b"], "n": 1}\n' * 2 + '{"words": ["x"], '
            '"label": ["a"]}\n',
            '{"words": ["the", "sea"], "label": ["a", "b"], "n": 1}\n{"words": ["x"], '
            '"label": ["a"]}\n',
        ),
        (
            "--task multi_label",
            "train.jsonl",
            f'{{"text": "{SEA}", "label": ["a", "b"]}}\n{{"text": "{LIKE_SEA}", "label": ["b"]}}\n'
            f'{{"text": "{LIKE_SEA}", "label": ["b", "a"], "n": 1.50}}\n',
            f'{{"text": "{SEA}", "label": ["a", "b"]}}\n{{"text": "{LIKE_SEA}", "label": ["b"]}}\n',
        ),
        (
            "--task classification",
            "train.csv",
            f'id;text;label\r\n1;"{SEA}";a\r\n\r\n2;"{SEA}\n";A \r\n3;"{SKY}\n";A \r\n4;x;a\r\n',
            f'id;text;label\r\n1;"{SEA}";a\r\n\r\n3;"{SKY}\n";a\r\n4;x;a\r\n',
        ),
        (
            "--no_header --text_column 1 --label_column 2",
            "train.tsv",
            f"1\t{SEA}\tGood\n2\t{HAY}\tGood\n3\t{SKY}\tgood\n",
            f"1\t{SEA}\tGood\n2\t{HAY}\tGood\n3\t{SKY}\tGood\n",
        ),
        (  # pairs are alike if both texts are, and dropped if they have one label, too
            "--text_column one --pair_column two",
            "train.tsv",
            f"one\ttwo\tlabel\n{SEA}\tit left\tno\n{SEA}\t{SKY}\tno\n"
            f"{LIKE_SEA}\t{SKY}.\tno\n{LIKE_SEA}\t{SKY}!\tyes\n",
            f"one\ttwo\tlabel\n{SEA}\tit left\tno\n{SEA}\t{SKY}\tno\n{LIKE_SEA}\t{SKY}!\tyes\n",
        ),
    ],
)
def test_a_cleaned_copy_is_in_the_format_of_its_file(tmp_path, call, line, name, content, cleaned):
    (tmp_path / name).write_bytes(content.encode())
    call(f"check --clean {line}", train=tmp_path / name, output=tmp_path / "out")
    assert (tmp_path / "out" / "cleaned" / name).read_bytes().decode() == cleaned


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data x", "give exactly one of --data and --train"),
        ("--clean", "give --output a folder"),
        ("--by_vectors", "--by_vectors needs a model: name its directory with --model"),
    ],
)
def test_mistakes_are_a_line(files, call, arguments, message):
    assert message in call.refused(f"check {arguments}", *files)


@pytest.fixture
def model(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship"]
    config = tiny_config(len(pieces), "1x4x2", intermediate_size=4)
    save_model(BertEncoder(config), tmp_path / "model", BertTokenizer(pieces))
    return tmp_path / "model"


def test_texts_that_a_model_cuts(files, model, tmp_path, call):
    call("check --max_length 16", *files, model=model, output=tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "cut.tsv")
    assert [row[2] for row in rows] == ["17 tokens, 16 are read", "18 tokens, 16 are read"]


def test_vectors_of_a_model_doubt_labels(files, model, monkeypatch, call):
    """Those of the texts that have a label and words."""
    from bert_tf.pipelines.examples import data_faults

    compared = {}

    def doubted_labels(texts, labels, vectors, **more):
        compared.update(texts=texts, vectors=vectors)
        return []

    monkeypatch.setattr(data_faults, "doubted_labels", doubted_labels)
    line = "check --max_length 16"
    call(line, *files, model=model)
    assert compared["vectors"] is None
    call(f"{line} --by_vectors", *files, model=model)
    assert compared["texts"] == [text for text, _ in TRAIN if text.strip()]
    expected = [row["mean"] for row in BertEncoder.from_preset(model).embed(compared["texts"])]
    # A block of width 4, in batches that are padded to other lengths.
    np.testing.assert_allclose(compared["vectors"], expected, rtol=0, atol=rounding(12, 4))
    message = call.refused(f"{line} --task regression --by_vectors", *files, model=model)
    assert "--by_vectors is for texts with one label each" in message
