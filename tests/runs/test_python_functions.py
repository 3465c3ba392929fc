import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import words

import bert_tf
from bert_tf.cli import main
from bert_tf.errors import InputError


def table(path: Path) -> tuple[list[str], list[str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    texts, labels = zip(*rows, strict=True)
    return list(texts), list(labels)


def files(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir()) if f.is_file()}


@pytest.fixture(scope="module")
def settings(pretrained):
    values = {"epochs": 4, "batch_size": 8, "learning_rate": 5e-3, "max_length": 16, "log_every": 4}
    return {"model": pretrained / "last", **values}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, labelled, settings):
    output = tmp_path_factory.mktemp("python") / "run"
    return bert_tf.finetune(**settings, train=table(labelled / "train.tsv"), output=output)


@pytest.mark.slow
def test_finetune_and_the_command_give_the_same_bytes(tuned, labelled, settings, tmp_path):
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    train, output = labelled / "train.tsv", tmp_path / "command"
    assert main(["finetune", *options, "--train", str(train), "--output", str(output)]) == 0
    assert files(tuned.best) == files(output / "best")
    assert {"model.safetensors", "metrics.json", "predictions.tsv"} <= set(files(tuned.best))
    # metrics.json has what `evaluate` computes; the loss, which decides between equal scores, is
    # the run's.
    metrics = json.loads((output / "best" / "metrics.json").read_text())
    assert tuned.scores == {**metrics, "loss": tuned.run.loss}
    assert bert_tf.finetune(**settings, train=train, output=output).scores == tuned.scores


@pytest.mark.slow
def test_a_run_keeps_its_data_and_is_resumed_by_both(tuned, labelled, settings, capfd):
    """The command reads the files that the call has written."""
    kept = tuned.output / "data" / "train.jsonl"
    texts, labels = table(labelled / "train.tsv")
    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    assert rows == [{"text": t, "label": x} for t, x in zip(texts, labels, strict=True)]
    assert main(["finetune", "--config", str(tuned.output / "config.yaml")]) == 0
    assert "The run was complete" in capfd.readouterr().err
    again = bert_tf.finetune(**settings, train=(texts, labels), output=tuned.output)
    assert capfd.readouterr() == ("", "")
    assert any("86 training and 10 validation examples" in line for line in again.notices)
    assert again.run.training.started_at == again.run.training.step
    (checkpoint,) = (tuned.output / "checkpoints").iterdir()
    assert checkpoint.stat().st_size < (tuned.best / "model.safetensors").stat().st_size
    with pytest.raises(InputError, match=r"epochs was .*, and its optimizer's state was deleted"):
        changed = {**settings, "epochs": settings.get("epochs", 3) + 1, "override": True}
        bert_tf.finetune(**changed, train=(texts, labels), output=tuned.output)
    with pytest.raises(InputError, match="holds a run with other data for train"):
        bert_tf.finetune(**settings, train=(texts[1:], labels[1:]), output=tuned.output)
    assert kept.read_text(encoding="utf-8").count("\n") == len(texts)


@pytest.mark.slow
def test_predict_answers_as_the_command(tuned, labelled, tmp_path, capsys):
    texts, _ = table(labelled / "test.tsv")
    answers = bert_tf.predict(model=tuned.best, text=np.array(texts))
    assert len(answers) == len(texts) and answers[0]["label"] in ("farm", "sea")
    assert capsys.readouterr().out == ""
    assert main(words("predict --text", *texts, model=tuned.best)) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == list(answers)
    columns = {"text": texts, "label": [str(number) for number in range(len(texts))]}
    kept = bert_tf.predict(model=tuned.best, input=columns)
    assert [row["input_label"] for row in kept] == columns["label"]
    assert [row["label"] for row in kept] == [row["label"] for row in answers]
    single = bert_tf.predict(model=tuned.best, text=texts[0], output=tmp_path / "one.csv")
    (row,) = csv.DictReader((tmp_path / "one.csv").open(encoding="utf-8"))
    assert row["label"] == single[0]["label"] == answers[0]["label"]
    assert len(single) == 1


@pytest.mark.slow
def test_results_show_themselves_in_a_notebook(tuned, labelled):
    scores = bert_tf.evaluate(model=tuned.best, data=table(labelled / "test.tsv"))
    shown = scores._repr_html_()
    assert "<table>" in shown and "accuracy" in shown
    for name in ("confusion", "calibration"):
        assert f'alt="{name} plot" src="data:image/png;base64,' in shown
    assert "Fine-tuned on 86 examples" in tuned._repr_html_()
    assert str(tuned.best) in str(tuned)
    answers = bert_tf.predict(model=tuned.best, text=["<b>sea</b>"])
    assert "&lt;b&gt;sea&lt;/b&gt;" in answers._repr_html_()
    assert "<b>" not in answers._repr_html_()
    long = bert_tf.predict(model=tuned.best, text=["a sentence to be read from the left edge on"])
    assert '<td style="text-align: left">a sentence to be read' in long._repr_html_()
