"""Options: their declaration beside each field, and the one parser of their values.

A command's options are a dataclass; `bert_tf.cli` turns it into a command line and
`bert_tf.commands.command` into a Python function. Importing this module is quick, as `--help`
needs it.
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from bert_tf.errors import InputError, nearest
from bert_tf.extensions import added

if typing.TYPE_CHECKING:
    PathName = Any  # Python functions take an os.PathLike, too
else:
    PathName = str

Options = typing.TypeVar("Options", bound=type)
_MISSING: Any = dataclasses.MISSING
_LARGEST = 2**53  # exact as an integer and as a float, and fits TensorFlow's integers
_IS_WITHIN: dict[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


def option(
    default: Any = _MISSING,
    *,
    factory: Callable[[], Any] = _MISSING,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    identity: bool = True,
    path: bool = False,
    model: bool = False,
    writes: Literal["file", "folder", "folder or URL"] | None = None,
    first: bool = False,
    saved: bool = True,
    positional: bool = False,
    alone: str | bool | None = None,
    data: str = "",
    python: bool = False,
    required: bool = False,
) -> Any:
    """A dataclass field with the range of its values, which `CheckedOptions` enforces.

    The string below the field is the option's help. Without a `default`, or a `factory` of a
    mutable one, the command line must give the option.

    - identity: a run cannot be resumed with another value. Mark what cannot change the result, or
      what the run's settings record otherwise, with False. Files to read count by their content.
    - path: it names files or folders to read, which must exist.
    - model: the path is a model's, or its name on the Hugging Face hub.
    - writes: it names a file, a folder, or a folder or its URL to write.
    - first: the help shows it first, as all that is required, read or written.
    - saved: a run's config.yaml repeats it.
    - positional: it is given by its place on the command line, not by name.
    - alone: the value of an option that is given without one; None if it needs one.
    - data: what data in memory it takes from Python, in words, beside a path.
    - python: only the Python function takes it.
    - required: the command line must give it, though it has a default for Python.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata = {
        "bounds": {name: bound for name, bound in bounds.items() if bound is not None},
        "identity": identity and saved and not path and not writes and not python,
        "path": path,
        "model": model,
        "writes": writes,
        "first": first,
        "saved": saved and not python,
        "positional": positional,
        "alone": alone,
        "data": data,
        "python": python,
        "required": required,
    }
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_SPELLED = {  # as YAML has them
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


def parse(hint: Any, value: Any, where: str, *, written: bool = False) -> Any:
    """The value as the type `hint` has it: of an option, or of an item of a list.

    `written` values come from a command line or from YAML, where a text may stand for a number, for
    true or false, or for null. Others come from Python: paths and NumPy's scalars are converted, a
    list may be any iterable or a single item, and a mapping stands for items NAME=VALUE.

    Raises:
        InputError: the value has another type or is no choice; the message begins with `where`.
    """
    if type(value).__module__ == "numpy" and not getattr(value, "shape", ()):
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if hint is Any:
        return value
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)  # the latter of Literals
    members = typing.get_args(hint) if is_union else (hint,)
    is_null = value is None or (written and value in ("null", "~") and str not in members)
    if is_null and types.NoneType in members:
        return None
    if value is None:
        raise InputError(f"{where} is null: give a value, or leave it out")
    for member in members:
        if typing.get_origin(member) is list:
            return _list(typing.get_args(member)[0], value, where, written)
    if choices := [choice for choice in choices_of(hint) if choice is not None]:
        return _choice(choices, value, where, written)
    for kind in members:
        parsed = _scalar(kind, value, written)
        if parsed is not None:
            return parsed
    expected = " or ".join(_NAMES[kind] for kind in members if kind in _NAMES)
    raise InputError(f"{where} is {value!r:.60}: give {expected}")


def _choice(choices: list[Any], value: Any, where: str, written: bool) -> Any:
    if written and isinstance(value, str) and True in choices:
        value = _SPELLED.get(value.lower(), value)
    for choice in choices:
        if choice == value:
            return choice
    near = nearest(str(value), map(str, choices))
    cure = f"did you mean {near}? There are" if near else "give one of"
    raise InputError(f"{where} is {value!r:.60}: {cure} {', '.join(map(str, choices))}")


def _list(item: Any, value: Any, where: str, written: bool) -> list[Any]:
    if isinstance(value, Mapping) and not written:  # such as label_map
        value = [f"{name}={text}" for name, text in value.items()]
    if isinstance(value, str | int | float | Mapping) or not isinstance(value, Iterable):
        if written:
            raise InputError(f"{where} is {value!r:.60}: give a list, such as [{value}]")
        value = [value]
    return [
        parse(item, part, where if written else f"{where} {number}", written=written)
        for number, part in enumerate(value)
    ]


def _scalar(kind: Any, value: Any, written: bool) -> Any:
    """The value as one of the types in `_NAMES`, or None."""
    if kind is str:
        if isinstance(value, str):
            return value
    elif written and isinstance(value, str):
        if kind is bool:
            return _SPELLED.get(value.lower())
        if kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) <= _LARGEST or value != value else value
    elif type(value) is kind:
        return value
    return None


def _broken_range(value: float, bounds: dict[str, float]) -> str | None:
    """The range that a value is out of: the option's own, or the range of exact numbers."""
    if value != value or not all(_IS_WITHIN[name](value, bound) for name, bound in bounds.items()):
        listed = (f"{name.replace('_', ' ')} {bound:,}" for name, bound in bounds.items())
        return " and ".join(listed) or "a finite number"
    if abs(value) > _LARGEST:
        return f"at most {_LARGEST:,}" if value > 0 else f"at least {-_LARGEST:,}"
    return None


@dataclasses.dataclass(kw_only=True)
class CheckedOptions:
    """Options that refuse, with InputError, a value of another type or outside its range."""

    def __post_init__(self) -> None:
        hints = hints_of(type(self))
        for field in dataclasses.fields(self):
            value = parse_option(field, hints[field.name], getattr(self, field.name))
            setattr(self, field.name, value)

    def implied(self) -> dict[str, Any]:
        """Option -> the value that None stands for: a run resumes with either."""
        return {}


hints_of: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def parse_option(field: dataclasses.Field, hint: Any, value: Any, *, written: bool = False) -> Any:
    """The value of an option, by `parse`; refuses what is out of its range, and empty texts."""
    if field.metadata.get("data"):  # a path, or from Python data of any type
        hint = (str if is_required(field) else str | None) if written else Any
    value = parse(hint, value, shown_name(field), written=written)
    if isinstance(value, str) and (not value or "\0" in value):
        raise InputError(f"{shown_name(field)} is {value!r}: give a text, without null characters")
    for item in value if isinstance(value, list) and hint is not Any else [value]:
        if isinstance(item, int | float) and not isinstance(item, bool):
            broken = _broken_range(item, field.metadata.get("bounds", {}))
            if broken is not None:
                raise InputError(f"{shown_name(field)} is {item}: give {broken}")
    return value


def unknown_option(
    name: str, known: Iterable[str], shown: Callable[[str], str] = lambda name: name
) -> str:
    """What refuses an unknown option, typed, in a file or in a call; names the nearest known one.

    `shown` writes a known name as it is typed.
    """
    near = nearest(name.removeprefix("--"), known)
    cure = f": did you mean {shown(near)}?" if near else ""
    return f"there is no option {name}{cure}"


def shown_name(field: dataclasses.Field) -> str:
    """How messages name an option."""
    return field.name if field.metadata.get("positional") else f"--{field.name}"


def is_required(field: dataclasses.Field) -> bool:
    """Whether the command line must give the option."""
    return field.default is field.default_factory is _MISSING or bool(
        field.metadata.get("required")
    )


def default_of(field: dataclasses.Field) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def changed_words(options: Any, of: type | None = None) -> list[str]:
    """The options that differ from their defaults, as they are typed; with `of` those it has."""
    hints = hints_of(type(options))
    words = []
    for field in dataclasses.fields(of or options):
        value = getattr(options, field.name)
        if field.metadata.get("python") or value == default_of(field):
            continue
        values = [] if hints[field.name] is bool else value if isinstance(value, list) else [value]
        switch = "no_" if value is False and not values else ""
        spelled = [str(x).lower() if isinstance(x, bool) else str(x) for x in values]
        words += [f"--{switch}{field.name}", *spelled]
    return words


def joined(options: type, more: type) -> type:
    """The options with what they lack of another class's, such as a kind of task's."""
    if issubclass(options, more):
        return options
    return dataclasses.make_dataclass(options.__name__, (), bases=(more, options), kw_only=True)


def extended(table: str) -> Callable[[Options], Options]:
    """A decorator that adds the options of a table of `bert_tf.extensions`."""

    def join(options: Any) -> Any:
        for more in added(table):
            options = joined(options, more)
        return options

    return join


def choices_of(hint: Any) -> list[Any]:
    """The values that a `Literal`, or a union of one with None, allows; empty for other types."""
    members = (hint, *typing.get_args(hint))
    literals = [member for member in members if typing.get_origin(member) is Literal]
    choices = [choice for literal in literals for choice in typing.get_args(literal)]
    return [*choices, None] if choices and type(None) in members else choices


def identity(options: Any, of: type | None = None) -> dict[str, Any]:
    """The values that a run's result depends on; with `of`, only of the fields that it has."""
    names = [f.name for f in dataclasses.fields(of or options) if f.metadata.get("identity", True)]
    return {name: getattr(options, name) for name in names}


def differing(
    before: Mapping[str, Any], now: Mapping[str, Any], implied: Mapping[str, Any]
) -> list[str]:
    """The names whose values differ; an absent value is None, which stands for the implied one."""

    def value(values: Mapping[str, Any], name: str) -> Any:
        stored = values.get(name)
        return implied.get(name) if stored is None else stored

    return [name for name in {**now, **before} if value(before, name) != value(now, name)]


def option_helps(options: type) -> dict[str, str]:
    """Field name -> the string below the field, in the class or in a class it extends."""
    helps: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        helps |= _helps_of_module(cls.__module__).get(cls.__qualname__, {})
    return helps


@functools.cache
def _helps_of_module(name: str) -> dict[str, dict[str, str]]:
    """Class -> its fields, each with the string that follows it in the source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):  # no module, no file, or built in
        return {}
    helps: dict[str, dict[str, str]] = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        of_class = helps.setdefault(cls.name, {})
        for pair in itertools.pairwise(cls.body):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=option_name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    of_class[option_name] = " ".join(text.split())
    return helps


def titled_fields(options: type) -> list[tuple[str, dataclasses.Field]]:
    """The fields in the order of the help, each with the title of its group.

    Essentials first; then the options of each class, subclasses first, titled by its docstring.
    """
    essential, others = [], []
    left = {field.name: field for field in dataclasses.fields(options)}
    for cls in options.__mro__:
        title = re.split(r"[.;](?:\s|$)", inspect.getdoc(cls) or "")[0].replace("`", "")
        for name in [name for name in inspect.get_annotations(cls) if name in left]:
            field = left.pop(name)
            marks = ("path", "writes", "first", "positional")
            if is_required(field) or any(field.metadata.get(mark) for mark in marks):
                essential.append(("Essentials", field))
            else:
                others.append((title, field))
    return essential + others
