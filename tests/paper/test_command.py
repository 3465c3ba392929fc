"""`bert-tf reproduce`: what it shows before it starts, and toys from the command line."""

import json
from dataclasses import replace

import pytest

from bert_tf.paper import tables
from bert_tf.paper.tables import SMALL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("model-sise", "there is no table 'model-sise': did you mean model-size? There are glue"),
        ("glue --tasks mrpc=nowhere", "nowhere does not exist: check the path"),
        ("glue --scale paper --corpus CORPUS", "MB of text are too few to pre-train on"),
    ],
)
def test_what_is_named_before_it_starts(arguments, message, corpus, tmp_path, call):
    line = f"reproduce {arguments.replace('CORPUS', str(corpus))}"
    assert message in call.refused(line, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def toy_scale(monkeypatch):
    """The small scale, much smaller."""
    toy = replace(
        SMALL,
        vocabulary_size=500,
        lengths=(16,),
        seeds=1,
        checkpoint_every=2,
        pretraining={
            **SMALL.pretraining,
            "size": "1x16x2",
            "batch_size": 4,
            "steps": 4,
            "evaluate_every": 2,
            "precision": "float32",
        },
        finetuning={
            **SMALL.finetuning,
            "learning_rate": [1e-3],
            "epochs": [1],
            "max_length": 16,
            "precision": "float32",
        },
        tasks={},
        training_steps=(4,),
        sizes={"1 layer": {"size": "1x16x2"}, "2 layers": {"size": "2x16x2"}},
    )
    monkeypatch.setitem(tables.SCALES, "small", toy)


def test_a_full_disk_is_named_before_it_starts(
    corpus, labelled, tmp_path, call, monkeypatch, toy_scale
):
    class Usage:
        free = 1

    monkeypatch.setattr("bert_tf.paper.reproduce.shutil.disk_usage", lambda place: Usage)
    speed = "bert_tf.paper.step_speed._pretraining_seconds"
    monkeypatch.setattr(speed, lambda *arguments: 0.1)
    tasks, output = f"classification={labelled}/train.tsv", tmp_path / "out"
    given = {"corpus": corpus, "tasks": tasks, "output": output}
    _, shown = call("reproduce model-size --dry_run", **given)
    told = call.refused("reproduce model-size", announced=tuple(shown.splitlines()), **given)
    assert "0.0 GB are free: free some space" in told
    assert "pre-training: size 2x16x2" in shown and "in all on this machine" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_table_from_the_command_line(corpus, labelled, tmp_path, call, toy_scale):
    tasks = f"classification={labelled}/train.tsv,{labelled}/test.tsv"
    given = {"corpus": corpus, "tasks": tasks, "output": tmp_path}
    out, err = call("reproduce training-steps", **given)
    assert "measuring a step of 4 x 16 tokens, 1 layer(s) 16 wide" in err
    assert "run 6 of 6: fine-tuning: LTR, 4 steps, classification" in err
    folder = tmp_path / "training-steps"
    assert f"Table, settings and picture: {folder}/table.md, table.json, table.png" in err
    assert out.strip() in (folder / "table.md").read_text()
    made = (folder / "table.json").read_bytes()
    scores = json.loads(made)["rows"][1]["scores"]
    assert len(scores["classification"]["scores"]) == 1

    again, err = call("reproduce training-steps", **given)
    assert again == out and "run 1 of" not in err and "measuring" not in err
    assert (folder / "table.json").read_bytes() == made
