"""Help texts of a command's options, for its `--help` and for the docstring of its function."""

import dataclasses
import functools
import inspect
import re
import textwrap
from typing import Any

import docstring_parser


def option_helps(options: type) -> dict[str, str]:
    """Field name -> the string below the field, in the class or in a class it extends."""
    found: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        if dataclasses.is_dataclass(cls):
            found |= _own_helps(cls)
    return found


@functools.cache
def _own_helps(options: type) -> dict[str, str]:
    return {
        parameter.arg_name: " ".join(parameter.description.split())
        for parameter in docstring_parser.parse_from_object(options).params
        if parameter.description  # an override may leave it to the class that it extends
    }


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


def is_required(field: dataclasses.Field) -> bool:
    """Whether the option has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def without_dashes(text: str, names: Any) -> str:
    """The text with `batch_size` for `--batch_size`, for each of the options' names."""
    return re.sub(r"--(?:no_)?(\w+)", lambda m: m[1] if m[1] in names else m[0], text)


def with_arguments(docstring: str, options: type) -> str:
    """The docstring of a function with a section "Args:" of the options, before "Returns:"."""
    helps = option_helps(options)
    lines = ["Args:"]
    for _, field in titled_fields(options):
        text = f"{field.name}: {without_dashes(helps[field.name], helps)}"
        indents = {"initial_indent": " " * 4, "subsequent_indent": " " * 8}
        lines += textwrap.wrap(text, 96, break_on_hyphens=False, **indents)  # type: ignore[arg-type]
    summary, returns, rest = inspect.cleandoc(docstring).partition("Returns:")
    return f"{summary}{chr(10).join(lines)}\n\n{returns}{rest}"
