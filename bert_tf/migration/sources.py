"""The source code in files: scripts, notebooks, shell scripts, YAML, Markdown pages."""

import ast
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
    **dict.fromkeys((".md", ".markdown"), "markdown"),
}
# A fenced block of Markdown: its indent, language and code.
_BLOCK = re.compile(r"^([ \t]*)(```+|~~~+)[ \t]*\{?\.?(\w*).*\n((?:.*\n)*?)\1\2", re.MULTILINE)
_FENCES = {
    **dict.fromkeys(("python", "py", "python3", "pycon", "ipython"), "python"),
    **dict.fromkeys(("sh", "bash", "shell", "console", "bat", "zsh"), "shell"),
    **dict.fromkeys(("yaml", "yml"), "yaml"),
}
# Folders that hold no code of the user's.
_SKIPPED = {"node_modules", "site-packages", "__pycache__", "venv"}
# Code of IPython, which is no Python: "!pip install", "%cd", "files = !ls", "model?".
_SHELL = re.compile(r"^\s*(?:\w+\s*=\s*)?[!%]\s*(.*)|^\s*\??[\w.]+\?\??\s*$")


@dataclass(frozen=True)
class Source:
    language: str  # "python", "shell", "yaml"
    text: str
    location: str  # file, and cell of a notebook: "train.py" or "train.ipynb:cell 3"


def files_at(path: Path) -> list[Path]:
    """The file, or every file with code in a folder; hidden folders and environments left out."""
    if not path.is_dir():
        return [path]
    files = []
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        is_hidden = any(part.startswith(".") or part in _SKIPPED for part in parts)
        if file.suffix in _LANGUAGES and file.is_file() and not is_hidden:
            files.append(file)
    if not files:
        raise InputError(
            f"{path} holds no file to read: give a script, a notebook, or a folder with "
            f"{', '.join(f'*{suffix}' for suffix in _LANGUAGES)}."
        )
    return files


def sources_of(path: Path) -> Iterator[Source]:
    """The code of a file; refuses what cannot be read, or is no notebook."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give another file.") from None
    if path.suffix == ".ipynb":
        yield from _cells(text, path)
    elif (language := _LANGUAGES.get(path.suffix, "python")) == "markdown":
        yield from _blocks(text, path)
    else:
        yield Source(language, text, str(path))


def _blocks(text: str, path: Path) -> Iterator[Source]:
    """The code in the fences of a page, each line where it is in the page."""
    for block in _BLOCK.finditer(text):
        indent, _, fence, code = block.groups()
        language = _FENCES.get(fence.lower())
        lines = [line.removeprefix(indent) for line in code.split("\n")]
        if any(line.startswith(">>> ") for line in lines):  # a session: the rest are answers
            lines = [line[4:] if line[:4] in (">>> ", "... ") else "" for line in lines]
        if not fence:  # output that is shown, or code
            language = "python" if _is_python("\n".join(lines)) else "shell"
        code = "\n" * (text.count("\n", 0, block.start()) + 1) + "\n".join(lines)
        if language == "python":
            yield from _languages(code, str(path))
        elif language:
            yield Source(language, code.replace("$ ", "  "), str(path))


def _is_python(code: str) -> bool:
    try:
        return bool(ast.parse(code))
    except (SyntaxError, ValueError):
        return False


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


def _languages(code: str, location: str) -> Iterator[Source]:
    """The Python of a cell and its shell commands, each line where it is in the cell."""
    first = code.lstrip().partition("\n")[0]
    if re.match(r"%%(bash|sh|shell|script)\b|%%!", first):
        yield Source("shell", code.replace(first, "", 1), location)
        return
    if magic := re.match(r"%%(?:writefile|file)\s.*?(\.\w+)\s*$", first):
        if language := _LANGUAGES.get(magic[1]):
            yield Source(language, code.replace(first, "", 1), location)
        return
    if re.match(r"%%(?!time|capture|prun|heat)", first):
        return  # HTML, another language
    python = []
    shell = []
    is_continued = False
    for line in code.split("\n"):
        match = None if is_continued else _SHELL.match(line)
        if match or is_continued:
            command = line if is_continued else (match and match[1]) or ""
            is_continued = command.endswith("\\")
            shell.append(command)
            indent = line[: len(line) - len(line.lstrip())]
            python.append(f"{indent}pass" if match else "")
        else:
            python.append(line)
            shell.append("")
    yield Source("python", "\n".join(python), location)
    if any(shell):
        yield Source("shell", "\n".join(shell), location)
