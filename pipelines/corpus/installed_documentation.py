"""A corpus on every machine: docstrings of the standard library and bert-tf's dependencies.

About 15 MB of technical English, read from sources (nothing is run). `make demo` trains on it.
"""

import ast
import contextlib
import hashlib
import re
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

from bert_tf.errors import InputError

STANDARD_LIBRARY = "python"

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"'(`*])")
_CODE = re.compile(r"^(>>>|\.\.\.( |$)|\$ |@|import |from \w+ import |[-=~^*#+|]{3,}|\.\. )")
_SHORTEST_DOCSTRING = 40  # characters; shorter ones say next to nothing
_TESTS = {"test", "tests", "testing", "idlelib", "lib2to3"}


@dataclass(frozen=True)
class LabelledDocument:
    """A document and its source."""

    label: str  # top-level package, or "python" for the standard library; or a file of the user's
    paragraphs: Sequence[Sequence[str]]  # sentences of each, such as a docstring of a module


def _dependencies() -> set[str]:
    """Files of bert-tf's dependencies below site-packages; none where it is not installed.

    Distributions may share a top-level package: dozens are below "google".
    """
    wanted = ["bert-tf"]
    closure = set[str]()
    files = set[str]()
    while wanted:
        distribution = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if distribution not in closure:
            closure.add(distribution)
            with contextlib.suppress(metadata.PackageNotFoundError):
                if distribution != "bert-tf":
                    files.update(path.as_posix() for path in metadata.files(distribution) or [])
                for requirement in metadata.requires(distribution) or []:
                    if "extra ==" not in requirement:
                        wanted += re.findall(r"^[\w.-]+", requirement)
    return files


def _sources() -> Iterator[tuple[str, Path]]:
    """(package, path) of every source file, in a fixed order."""
    dependencies = _dependencies()
    for scheme in ("stdlib", "purelib"):
        root = Path(sysconfig.get_path(scheme))
        for path in sorted(root.rglob("*.py")):
            below = path.relative_to(root)
            parts = below.with_suffix("").parts
            package = STANDARD_LIBRARY
            is_ours = "site-packages" not in parts
            if scheme == "purelib":
                package = parts[0]
                is_ours = not dependencies or below.as_posix() in dependencies
            if is_ours and not _TESTS.intersection(parts) and not parts[-1].endswith("_test"):
                yield package, path


def _prose(docstring: str) -> Iterator[str]:
    """The sentences of a docstring, without its code and its ruled lines."""
    paragraph: list[str] = []
    fenced = False
    for line in [*docstring.splitlines(), ""]:
        text = line.strip()
        is_fence = text.startswith("```")
        fenced ^= is_fence
        if text and not (fenced or is_fence or _CODE.match(text)):
            paragraph.append(text)
        elif paragraph:
            for sentence in _SENTENCE_END.split(" ".join(paragraph)):
                # At least two words and mostly letters; anything else is a table or a formula.
                letters = sum(map(str.isalpha, sentence))
                if " " in sentence and letters > 0.6 * len(sentence):
                    yield sentence
            paragraph = []


def _documented(
    tree: ast.Module,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """What may have a docstring, in the order of `ast.walk`, which would visit expressions, too."""
    todo: deque[ast.AST] = deque([tree])
    while todo:
        node = todo.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            if isinstance(children := getattr(node, name, None), list):
                todo.extend(children)


def _docstrings(source: tuple[str, Path]) -> list[list[str]]:
    """The sentences of each docstring of a source file."""
    try:
        tree = ast.parse(source[1].read_bytes())
    except (SyntaxError, ValueError, OSError):  # a template, a source of another Python version
        return []
    docstrings = (ast.get_docstring(node) or "" for node in _documented(tree))
    proses = ([*_prose(text)] for text in docstrings if len(text) >= _SHORTEST_DOCSTRING)
    return [prose for prose in proses if prose]


def installed_documentation(
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[LabelledDocument]:
    """The documented modules, in order, without repeated sentences (generated docstrings).

    InputError in a script that does not begin its work under `if __name__ == "__main__"`: its
    processes would run it again.
    """
    sources = list(_sources())
    docstrings = list[list[list[str]]]()
    try:
        # Spawned, not forked: TensorFlow may have threads in this process already.
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            for of_module in pool.map(_docstrings, sources, chunksize=64):
                docstrings.append(of_module)
                progress(len(docstrings), len(sources))
    except BrokenExecutor as error:
        raise InputError(
            "the processes that read the documentation died: free some memory; a script must "
            "begin its work under if __name__ == '__main__'"
        ) from error
    modules = []
    seen: set[bytes] = set()

    def is_new(sentence: bytes) -> bool:
        before = len(seen)
        seen.add(hashlib.blake2b(sentence, digest_size=8).digest())
        return len(seen) > before

    for (package, _), of_module in zip(sources, docstrings, strict=True):
        paragraphs = []
        for sentences in of_module:
            encoded = (sentence.encode("utf-8", "replace") for sentence in sentences)
            if fresh := [sentence.decode() for sentence in encoded if is_new(sentence)]:
                paragraphs.append(fresh)
        if paragraphs:
            modules.append(LabelledDocument(package, paragraphs))
    return modules
