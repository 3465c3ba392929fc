"""What commit 06fc4d9 wrote and computed is the same today, or a difference here has its reason.

`compare.py` compares two checkouts bit for bit; here another machine rounds otherwise.
"""

import ast
import itertools
import json
import re
import shutil
from pathlib import Path

import frozen_cases as cases  # tests/frozen/frozen_cases.py
import numpy as np
import pytest
from cases import for_each, slow
from rounding import half_rounding, rounding  # tests/numerics/rounding.py
from safetensors.numpy import load_file

FROZEN = json.loads(Path(__file__).with_name("06fc4d9.json").read_text(encoding="utf-8"))

MARGIN = 5  # on the largest change by a perturbation: see README.md

# Meant differences, each with its reason.
COMMANDS_GONE = {"index", "ask"}  # search is ten lines of NumPy over vectors
OPTIONS_GONE = {
    "--print_config",  # every run writes its config.yaml
    "--clean",  # the report names the lines
    *("--access_log", "--traces"),  # a proxy logs requests and traces them
}
PARAMETERS_CHANGED = {
    ("export_model", "output='saved_models'"): "output=None",  # with `format`, exports/
    # Required, or `texts` is: a command's option of several values has none by default.
    ("learn_vocabulary", "corpus=None"): "corpus=[]",
    ("make_shards", "corpus=None"): "corpus=[]",
}


@pytest.fixture(autouse=True)
def files(made_once, tmp_path, monkeypatch):
    shutil.copytree(made_once("06fc4d9", cases.unpack), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def slow_but(fast: set[str], names) -> list:
    return [n if n in fast else slow(n) for n in names]


BYTES = [x for x in FROZEN if x.startswith(("vocabulary/", "shards/"))]


@for_each("name", *slow_but({"vocabulary/lower", "shards/static"}, BYTES))
def test_files_have_the_same_bytes(name):
    assert cases.all_cases()[name]() == FROZEN[name]


@for_each("task", *cases.TASKS)
def test_examples_have_the_same_fingerprint(task):
    assert cases.own(task) == FROZEN[f"fingerprint/{task}"]


@for_each("task", *slow_but({"cola", "squad"}, cases.PUBLISHED))
def test_published_examples_have_the_same_fingerprint(task, shared):
    assert cases.published(task, shared) == FROZEN[f"fingerprint/{task} (published)"]


def test_no_option_is_gone():
    options = cases.options()
    for command, before in FROZEN["options"].items():
        if command in COMMANDS_GONE:
            continue
        gone = set(before) - set(options.get(command, ()))
        assert gone <= OPTIONS_GONE, command


def parameters(signature: str) -> tuple[list[str], set[str]]:
    """Those that may be given by position, in order, and those by keyword alone; with defaults."""
    (function,) = ast.parse(f"def f{signature}: ...").body
    listed = function.args
    without = len(listed.args) - len(listed.defaults)
    defaults = [""] * without + [*map(ast.unparse, listed.defaults)]
    positional = [f"{x.arg}={d}" for x, d in zip(listed.args, defaults, strict=True)]
    pairs = zip(listed.kwonlyargs, listed.kw_defaults, strict=True)
    return positional, {f"{x.arg}={d and ast.unparse(d)}" for x, d in pairs}


def test_a_call_of_a_public_name_still_means_the_same():
    """Parameters may have been added, at the end or by keyword."""
    now = cases.signatures()
    for name, before in FROZEN["signatures"].items():
        if name in COMMANDS_GONE:
            continue
        (by_place, by_name), (places, names) = parameters(before), parameters(now[name])
        assert places[: len(by_place)] == by_place, name
        changed = {PARAMETERS_CHANGED.get((name, parameter), parameter) for parameter in by_name}
        assert changed <= names | set(places[len(by_place) :]), name


def test_variables_have_the_same_names():
    assert cases.names_of_variables() == FROZEN["variables"]


@for_each("name", *slow_but({"train/words/one/float32"}, FROZEN["losses"]))
def test_training_takes_the_same_trajectory(name):
    """But for rounding: `spread` is the largest of all trainings of this size and type."""
    end = name.split("/", 2)[2]
    spread = max(x["spread"] for key, x in FROZEN["losses"].items() if key.endswith(end))
    losses = cases.all_cases()[name]()["losses"]
    before = FROZEN["losses"][name]["losses"]
    np.testing.assert_allclose(losses, before, rtol=0, atol=MARGIN * spread)


@for_each("name", *slow_but({"pretraining"}, cases.RESUMED))
def test_a_killed_run_resumes_on_its_trajectory(name, capsys):
    """To the weights that its version ended with."""
    (newest,) = sorted(Path("killed", name, "checkpoints").iterdir())[-1:]
    cases.run(cases.RESUMED[name])
    steps = [int(n) for n in re.findall(r"^step +(\d+)/", capsys.readouterr().err, re.MULTILINE)]
    assert min(steps) == int(newest.stem.removeprefix("step-")) + 1
    new = load_file(f"killed/{name}/last/model.safetensors")
    old = load_file(f"expected/{name}.safetensors")
    assert old.keys() == new.keys()
    # A gradient that is 0 but for rounding moves a weight by learning rate * gradient / Adam's
    # epsilon a step, in a direction that is arbitrary. The bias of attention's keys has 1e-9, one
    # bias for all choices the error of the sum of their probabilities, which is 1.
    for tensor in old:
        gradient = 2**-24 if (name, tensor) == ("choice", "classifier.bias") else 1e-9
        atol = 24 * 1e-3 * gradient / 1e-6
        np.testing.assert_allclose(new[tensor], old[tensor], rtol=0, atol=atol, err_msg=tensor)


EXPORTS = [
    *((task, "float32") for task in cases.TASKS),
    *itertools.product(("classification", "tagging"), ("bfloat16", "int8")),
]
# Signatures that are the same for every kind: asked of one.
ANY_KIND = {"attention", "embed", "explain", "tokens"}


@pytest.mark.tf_text
@for_each("task precision", EXPORTS[0], *(slow(*names) for names in EXPORTS[1:]))
def test_an_export_answers_as_before(task, precision, tmp_path, exports_of, monkeypatch):
    """The SavedModel of that version beside one that is made now, on this machine."""
    monkeypatch.setattr("bert_tf.commands.export_precisions._times", lambda model: {"short": 1.0})
    version = str(1 + cases.EXPORTED.index(precision))
    cases.unpack(tmp_path, cases.EXPORTS, f"exports/{task}/{version}/")
    left_out = ANY_KIND if task != "regression" else set()
    old = cases.answers(Path("exports", task, version), cases.asked(task), left_out)
    with exports_of(*({name.partition("/")[0] for name in old} | {"serving_default"})):
        cases.run(cases.exporting(task, "new_exports", precision))
    versions = Path("new_exports", task).iterdir()
    new = cases.answers(max(versions, key=lambda x: int(x.name)), cases.asked(task), left_out)
    assert old.keys() <= new.keys()
    for name, values in old.items():
        if np.array(values).dtype.kind != "f":
            # In lower precision a label may change, where two are equally probable.
            assert precision != "float32" or new[name] == values, name
            continue
        # An encoder's block, embeddings and a head. A step of int8 is as wide as one of bfloat16.
        size = max(1.0, np.abs(values).max())
        share = half_rounding(30, "bfloat16") if precision != "float32" else rounding(30, 16)
        np.testing.assert_allclose(new[name], values, rtol=0, atol=share * size, err_msg=name)
