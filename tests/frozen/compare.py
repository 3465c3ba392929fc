"""Compares two checkouts on this machine, bit for bit.

    python tests/frozen/compare.py OLD NEW [PATTERN ...]

OLD and NEW are folders of the repository; PATTERN chooses cases of `frozen_cases.py`, such as
'train/*'. Prints a line for each case; exits with 1 if one differs or fails. All cases take ten
minutes of two quiet cores, 'train/*/one/float32' one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("frozen_cases.py")


def start(checkout: str, folder: Path, patterns: list[str]) -> subprocess.Popen:
    """Runs the cases with the package of a checkout, on one core: the other has the other one."""
    env = {"PYTHONPATH": str(Path(checkout).resolve()), "XDG_CACHE_HOME": str(folder / "cache")}
    env |= {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env = {**os.environ, **env, "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "0"}
    folder.mkdir()
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, CASES, folder / "files", folder / "results.json", *patterns]
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def difference(old: Any, new: Any, where: str = "") -> str:
    """The first place in which two results differ; "" if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            if name not in old or name not in new:
                return f"{where}/{name}: only in the {'old' if name in old else 'new'} one"
            if found := difference(old[name], new[name], f"{where}/{name}"):
                return found
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) > 0:
        for place, pair in enumerate(zip(old, new, strict=True)):
            if found := difference(*pair, f"{where}[{place}]"):
                return found
    elif old != new and not (old != old and new != new):
        return f"{where}: {str(old)[:100]} is now {str(new)[:100]}"
    return ""


def main(old: str, new: str, *patterns: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, name) for name in ("old", "new")]
        sides = zip((old, new), folders, strict=True)
        started = [start(checkout, path, list(patterns)) for checkout, path in sides]
        for process, path in zip(started, folders, strict=True):
            if process.wait():
                sys.exit((path / "log.txt").read_text()[-2000:])
        results = [json.loads((path / "results.json").read_text()) for path in folders]
    differing = 0
    for name in results[0]:
        found = difference(results[0][name], results[1].get(name))
        if not found and isinstance(results[0][name], str):
            found = f" failed in both: {results[0][name]}"
        differing += bool(found)
        print(f"{name}: {'differs' if found else 'equal'}{found}")
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
