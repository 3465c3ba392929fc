"""What data frames write into a cell of text: lists, and whole numbers with decimals."""

import ast
import io
import itertools
import re
import tokenize
from typing import Any

from bert_tf.errors import InputError

# What holds a collection: of NumPy, of dicts and of Python.
_HOLDERS = ("array", "dict_keys", "dict_values", "frozenset")
# How lists, tuples, sets and dicts of strings or numbers begin, and empty ones.
_STRINGS = re.compile(rf"""\[\[?['"{{]|\[\]|\(['")]|\{{['"}}]|set\(\)|(?:{"|".join(_HOLDERS)})\(""")
_NUMBERS = re.compile(r"[\[({]\s*[\d-]")
_CLOSING = {"[": "]", "{": "}"}


def whole(text: str) -> str:
    """A whole number without the decimals of a column of floats: "1" for "1.0"; others stay."""
    stem = text.removesuffix(".0")
    return stem if stem.removeprefix("-").isdecimal() else text


def collection(cell: Any, location: str, *, numbers: bool = True) -> Any:
    """The list, tuple, set or dict that a data frame wrote as text; other cells stay.

    Its items are strings or, with `numbers`, numbers; None for missing values. What `_HOLDERS` hold
    takes their place. Raises InputError, which begins with `location`, for text in square brackets
    that is no Python, such as a NumPy array, which has no commas.
    """
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    is_begun = _STRINGS.match(text) or (numbers and _NUMBERS.match(text))
    if not is_begun or text[-1] != _CLOSING.get(text[0], ")"):
        return cell
    try:
        value = ast.literal_eval(_Plain().visit(ast.parse(text, mode="eval")))
        tokens = (x.type for x in tokenize.generate_tokens(io.StringIO(text).readline))
        pairs = itertools.pairwise(x for x in tokens if x != tokenize.NL)
        is_joined = (tokenize.STRING, tokenize.STRING) in pairs  # Python reads 'a' 'b' as 'ab'
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        is_joined = True
    if not is_joined:
        return value if isinstance(value, list | tuple | set | dict) else cell
    if text[0] != "[":
        return cell
    raise InputError(
        f"{location}: {text[:40]!r} is a list in brackets that Python cannot read; quote its items "
        "and write commas between them, or save the data as JSON lines (DataFrame.to_json with "
        "lines=True)"
    )


class _Plain(ast.NodeTransformer):
    """Replaces what holds a collection by the collection, and missing values by None."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not (isinstance(node.func, ast.Name) and node.func.id in _HOLDERS):
            return node
        return self.visit(node.args[0]) if node.args else ast.Tuple([], ast.Load())

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(None) if node.id in ("nan", "null", "NaT") else node
