import contextlib
import io
import json
import os
import re
import shutil
import signal
import time
import urllib.parse
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from command_line import words
from pretraining_runs import SCALARS, SCORES, pretraining_command
from run_logs import events, logged
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert_tf.cli import main
from bert_tf.commands.progress import training_line
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.training.monitoring import ProjectorLog
from bert_tf.training.preemption import Preempted


def pretraining(shards, config, output, **more):
    usual = {"steps": 10, "log_every": 5, "evaluate_every": 5, "learning_rate": 1e-3}
    return pretraining_command(shards, config, output, **usual | more)


def lines_of(arguments) -> list[str]:
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        assert main(arguments) == 0
    return [line for line in shown.getvalue().splitlines() if line.startswith("step ")]


def series(folder) -> dict[str, list[tuple[int, np.ndarray]]]:
    """Tag -> steps and values of all the events in a folder."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [(event.step, tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def steps(folder) -> dict[str, list[int]]:
    return {tag: [step for step, _ in events] for tag, events in series(folder).items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def watched(runs, shards, small_config) -> tuple[Path, list[str]]:
    """A run with all there is to see, and the lines it showed."""
    output, texts = runs / "pretrained", ["the [MASK] is", "a [MASK]"]
    watching = {"watch_text": texts, "histograms_every": 5, "profile": "2:3"}
    return output, lines_of(pretraining(shards, small_config, output, **watching))


@pytest.fixture(scope="module")
def fine_tuned(runs, labelled, watched) -> tuple[Path, list[str]]:
    line = "finetune --epochs 2 --batch-size 8 --log-every 6 --max-length 16 --profile 3:4"
    files = {"train": labelled / "train.tsv", "output": runs / "finetuned"}
    arguments = words(line, model=watched[0] / "last", histograms_every=11, **files)
    return runs / "finetuned", lines_of(arguments)


def shown_lines(output, steps) -> list[str]:
    lines = logged(output, times=True)
    return [training_line(x.pop("step"), x.pop("kind"), x, steps) for x in lines]


@pytest.mark.slow
def test_the_terminal_shows_what_is_logged(watched, fine_tuned):
    for (output, lines), count in ((watched, 10), (fine_tuned, 22)):
        assert lines == shown_lines(output, count)
    output, _ = watched
    kinds = [(line["step"], line["kind"]) for line in logged(output)]
    assert kinds == [(5, "train"), (5, "held_out"), (10, "train"), (10, "held_out")]
    # TensorBoard has the scalars of every line.
    for kind, names in (("train", SCALARS), ("held_out", SCORES)):
        found = series(output / "logs" / kind)
        assert set(found) == names
        for name in names:
            expected = [line[name] for line in logged(output, kind, times=True)]
            assert [step for step, _ in found[name]] == [5, 10]
            values = [value for _, value in found[name]]
            np.testing.assert_array_equal(values, np.float32(expected), err_msg=name)


@pytest.mark.slow
def test_guesses_histograms_and_a_profile(watched, fine_tuned):
    texts = steps(watched[0] / "logs" / "masked_words")
    assert texts == {"masked_words/0": [5, 10], "masked_words/1": [5, 10]}
    rows = (watched[0] / "logs" / "train" / "metadata.tsv").read_text().splitlines()
    kinds = {piece: kind for piece, _, kind in (row.split("\t") for row in rows)}
    assert (kinds["[MASK]"], kinds["the"], kinds["##s"]) == ("special", "word", "continuation")
    for (output, _), expected in ((watched, [5, 10]), (fine_tuned, [11, 22])):
        histograms = steps(output / "logs" / "histograms")
        activations = {tag for tag in histograms if not tag.startswith("weights/")}
        assert activations == {"activations/hidden_state_0", "activations/hidden_state_1"}
        assert any("word_embeddings" in tag for tag in histograms)
        assert all(found == expected for found in histograms.values())
        assert len(list((output / "logs").rglob("*.xplane.pb"))) == 1
    lines = [x for x in logged(fine_tuned[0], times=True) if "tokens_per_second" in x]
    (tokens,) = {round(x["tokens_per_second"] / x["examples_per_second"], 6) for x in lines}
    assert 10 < tokens <= 16  # eight words an example, [CLS] and [SEP]; longer ones are cut


def asked(monkeypatch, folder, ask) -> list[str]:
    """Calls `ask` with the address of `bert-tf monitor FOLDER`; the lines it showed."""

    def ask_and_interrupt():
        ask(re.search(r"http://\S+/", shown.getvalue())[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("bert_tf.commands.monitor.wait_for_interrupt", ask_and_interrupt)
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        assert main(["monitor", str(folder), "--port", "0"]) == 130
    return shown.getvalue().splitlines()


def get(address, route, body=None, **query) -> bytes:
    url = f"{address}data/{route}?{urllib.parse.urlencode(query)}"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read()


@pytest.mark.slow
def test_tensorboards_plugins_show_the_runs(watched, fine_tuned, runs, monkeypatch):
    found = {}

    def ask(address):
        deadline = time.monotonic() + 60
        while True:  # it reads the logs while it serves
            tags = json.loads(get(address, "plugin/scalars/tags"))
            known = [tags.get(f"{run}/logs", {}) for run in ("pretrained", "finetuned")]
            if "best_loss" in known[0] and "best_accuracy" in known[1]:
                break
            assert time.monotonic() < deadline, tags
            time.sleep(0.2)
        run = "pretrained/logs/train"
        found["projected"] = json.loads(get(address, "plugin/projector/runs"))
        found["info"] = json.loads(get(address, "plugin/projector/info", run=run))
        name = found["info"]["embeddings"][0]["tensorName"]
        found["tensor"] = get(address, "plugin/projector/tensor", run=run, name=name)
        statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
        body = {"allowedStatuses": statuses, "colParams": [], "startIndex": 0, "sliceSize": 10}
        found["sessions"] = json.loads(get(address, "plugin/hparams/session_groups", body))

    shown = asked(monkeypatch, runs, ask)
    # A profile is there; how to see it is told where its tab is not.
    assert any("xprof" in line for line in shown) == (find_spec("xprof") is None)

    assert found["projected"] == ["pretrained/logs/train"]
    (embedding,) = found["info"]["embeddings"]
    last = load_file(watched[0] / "last" / "model.safetensors")
    table = last["bert.embeddings.word_embeddings.weight"]
    assert embedding["tensorName"] == "word_embeddings_step_10"
    assert embedding["tensorShape"] == [*table.shape]
    assert found["tensor"] == table.tobytes()

    sessions = {group["name"]: group for group in found["sessions"]["sessionGroups"]}
    assert len(sessions) == 2
    for (output, _), score, parameters in (
        (watched, "best_loss", {"learning_rate": 1e-3, "batch_size": 8, "steps": 10}),
        (fine_tuned, "best_accuracy", {"epochs": 2, "batch_size": 8, "optimizer": "adam"}),
    ):
        group = sessions[str(output)]
        (session,) = group["sessions"]
        assert session["status"] == "STATUS_SUCCESS"
        assert parameters.items() <= group["hparams"].items()
        values = group["metricValues"]
        metrics = {(x["name"]["group"], x["name"]["tag"]): x["value"] for x in values}
        name = score.removeprefix("best_")
        held_out = [line[name] for line in logged(output, "held_out")]
        assert metrics["held_out", name] == pytest.approx(held_out[-1])
        best = min(held_out) if name == "loss" else max(held_out)
        assert metrics["", score] == pytest.approx(best)


@pytest.mark.slow
def test_without_pairs_nothing_speaks_of_next_sentences(shards, small_config, tmp_path):
    folder = Path(shutil.copytree(shards, tmp_path / "shards"))
    manifest = Manifest.load(folder)
    manifest.options["instances"] = "full_sentences"
    manifest.save(folder)
    lines = lines_of(pretraining(folder, small_config, tmp_path / "run"))
    assert len(lines) == 4 and lines == shown_lines(tmp_path / "run", 10)
    assert not any("nsp" in line for line in lines)
    for kind, names in (("train", SCALARS), ("held_out", SCORES)):
        tags = set(series(tmp_path / "run" / "logs" / kind))
        assert tags == {name for name in names if not name.startswith("nsp")}


@pytest.mark.slow
def test_a_continued_run_shows_each_step_once(
    watched, words_are_hidden, shards, small_config, tmp_path, monkeypatch
):
    """Stopped before an evaluation, then killed after it and before the checkpoint."""
    command = pretraining(shards, small_config, tmp_path / "run", histograms_every=5, save_every=4)

    class Killed(Exception):
        pass

    def kill(log):
        raise Killed

    def terminate(step, *_):
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return ""

    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.commands.progress.training_line", terminate)
        assert main(command) == Preempted.exit_code
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ProjectorLog, "after_evaluation", kill)
        main(command)
    logs = tmp_path / "run" / "logs"
    assert steps(logs / "masked_words")["masked_words/0"] == [5]  # to be written again
    assert main(command) == 0
    for folder in ("train", "held_out", "masked_words", "histograms"):
        assert {*map(tuple, steps(logs / folder).values())} == {(5, 10)}, folder
    found = steps(logs)
    assert found["best_loss"] == [5, 10]
    tags = [value.tag for path, _, value in events(logs) if path.parent == logs]
    sessions = [tag for tag in tags if tag.startswith("_hparams_")]
    assert sorted(sessions) == ["_hparams_/session_end_info", "_hparams_/session_start_info"]
    expected, lines = logged(watched[0], times=True), logged(tmp_path / "run", times=True)
    assert [line["loss"] for line in lines] == [line["loss"] for line in expected]
