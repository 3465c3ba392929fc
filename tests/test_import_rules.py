"""Imports run downwards only: the contracts of [tool.importlinter] in pyproject.toml."""

import re
import subprocess
import sys
import tomllib
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
    (tmp_path / "bert_tf" / "pipelines").symlink_to("../pipelines")
    (tmp_path / "pyproject.toml").write_bytes((REPOSITORY / "pyproject.toml").read_bytes())
    with (tmp_path / "bert_tf" / "layers" / "embeddings.py").open("a") as file:
        file.write(
            "\n\ndef late():\n    import bert_tf.training.training_options\n    import tensorflow\n"
        )
    done = subprocess.run(
        [LINTER, "--no-cache"], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bert_tf.layers.embeddings -> bert_tf.training.training_options" in done.stdout
    assert "bert_tf.layers.embeddings -> tensorflow" in done.stdout


def test_the_picture_has_the_packages_of_each_layer():
    """docs/architecture.svg shows them row by row, from the top; CONTRIBUTING.md describes each."""
    rules = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (x["layers"] for x in rules["contracts"] if "bert_tf.cli" in x.get("layers", ()))
    rows = [[name.replace(".", "/") for name in layer.split(" | ")] for layer in layers]
    packages = [[x for x in row if (REPOSITORY / x).is_dir()] for row in rows]
    packages = [["pipelines" if x == "bert_tf/pipelines" else x for x in row] for row in packages]
    picture = (REPOSITORY / "docs" / "architecture.svg").read_text(encoding="utf-8")
    drawn: dict[str, list[str]] = {}
    for y, title in re.findall(r'y="(\d+)" [^>]*class="title">([\w/]+)<', picture):
        drawn.setdefault(y, []).append(title)
    assert [sorted(row) for row in drawn.values()] == [sorted(row) for row in packages if row]
    described = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for row in packages:
        assert all(f"`{name}`" in described for name in row), row
