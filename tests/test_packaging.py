import json
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from cases import for_each
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[1]
Owners = Mapping[str, list[str]]  # distributions of each name in site-packages


def pins(name: str) -> set[str]:
    """The pinned requirements of a file, names normalized as in a lock file."""
    found = re.findall(r"^([\w.-]+)==([\w.]+)", (REPOSITORY / name).read_text(), re.M)
    return {f"{re.sub('[._]', '-', package).lower()}=={version}" for package, version in found}


def test_every_direct_requirement_is_locked():
    assert pins("requirements.txt") <= pins("requirements.lock") <= pins("requirements-dev.lock")
    assert pins("requirements-dev.txt") <= pins("requirements-dev.lock")
    assert pins("requirements-serve.txt") <= pins("requirements-serve.lock")
    built_on = {"tensorflow", "keras", "tensorflow-text", "tensorflow-datasets", "keras-nlp"}
    assert built_on <= {each.partition("==")[0] for each in pins("requirements.txt")}


@for_each("uv", "", "/usr/bin/uv")
def test_uv_and_pip_check_every_hash(uv, tmp_path):
    # The tests may run in `make test-next`, whose variables this make would take over.
    own = ["VERSIONS=", "WITHOUT="]
    command = ["make", "--dry-run", "setup", f"VENV={tmp_path}", f"UV={uv}", *own]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    installs = [line for line in done.stdout.splitlines() if " pip install " in line]
    assert all(("uv pip" in line) == bool(uv) for line in installs)
    hashed = [line for line in installs if " -r requirements-" in line]
    assert len(hashed) == 2 and all("--require-hashes" in line for line in hashed)


def test_the_oldest_and_the_newest_versions_are_those_that_are_declared():
    """`make test-versions` installs them; the lock files pin versions between them."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    ranges = {each.name: each.specifier for each in map(Requirement, declared)}

    def listed(kind: str) -> dict[str, str]:
        lines = (REPOSITORY / f"requirements-{kind}.txt").read_text().splitlines()
        found = [Requirement(line) for line in lines if not line.startswith("#")]
        return {each.name: str(each.specifier) for each in found}

    for name, oldest in listed("oldest").items():
        bounds = str(ranges[name]).split(",")
        assert oldest.replace("==", ">=").removesuffix(".0") in bounds
        assert listed("newest")[name] in bounds
        pinned = [x for x in pins("requirements.txt") if x.startswith(f"{name}==")]
        assert all(x.split("==")[1] in ranges[name] for x in pinned)


def test_tokenizers_below_1_are_asked_for_wherever_they_are_installed():
    """1.0 has no BertWordPieceTokenizer."""
    places = [f for part in ("docs", "recipes", "bert_tf") for f in REPOSITORY.glob(f"{part}/**/*")]
    texts = [f.read_text(encoding="utf-8") for f in places if f.suffix in (".md", ".py")]
    pattern = r"^.*pip install.*(?<!openvino-)\btokenizers\b.*$"
    lines = re.findall(pattern, "\n".join(texts), re.MULTILINE)
    assert len(lines) >= 4
    assert [line for line in lines if '"tokenizers<1"' not in line] == []


@for_each("name", "requirements.lock", "requirements-dev.lock")
def test_a_lock_has_hashes_and_names_no_host_and_no_folder(name):
    text = (REPOSITORY / name).read_text()
    entries = re.split(r"\n(?=\w)", text[text.index("\nabsl-py") :].strip())
    assert len(entries) > 40
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "/" not in text


def required(requirements: list[str]) -> Iterator[metadata.Distribution]:
    """The installed packages that requirements name, what these require, and so on."""
    todo = [(each, frozenset[str]()) for each in requirements]
    seen = set()
    while todo:
        text, extras = todo.pop()
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras or [""]):
            continue
        distribution = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), text
        key = requirement.name.lower(), frozenset(requirement.extras)
        if key not in seen:
            seen.add(key)
            todo += [(each, key[1]) for each in distribution.requires or []]
            yield distribution


def link_files(distribution: metadata.Distribution, folder: Path, owners: Owners) -> None:
    """Links a package's folders, or its files in a folder of several packages, into another one."""
    root = Path(distribution.locate_file(""))
    for file in distribution.files or []:
        is_shared = len(owners.get(file.parts[0], ())) > 1
        link = folder / (file if is_shared else file.parts[0])
        if ".." not in file.parts and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / link.relative_to(folder))


IN_ONE_PROCESS = """
import importlib, pkgutil, sys
import bert_tf
for module in pkgutil.walk_packages(bert_tf.__path__, "bert_tf."):
    if not module.name.startswith(("bert_tf.server", "bert_tf.commands.serve")):  # need an extra
        importlib.import_module(module.name)
from bert_tf.cli import main
import tensorflow
# As `graphs_as_traced` in conftest.py.
tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
for command in sys.argv[1:]:
    assert main(command.split()) == 0, command
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_alone_goes_from_text_to_predictions(tmp_path):
    """Only what pyproject.toml declares is beside the wheel: links to files of this environment."""
    venv.create(tmp_path / "environment")
    python = tmp_path / "environment" / "bin" / "python"
    (packages,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    source = tmp_path / "source"
    source.mkdir()
    for kept in ("pyproject.toml", "README.md", "LICENSE", "bert_tf", "pipelines", "recipes"):
        subprocess.run(["cp", "-r", REPOSITORY / kept, source], check=True)
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("bert_tf-*.whl")
    static = Path("bert_tf/server/playground/static")
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {str(static / file.name) for file in (REPOSITORY / static).iterdir()} <= packed
    assert {"bert_tf/py.typed", "bert_tf/__init__.pyi", "bert_tf/migration/symbols.tsv"} <= packed
    recipes = (file.relative_to(REPOSITORY) for file in (REPOSITORY / "recipes").rglob("*.*"))
    sources = {f"bert_tf/{file}" for file in recipes if "__pycache__" not in file.parts}
    assert sources <= packed
    top_level = {name.split("/")[0] for name in packed if ".dist-info/" not in name}
    assert top_level == {"bert_tf"}
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-index", "--no-compile", wheel], check=True)
    (own,) = packages.glob("bert_tf-*.dist-info")
    owners = metadata.packages_distributions()
    for distribution in required(metadata.PathDistribution(own).requires or []):
        link_files(distribution, packages, owners)

    (tmp_path / "pipelines").mkdir()  # a user's own package of that name hides nothing
    (tmp_path / "pipelines" / "__init__.py").touch()
    corpus, labelled = tmp_path / "corpus.txt", tmp_path / "labelled.tsv"
    sentences = ["The ship sailed over the deep sea.", "The cow ate the grass by the barn."]
    corpus.write_text("\n\n".join("\n".join(sentences * 5) for _ in range(20)) + "\n")
    rows = [f"{sentences[i % 2]}\t{('sea', 'farm')[i % 2]}" for i in range(40)]
    labelled.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    commands = [
        "vocab --corpus corpus.txt --output vocab --size 100",
        "shards --corpus corpus.txt --tokenizer vocab --output shards --max_seq_length 32",
        "pretrain --shards shards --size tiny --steps 1 --batch_size 4 --output pre",
        "finetune --model pre/last --train labelled.tsv --max_steps 1 --output fine",
    ]
    for command in (
        [python, "-c", IN_ONE_PROCESS, *commands],
        [python.parent / "bert-tf", "predict", "--model", "fine/best", "--text", "ships"],
    ):
        how = {"cwd": tmp_path, "env": {"HOME": str(tmp_path)}, "capture_output": True}
        done = subprocess.run(command, text=True, **how)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert json.loads(done.stdout)["label"] in ("sea", "farm")
    assert done.stderr == ""  # none of TensorFlow's start-up chatter
