import importlib.util
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

from cases import for_each
from rich.console import Console

from bert_tf.commands import progress as api_progress
from bert_tf.commands.progress import (
    RunProgress,
    best_model_line,
    export_line,
    progress,
    training_line,
    typed,
)
from bert_tf.training.loop import TrainingResult

SCORES = {"loss": 6.21199, "mlm_loss": 5.61, "nsp_loss": 0.602}
SCORES |= {"mlm_accuracy": 0.18149, "nsp_accuracy": 0.66}
PRETRAINING = {**SCORES, "gradient_norm": 1.5, "learning_rate": 4.8e-4, "minutes_left": 72.3}
PRETRAINING |= {"examples_per_second": 96.1, "tokens_per_second": 12300.4, "share_of_peak": 0.6149}
SHOWN = "loss 6.212 (mlm 5.610 nsp 0.602)  accuracy mlm 18.1% nsp 66.0%"


@for_each(
    "step steps kind scalars line",
    (
        *(1200, 30_000, "train", PRETRAINING),
        f"step  1,200/30,000  {SHOWN}  lr 4.8e-04  12,300 tokens/s  61% of peak FLOP/s  "
        "1 h 12 min left",
    ),
    (500, 500, "held_out", SCORES, f"step 500/500  held-out  {SHOWN}"),
    (
        *(1, 10, "train", {"loss": 5.61, "mlm_loss": 5.61, "mlm_accuracy": 0.1}),
        "step  1/10  loss 5.610  accuracy mlm 10.0%",
    ),
    (
        *(5, None, "train", {"loss": 1.0, "nonfinite_steps": 2.0, "learning_rate": 1e-4}),
        "step      5  loss 1.000  lr 1.0e-04  2 not finite",
    ),
    (
        *(12, None, "train", {"loss": float("nan"), "accuracy": 0.5, "learning_rate": 0.0}),
        "step     12  loss nan  accuracy 50.0%  lr 0",
    ),
    (1, 2, "train", {"f1": 0.25, "minutes_left": 0}, "step 1/2  0 s left  f1 0.25"),
    (1, 2, "train", {"minutes_left": 0.5}, "step 1/2  30 s left"),
    (1, 2, "train", {"minutes_left": 1.2}, "step 1/2  1 min left"),
    (1, 2, "train", {"minutes_left": 59.4}, "step 1/2  59 min left"),
    (1, 2, "train", {"minutes_left": 59.9}, "step 1/2  1 h 0 min left"),
    (1, 2, "train", {"minutes_left": 2000}, "step 1/2  33 h 20 min left"),
    (1, 2, "train", {"minutes_left": 10_000}, "step 1/2  6 d 22 h left"),
)
def test_a_line_is_read_at_a_glance(step, steps, kind, scalars, line):
    assert training_line(step, kind, scalars, steps) == line
    assert len(line) < 150


LONG = (
    "The remaining 99,900 steps take about 4 d 4 h on this machine; 1,000 take about an hour. "
    "For a shorter run, stop this one and give --steps"
)


GIVE = "give --steps"


@for_each("minutes shorten notices", (59, GIVE, []), (6000, "", []), (6000, GIVE, [LONG]))
def test_a_run_of_hours_says_how_to_shorten_it(minutes, shorten, notices):
    with progress("pre-training", total=100_000, shown=False) as bar:
        watcher = RunProgress(bar, shorten=shorten)
        watcher.begin(100_000)
        for step in (100, 200):
            watcher.logged(step, "train", {"loss": 7.0, "minutes_left": minutes})
    assert bar.notices == notices


def test_commands_are_told_as_they_are_typed(monkeypatch, tmp_path):
    folder = Path(sys.executable).parent
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("PATH", str(folder))
    assert typed("bert-tf") == "bert-tf"
    monkeypatch.setenv("PATH", "")
    assert typed("bert-tf") == f"{folder.name}/bert-tf"
    monkeypatch.chdir(tmp_path)
    assert typed("bert-tf") == str(folder / "bert-tf")  # not up and down again
    assert typed("no-such-command") == "no-such-command"


def test_commands_propose_one_name_for_an_export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert export_line("my runs/best").endswith("export --model 'my runs/best' --name 'my runs'")
    for model, name in (("runs/cls/best", "cls"), ("runs/cls/last/", "cls"), ("nli", "nli")):
        assert export_line(model).endswith(f"export --model {model} --name {name}")


@for_each(
    "tied loss shown",
    ([27], 0.1, ""),
    ([9, 27], 0.1, ", tied with step 9; lowest loss"),
    ([9, 18, 27, 1036], 0.1, ", tied with steps 9, 18 and 1,036; lowest loss"),
    ([9, 27], None, ", tied with step 9; the latest"),
    ([*range(20, 30)], 0.1, ", tied with 9 other steps; lowest loss"),
)
def test_a_tie_of_the_best_score_is_said(tied, loss, shown):
    result = TrainingResult(step=27, best=1.0, best_loss=loss, best_step=27, tied_steps=tied)
    assert best_model_line("a/best", result) == f"Best model (step 27{shown}): a/best"


@for_each("shown", True, False)
def test_progress_goes_to_standard_error_if_it_is_shown(capfd, shown):
    with progress("working", total=3, shown=shown) as bar:
        bar.update(1, note="hard")
        bar.print("a notice")
        bar.show("step 1")
    assert capfd.readouterr() == ("", "a notice\nstep 1\n" if shown else "")
    assert bar.notices == ["a notice"]


@for_each("has_bar", True, False)
def test_a_step_is_in_the_bar_or_else_in_a_line(has_bar, capfd, monkeypatch):
    drawn = Console(force_terminal=has_bar, file=sys.stderr, soft_wrap=True, highlight=False)
    monkeypatch.setattr(api_progress, "console", drawn)
    with progress("exporting", total=1) as bar:
        for done in range(3):
            bar.step("tracing", done, 3)
        (task,) = bar._progress.tasks
        assert (task.description, task.completed, task.total) == ("exporting: tracing", 2, 3)
        bar.step("writing", 0, 1)
    if not has_bar:
        assert capfd.readouterr().err == "exporting: tracing\nexporting: writing\n"
    assert not bar.notices


def test_a_notebook_without_widgets_shows_lines(capfd, monkeypatch, recwarn):
    """Rich would warn at every refresh of a bar, and make a paragraph of every line."""
    monkeypatch.setattr(api_progress, "console", Console(force_jupyter=True))
    find_spec = importlib.util.find_spec
    specs = {"ipywidgets": lambda name: None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda x: specs.get(x, find_spec)(x))
    assert api_progress.in_notebook()
    with progress("working", total=3) as bar:
        bar.update(1)
        bar.print("a notice")
    assert capfd.readouterr() == ("a notice\n", "")
    assert not recwarn.list


def test_a_notebook_with_widgets_shows_a_bar(monkeypatch):
    drawn = []

    class Output(MagicMock):
        pass

    display = SimpleNamespace(display=drawn.append)
    modules = {"IPython": SimpleNamespace(display=display), "IPython.display": display}
    modules["ipywidgets"] = SimpleNamespace(Output=Output, __spec__=True)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(api_progress, "console", Console(force_jupyter=True))
    with progress("working", total=3) as bar:
        bar.update(3)
        time.sleep(0.3)  # it draws ten times a second
    assert any(isinstance(each, Output) for each in drawn)
