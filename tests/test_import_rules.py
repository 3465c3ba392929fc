"""Imports run downwards only: the contracts of [tool.importlinter] in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LINTER = Path(sys.executable).parent / "lint-imports"


def test_no_arrow_runs_upwards():
    done = subprocess.run([LINTER, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_arrow_that_runs_upwards_is_found(tmp_path):
    for folder in ("bert_tf", "pipelines"):
        for source in (REPOSITORY / folder).rglob("*.py"):
            copy = tmp_path / source.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((REPOSITORY / "pyproject.toml").read_bytes())
    with (tmp_path / "bert_tf" / "layers" / "embeddings.py").open("a") as file:
        file.write("\n\ndef late():\n    import bert_tf.training.options\n    import tensorflow\n")
    done = subprocess.run(
        [LINTER, "--no-cache"], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bert_tf.layers.embeddings -> bert_tf.training.options" in done.stdout
    assert "bert_tf.layers.embeddings -> tensorflow" in done.stdout
