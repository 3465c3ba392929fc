"""Declarations of options: default, range, identity and help beside each field.

A command's options are a dataclass; `bert_tf.cli` turns it into a command line.
Importing this module is quick, as `--help` needs it.
"""

import dataclasses
import operator
import typing
from collections.abc import Callable
from typing import Any, Literal

from bert_tf.errors import InputError

_MISSING: Any = dataclasses.MISSING
_LARGEST = 2**53  # exact as an integer and as a float, and fits TensorFlow's integers
_IS_WITHIN: dict[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt,
}  # fmt: skip


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
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata = {
        "bounds": {name: bound for name, bound in bounds.items() if bound is not None},
        "identity": identity and saved and not path and not writes,
        "path": path, "model": model, "writes": writes, "first": first, "saved": saved,
        "positional": positional, "alone": alone,
    }  # fmt: skip
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


def _broken_range(value: float, bounds: dict[str, float]) -> str | None:
    """The range that a value is out of: the option's own, or that of exact numbers."""
    if value != value or not all(_IS_WITHIN[name](value, bound) for name, bound in bounds.items()):
        listed = (f"{name.replace('_', ' ')} {bound:,}" for name, bound in bounds.items())
        return " and ".join(listed) or "a finite number"
    if abs(value) > _LARGEST:
        return f"at most {_LARGEST:,}" if value > 0 else f"at least {-_LARGEST:,}"
    return None


@dataclasses.dataclass(kw_only=True)
class CheckedOptions:
    """Options that refuse, with InputError, a value outside its range or its choices."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            name = field.name if field.metadata.get("positional") else f"--{field.name}"
            if given is None and type(None) not in typing.get_args(hints[field.name]):
                raise InputError(f"{name} is null: give a value, or leave it out")
            if isinstance(given, str) and (not given or "\0" in given):
                raise InputError(f"{name} is {given!r}: give a text, without null characters")
            for value in given if isinstance(given, list) else [given]:
                choices = choices_of(hints[field.name])
                if choices and value not in choices:
                    listed = ", ".join(str(choice) for choice in choices if choice is not None)
                    raise InputError(f"{name} is {value!r}: give one of {listed}")
                if isinstance(value, int | float) and not isinstance(value, bool):
                    broken = _broken_range(value, field.metadata.get("bounds", {}))
                    if broken is not None:
                        raise InputError(f"{name} is {value}: give {broken}")


def joined(options: type, more: type) -> type:
    """The options with those of another class, such as a kind of task, if they lack them."""
    if issubclass(options, more):
        return options
    return dataclasses.make_dataclass(options.__name__, (), bases=(more, options), kw_only=True)


def choices_of(hint: Any) -> list[Any]:
    """The values that a `Literal`, or a union of one with None, allows; empty for other types."""
    members = (hint, *typing.get_args(hint))
    literals = [member for member in members if typing.get_origin(member) is Literal]
    choices = [choice for literal in literals for choice in typing.get_args(literal)]
    return [*choices, None] if choices and type(None) in members else choices


def identity(options: Any, of: type | None = None) -> dict[str, Any]:
    """The values that a run's result depends on; with `of`, only those of the fields it has."""
    names = [f.name for f in dataclasses.fields(of or options) if f.metadata.get("identity", True)]
    return {name: getattr(options, name) for name in names}
