import numpy as np
import pytest
from cases import for_each
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


def test_every_kind_is_found(files, tmp_path, call):
    output = tmp_path / "checked"
    assert "checked 9 train, 2 test examples" in call("check", *files, output=output)[1]
    findings = {file.stem: rows_of(file) for file in output.glob("*.tsv")}
    once = dict.fromkeys(("empty", "damaged", "script", "spelling", "leak"), 1)
    counts = {kind: len(rows) for kind, rows in findings.items()}
    assert counts == {**once, "conflict": 2, "duplicate": 2}
    assert findings["duplicate"][0][1:3] == [f"{files[1]}, line 3", f"100% of {files[1]}, line 2"]
    assert findings["leak"][0][2].startswith(f"like {files[3]}, line 2: the old cow")
    assert findings["spelling"][0][2] == "'land' for 'Land'"
    assert findings["script"][0][2] == "cyrillic, where most are latin"
    report = (output / "report.md").read_text()
    assert "## Near-duplicates within a split: 2" in report and "line 3" in report
    assert findings["duplicate"][1][2].endswith(", line 9 (another label)")


def test_rows_that_cannot_be_used_are_listed_and_left_out(tmp_path, call):
    lines = ["text,label", f"{LONG},Sea", "a cow,", "a cow", f"{LONG}!,Sea", "a ship,Sea"]
    (tmp_path / "train.csv").write_text("\n".join([*lines, "hay,Land"]))
    printed = call("check", train=tmp_path / "train.csv", output=tmp_path / "out")
    printed = " ".join("".join(printed[:2]).split())
    assert "checked 4 train examples labels: Land 1, Sea 3 Rows that cannot be used" in printed
    assert printed.count("the label is blank") == 1
    rows = rows_of(tmp_path / "out" / "bad.tsv")
    assert [row[1].rpartition(", ")[2] for row in rows] == ["line 4", "line 3"]
    assert len(rows_of(tmp_path / "out" / "duplicate.tsv")) == 1


def test_sizes_of_classes_and_rare_ones_are_listed(tmp_path, call):
    texts = [f"{name} goes by number {i}" for i, name in enumerate(["cow"] * 11 + ["ship"])]
    lines = [f"{text},{text.split()[0]}" for text in texts]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]))
    printed = call("check", train=tmp_path / "train.csv", similarity=1)[1]
    assert "labels: cow 11, ship 1\n" in printed
    assert "Rare labels, which a model may never predict: 1\n  'ship': 1 training" in printed


@for_each(
    "arguments message",
    ("--data x", "give exactly one of --data and --train"),
    ("--by_vectors", "--by_vectors needs a model: name its directory with --model"),
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
    line += " --task regression --label_column id --by_vectors"
    message = call.refused(line, *files, model=model)
    assert "--by_vectors is for texts with one label each" in message
