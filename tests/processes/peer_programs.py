"""Peers: programs and Pythons with other libraries, which some tests run beside us.

    @pytest.mark.peer("chromium")       skips the test where the peer is missing

A peer is a program on the PATH, or an environment that `make peers` makes.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
_APT = "apt-get install"
# What installs each program, on Debian.
PROGRAMS = {
    "chromium": f"{_APT} chromium",
    "curl": f"{_APT} curl",
    "java": f"{_APT} openjdk-17-jdk-headless",
    "prometheus": f"{_APT} prometheus",
    "promtool": f"{_APT} prometheus",
    "tensorflow_model_server": "a package of TensorFlow Serving, which Debian does not have",
}
# Other names of a program.
_NAMES = {"chromium": ("chromium-browser", "google-chrome", "google-chrome-stable")}


def find_peer(name: str) -> str | None:
    """The command of a program, or the Python of an environment; None where it is missing."""
    if name in PROGRAMS:
        return next(filter(None, map(shutil.which, (name, *_NAMES.get(name, ())))), None)
    environment = ROOT / f".venv-{name}"
    return str(environment / "bin" / "python") if (environment / ".ready").exists() else None


def why_missing(name: str) -> str | None:
    """What to install for a peer; None where it is there."""
    if find_peer(name):
        return None
    return f"needs {name}: {PROGRAMS.get(name, 'make peers')}"
