"""Mutants of the core: small changes by mutmut's operators, without those that are noise."""

import difflib
import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

# Not worth a test: texts for people, types, declarations, and what fails as soon as it runs.
_NOISE = (cst.Annotation, cst.BaseString, cst.Decorator, cst.Import, cst.ImportFrom, cst.Raise)
_CALLS_OF_NOISE = {
    "InputError",
    "TypeVar",
    "cast",
    "debug",
    "error",
    "field",
    "info",
    "option",
    "print",
    "warn",
    "warning",
}
_CRASHES = {
    mutators.operator_assignment,
    mutators.operator_dict_arguments,
    mutators.operator_lambda,
}
_OPERATORS = [pair for pair in mutators.mutation_operators if pair[1] not in _CRASHES]


@dataclass(frozen=True)
class Mutant:
    path: str  # of the file, in the repository
    line: int
    function: str  # "function" or "Class.method"; "" outside of functions
    before: str  # the lines that change, without indentation
    after: str
    code: str  # of the whole file, changed


def _called(node: cst.CSTNode) -> str:
    function = node.func if isinstance(node, cst.Call) else None
    if isinstance(function, cst.Attribute):
        function = function.attr
    return function.value if isinstance(function, cst.Name) else ""


def _is_noise(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.IfExp):  # one text or another
        texts = (cst.FormattedString, cst.ConcatenatedString)
        return isinstance(node.body, texts) or isinstance(node.orelse, texts)
    return isinstance(node, _NOISE) or _called(node) in _CALLS_OF_NOISE


def _lacks_keyword(node: cst.Call, changed: cst.Call) -> bool:
    """Whether a call lacks a keyword argument; without another one it fails as it runs.

    `strict` is a check of ours.
    """
    left_out = [argument.keyword for argument in node.args if argument not in changed.args]
    is_shorter = len(changed.args) < len(node.args)
    return is_shorter and left_out[0] is not None and left_out[0].value != "strict"


def _mutations(
    node: cst.CSTNode, function: str = "", in_function: bool = False
) -> Iterator[tuple[str, cst.CSTNode, cst.CSTNode]]:
    """Function, node and changed node of all mutations below a node, without noise.

    Outside of functions only numbers change.
    """
    if _is_noise(node):
        return
    if isinstance(node, cst.FunctionDef | cst.ClassDef) and not in_function:
        function = f"{function}.{node.name.value}".lstrip(".")
        in_function = isinstance(node, cst.FunctionDef)
    elif in_function or isinstance(node, cst.BaseNumber):
        for kind, operator in _OPERATORS:
            if isinstance(node, kind):
                for changed in operator(node):
                    is_removal = operator is mutators.operator_arg_removal
                    if not is_removal or _lacks_keyword(node, changed):
                        yield function, node, changed
    for child in node.children:
        yield from _mutations(child, function, in_function)


def sample(paths: list[str], size: int, seed: int) -> tuple[list[Mutant], int]:
    """Draws mutants of files and folders; returns them with the number that could be drawn.

    A place in the draw depends on the seed, the function and the change alone: editing or moving a
    file leaves the draws of other functions as they were.
    """
    drawn = []
    for path in paths:
        for file in sorted(Path(path).rglob("*.py")) or [Path(path)]:
            module = cst.parse_module(file.read_text(encoding="utf-8"))
            equal: Counter[str] = Counter()
            for function, node, changed in _mutations(module):
                text = f"{seed} {function} {module.code_for_node(node)} -> "
                text += module.code_for_node(changed)
                equal[text] += 1
                place = hashlib.sha256(f"{text} {equal[text]}".encode()).digest()
                drawn.append((place, file, function, module, node, changed))
    drawn.sort(key=lambda draw: draw[0])
    return [_mutant(*draw[1:]) for draw in drawn[:size]], len(drawn)


@functools.cache
def _positions(module: cst.Module) -> Mapping[cst.CSTNode, CodeRange]:
    return MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)


def _mutant(
    path: Path, function: str, module: cst.Module, node: cst.CSTNode, changed: cst.CSTNode
) -> Mutant:
    line = _positions(module)[node].start.line
    code = module.deep_replace(node, changed).code
    lines = list(difflib.ndiff(module.code.splitlines(), code.splitlines()))
    before, after = (
        " ".join(line[2:].strip() for line in lines if line[:2] == sign) for sign in ("- ", "+ ")
    )
    return Mutant(str(path), line, function, before, after or f"without: {before}", code)
