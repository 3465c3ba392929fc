"""Options of a command: a dataclass becomes a command line."""

import dataclasses
import difflib
import typing
from collections.abc import Sequence
from pathlib import Path

import docstring_parser
import yaml
from jsonargparse import ActionYesNo, ArgumentParser

from bert_tf.errors import InputError


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
    `batch_size:` in a YAML file; a list takes several values, a bool has a `--no_` form. A field
    with the metadata `positional` is given by its place instead.
    """
    parser.add_argument("--config", action="config", help="YAML file of these options")
    hints = typing.get_type_hints(options)
    described = _field_descriptions(options)
    for field in dataclasses.fields(options):
        is_positional = field.metadata.get("positional", False)
        arguments: dict[str, typing.Any] = {"help": described.get(field.name, "")}
        if field.default is not dataclasses.MISSING:
            arguments["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            arguments["default"] = field.default_factory()
        elif not is_positional:  # those are required anyway
            arguments["required"] = True
        if is_positional and "default" in arguments:
            arguments["nargs"] = "?"
        hint = hints[field.name]
        if hint is bool:
            arguments["action"] = ActionYesNo(yes_prefix="", no_prefix="no_")
        elif typing.get_origin(hint) is list:
            arguments |= {"type": typing.get_args(hint)[0], "nargs": "+"}
        else:  # with `str | None` the parser would take a file named "null" for None
            arguments["type"] = str if hint == str | None else hint
        if field.metadata.get("alone") is not None:
            arguments |= {"nargs": "?", "const": field.metadata["alone"]}
        parser.add_argument(field.name if is_positional else f"--{field.name}", **arguments)


def check_arguments(arguments: Sequence[str], options: type) -> None:
    """Refuses what the parser would not explain, or take in silence.

    Args:
        arguments: command line of a command.
        options: dataclass of the command's options.

    Raises:
        InputError: a list option is given twice, of which the parser would keep the last values
            alone; a YAML file cannot be read, or does not give options of the command.
    """
    hints = typing.get_type_hints(options)
    lists = {name for name, hint in hints.items() if typing.get_origin(hint) is list}
    given = [argument.partition("=")[0] for argument in arguments]
    for name in sorted(lists):
        if given.count(f"--{name}") > 1:
            raise InputError(f"--{name} is given twice: give all values after one --{name}")
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        path = value if equals else following
        if name == "--config" and path:
            _check_config(path, {field.name for field in dataclasses.fields(options)}, lists)


def _check_config(path: str, names: set[str], lists: set[str]) -> None:
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): give a YAML file") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML ({error}): correct it there") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no options: write lines such as batch_size: 32")
    for name, value in values.items():
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            cure = f"write {near[0]}" if near else "see --help for the options"
            raise InputError(f"{path}: unknown option {name!r}: {cure}")
        if name in lists and not isinstance(value, list):
            raise InputError(f"{path}: {name} takes a list: write {name}: [{value}]")
