"""`bert-tf demo`, whole: what the README promises of it."""

import json

import pytest

from bert_tf.cli.main import main
from bert_tf.experiments import installed_documentation as documentation
from bert_tf.serving.predictor import Predictor, answer, rows


@pytest.fixture(scope="module")
def graphs_as_traced():
    """Here they are optimized, as for users: steps take most of the time."""


def accuracy(run) -> float:
    return json.loads((run / "test" / "metrics.json").read_text())["accuracy"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pre_training_wins_on_the_installed_documentation(tmp_path, capsys, monkeypatch):
    modules = []
    read = documentation.installed_documentation

    def keep(**options):
        modules.extend(read(**options))
        return modules

    monkeypatch.setattr(documentation, "installed_documentation", keep)
    output = tmp_path / "demo"
    assert main(["demo", "--output", str(output)]) == 0

    # The installed documentation is large.
    sentences = [s for m in modules for d in m.paragraphs for s in d]
    assert len(sentences) == len(set(sentences))
    assert sum(map(len, sentences)) > 5_000_000
    assert {documentation.STANDARD_LIBRARY, "tensorflow", "keras", "numpy"} <= {
        m.label for m in modules
    }

    random, pretrained = accuracy(output / "from_random"), accuracy(output / "from_pretrained")
    assert pretrained > random + 0.05
    assert pretrained > 0.6  # below every run of the README
    captured = capsys.readouterr()
    answers = [json.loads(line) for line in captured.out.splitlines() if '"text"' in line]
    assert len(answers) == 5
    assert "[MASK]" in captured.err[captured.err.index("Words hidden in text") :]

    # What is tested on was seen neither in pre-training nor in fine-tuning.
    test = (output / "labelled" / "test.tsv").read_text().splitlines()[1:]
    train = set((output / "labelled" / "train.tsv").read_text().splitlines())
    assert len(test) == 800 and not train.intersection(test)
    predictor = Predictor(output / "saved_models" / "demo")
    outputs = answer(predictor.signature(), {"text": [test[0].split("\t")[0]]}, 1)
    label = next(rows(outputs))["label"]
    assert label in {row.split("\t")[1] for row in test}


@pytest.mark.slow
def test_the_demo_takes_a_users_own_text(corpus, tmp_path, capsys):
    output = tmp_path / "demo"
    command = ["demo", "--corpus", str(corpus), "--output", str(output), "--steps", "4"]
    assert main(command) == 0
    labels = {
        row.split("\t")[1]
        for row in (output / "labelled" / "test.tsv").read_text().splitlines()[1:]
    }
    assert labels == {f"part {i} of 4" for i in (1, 2, 3, 4)}
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err
