import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import finished, words

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
    units = ("s", "processor s")
    ceilings = {
        f"{x} GFLOP/{u}": n for x, n in (("float32", 4.0), ("bfloat16", 8.0)) for u in units
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


def test_the_tables_of_inference_engines(benchmarks):
    import serving

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


def test_the_report_of_all_benchmarks(benchmarks, tmp_path):
    import everything
    import turns

    times = {"ours": np.array([[1.0, 2.0]]), "keras_hub": np.array([[3.0, 4.0]])}
    found = turns.summary(times, 8, "tokens", dict.fromkeys(times, (1e9, "float32")))
    (tmp_path / "pretraining_128.json").write_text(json.dumps({"pre-training, 128": found}))
    ceilings = {"float32 GFLOP/s": 2.0, "float32 GFLOP/processor s": 1.0, "copy GB/s": 3.0}
    (tmp_path / "ceilings.json").write_text(json.dumps(ceilings))
    (tmp_path / "start_up.txt").write_text("| | seconds |\n|---|---|\n| import | 5 |\n")
    (tmp_path / "shards.txt").write_text("2.4 MB/s\n")
    report = everything.report(tmp_path, {"torch": "2.15.0"})
    for line in ("torch 2.15.0", "## pre-training, 128", "| import | 5 |", "```\n2.4 MB/s\n```"):
        assert line in report
    assert "share of ceiling" in report


def test_make_bench_gives_options_that_its_scripts_have(benchmarks, tmp_path):
    import everything
    import first_lines

    for name in first_lines.SCRIPTS:
        compile(first_lines.script(name), name, "exec")
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


@pytest.mark.slow
def test_the_benchmark_of_gpus(tmp_path):
    # TensorFlow's sides are those of training_step.py.
    options = words("--size tiny-packed --steps 2 --sides jax_fused torch")
    script, output = BENCHMARKS / "gpu.py", tmp_path / "gpu.json"
    done = finished(sys.executable, script, *options, "--output", output)
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
