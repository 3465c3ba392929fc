import json

import numpy as np
import pytest
from cases import for_each
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertClassifier, BertTokenizer
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "farm", "cow"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models of CoLA with other labels, lengths and vocabularies, and one of another task."""
    folder = tmp_path_factory.mktemp("models")

    def save(name, seed, pieces=PIECES, labels=("0", "1"), task="cola", length=8) -> None:
        config = tiny_config(len(pieces), initializer_range=0.5)
        model = BertClassifier(config, labels=list(labels), seed=seed)
        dataset = TASKS[task].with_settings({"max_length": length})
        Answerer(dataset, model, BertTokenizer(pieces), list(labels)).save(folder / name)

    save("a", 1)
    save("b", 2, [*PIECES, "barn"], ["1", "0"], length=16)
    save("other", 3, task="sst2")
    save("labels", 4, labels=["no", "yes"])
    rows = [f"x\t{i % 2}\t\t{text}" for i, text in enumerate(["sea ship", "cow", "farm cow"])]
    (folder / "dev.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "test.tsv").write_text("index\tsentence\n0\tsea\n1\tcow farm\n", encoding="utf-8")
    return folder


def answers(path) -> dict[str, np.ndarray]:
    head, *rows = [line.split("\t") for line in path.read_text().splitlines()]
    return dict(zip(head, zip(*rows, strict=True), strict=True))


@pytest.mark.slow
def test_an_ensemble_is_scored_and_written(folder, tmp_path, call):
    models = [str(folder / "a"), str(folder / "b")]
    scores = []
    for members in ([models[0]], [models[1]], models):
        output = tmp_path / str(len(scores))
        out, err = call("ensemble", *members, data=folder, output=output)
        assert json.loads(out) == json.loads((output / "metrics.json").read_text())
        scores.append(answers(output / "predictions.tsv"))
    assert f"{models[1]}: matthews_correlation" in err and "2 models together" in err
    for label in ("0", "1"):
        first, second, together = (np.array(columns[label], float) for columns in scores)
        atol = 1e-6 + rounding(30, 16)  # six decimals, twice; a block and a head
        assert np.allclose((first + second) / 2, together, rtol=0, atol=atol)
        assert not np.allclose(first, second, atol=1e-3)
    # One model answers as it does on its own.
    call("evaluate", model=models[0], data=folder, output=tmp_path / "alone")
    alone = answers(tmp_path / "alone" / "predictions.tsv")
    assert alone["predicted"] == scores[0]["predicted"]


def test_data_without_labels(folder, tmp_path, call):
    output = tmp_path / "submission"
    out, _ = call("ensemble", folder / "a", folder / "b", data=folder, submission=output)
    assert out == ""
    (file,) = output.iterdir()
    assert file.name == "CoLA.tsv"
    assert [line.split("\t")[0] for line in file.read_text().splitlines()] == ["index", "0", "1"]


@for_each(
    "more message",
    ("other --data .", "the task of other (sst2) and of a (cola) differ"),
    ("labels --data .", "the labels of labels (no, yes) and of a (0, 1) differ"),
    ("--data test.tsv", "has no labels to compare with"),
    ("--data . --output b --submission c", "cannot be combined"),
)
def test_bad_input(folder, monkeypatch, call, more, message):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert message in call.refused(f"ensemble a {more}")
    assert sorted(folder.rglob("*")) == before
