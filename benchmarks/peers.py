"""The peers' virtual environments, each made beside .venv when it is first needed.

    python benchmarks/peers.py [--peers PYTHON]     makes .venv-peers; prints all versions

KerasHub is in .venv, on bert-tf's own TensorFlow; Model Garden in its own environment
(model_garden.py); the packages of peers.txt in .venv-peers. To use another Python that has them,
give a benchmark --peers, or set BERT_TF_HUGGING_FACE for all.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(__file__).with_name("peers.txt")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
HERE = ("tensorflow", "keras", "keras-hub", "tokenizers")  # peers and what bert-tf runs on
THERE = (
    "torch", "transformers", "onnxruntime", "openvino", "nncf", "ctranslate2", "tokenizers",
    "flash-tokenizer", "faiss-cpu", "sentence-transformers",
)  # fmt: skip

_VERSIONS = """
import importlib.metadata as metadata, json, sys
found = {name.lower().replace("_", "-"): each.version
         for each in metadata.distributions() if (name := each.metadata["Name"])}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


def environment(name: str, *installs: list[str]) -> str:
    """Returns the Python of a virtual environment; makes it if it is missing or outdated.

    If the packages of a requirements file do not install together, those that install alone do,
    and the others are named.

    Args:
        name: its folder in the project.
        installs: arguments of one `pip install` after the other.
    """
    folder = ROOT / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    words = [word for arguments in installs for word in arguments]
    wanted = "\n".join(Path(word).read_text() if Path(word).is_file() else word for word in words)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making {name} ...", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        for arguments in installs:
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            if subprocess.run([*pip, *arguments]).returncode == 0:
                continue
            if arguments[0] != "-r":
                raise SystemExit(f"{name} cannot be made: pip's message is above")
            for line in Path(arguments[1]).read_text().splitlines():
                if not line.startswith("#") and subprocess.run([*pip, line]).returncode:
                    print(f"not installed in {name}: {line}", file=sys.stderr)
        ready.write_text(wanted)
    return str(python)


def peer_python(given: str | None = None) -> str:
    """A Python with the packages of peers.txt: `given`, BERT_TF_HUGGING_FACE's or .venv-peers'."""
    if chosen := given or os.environ.get("BERT_TF_HUGGING_FACE"):
        return chosen
    torch = next(line for line in PEERS.read_text().splitlines() if line.startswith("torch=="))
    # Without CUDA's gigabytes, where PyTorch's own index is reachable; else as PyPI has it.
    without_cuda = ["--no-deps", "--retries", "0", "--extra-index-url", CPU_TORCH, torch]
    return environment(".venv-peers", without_cuda, ["-r", str(PEERS)])


def versions(python: str = sys.executable, packages: tuple[str, ...] = HERE) -> dict[str, str]:
    """Versions of those packages that a Python has."""
    command = [python, "-c", _VERSIONS, *packages]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds --peers."""
    parser.add_argument("--peers", help="Python with the packages of benchmarks/peers.txt; by "
                        "default .venv-peers, which is made")  # fmt: skip


def main() -> None:
    """Makes the environment and prints versions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_option(parser)
    python = peer_python(parser.parse_args().peers)
    for name, version in {**versions(), **versions(python, THERE)}.items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
