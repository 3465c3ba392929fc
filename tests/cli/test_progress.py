import os
import sys
from pathlib import Path

from bert_tf.cli.progress import progress, training_line, typed


def test_a_training_line_tells_step_and_scalars():
    scalars = {"loss": 7.81234, "learning_rate": 0.00012, "examples_per_second": 123.45}
    line = training_line(100, "held_out", scalars)
    assert line.split() == [
        "step", "100", "held-out", "loss", "7.812", "learning_rate", "1.2e-04",
        "examples_per_second", "123.5",
    ]  # fmt: skip


def test_commands_are_told_as_they_are_typed(monkeypatch):
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(folder))
    assert typed("bert-tf") == "bert-tf"
    monkeypatch.setenv("PATH", "")
    assert typed("bert-tf") == os.path.relpath(folder / "bert-tf")
    assert typed("no-such-command") == "no-such-command"


def test_progress_goes_to_standard_error(capsys):
    with progress("working", total=3) as bar:
        for done in range(3):
            bar.update(done + 1, note="hard")
        bar.print("a line")
    captured = capsys.readouterr()
    assert captured.out == ""
