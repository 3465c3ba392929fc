"""Symbols of other libraries in code. The code is parsed, never run."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bert_tf.errors import InputError
from bert_tf.migration.sources import Source, files_at, sources_of
from bert_tf.migration.symbols import Symbol, find, table

# Modules of the original repository, beside the script or in a package.
_ORIGINAL = (
    "modeling", "optimization", "tokenization", "run_classifier", "run_squad", "run_pretraining",
    "create_pretraining_data", "extract_features", "run_classifier_with_tfhub",
)  # fmt: skip
# First part of an import -> library.
_ROOTS = {
    "transformers": "transformers",
    "pytorch_transformers": "transformers",
    "keras_hub": "keras_hub",
    "keras_nlp": "keras_hub",
    "official": "official",
    "tensorflow_models": "official",
    "tensorflow_hub": "tensorflow_hub",
    "tensorflow_text": "tensorflow_text",
    "tf_keras": "tf_keras",
    "tensorflow": "tensorflow",
    "keras_bert": "keras_bert",
    "bert4keras": "keras_bert",
    "bert": "original",
    **dict.fromkeys(_ORIGINAL, "original"),
}
_SCRIPTS = {row.symbol.removesuffix(".py") for row in table()["original", "script"]}
_PATH = r"[\w./${}~-]*"
_SCRIPT = re.compile(
    rf"(?<![\w/])(?:{_PATH}/)?({'|'.join(sorted(_SCRIPTS))})\.py\b"
    rf"|-m\s+(official\.[\w.]*nlp[\w.]*)|({_PATH}official/[\w/]*nlp[\w/]*)\.py\b"
)
_OF_FLAGS = ("original", "official")
_FLAG = re.compile(r"(?<=\s)--?(\w+)")
# A line of a shell's or of Windows', with those that continue it.
_COMMAND = re.compile(r"(?:.*[\\^][^\S\n]*\n)*.*")
_COMMENTS = ("#", "::", "rem ", "REM ")
_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)


@dataclass
class FoundSymbol:
    library: str
    name: str  # as the table knows it, or as it stands in the code
    row: Symbol | None  # None for a symbol that is not known
    places: list[str] = field(default_factory=list)  # "file:line", or "file:cell:line"


@dataclass
class ScanReport:
    findings: list[FoundSymbol]  # by file, in the order of the lines
    files: int
    unread: list[str]  # a sentence for each file or cell that could not be parsed

    @property
    def known(self) -> int:
        return sum(finding.row is not None for finding in self.findings)


def scan(path: Path) -> ScanReport:
    """Reads a script, a notebook, or all code in a folder; refuses a folder without code."""
    files = files_at(path)
    report = ScanReport([], len(files), [])
    for file in files:
        try:
            _File(report).read(list(sources_of(file)))
        except InputError as error:
            if len(files) == 1:
                raise
            report.unread.append(str(error))
    return report


class _File:
    """The symbols of one file; cells of a notebook share their imports."""

    def __init__(self, report: ScanReport):
        self.report = report
        self.aliases: dict[str, str] = {}  # name in the code -> dotted path of the import
        self.stars: list[str] = []  # libraries that everything was imported from
        self.imported: dict[str, str] = {}  # alias -> place of its import
        self.used: set[str] = set()  # aliases
        self.found: dict[tuple[str, str, str], FoundSymbol] = {}
        self.place = ""
        self.is_of_torch = False  # then a package's own modeling.py is no copy of the original's

    def read(self, sources: list[Source]) -> None:
        trees = []
        self.is_of_torch = any(_TORCH.search(source.text) for source in sources)
        for source in sources:
            self.place = source.place
            if source.language == "python":
                if (tree := self._parse(source)) is not None:
                    trees.append((source, tree))
                    self._imports(tree)
            elif source.language == "shell":
                self._shell(source.text)
            else:
                self._yaml(source.text)
        libraries = {_ROOTS[path.split(".")[0]] for path in [*self.aliases.values(), *self.stars]}
        for source, tree in trees:
            self.place = source.place
            self._names(tree)
            self._uses(tree, libraries)
        for alias in self.imported.keys() - self.used:
            self._name(self.aliases[alias], self.imported[alias])
        only_original = {finding.library for finding in self.found.values() if finding.row}
        for finding in self.found.values():
            finding.places.sort(key=_by_line)
        for finding in sorted(self.found.values(), key=lambda each: _by_line(each.places[0])):
            # Other packages have modules of those names, too.
            if finding.row or finding.library != "original" or "original" in only_original:
                self.report.findings.append(finding)

    def _parse(self, source: Source) -> ast.Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in strings
                return ast.parse(source.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f"{source.place}:{line}" if line else source.place
            reason = getattr(error, "msg", None) or error
            self.report.unread.append(f"{where} is no Python 3 ({reason}).")
            return None

    def _at(self, node: Any) -> str:
        return f"{self.place}:{node if isinstance(node, int) else node.lineno}"

    def _add(self, library: str, form: str, name: str, row: Symbol | None, place: str) -> None:
        found = FoundSymbol(library, name, row)
        finding = self.found.setdefault((library, form, name), found)
        if place not in finding.places:
            finding.places.append(place)

    def _imports(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    if (root := each.name.split(".")[0]) in _ROOTS:
                        self._alias(each.asname or root, each.name if each.asname else root, node)
                    elif each.asname and (path := self._copied(each.name)):
                        self._alias(each.asname, path, node)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                is_known = node.level == 0 and module.split(".")[0] in _ROOTS
                for each in node.names:
                    path = f"{module}.{each.name}"
                    path = path if is_known else self._copied(path)
                    if path and each.name == "*":
                        self.stars.append(path.removesuffix(".*"))
                    elif path:
                        self._alias(each.asname or each.name, path, node)

    def _copied(self, path: str) -> str:
        """The path from a module of the original on, if a package holds a copy of one; else ""."""
        parts = path.split(".")
        places = [i for i, part in enumerate(parts) if part in _ORIGINAL]
        return ".".join(parts[places[-1] :]) if places and not self.is_of_torch else ""

    def _alias(self, alias: str, path: str, node: ast.AST) -> None:
        self.aliases[alias] = path
        if "." in path:  # no module
            self.imported[alias] = self._at(node)

    def _names(self, tree: ast.Module) -> None:
        """Names that come from an import, with the attributes behind them."""
        inner: set[int] = set()
        for node in ast.walk(tree):
            if id(node) in inner or not isinstance(node, ast.Name | ast.Attribute):
                continue
            *attributes, at = _chain(node)
            inner.update(map(id, (*attributes, at)))
            if not isinstance(at, ast.Name):
                continue
            if at.id in self.aliases:
                self.used.add(at.id)
                path = [each.attr for each in reversed(attributes)]
                self._name(".".join([self.aliases[at.id], *path]), self._at(node))
            elif isinstance(at.ctx, ast.Load):
                for star in self.stars:
                    library = _ROOTS[star.split(".")[0]]
                    if (row := find(library, "name", at.id)) and not _is_glob(row):
                        self._add(library, "name", at.id, row, self._at(node))

    def _name(self, path: str, place: str) -> None:
        """Adds the symbol of a dotted path: the last part that the table knows."""
        root, *parts = path.split(".")
        library = _ROOTS[root]
        if library == "original" and all(_ROOTS.get(part) == library for part in parts):
            return  # a module of it, which is no symbol by itself
        if library == "tf_keras":
            parts = [library]
        rows = {part: find(library, "name", part) for part in reversed(parts)}
        # A row for one name counts before one for many; of those the class, not its method.
        exact = [name for name, row in rows.items() if row and not _is_glob(row)]
        classes = [name for name in parts if name[0].isupper()]
        name = next(iter([*exact, *classes, *parts[-1:]]), None)
        # TensorFlow has much beyond BERT: only what the table has is a symbol of its.
        if name and (rows[name] or library != "tensorflow"):
            self._add(library, "name", name, rows[name], place)

    def _uses(self, tree: ast.Module, libraries: set[str]) -> None:
        """What is recognized without an import: methods, arguments, strings, numbers."""
        libraries = {*libraries, "*"}
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}

        def add(form: str, name: str, node: ast.AST) -> None:
            if row := _first(sorted(libraries), form, name):
                shown = row.symbol.strip("*") if _is_glob(row) and form != "text" else name
                self._add(row.library, form, shown, row, self._at(node))

        names = (path.rpartition(".")[2] for path in self.aliases.values())
        is_of_tensorflow = any(name.startswith("TF") for name in names)
        called: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute):
                    called.add(id(node.func))
                    if getattr(_chain(node.func)[-1], "id", None) not in self.aliases:
                        of = _last_name(node.func.value).lower()
                        add("method", f"{of}.{node.func.attr}", node)
                    # The second positional argument of `compile` is the loss.
                    named = {"loss", None} & {each.arg for each in node.keywords}
                    lacks_loss = len(node.args) < 2 and not named
                    if is_of_tensorflow and node.func.attr == "compile" and lacks_loss:
                        add("call", "compile() without loss", node)
                for keyword in node.keywords:
                    if keyword.arg and isinstance(keyword.value, ast.Constant):
                        add("argument", f"{keyword.arg}={keyword.value.value!s}", keyword.value)
                    elif keyword.arg:
                        add("argument", f"{keyword.arg}=", keyword.value)
                # A flag that a copy of the original's scripts defines.
                is_definition = _last_name(node.func).startswith("DEFINE_") and node.args
                if is_definition and libraries.intersection(_OF_FLAGS):
                    flag = str(getattr(node.args[0], "value", None))
                    if row := _first(_OF_FLAGS, "flag", flag):
                        self._add(row.library, "flag", f"--{row.symbol}", row, self._at(node))
            elif isinstance(node, ast.Attribute):
                if id(node) not in called:
                    add("attribute", node.attr, node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in documentation and len(node.value) < 500:
                    add("text", node.value, node)
            elif isinstance(node, ast.UnaryOp) and ast.unparse(node).startswith("-"):
                add("number", ast.unparse(node), node)

    def _shell(self, text: str) -> None:
        """Scripts that are run, with their flags."""
        for lines in _COMMAND.finditer(text):
            command = re.sub(r"[\\^](?=\s*\n)", " ", lines[0])
            script = _SCRIPT.search(command)
            if script is None or command.lstrip().startswith(_COMMENTS):
                continue
            first = 1 + text.count("\n", 0, lines.start())
            library, form, name = "original", "script", f"{script[1]}.py"
            if not script[1]:
                library, form = "official", "name"
                name = re.split(r"[./]", script[2] or script[3])[-1]
            self._add(library, form, name, find(library, form, name), self._at(first))
            for found in _FLAG.finditer(command, script.end()):
                flag, row = found[1], _first((library, *_OF_FLAGS), "flag", found[1])
                place = self._at(first + command.count("\n", 0, found.start()))
                self._add(row.library if row else library, "flag", f"--{flag}", row, place)

    def _yaml(self, text: str) -> None:
        """Settings of Model Garden's experiments."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError):
            return  # another program's file
        keys = list(_keys(root))
        tops = {name.split(".")[0] for name, _ in keys}
        if "task" in tops and ("trainer" in tops or any("encoder" in name for name, _ in keys)):
            for name, line in keys:
                if name.split(".")[0] in ("task", "trainer", "runtime"):
                    row = find("official", "setting", name)
                    self._add("official", "setting", name, row, self._at(line))


def _by_line(place: str) -> list[int]:
    """The numbers of a place: line, or cell and line."""
    return [int(number) for number in re.findall(r":(?:cell )?(\d+)(?=:|$)", place)]


def _first(libraries: Iterable[str], form: str, name: str) -> Symbol | None:
    return next(filter(None, (find(library, form, name) for library in libraries)), None)


def _is_glob(row: Symbol) -> bool:
    return "*" in row.symbol


def _chain(node: ast.expr) -> list[Any]:
    """The expressions a.b.c, a.b and a of a.b.c."""
    chain = [node]
    while isinstance(chain[-1], ast.Attribute):
        chain.append(chain[-1].value)
    return chain


def _last_name(node: ast.expr) -> str:
    """The name of what an expression says: "b" of a.b, a.b[0] and a.b()."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "attr", getattr(node, "id", ""))


def _keys(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The dotted names of a YAML file's leaves, with their lines."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            if isinstance(value, yaml.MappingNode) and value.value:
                yield from _keys(value, f"{name}.")
            else:
                yield name, key.start_mark.line + 1
