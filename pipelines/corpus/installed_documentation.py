"""A corpus that is on every machine: the documentation inside the Python installation.

The docstrings of the standard library and of bert-tf's dependencies, about 15 MB of technical
English, read from their sources (nothing is imported or run). `make demo` trains on it.
"""

import ast
import contextlib
import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

STANDARD_LIBRARY = "python"

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"'(`*])")
_CODE = re.compile(r"^(>>>|\.\.\.( |$)|\$ |@|import |from \w+ import |[-=~^*#+|]{3,}|\.\. )")
_SHORTEST_DOCSTRING = 40  # characters; shorter ones say next to nothing
_TESTS = {"test", "tests", "testing", "idlelib", "lib2to3"}


@dataclass(frozen=True)
class DocumentedModule:
    """The documentation of one Python source file.

    Attributes:
        package: name of the top-level package, or "python" for the standard library.
        module: dotted name of the module.
        docstrings: the sentences of each docstring.
    """

    package: str
    module: str
    docstrings: tuple[tuple[str, ...], ...]


def _dependencies() -> set[str]:
    """Top-level packages of bert-tf's dependencies, so that the text is the same everywhere.

    Empty where bert-tf is not installed.
    """
    wanted, closure = ["bert-tf"], set[str]()
    while wanted:
        distribution = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if distribution not in closure:
            closure.add(distribution)
            with contextlib.suppress(metadata.PackageNotFoundError):
                for requirement in metadata.requires(distribution) or []:
                    if "extra ==" not in requirement:
                        wanted += re.findall(r"^[\w.-]+", requirement)
    return {
        package
        for package, owners in metadata.packages_distributions().items()
        if closure.intersection(re.sub(r"[-_.]+", "-", owner).lower() for owner in owners)
    } - {"bert_tf", "pipelines"}


def _sources() -> Iterator[tuple[str, str, Path]]:
    """(package, module, path) of every source file, in a fixed order."""
    places = sysconfig.get_paths()
    dependencies = _dependencies()
    standard_library = Path(places["stdlib"])
    packages = Path(places["purelib"])
    for root in (standard_library, packages):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if _TESTS.intersection(parts) or parts[-1].endswith("_test"):
                continue
            if root == standard_library:
                if "site-packages" in parts:
                    continue
                package = STANDARD_LIBRARY
            else:
                package = parts[0]
                if dependencies and package not in dependencies:
                    continue
            yield package, ".".join(parts).removesuffix(".__init__"), path


def _prose(docstring: str) -> Iterator[str]:
    """The sentences of a docstring, without its code and its ruled lines."""
    paragraph: list[str] = []
    fenced = False
    for line in [*docstring.splitlines(), ""]:
        text = line.strip()
        if text.startswith("```"):
            fenced = not fenced
            text = ""
        if fenced or _CODE.match(text):
            text = ""
        if text:
            paragraph.append(text)
        elif paragraph:
            for sentence in _SENTENCE_END.split(" ".join(paragraph)):
                # At least two words and mostly letters; anything else is a table or a formula.
                letters = sum(map(str.isalpha, sentence))
                if " " in sentence and letters > 0.6 * len(sentence):
                    yield sentence
            paragraph = []


def _read(source: tuple[str, str, Path]) -> DocumentedModule | None:
    package, module, path = source
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # a template, a source of another Python version
        return None
    docstrings = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if len(docstring) >= _SHORTEST_DOCSTRING and (prose := tuple(_prose(docstring))):
                docstrings.append(prose)
    return DocumentedModule(package, module, tuple(docstrings)) if docstrings else None


def installed_documentation(
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[DocumentedModule]:
    """Reads the documentation of the standard library and of bert-tf's dependencies.

    Repeated sentences are dropped (copied and generated docstrings are common).

    Args:
        progress: called with (files read, total files).

    Returns:
        The modules that have a sentence, in a fixed order.
    """
    sources = list(_sources())
    modules = []
    seen: set[bytes] = set()
    # Spawned, not forked: TensorFlow may have threads in this process already.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for done, found in enumerate(pool.map(_read, sources, chunksize=64), start=1):
            progress(done, len(sources))
            if found is None:
                continue
            docstrings = []
            for sentences in found.docstrings:
                fresh = []
                for sentence in sentences:
                    digest = hashlib.blake2b(sentence.encode("utf-8", "replace"), digest_size=8)
                    if digest.digest() not in seen:
                        seen.add(digest.digest())
                        fresh.append(sentence.encode("utf-8", "replace").decode())
                if fresh:
                    docstrings.append(tuple(fresh))
            if docstrings:
                modules.append(DocumentedModule(found.package, found.module, tuple(docstrings)))
    return modules
