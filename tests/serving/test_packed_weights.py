import json
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bert_tf import processor
from bert_tf.cli import main
from bert_tf.serving import packed_weights
from bert_tf.serving.packed_weights import VARIABLE, pack_weights, types_of
from bert_tf.serving.precisions import types_text


class Machine:
    """A machine where packed weights take a share of the time, by type."""

    def __init__(self, **ratios):
        self.ratios, self.measured = ratios, []

    def run(self, command, **options):
        types = command[command.index("bert_tf.serving.packed_weights") + 1 :]
        self.measured.append(types)
        if not self.ratios:
            raise subprocess.TimeoutExpired(command, 1)
        times = {"packed": math.prod(map(self.ratios.get, types)), "plain": 1.0}
        return subprocess.CompletedProcess(command, 0, json.dumps(times), "")


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Pretends to be a machine, in a process that has not imported TensorFlow."""

    def on(machine):
        monkeypatch.setattr(packed_weights.subprocess, "run", machine.run)
        return machine

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    # Not `sys.modules` itself, by which all of the worker imports, reports of failures too.
    python = SimpleNamespace(executable=sys.executable, modules={})
    monkeypatch.setattr(packed_weights, "sys", python)
    return on


def told(*types) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        processor._TIMES.clear()  # as in another process
        environment: dict[str, str] = {}
        patch.setattr(packed_weights, "os", SimpleNamespace(environ=environment))
        pack_weights(types)
        return environment.get(VARIABLE) == "1"


def test_weights_are_packed_where_that_pays_for_the_types(on):
    machine = on(Machine(float32=1.2, bfloat16=0.7))
    assert told("bfloat16") and not told("float32") and told("float32", "bfloat16")
    assert not told("int8")  # packed by itself
    assert machine.measured == [["bfloat16"], ["float32"], ["bfloat16", "float32"]]
    machine = on(Machine())
    assert told("bfloat16") and not machine.measured


def test_a_small_gain_and_a_failed_measurement_change_nothing(on):
    on(Machine(float32=0.99))
    assert not told("float32")
    machine = on(Machine())
    assert not told("bfloat16") and not told("bfloat16")
    assert machine.measured == [["bfloat16"]] * 2  # a failure is not remembered


def test_what_the_user_says_stays(on, monkeypatch):
    machine = on(Machine(float32=0.5))
    monkeypatch.setenv(VARIABLE, "0")
    pack_weights(["float32"])
    assert packed_weights.os.environ[VARIABLE] == "0" and not machine.measured


def test_types_are_those_of_the_newest_versions(tmp_path):
    assert types_of([tmp_path]) == {"float32"}  # a model directory, an older export
    for number, dtype in ((9, "float32"), (10, "int8")):
        folder = tmp_path / str(number) / "assets.extra"
        folder.mkdir(parents=True)
        (folder.parent / "saved_model.pb").touch()
        (folder / "types.json").write_text(types_text(dtype, {"float32": 9, "int8": 10}))
    assert types_of([tmp_path]) == {"float32", "int8"}
    assert types_of([tmp_path / "9"]) == {"float32", "int8"}


def test_commands_that_answer_ask(monkeypatch, tmp_path):
    asked = []
    for command in ("predict", "evaluate", "serve"):
        monkeypatch.setattr(
            f"bert_tf.commands.{command}.pack_weights", lambda types: asked.append(types)
        )
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "rows.tsv").write_text("text\tlabel\na\tb\n")
    main(["predict", "--model", str(tmp_path), "--text", "a"])
    main(["evaluate", "--model", str(tmp_path), "--data", str(tmp_path / "rows.tsv")])
    main(["serve", str(tmp_path)])
    assert asked == [{"float32"}, ["float32"], set()]


@pytest.mark.slow
def test_both_are_measured(monkeypatch):
    for name, value in (("_WIDTH", 64), ("_INNER", 256), ("_ROUNDS", 3)):
        monkeypatch.setattr(packed_weights, name, value)
    times = packed_weights.measure(["float32"])
    assert 0.05 < times["packed"] / times["plain"] < 20
