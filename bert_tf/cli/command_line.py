"""Options of a command: a dataclass becomes a command line."""

import contextlib
import dataclasses
import difflib
import inspect
import itertools
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import docstring_parser
import yaml
from jsonargparse import ActionYesNo, ArgumentParser

from bert_tf.errors import InputError
from bert_tf.options import choices_of, joined
from bert_tf.startup import import_tensorflow
from bert_tf.tasks.options import TaskOptions


def option_helps(options: type) -> dict[str, str]:
    """Field name -> the string below the field, in the class or in a class it extends."""
    return {
        parameter.arg_name: " ".join((parameter.description or "").split())
        for cls in reversed(options.__mro__)
        if dataclasses.is_dataclass(cls)
        for parameter in docstring_parser.parse_from_object(cls).params
    }


def add_options(parser: ArgumentParser, options: type) -> None:
    """Gives `parser` an option for each field of the dataclass `options`, and `--config`.

    A field `batch_size` is `--batch_size` on the command line (`--batch-size` does as well) and
    `batch_size:` in a YAML file; a list takes several values, a bool has a `--no_` form. A field
    with the metadata `positional` is given by its place instead.
    """
    hints = typing.get_type_hints(options)
    helps = option_helps(options)
    titles: dict[str, typing.Any] = {}
    parser.add_argument("--config", action="config", help="YAML file of these options")
    for title, field in _titled_fields(options):
        if title not in titles:
            titles[title] = parser.add_argument_group(title)
        is_positional = field.metadata.get("positional", False)
        arguments: dict[str, typing.Any] = {"help": helps.get(field.name, "")}
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
        titles[title].add_argument(field.name if is_positional else f"--{field.name}", **arguments)


def _titled_fields(options: type) -> list[tuple[str, dataclasses.Field]]:
    """The fields in the order of the help, each with the title of its group.

    First comes what is required, read or written; then the options of each class, the most special
    first, under the first words of its docstring.
    """
    essential, others = [], []
    left = {field.name: field for field in dataclasses.fields(options)}
    for cls in options.__mro__:
        title = re.split(r"[.;](?:\s|$)", inspect.getdoc(cls) or "")[0].replace("`", "")
        for name in [name for name in inspect.get_annotations(cls) if name in left]:
            field = left.pop(name)
            marks = ("path", "writes", "first", "positional")
            if _is_required(field) or any(field.metadata.get(mark) for mark in marks):
                essential.append(("Essentials", field))
            else:
                others.append((title, field))
    return essential + others


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def usage(command: str, options: type) -> str:
    """The usage of a command: what it needs, and that there is more."""
    needed = []
    for _, field in _titled_fields(options):
        if field.metadata.get("positional"):
            needed.append(field.name.upper())
        elif _is_required(field):
            needed.append(f"--{field.name} {field.name.upper()}")
    return " ".join(["bert-tf", command, *needed, "[options]"])


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The name that a user may have meant, or None."""
    found = difflib.get_close_matches(given, list(known), n=1)
    return found[0] if found else None


_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}


def parser_message(message: str, options: type) -> str:
    """What an error of the parser means to a user, in one line.

    Args:
        message: the parser's.
        options: dataclass of the command's options.
    """
    fields = {field.name: field for field in dataclasses.fields(options)}

    def shown(name: str) -> str:
        field = fields.get(name)
        is_positional = field is not None and field.metadata.get("positional")
        return name.upper() if is_positional else f"--{name}"

    if found := re.match(r"unrecognized arguments: (\S+)", message):
        name = found[1].partition("=")[0]
        if not name.startswith("--"):
            return f"{found[1]!r} belongs to no option: put texts with spaces in quotes"
        names = [*fields, "config", "help", *(f"no_{field}" for field in fields)]
        near = nearest(name[2:], names)
        return f"there is no option {name}" + f": did you mean --{near}?" * bool(near)
    if found := re.match(r"the following arguments are required: (.*)", message, re.S):
        return f"give {' and '.join(shown(each.split('.')[-1]) for each in found[1].split(', '))}"
    if found := re.match(r'Parser key "(?:\w+\.)?(\w+)"', message):
        value = re.search(r"(?:Got|Given) value: (.*)", message, re.S)
        given = "" if value is None else f" {value[1]}"
        hint = typing.get_type_hints(options).get(found[1])
        if choices := choices_of(hint):
            listed = ", ".join(str(choice) for choice in choices if choice is not None)
            near = nearest(given.strip(), map(str, choices))
            cure = f"did you mean {near}? There are" if near else "give one of"
            return f"{shown(found[1])}{given} is no choice: {cure} {listed}"
        members = typing.get_args(hint)
        inner = [each for member in members for each in typing.get_args(member)]  # of `list | None`
        kinds = [kind for kind in _EXPECTED if kind in (hint, *members, *inner)]
        expected = _EXPECTED[kinds[0]] if kinds else "such a value"
        return f"{shown(found[1])}{given} is not {expected}: correct it"
    if found := re.match(r"argument (--\w+)\S*: expected", message):
        return f"{found[1]} needs a value"
    if found := re.match(r"argument (--\w+)\S*: ignored explicit argument '(.*)'", message):
        return f"{found[1]} takes no value: write {found[1]} or --no_{found[1][2:]}"
    return message


def with_own_kind(options: type, arguments: Sequence[str]) -> type:
    """The options of a command with those of the kind of a user's own task.

    The task is the one of --task, of --config or of the model's task.json. Its code is imported,
    and TensorFlow with it; the options of built-in kinds are there already. A task that cannot be
    used adds nothing; the command reports it.
    """
    if not issubclass(options, TaskOptions):
        return options
    from bert_tf.tasks.table import TASKS, check_name, find_task

    given = {
        name.removeprefix("--"): value or following
        for argument, following in itertools.pairwise([*arguments, ""])
        for name, _, value in [argument.partition("=")]
    }
    task, model = given.get("task") or _stored(given.get("config")).get("task"), None
    if task is None:
        model = given.get("model")
        task = _stored(model and f"{model}/task.json").get("task")
    if not isinstance(task, str) or task in TASKS:
        return options
    with contextlib.suppress(InputError):
        check_name(task)
        import_tensorflow()
        return joined(options, find_task(task, brought_by=model).kind.options)
    return options


def _stored(path: str | None) -> Mapping[str, Any]:
    """What a YAML or JSON file holds; nothing if it cannot be read, which is reported elsewhere."""
    with contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        found = yaml.safe_load(Path(path or "").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


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
