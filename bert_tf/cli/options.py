"""Options of a command: a dataclass becomes a command line."""

import dataclasses
import typing

import docstring_parser
from jsonargparse import ActionYesNo, ArgumentParser


def _field_descriptions(options: type) -> dict[str, str]:
    """Field name -> its line in the `Attributes:` of the class or of a class it extends."""
    described: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        if cls.__doc__ and dataclasses.is_dataclass(cls):
            for parameter in docstring_parser.parse(cls.__doc__).params:
                described[parameter.arg_name] = " ".join((parameter.description or "").split())
    return described


def add_options(parser: ArgumentParser, options: type) -> None:
    """Gives `parser` an option for each field of the dataclass `options`, and `--config`.

    A field `batch_size` is `--batch_size` on the command line (`--batch-size` does as well) and
    `batch_size:` in a YAML file; a list takes several values, a bool has its `--no_` form. A field
    with the metadata `positional` is given by its place instead.
    """
    parser.add_argument("--config", action="config", help="YAML file of these options")
    hints = typing.get_type_hints(options)
    described = _field_descriptions(options)
    for field in dataclasses.fields(options):
        is_positional = field.metadata.get("positional", False)
        names = [field.name if is_positional else f"--{field.name}"]
        arguments: dict[str, typing.Any] = {"help": described.get(field.name, "")}
        if field.default is not dataclasses.MISSING:
            arguments["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            arguments["default"] = field.default_factory()
        elif not is_positional:  # those are required anyway
            arguments["required"] = True
        hint = hints[field.name]
        if hint is bool:
            arguments["action"] = ActionYesNo(yes_prefix="", no_prefix="no_")
        elif typing.get_origin(hint) is list:
            arguments |= {"type": typing.get_args(hint)[0], "nargs": "+"}
        else:
            arguments["type"] = hint
        parser.add_argument(*names, **arguments)
