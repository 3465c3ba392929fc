"""Options of a command: a dataclass becomes a command line."""

import dataclasses
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from jsonargparse import ActionYesNo, ArgumentParser

from bert_tf.api.descriptions import is_required, option_helps, titled_fields
from bert_tf.api.early_checks import read_values, stored
from bert_tf.api.keywords import with_kind
from bert_tf.errors import InputError, nearest
from bert_tf.options import choices_of


def add_options(parser: ArgumentParser, options: type) -> None:
    """Gives `parser` an option for each field of the dataclass `options`, and `--config`.

    A field `batch_size` is `--batch_size` on the command line (`--batch-size` does as well) and
    `batch_size:` in a YAML file; a list takes several values, a bool has a `--no_` form.
    """
    hints = typing.get_type_hints(options)
    helps = option_helps(options)
    titles: dict[str, Any] = {}
    parser.add_argument("--config", action="config", help="YAML file of these options")
    for title, field in titled_fields(options):
        if title not in titles:
            titles[title] = parser.add_argument_group(title)
        is_positional = field.metadata.get("positional", False)
        arguments: dict[str, Any] = {"help": helps.get(field.name, "")}
        if field.default_factory is not dataclasses.MISSING:
            arguments["default"] = field.default_factory()
        elif not is_required(field):
            arguments |= {"default": field.default, **({"nargs": "?"} if is_positional else {})}
        elif not is_positional:  # those are required anyway
            arguments["required"] = True
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


def usage(command: str, options: type) -> str:
    """The usage line of a command: what it requires."""
    needed = []
    for _, field in titled_fields(options):
        if field.metadata.get("positional"):
            needed.append(field.name.upper())
        elif is_required(field):
            needed.append(f"--{field.name} {field.name.upper()}")
    return " ".join(["bert-tf", command, *needed, "[options]"])


_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}


def parser_message(message: str, options: type) -> str:
    """What an error message of the parser means to a user, in one line."""
    fields = {f.name: f.metadata.get("positional") for f in dataclasses.fields(options)}

    def shown(name: str) -> str:
        return name.upper() if fields.get(name) else f"--{name}"

    if found := re.match(r"unrecognized arguments: (\S+)", message):
        name = found[1].partition("=")[0]
        if not name.startswith("--"):
            return f"{found[1]!r} belongs to no option: put texts with spaces in quotes"
        near = nearest(name[2:], [*fields, "config", "help", *(f"no_{each}" for each in fields)])
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
    """The options of a command with those of the kind of a user's own task: see `with_kind`.

    The task is the one of --task, of --config or of the model's task.json.
    """
    given = dict(_given(arguments))
    task = given.get("--task") or stored(given.get("--config")).get("task")
    return with_kind(options, task, given.get("--model"))


def _given(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument before "=", and what is after it or the next argument."""
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        yield name, value if equals else following


def check_arguments(arguments: Sequence[str], options: type) -> None:
    """Refuses what the parser would not explain, or take in silence.

    Raises:
        InputError: a list option is given twice, of which the parser would keep the last values
            alone; a YAML file cannot be read, or does not give options of the command.
    """
    hints = typing.get_type_hints(options)
    names = {field.name for field in dataclasses.fields(options)}
    lists = {name for name in names if typing.get_origin(hints[name]) is list}
    given = [*_given(arguments)]
    for name in sorted(lists):
        if [option for option, _ in given].count(f"--{name}") > 1:
            raise InputError(f"--{name} is given twice: give all values after one --{name}")
    for path in (value for option, value in given if option == "--config" and value):
        for name, value in read_values(path).items():
            if name not in names:
                near = nearest(str(name), names)
                cure = f"write {near}" if near else "see --help for the options"
                raise InputError(f"{path}: unknown option {name!r}: {cure}")
            if name in lists and not isinstance(value, list):
                raise InputError(f"{path}: {name} takes a list: write {name}: [{value}]")
