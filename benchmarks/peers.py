"""The peers' virtual environments: .venv-NAME, with the packages of requirements/NAME.txt.

    make peers                              makes all; tests and benchmarks use those that are there
    make peers PEERS="datatrove kubernetes" makes some

Benchmarks make those that they need. KerasHub is in .venv, on bert-tf's own TensorFlow.
"""

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path(__file__).with_name("requirements")
NAMES = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
MODEL_GARDEN = "tf-models-official==2.20.0"
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
HERE = ("tensorflow", "keras", "keras-hub", "tokenizers")  # peers and what bert-tf runs on
THERE = (
    "torch",
    "transformers",
    "onnxruntime",
    "openvino",
    "nncf",
    "ctranslate2",
    "tokenizers",
    "flash-tokenizer",
    "sentence-transformers",
)

_VERSIONS = """
import importlib.metadata as metadata, json, sys
found = {name.lower().replace("_", "-"): each.version
         for each in metadata.distributions() if (name := each.metadata["Name"])}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


def environment(name: str) -> str:
    """Returns the Python of an environment; makes it if it is missing or outdated.

    Packages that do not install together are installed one by one; those that fail are named.
    """
    folder, requirements = ROOT / f".venv-{name}", REQUIREMENTS / f"{name}.txt"
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = requirements.read_text() + MODEL_GARDEN * (name == "model-garden")
    if ready.exists() and ready.read_text() == wanted:
        return str(python)

    def install(*arguments: str) -> bool:
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        return subprocess.run([*pip, *arguments]).returncode == 0

    print(f"making .venv-{name} ...", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    packages = [line for line in wanted.splitlines() if line and not line.startswith("#")]
    for torch in (package for package in packages if package.startswith("torch==")):
        # Without CUDA's gigabytes, where PyTorch's own index is reachable; else as PyPI has it.
        install("--no-deps", "--retries", "0", "--extra-index-url", CPU_TORCH, torch)
    if name == "model-garden":
        install("--no-deps", packages.pop())
    failed = [] if install(*packages) else [each for each in packages if not install(each)]
    if failed == packages:
        raise SystemExit(f".venv-{name} cannot be made: pip's message is above")
    for package in failed:
        print(f"not installed in .venv-{name}: {package}", file=sys.stderr)
    ready.write_text(wanted)
    return str(python)


def peer_python(given: str | None = None) -> str:
    """A Python with the packages of hugging-face.txt: `given`, or that of .venv-hugging-face."""
    return given or environment("hugging-face")


def versions(python: str = sys.executable, packages: tuple[str, ...] = HERE) -> dict[str, str]:
    """Versions of those packages that a Python has."""
    command = [python, "-c", _VERSIONS, *packages]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds --peers."""
    parser.add_argument(
        "--peers",
        help="Python with the packages of benchmarks/requirements/hugging-face.txt; by default "
        ".venv-hugging-face, which is made",
    )


def main() -> None:
    """Makes environments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(NAMES)}"
    )
    for name in parser.parse_args().names or NAMES:
        print(environment(name))


if __name__ == "__main__":
    main()
