"""The source code in files: scripts, notebooks, shell scripts, YAML."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError

_LANGUAGES = {  # by the file's suffix
    **dict.fromkeys((".py", ".ipynb"), "python"),
    **dict.fromkeys((".sh", ".bash", ".bat", ".cmd"), "shell"),
    **dict.fromkeys((".yaml", ".yml"), "yaml"),
}
# Folders that hold no code of the user's.
_SKIPPED = {"node_modules", "site-packages", "__pycache__", "venv"}
# Code of IPython, which is no Python: "!pip install", "%cd", "files = !ls", "model?".
_SHELL = re.compile(r"^\s*(?:\w+\s*=\s*)?[!%]\s*(.*)|^\s*\??[\w.]+\?\??\s*$")


@dataclass(frozen=True)
class Source:
    language: str  # "python", "shell" or "yaml"
    text: str
    place: str  # file, and cell of a notebook: "train.py" or "train.ipynb:cell 3"


def files_at(path: Path) -> list[Path]:
    """The file, or every file with code in a folder; hidden folders and environments left out."""
    if not path.is_dir():
        return [path]
    found = []
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        is_hidden = any(part.startswith(".") or part in _SKIPPED for part in parts)
        if file.suffix in _LANGUAGES and file.is_file() and not is_hidden:
            found.append(file)
    if not found:
        raise InputError(
            f"{path} holds no file to read: give a script, a notebook, or a folder with "
            f"{', '.join(f'*{suffix}' for suffix in _LANGUAGES)}."
        )
    return found


def sources_of(path: Path) -> Iterator[Source]:
    """The code of a file; refuses what cannot be read, or is no notebook."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give another file.") from None
    if path.suffix == ".ipynb":
        yield from _cells(text, path)
    else:
        yield Source(_LANGUAGES.get(path.suffix, "python"), text, str(path))


def _cells(text: str, path: Path) -> Iterator[Source]:
    try:
        notebook = json.loads(text)
        # Version 3 of the format had worksheets, and "input" for "source".
        cells = notebook.get("cells") or notebook["worksheets"][0]["cells"]
        codes = [_code(cell) for cell in cells]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no notebook ({error!r}): save it again.") from None
    for number, code in enumerate(codes, start=1):
        if code.strip():
            yield from _languages(code, f"{path}:cell {number}")


def _code(cell: Any) -> str:
    if cell["cell_type"] != "code":
        return ""
    lines = cell.get("source", cell.get("input", ""))
    return lines if isinstance(lines, str) else "".join(lines)


def _languages(code: str, place: str) -> Iterator[Source]:
    """The Python of a cell and its shell commands, each line where it is in the cell."""
    first = code.lstrip().partition("\n")[0]
    if re.match(r"%%(bash|sh|shell|script)\b|%%!", first):
        yield Source("shell", code.replace(first, "", 1), place)
        return
    if re.match(r"%%(?!time|capture|prun|heat)", first):
        return  # HTML, a file to write, another language
    python, shell = [], []
    is_continued = False
    for line in code.split("\n"):
        found = None if is_continued else _SHELL.match(line)
        if found or is_continued:
            command = line if is_continued else (found and found[1]) or ""
            is_continued = command.endswith("\\")
            shell.append(command)
            indent = line[: len(line) - len(line.lstrip())]
            python.append(f"{indent}pass" if found else "")
        else:
            python.append(line)
            shell.append("")
    yield Source("python", "\n".join(python), place)
    if any(shell):
        yield Source("shell", "\n".join(shell), place)
