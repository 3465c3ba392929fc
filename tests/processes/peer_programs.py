"""Peers: programs and Pythons with other libraries, which some tests run beside us.

    @pytest.mark.peer("chromium")       skips the test where the peer is missing

A peer is a program on the PATH, or an environment that `make peers` makes.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The names of each program, and the package of Debian that has it.
PROGRAMS = {
    "chromium": (
        ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
        "chromium",
    ),
    "java": (("java",), "openjdk-17-jdk-headless"),
    "prometheus": (("prometheus",), "prometheus"),
    "promtool": (("promtool",), "prometheus"),
}


def find_peer(name: str) -> str | None:
    """The command of a program, or the Python of an environment; None where it is missing."""
    if name in PROGRAMS:
        return next(filter(None, map(shutil.which, PROGRAMS[name][0])), None)
    environment = ROOT / f".venv-{name}"
    return str(environment / "bin" / "python") if (environment / ".ready").exists() else None


def why_missing(name: str) -> str | None:
    """What to install for a peer; None where it is there."""
    if find_peer(name):
        return None
    cure = f"apt-get install {PROGRAMS[name][1]}" if name in PROGRAMS else "make peers"
    return f"needs {name}: {cure}"
