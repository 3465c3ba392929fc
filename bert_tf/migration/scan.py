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
from bert_tf.migration.symbols import LIBRARIES, Symbol, find, table
from bert_tf.migration.values import PREPROCESSOR, Values, chain, last_name

# Modules of the original repository, beside the script or in a package.
_ORIGINAL = (
    "modeling",
    "optimization",
    "tokenization",
    "run_classifier",
    "run_squad",
    "run_pretraining",
    "create_pretraining_data",
    "extract_features",
    "run_classifier_with_tfhub",
)
# First part of an import -> library.
_ROOTS = {
    **{library: library for library in LIBRARIES if library not in ("original", "onnx", "*")},
    "pytorch_transformers": "transformers",
    "keras_nlp": "keras_hub",
    "tensorflow_models": "official",
    "bert4keras": "keras_bert",
    **dict.fromkeys(("clip_client", "clip_server"), "bert_serving"),
    **dict.fromkeys(("keras2onnx", "tf2onnx"), "onnx"),
    **dict.fromkeys(("bert", *_ORIGINAL), "original"),
}
_SCRIPTS = {row.symbol.removesuffix(".py") for row in table()["original", "script"]}
_PATH = r"[\w./${}~-]*"
_SCRIPT = re.compile(
    rf"(?<![\w/])(?:{_PATH}/)?({'|'.join(sorted(_SCRIPTS))})\.py\b"
    rf"|-m\s+(official\.[\w.]*nlp[\w.]*)|({_PATH}official/[\w/]*nlp[\w/]*)\.py\b"
)
_FLAG_LIBRARIES = ("original", "official")
_FLAG = re.compile(r"(?<=\s)--?(\w+)")
# A line of a shell's or of Windows', with those that continue it.
_COMMAND = re.compile(r"(?:.*[\\^][^\S\n]*\n)*.*")
_COMMENTS = ("#", "::", "rem ", "REM ")
_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)
_WORD = re.compile(r"[^\s'\"=]+")  # of a shell: a URL, or the name of a variable
_CLASS = re.compile(r"(?:[\w.]+\.)?((?:TF|Auto|Bert|DistilBert)[A-Z]\w+)")
# Names that a star import of transformers brings, whatever the architecture.
_STAR_NAMES = re.compile(r"TF[A-Z]|\w+(?:Tokenizer|TokenizerFast|Config)$")
_SIMPLE = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Expr,
    ast.Return,
    ast.Compare,
    ast.arguments,
)
_SAVES = re.compile(r"(?!.*token).*(?:model|classifier|bert|encoder|net)", re.IGNORECASE)
_LABELS = re.compile(r"label|ignore|target|tag", re.IGNORECASE)
# What TensorFlow and Keras lost says something of BERT only beside a library of it.
_TENSORFLOW_LIBRARIES = {"tensorflow", "keras", "tensorflow_addons", "onnx"}
# Endings of files that Keras 3 takes, by the method or class that is given the path.
_MODEL_FILES = (".keras", ".h5", ".hdf5")
_FILES = {
    "save": _MODEL_FILES,
    "load_model": _MODEL_FILES,
    "load_weights": _MODEL_FILES,
    "save_weights": (".weights.h5",),
    "ModelCheckpoint": (".keras", ".h5"),
}


@dataclass
class Finding:
    library: str
    name: str  # as the table knows it, or as it stands in the code
    row: Symbol | None  # None for a symbol that is not known
    locations: list[str] = field(default_factory=list)  # "file:line", or "file:cell:line"


@dataclass
class ScanReport:
    findings: list[Finding]  # by file, in the order of the lines
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
        except RecursionError:
            report.unread.append(f"{file} nests expressions too deeply.")
        except InputError as error:
            if len(files) == 1:
                raise
            report.unread.append(str(error))
    if not {finding.library for finding in report.findings} - _TENSORFLOW_LIBRARIES:
        report.findings.clear()
    return report


class _File:
    """The symbols of one file; cells of a notebook share their imports."""

    def __init__(self, report: ScanReport):
        self.report = report
        self.values = Values()
        self.imported: dict[str, str] = {}  # alias -> location of its import
        self.used: set[str] = set()  # aliases
        self.findings: dict[tuple[str, str, str, Symbol | None], Finding] = {}
        self.location = ""
        self.is_of_torch = False  # then a package's own modeling.py is no copy of the original's

    def read(self, sources: list[Source]) -> None:
        cells: list[tuple[str, list[ast.AST]]] = []
        self.is_of_torch = any(_TORCH.search(source.text) for source in sources)
        for source in sources:
            self.location = source.location
            if source.language == "python":
                nodes = self._parse(source)
                cells.append((source.location, nodes))
                self._imports(nodes)
            elif source.language == "shell":
                self._shell(source.text)
            else:
                self._yaml(source.text)
        paths = [*self.values.aliases.values(), *self.values.stars]
        libraries = {"*", *(_ROOTS[path.split(".")[0]] for path in paths)}
        libraries |= {"keras"} if "tensorflow" in libraries else set()
        self.values.learn([nodes for _, nodes in cells])
        for self.values.source, (self.location, nodes) in enumerate(cells):
            self._names(nodes)
            self._uses(nodes, libraries)
        for alias in self.imported.keys() - self.used:
            self._name(self.values.aliases[alias], self.imported[alias])
        only_original = {finding.library for finding in self.findings.values() if finding.row}
        for finding in self.findings.values():
            finding.locations.sort(key=_by_line)
        for finding in sorted(
            self.findings.values(), key=lambda finding: _by_line(finding.locations[0])
        ):
            # Other packages have modules of those names, too.
            if finding.row or finding.library != "original" or "original" in only_original:
                self.report.findings.append(finding)

    def _parse(self, source: Source) -> list[ast.AST]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in strings
                return list(ast.walk(ast.parse(source.text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f"{source.location}:{line}" if line else source.location
            reason = getattr(error, "msg", None) or error
            self.report.unread.append(f"{where} is no Python 3 ({reason}).")
            return []

    def _at(self, node: Any) -> str:
        return f"{self.location}:{node if isinstance(node, int) else node.lineno}"

    def _add(self, library: str, form: str, name: str, row: Symbol | None, location: str) -> None:
        new = Finding(library, name, row)
        finding = self.findings.setdefault((library, form, name, row), new)
        if location not in finding.locations:
            finding.locations.append(location)

    def _imports(self, nodes: list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    if (root := name.name.split(".")[0]) in _ROOTS:
                        self._alias(name.asname or root, name.name if name.asname else root, node)
                    elif name.asname and (path := self._copied(name.name)):
                        self._alias(name.asname, path, node)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                is_known = node.level == 0 and module.split(".")[0] in _ROOTS
                for name in node.names:
                    path = f"{module}.{name.name}"
                    path = path if is_known else self._copied(path)
                    if path and name.name == "*":
                        self.values.stars.append(path.removesuffix(".*"))
                    elif path:
                        self._alias(name.asname or name.name, path, node)
            elif isinstance(node, ast.Assign) and isinstance(call := node.value, ast.Call):
                module = str(getattr((*call.args, None)[0], "value", ""))
                is_import = last_name(call.func) in ("import_module", "__import__")
                if is_import and module.split(".")[0] in _ROOTS:
                    self.values.aliases[ast.unparse(node.targets[0])] = module

    def _copied(self, path: str) -> str:
        """The path from a module of the original on, if a package holds a copy of one; else ""."""
        parts = path.split(".")
        starts = [i for i, part in enumerate(parts) if part in _ORIGINAL]
        return ".".join(parts[starts[-1] :]) if starts and not self.is_of_torch else ""

    def _alias(self, alias: str, path: str, node: ast.AST) -> None:
        self.values.aliases[alias] = path
        if "." in path:  # no module
            self.imported[alias] = self._at(node)

    def _names(self, nodes: list[ast.AST]) -> None:
        """Names that come from an import, with the attributes behind them."""
        inner: set[int] = set()
        calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
        aliased = {id(node.value) for node in nodes if isinstance(node, ast.Assign)}
        defined = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        for node in nodes:
            if id(node) in inner or not isinstance(node, ast.Name | ast.Attribute | ast.Call):
                continue
            parts = chain(node)
            inner.update(map(id, parts[1:]))
            at = parts[-1]
            if not isinstance(at, ast.Name):
                continue
            if at.id in self.values.aliases and isinstance(at.ctx, ast.Load):
                self.used.add(at.id)
                path = self.values.path(node)
                if self.values.is_preprocessor(calls.get(id(node))):
                    path += PREPROCESSOR
                elif id(node) in aliased and self.values.is_module(node):
                    continue
                self._name(path, self._at(node))
            elif isinstance(at.ctx, ast.Load) and at.id not in defined:
                for star in self.values.stars:
                    library = _ROOTS[star.split(".")[0]]
                    row = find(library, "name", at.id)
                    is_theirs = library == "transformers" and _STAR_NAMES.match(at.id)
                    if row and (is_theirs or not _is_glob(row)):
                        self._add(library, "name", at.id, row, self._at(node))

    def _name(self, path: str, location: str) -> None:
        """Adds the symbol of a dotted path: the last part that the table knows."""
        root, *parts = path.split(".")
        library = _ROOTS[root]
        if library == "original" and all(_ROOTS.get(part) == library for part in parts):
            return  # a module of it, which is no symbol by itself
        if library == "tf_keras":
            parts = [library]
        if library == "tensorflow":
            if "keras" in parts:
                library = "keras"
            else:
                names = [part for part in parts if part not in ("compat", "v1")]
                parts += [".".join(["tf", *names[: i + 1]]) for i in range(len(names))]
        rows = {part: find(library, "name", part) for part in reversed(parts)}
        # A row for one name counts before one for many; of those the class, not its method.
        exact = [name for name, row in rows.items() if row and not _is_glob(row)]
        classes = [name for name in parts if name[0].isupper()]
        dynamic = [name for name in parts if name == "getattr"]
        name = next(iter([*exact, *classes, *dynamic, *parts[-1:]]), None)
        # TensorFlow has much beyond BERT: only what the table has is a symbol of its.
        if name and (rows[name] or library not in _TENSORFLOW_LIBRARIES):
            self._add(library, "name", name, rows[name], location)

    def _uses(self, nodes: list[ast.AST], libraries: set[str]) -> None:
        """What is recognized without an import: methods, arguments, strings, numbers."""
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        about = {
            id(part): ast.unparse(node)
            for node in nodes
            if isinstance(node, _SIMPLE)
            for part in ast.walk(node)
            if isinstance(part, ast.UnaryOp)
        }

        def add(form: str, name: str, node: ast.AST, shown: str = "") -> bool:
            row = _first(sorted(libraries), form, name)
            if row:
                self._add(row.library, form, shown or name, row, self._at(node))
            return row is not None

        called: set[int] = set()
        for node in nodes:
            if isinstance(node, ast.Call):
                called.add(id(node.func))
                self._call(node, libraries, add)
            elif isinstance(node, ast.Attribute):
                owner = self.values.owner(node.value)
                if id(node) not in called and owner not in ("self", "cls"):
                    add("attribute", f"{owner}.{node.attr}", node, node.attr)
            elif isinstance(node, ast.Subscript):
                owner = self.values.owner(node.value)
                index = ast.unparse(node.slice)
                if isinstance(key := getattr(node.slice, "value", None), str):
                    add("key", f"{owner}.{key}", node, f"[{index}]")
                elif not isinstance(node.slice, ast.Slice) or node.slice.lower:
                    add("position", f"{owner}.{index}", node, f"[{index}]")
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                what = self.values.what(node.value)
                for i in range(len(node.targets[0].elts)):
                    add("position", f"{what}.{i}", node, f"[{i}]")
            elif isinstance(node, ast.ClassDef):
                bases = [self.values.called(base) for base in node.bases if self.values.path(base)]
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                        for base in bases:
                            add("override", f"{base}.{method.name}", method)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in documentation and len(node.value) < 500:
                    name = node.value
                    if not add("text", name, node) and (row := _class_row(name, libraries)):
                        self._add(row.library, "name", row.symbol, row, self._at(node))
            elif isinstance(node, ast.UnaryOp) and _LABELS.search(about.get(id(node), "")):
                add("number", ast.unparse(node), node)

    def _call(self, node: ast.Call, libraries: set[str], add: Any) -> None:
        values = self.values
        called = values.called(node.func)
        name = last_name(node.func)
        if not values.path(node.func):
            if isinstance(node.func, ast.Attribute):
                add("method", f"{values.owner(node.func.value)}.{name}", node, f".{name}")
            if "." not in called:
                add("call", f"{called}()", node, f"{name}()")
                if len(node.args) > 1 or isinstance((*node.args, None)[0], ast.List | ast.Tuple):
                    add("call", f"{called}(inputs by position)", node, "inputs by position")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if name == "Input" and node.args:
            keywords["shape"] = node.args[0]
        for keyword, value in keywords.items():
            if keyword:
                argument = f"{keyword}={value.value if isinstance(value, ast.Constant) else ''!s}"
                for pattern in (f"{called}({argument}", argument):
                    row = _first(sorted(libraries), "argument", pattern)
                    shown = argument if row and not _is_glob(row) else f"{keyword}="
                    if add("argument", pattern, value, shown):
                        break
        # The second positional argument of `compile` is the loss.
        if name == "compile" and len(node.args) < 2 and not {"loss", None} & keywords.keys():
            imported = [path.rpartition(".")[2] for path in values.aliases.values()]
            if any(path.startswith("TF") for path in imported):
                add("call", "compile() without loss", node)
        is_layer = values.path(node.func).endswith(".KerasLayer")
        if is_layer and "trainable" not in keywords and not values.is_preprocessor(node):
            add("call", "KerasLayer() without trainable", node)
        is_of_keras = _SAVES.match(called) if name == "save" else "." not in called
        if name in _FILES and (is_of_keras or name.endswith("_weights")):
            path = values.text(keywords.get("filepath") or next(iter(node.args), None))
            of_weights = getattr(keywords.get("save_weights_only"), "value", False)
            if path and not path.endswith(_FILES["save_weights" if of_weights else name]):
                add("call", f"{name}() of an older format", node)
        # A flag that a copy of the original's scripts defines.
        if name.startswith("DEFINE_") and node.args and libraries.intersection(_FLAG_LIBRARIES):
            row = _first(_FLAG_LIBRARIES, "flag", values.text(node.args[0]))
            if row:
                self._add(row.library, "flag", f"--{row.symbol}", row, self._at(node))

    def _shell(self, text: str) -> None:
        """Scripts that are run, with their flags."""
        for lines in _COMMAND.finditer(text):
            command = re.sub(r"[\\^](?=\s*\n)", " ", lines[0])
            if command.lstrip().startswith(_COMMENTS):
                continue
            first = 1 + text.count("\n", 0, lines.start())
            for word in _WORD.finditer(command):
                if row := find("*", "text", word[0]):
                    location = self._at(first + command.count("\n", 0, word.start()))
                    self._add("*", "text", word[0], row, location)
            if (script := _SCRIPT.search(command)) is None:
                continue
            library = "original"
            form = "script"
            name = f"{script[1]}.py"
            if not script[1]:
                library = "official"
                form = "name"
                name = re.split(r"[./]", script[2] or script[3])[-1]
            self._add(library, form, name, find(library, form, name), self._at(first))
            for match in _FLAG.finditer(command, script.end()):
                flag = match[1]
                row = _first((library, *_FLAG_LIBRARIES), "flag", match[1])
                location = self._at(first + command.count("\n", 0, match.start()))
                self._add(row.library if row else library, "flag", f"--{flag}", row, location)

    def _yaml(self, text: str) -> None:
        """Names of classes, URLs, and settings of Model Garden's experiments."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError):
            return  # another program's file
        keys = list(_keys(root))
        for _, value, line in keys:
            if row := _class_row(value, {"transformers"}) or find("*", "text", value):
                form, name = ("text", value) if row.library == "*" else ("name", row.symbol)
                self._add(row.library, form, name, row, self._at(line))
        tops = {name.split(".")[0] for name, *_ in keys}
        if "task" in tops and ("trainer" in tops or any("encoder" in name for name, *_ in keys)):
            for name, _, line in keys:
                if name.split(".")[0] in ("task", "trainer", "runtime"):
                    row = find("official", "setting", name)
                    self._add("official", "setting", name, row, self._at(line))


def _by_line(location: str) -> list[int]:
    """The numbers of a location: line, or cell and line."""
    return [int(number) for number in re.findall(r":(?:cell )?(\d+)(?=:|$)", location)]


def _first(libraries: Iterable[str], form: str, name: str) -> Symbol | None:
    return next(filter(None, (find(library, form, name) for library in libraries)), None)


def _is_glob(row: Symbol) -> bool:
    return "*" in row.symbol


def _class_row(text: str, libraries: set[str]) -> Symbol | None:
    """The row of one of transformers' classes that a string names."""
    match = _CLASS.fullmatch(text)
    row = find("transformers", "name", match[1]) if match and "transformers" in libraries else None
    return row if row and row.symbol == match[1] else None  # type: ignore[index]


def _keys(node: Any, prefix: str = "") -> Iterator[tuple[str, str, int]]:
    """The dotted names of a YAML file's leaves, with their values and lines."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            if isinstance(value, yaml.MappingNode) and value.value:
                yield from _keys(value, f"{name}.")
            else:
                text = value.value if isinstance(value, yaml.ScalarNode) else ""
                yield name, text, key.start_mark.line + 1
