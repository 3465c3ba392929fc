"""Imports run downwards only: `make lint` checks it, and these tests what it would miss."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LINTER = Path(sys.executable).parent / "lint-imports"


def test_an_arrow_that_runs_upwards_is_found(tmp_path):
    for folder in ("bert_tf", "pipelines"):
        for source in (REPOSITORY / folder).rglob("*.py"):
            copy = tmp_path / source.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    (tmp_path / "bert_tf" / "pipelines").symlink_to("../pipelines")
    (tmp_path / "pyproject.toml").write_bytes((REPOSITORY / "pyproject.toml").read_bytes())
    with (tmp_path / "bert_tf" / "networks" / "encoder.py").open("a") as file:
        file.write("\n\ndef late():\n    import bert_tf.training.phases\n    import tensorflow\n")
    how = {"cwd": tmp_path, "env": {"PYTHONPATH": str(tmp_path)}, "capture_output": True}
    done = subprocess.run([LINTER, "--no-cache"], text=True, **how)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bert_tf.networks.encoder -> bert_tf.training.phases" in done.stdout
    assert "bert_tf.networks.encoder -> tensorflow" in done.stdout


def test_no_module_reaches_up_by_the_package_itself():
    """`import bert_tf`, and public names from it, could stand for any module: the rules miss it."""
    package, found = REPOSITORY / "bert_tf", []
    for source in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "bert_tf":
                paths = [package / name.name for name in node.names]
                is_package = not all(x.is_dir() or x.with_suffix(".py").is_file() for x in paths)
            else:
                names = node.names if isinstance(node, ast.Import) else []
                is_package = "bert_tf" in [name.name for name in names]
            if is_package:
                found.append(f"{source}, line {node.lineno}")
    assert found == []


def test_contributing_describes_the_packages_layer_by_layer():
    """CONTRIBUTING.md's table has a row for each package, from the top layer to the lowest."""
    rules = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (x["layers"] for x in rules["contracts"] if x["name"].startswith("bert_tf:"))
    expected = [sorted(x.replace(".", "/") for x in re.split(" [|:] ", layer)) for layer in layers]
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| layer | modules |")[1].split("\n\n")[0]
    rows: dict[str, list[str]] = {}
    for number, modules in re.findall(r"^\| (\d+) \| (.*?) \|", table, re.MULTILINE):
        rows.setdefault(number, []).extend(re.findall(r"`(bert_tf/[\w/]+)`", modules))
    assert [sorted(row) for row in rows.values()] == expected
    assert list(rows) == [str(n) for n in range(len(expected), 0, -1)]
