"""The benchmarks' own machinery: turns, tables, the report; the benchmark of GPUs without one."""

import argparse
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import words

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SIDE = """
import sys
sys.path.insert(0, sys.argv[1])
import turns
turns.answer(lambda line: [float(line) * float(sys.argv[2]), 1.0])
"""


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_sides_take_turns_and_one_that_fails_is_left_out(benchmarks):
    import turns

    commands = {
        name: [sys.executable, "-c", SIDE, str(BENCHMARKS), factor]
        for name, factor in (("bert-tf", "2"), ("peer", "5"))
    }
    commands["broken"] = [sys.executable, "-c", "raise SystemExit(1)"]
    left_out: set[str] = set()
    times = turns.take_turns(commands, 3, ["1", "10"], left_out=left_out)
    assert left_out == {"broken"} and list(times) == ["bert-tf", "peer"]
    assert times["peer"].shape == (3, 2, 2)
    np.testing.assert_array_equal(times["peer"][:, :, 0], [[5, 50]] * 3)
    with pytest.raises(SystemExit, match="broken failed"):
        turns.take_turns({"broken": commands["broken"]}, 1)


MODEL = """
class Model:
    def fit(self, rows, epochs, callbacks=(), verbose=1):
        for step in range(epochs):
            for callback in callbacks:
                callback.on_train_batch_begin(step)
                callback.on_train_batch_end(step)
    def evaluate(self, rows): return [0.5, len(rows) / 4]
    def predict(self, texts, verbose=1): return texts
"""
SCRIPT = """
from a_library import Model
model = Model()
model.fit(rows, epochs=1)
scores = model.evaluate(dev)
answers = model.predict(["a gripping film"])
"""


def test_the_first_lines_of_a_user(benchmarks, monkeypatch, capsys, tmp_path):
    import first_lines

    for name in first_lines.SCRIPTS:
        compile(first_lines.script(name), name, "exec")
    (tmp_path / "a_library.py").write_text(MODEL)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\ngood\t1\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(first_lines.SCRIPTS, "a library", SCRIPT)
    monkeypatch.setitem(first_lines.NAMES, "a library", "A library")
    assert first_lines.lines("a library") == 10
    found = first_lines.walk("a library")
    assert found["accuracy"] == 0.5
    assert {"import", "open", "fit", "evaluate", "predict"} < found.keys()
    assert first_lines.imports("a library") == ["-c", "from a_library import Model"]
    table = first_lines.table({"a library": {"lines": 10, "step ms": 123.4, "accuracy": 0.5}})
    assert table.endswith("| lines | 10 |\n| step ms | 123 |\n| accuracy | 0.5000 |")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" * 3))
    with pytest.raises(SystemExit):
        first_lines.steps("a library", 2)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 3
    assert all(len(each) == 2 and each[0] > 0 for each in answers)


def test_medians_ratios_and_shares_of_the_ceiling(benchmarks):
    import turns

    times = {
        "bert-tf": np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]),
        "peer": np.array([[2.0, 2.0], [2.0, 4.0], [9.0, 6.0]]),
    }
    flops = {"bert-tf": (4e9, "bfloat16"), "peer": (4e9, "float32")}
    found = turns.summary(times, 10, "texts", flops)
    assert found["peer"]["ms"] == 2000 and found["peer"]["texts/s"] == 5
    assert found["peer"]["time"] == 2  # the median of 2, 1 and 3
    assert found["peer"]["processor time"] == 1
    ceilings = {
        f"{dtype} GFLOP/{unit}": number
        for dtype, number in (("float32", 4.0), ("bfloat16", 8.0))
        for unit in ("s", "processor s")
    }
    heads, _, ours, theirs = turns.table(found, ceilings).splitlines()
    assert heads.endswith(
        "| processor time, bert-tf = 1 | GFLOP/s | GFLOP/processor s | type "
        "| share of ceiling | share by processor |"
    )
    assert ours.startswith("| bert-tf | 2,000.0 | 4,000.0 | 5.00 | 2.50 | 1.00 | 1.00 |")
    assert ours.endswith("| bfloat16 | 0.25 | 0.12 |")
    assert theirs.endswith("| float32 | 0.50 | 0.25 |")
    found["peer"]["type"] = "int8"  # without a ceiling
    assert turns.table(found, ceilings).endswith("| int8 |  |  |")


def test_the_tables_of_inference_engines(benchmarks, tmp_path):
    import serving

    known = serving.vocabulary()
    for length, text in zip([4, 7], serving.texts([4, 7]), strict=True):
        assert len(text.split()) == length - 2 and set(text.split()) <= set(known)
    seconds = {"float32": 3, "onnx": 2, "openvino": 1, "onnx_int8": 1}
    found = {
        side: np.array([[[each, 2 * each, 5e8, 0.5 + 0.01 * each] for _ in serving.WORKS]] * 2)
        for side, each in seconds.items()
    }
    works = {f"serving, {work}": serving.summarize(work, found) for work in serving.WORKS}
    row = works["serving, 9 tokens"]["bert-tf float32"]
    assert row["to the best"] == 3 and row["MB"] == 500 and row["apart"] == 0
    times = serving.table(works)
    assert "| bert-tf float32 | 3,000 (3.00) | 3,000 (3.00) | 3,000 (3.00) | 500 | 0e+00 |" in times
    assert "| ONNX Runtime int8 | 1,000 (1.00) | 1,000 (1.00) |" in times
    serving.plot(works, str(tmp_path / "serving.svg"))
    assert "ONNX Runtime int8" in (tmp_path / "serving.svg").read_text()


def test_the_report_of_all_benchmarks(benchmarks, tmp_path):
    import everything
    import turns

    times = {"ours": np.array([[1.0, 2.0]]), "keras_hub": np.array([[3.0, 4.0]])}
    found = turns.summary(times, 8, "tokens", dict.fromkeys(times, (1e9, "float32")))
    (tmp_path / "pretraining_128.json").write_text(json.dumps({"pre-training, 128": found}))
    (tmp_path / "ceilings.json").write_text(
        json.dumps({"float32 GFLOP/s": 2.0, "float32 GFLOP/processor s": 1.0, "copy GB/s": 3.0})
    )
    (tmp_path / "start_up.txt").write_text("| | seconds |\n|---|---|\n| import | 5 |\n")
    (tmp_path / "shards.txt").write_text("2.4 MB/s\n")
    report = everything.report(tmp_path, {"torch": "2.15.0"})
    for line in ("torch 2.15.0", "## pre-training, 128", "| import | 5 |", "```\n2.4 MB/s\n```"):
        assert line in report
    assert "share of ceiling" in report


def test_make_bench_gives_options_that_its_scripts_have(benchmarks, tmp_path):
    import everything

    options = argparse.Namespace(output=tmp_path, turns=3)
    settings = {"output": tmp_path, "model": "model", "data": "data", "peers": "python"}
    for name in everything.COMMANDS:
        script, *words = everything.command(name, options, settings)
        text = (BENCHMARKS / script).read_text()
        text += '"--peers"' if "add_option(parser)" in text else ""
        text += '"--output"' if "turns.parser(__doc__" in text else ""
        text += '"--turns"' if "turns.parser(__doc__, " in text else ""
        for word in words:
            assert not word.startswith("--") or f'"{word}"' in text, (name, word)


def test_the_largest_batch_that_fits(benchmarks, monkeypatch, capsys):
    import gpu

    monkeypatch.setattr(gpu, "fits", lambda side, size, options: size.batch <= 21)
    gpu.bisect("jax", gpu.SIZES["tiny"], argparse.Namespace())
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == {"largest batch": 20, "too large": 22}
    assert gpu.largest(found) == "20, not 22" and gpu.largest({}) == ""


@pytest.mark.slow
def test_the_benchmark_of_gpus(tmp_path):
    # TensorFlow's sides are those of training_step.py.
    options = words("--size tiny-packed --steps 2 --sides jax_fused torch")
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu.py", *options, "--output", tmp_path / "gpu.json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["machine"]["peak"] > 1e8
    rows = {row["side"]: row for row in found["rows"]}
    assert rows.pop("torch")["skipped"] == "torch and transformers not installed"
    assert "left out: torch at tiny-packed" in done.stdout
    (row,) = rows.values()
    assert len(row["seconds"]) == 2
    assert row["sequences/s"] == pytest.approx(4 * 2 / (sum(row["seconds"]) / 2))
    assert row["share of peak"] > 0
    assert row["bytes"] > 1e7
