"""The benchmark of GPUs runs without one, so that it works where there is one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
def test_the_benchmark_of_gpus(tmp_path):
    sides = ["tensorflow", "jax_flash", "hugging_face"]
    without = {k: v for k, v in os.environ.items() if k != "BERT_TF_HUGGING_FACE"}
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu.py", "--size", "tiny-packed", "--steps", "2",
         "--sides", *sides, "--output", tmp_path / "gpu.json"],
        capture_output=True, text=True, env=without,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["machine"]["peak"] > 1e8
    rows = {row["side"]: row for row in found["rows"]}
    assert rows.pop("hugging_face")["skipped"] == "torch and transformers not installed"
    assert "left out: hugging_face" in done.stdout
    assert len(rows) == 2
    for row in rows.values():
        assert len(row["seconds"]) == 2
        assert row["sequences/s"] == pytest.approx(4 * 2 / (sum(row["seconds"]) / 2))
        assert 0 < row["share of peak"] < 1
        assert row["bytes"] > 1e7
