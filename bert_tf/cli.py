"""The `bert-tf` command: reads the options of a subcommand, runs it, reports its errors."""

import argparse
import dataclasses
import errno
import importlib
import os
import re
import select
import signal
import sys
import textwrap
import typing
from collections import ChainMap, Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_tf.commands.command import Command, check, with_kind
from bert_tf.commands.early_checks import read_values
from bert_tf.errors import InputError, nearest
from bert_tf.options import (
    choices_of,
    default_of,
    hints_of,
    is_required,
    option_helps,
    parse_option,
    titled_fields,
    unknown_option,
)
from bert_tf.startup import import_tensorflow, keep_freed_memory
from bert_tf.training.preemption import Preempted
from bert_tf.version import __version__

# Each is COMMAND of bert_tf.commands.NAME, a `Command`, imported only if it is called.
COMMANDS = {
    "vocab": "learn a WordPiece vocabulary from text",
    "shards": "turn text into TFRecord shards for pre-training",
    "inspect": "show instances, statistics and checksums of shards",
    "pretrain": "pre-train a BERT on shards",
    "check": "check labelled text before a model learns from it",
    "tasks": "list the tasks and data sets, with defaults and scores",
    "finetune": "fine-tune a model on labelled text",
    "search": "find the best batch size, learning rate and epochs",
    "evaluate": "score a fine-tuned model on labelled text",
    "ensemble": "average the answers of several fine-tuned models",
    "export": "write a SavedModel for TensorFlow Serving",
    "serve": "serve exported models over REST and gRPC",
    "predict": "answer raw text with a fine-tuned model",
    "features": "write vectors of text from chosen layers",
    "convert": "convert checkpoints of other libraries",
    "migrate": "show what to write in place of another library's BERT",
    "monitor": "show training runs in TensorBoard",
    "reproduce": "make a table of the paper: its systems, compared",
    "demo": "run all steps on a small corpus, in minutes",
}

_ELSEWHERE = {"reproduce": "bert_tf.paper.command"}
_LISTED = "\n".join(f"  {name:<9} {summary}" for name, summary in COMMANDS.items())
_HELP = f"""usage: bert-tf COMMAND [options]

BERT in Keras 3 and TensorFlow, from raw text to a served SavedModel.

commands:
{_LISTED}

options:
  --help     show this help
  --version  show the version

Quick start, without data of your own:
  bert-tf demo --output demo/

With your own text (a folder of .txt files) and labelled examples:
  bert-tf vocab --corpus text/ --output vocab/
  bert-tf shards --corpus text/ --tokenizer vocab/ --masking dynamic \\
    --output shards/
  bert-tf pretrain --shards shards/ --size small --steps 10000 --output runs/pre
  bert-tf finetune --model runs/pre/best --train train.tsv --output runs/cls
  bert-tf export --model runs/cls/best --name classifier
  bert-tf predict --model saved_models/classifier --text "a raw string"

Every command explains its options with --help; --config FILE.yaml sets them.
The pages it names, such as docs/serving.md, are in the repository."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Reports an ambiguous abbreviation: until Python 3.12 argparse would end the process."""
        raise argparse.ArgumentError(None, message)


class _Switch(argparse.Action):
    """Takes no value: `--NAME` is true, `--no_NAME` false."""

    def __call__(self, parser: Any, namespace: Any, values: Any, name: str | None = None) -> None:
        setattr(namespace, self.dest, not str(name).startswith("--no_"))


class _List(argparse.Action):
    """Takes all values at once: argparse would keep the last ones of an option given twice."""

    def __call__(self, parser: Any, namespace: Any, values: Any, name: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            raise InputError(f"{name} is given twice: give all values after one {name}")
        setattr(namespace, self.dest, values)


def _help_of(command: Command, options: type, *, whole: bool) -> str:
    """The help of a command; unless `whole`, its common options and the groups of the others."""
    if whole or not command.common:
        return _parser(command, options).format_help()
    common = command.common.split()
    parser = _parser(command, options, common)
    left = (title for title, field in _fields(options) if field.name not in common)
    groups = ", ".join(f"{title} ({count})" for title, count in Counter(left).items())
    parser.epilog = textwrap.fill(f"--help_all shows the other options: {groups}.", 78)
    return parser.format_help()


def _fields(options: type) -> list[tuple[str, dataclasses.Field]]:
    """The options of the command line, as `titled_fields`."""
    return [pair for pair in titled_fields(options) if not pair[1].metadata.get("python")]


def _parser(
    command: Command, options: type, names: Collection[str] | None = None
) -> argparse.ArgumentParser:
    """A parser that finds the text of each option, or of each of `names`.

    A field `batch_size` is `--batch_size` on the command line (`--batch-size` does as well) and
    `batch_size:` in a YAML file; a list takes several values, a bool has a `--no_` form.
    """
    parser = _Parser(
        usage=usage(command.name, options),
        description=command.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the examples' lines
        add_help=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
    )
    add: Any = parser.add_argument_group("options").add_argument
    add("-h", "--help", action="store_true", help="show this help")
    if command.common:
        add("--help_all", action="store_true", help="show all options")
    add("--config", action="append", metavar="FILE", help="YAML file of these options")
    hints = hints_of(options)
    helps = option_helps(options)
    titles: dict[str, Any] = {}
    for title, field in _fields(options):
        if names is not None and field.name not in names:
            continue
        if title not in titles:
            titles[title] = parser.add_argument_group(title).add_argument
        hint = hints[field.name]
        text = helps.get(field.name, "")
        if not is_required(field) and (default := default_of(field)) not in (None, []):
            shown = default if isinstance(default, list) else [default]
            text += f" (default: {' '.join(str(x) for x in shown)})"
        arguments: dict[str, Any] = {"help": text.replace("%", "%%")}
        is_list = typing.get_origin(hint) is list
        if choices := [str(choice) for choice in choices_of(hint) if choice is not None]:
            arguments["metavar"] = f"{{{','.join(choices)}}}"
        if field.metadata.get("positional"):
            nargs = "*" if is_list else "?"
            titles[title](field.name, nargs=nargs, metavar=field.name.upper(), **arguments)
        elif hint is bool:
            flags = (f"--{field.name}", f"--no_{field.name}")
            titles[title](*flags, action=_Switch, nargs=0, **arguments)
        elif is_list:
            titles[title](f"--{field.name}", action=_List, nargs="+", **arguments)
        else:
            if (alone := field.metadata.get("alone")) is not None:
                arguments |= {"nargs": "?", "const": str(alone)}
            titles[title](f"--{field.name}", **arguments)
    return parser


def usage(command: str, options: type) -> str:
    """The usage line of a command: what it requires."""
    needed = []
    for _, field in _fields(options):
        if field.metadata.get("positional"):
            needed.append(field.name.upper())
        elif is_required(field):
            needed.append(f"--{field.name} {field.name.upper()}")
    return " ".join(["bert-tf", command, *needed, "[options]"])


def _texts(
    command: Command, arguments: Sequence[str], options: type
) -> tuple[dict[str, Any], list[str]]:
    """The texts of the options, with `config` and `help`, and the arguments that are unknown."""
    fields = {field.name: field for _, field in _fields(options)}
    try:
        namespace, unknown = _parser(command, options).parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        if error.argument_name is None:  # an ambiguous abbreviation
            raise InputError(f"{error.message}: write its whole name") from error
        name = error.argument_name.split("/")[0]
        field = fields.get(name.removeprefix("--"))
        if field is None or hints_of(options)[field.name] is bool:
            negated = f" or --no_{field.name}" if field else ""
            raise InputError(f"{name} takes no value: write {name}{negated}") from error
        raise InputError(f"{name} needs a value") from error
    return vars(namespace), unknown


def _check_known(arguments: Sequence[str], options: type) -> None:
    """Refuses the first of the arguments that the parser does not know."""
    if not arguments:
        return
    option = next((argument for argument in arguments if argument.startswith("--")), None)
    if option is None:
        text = f"{arguments[0]!r} belongs to no option"
        raise InputError(f"{text}: write an option before it, and put texts with spaces in quotes")
    fields = {field.name: field for _, field in _fields(options)}
    negated = (f"no_{name}" for name in fields if hints_of(options)[name] is bool)
    known = [*fields, "config", "help", *negated]
    name = option.partition("=")[0]
    raise InputError(unknown_option(name, known, lambda name: _typed(name, fields)))


def _typed(name: str, fields: Mapping[str, dataclasses.Field]) -> str:
    is_positional = name in fields and fields[name].metadata.get("positional")
    return name.upper() if is_positional else f"--{name}"


_FULL = "the disk is full: free some space and run it again"
_NOT_WRITABLE = "choose a writable folder, or fix its permissions"
_CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _NOT_WRITABLE),
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or choose another disk",
    errno.EIO: "run the same command again",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `bert-tf` with `arguments` (the process's own by default); returns the exit code.

    Exit codes: 0 done; 2 the user's input or options cannot be used (a line on standard error
    says why and what to do); 75 preempted (SIGTERM) after a checkpoint was saved: run the same
    command again; 130 interrupted, saved likewise; 141 the reader of standard output has left, as
    `head` does. Any other exception is a defect and is raised.
    """
    typed = [  # `--batch-size=8` as `--batch_size=8`; a value may begin with dashes, too
        re.sub(
            r"^--[a-z][\w-]*(?==|$)", lambda flag: "--" + flag[0][2:].replace("-", "_"), argument
        )
        for argument in (sys.argv[1:] if arguments is None else arguments)
    ]
    called = next((argument for argument in typed if not argument.startswith("-")), None)
    if arguments is None and sys.stdout.errors == "strict":  # it may lack the text's letters
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        _run(called, typed, is_own_process=arguments is None)
        sys.stdout.flush()
        return 0
    except InputError as error:
        lines = [f"error: {error}", *getattr(error, "__notes__", ())]
        message = "\n  ".join(" ".join(line.split()) for line in lines)
        code = 2
    except Preempted as stopped:
        message = str(stopped)
        code = stopped.exit_code
    except KeyboardInterrupt as interrupt:
        message = str(interrupt) or "interrupted"
        code = 130
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            raise  # standard output still has a reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _CURES:
            raise
        message = f"error: {error}: {_CURES[error.errno]}"
        code = 2
    named = f"bert-tf {called}" if called in COMMANDS else "bert-tf"
    print(f"{named}: {message}", file=sys.stderr)
    return code


def _run(called: str | None, arguments: Sequence[str], is_own_process: bool) -> None:
    if not arguments:
        print(_HELP)
        return
    if arguments[0] in ("-h", "--help", "--version"):
        print(f"bert-tf {__version__}" if arguments[0] == "--version" else _HELP)
        raise SystemExit(0)
    if called is None:
        typed = " ".join(arguments)
        raise InputError(f"there is no command in {typed!r}: bert-tf --help lists them")
    if called not in COMMANDS:
        cure = nearest(called, COMMANDS) or f"one of {', '.join(COMMANDS)}"
        raise InputError(f"there is no command {called!r}: give {cure}")
    if called != arguments[0]:
        raise InputError(f"{arguments[0]} stands before the command: write it behind {called}")
    command = command_named(called)
    options = read_options(called, arguments)
    check(options)
    command.prepare(options)
    command.prepare_process(options)
    if command.needs_tensorflow:
        import_tensorflow(for_a_command=is_own_process)
        keep_freed_memory()
    command.show(command.run(options), options)


def command_named(name: str) -> Command[..., Any]:
    """Imports a command."""
    home = _ELSEWHERE.get(name, f"bert_tf.commands.{name}")
    return importlib.import_module(home).COMMAND


def _recipe(path: str) -> str:
    """The path of recipes/NAME.yaml in bert-tf if there is no such file here."""
    ours = Path(__file__).parent / path
    is_ours = path.startswith("recipes/") and ours.is_file() and not Path(path).exists()
    return str(ours) if is_ours else path


def read_options(called: str, arguments: Sequence[str]) -> Any:
    """The options of a command; `arguments` begin with its name.

    An option on the command line takes precedence over one in a file of `--config`, and a later
    file over an earlier one.
    """
    command = command_named(called)
    typed = [*arguments[1:]]
    options: Any = command.options
    try:
        texts, unknown = _texts(command, typed, options)
        files = {path: read_values(path) for path in map(_recipe, texts.pop("config", ()))}
        # A user's own task may have options of its own.
        both = ChainMap(texts, *reversed(files.values()))
        if (extended := with_kind(options, both.get("task"), both.get("model"))) is not options:
            options = extended
            texts, unknown = _texts(command, typed, options)
            both.maps[0] = texts
        if texts.keys() & {"help", "help_all"}:
            print(_help_of(command, options, whole="help_all" in texts), end="")
            raise SystemExit(0)
        _check_known(unknown, options)
        fields = {field.name: field for _, field in _fields(options)}
        for path, values in files.items():
            for name in values.keys() - fields.keys():
                raise InputError(f"{path}: {unknown_option(str(name), fields)}")
        values = {name: both[name] for name in fields if name in both}
        missing = [n for n, field in fields.items() if is_required(field) and n not in values]
        if missing:
            raise InputError(f"give {' and '.join(_typed(name, fields) for name in missing)}")
    except InputError as error:
        shows = "--help_all" if command.common else "--help"
        raise InputError(f"{error}; bert-tf {called} {shows} shows all options") from error
    hints = hints_of(options)
    parsed = {n: parse_option(fields[n], hints[n], x, written=True) for n, x in values.items()}
    return options(**parsed, verbose=True)


if __name__ == "__main__":
    sys.exit(main())
