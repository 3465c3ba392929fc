"""The `bert-tf` command: reads the options of a subcommand, runs it, reports its errors."""

import contextlib
import dataclasses
import errno
import importlib
import itertools
import os
import re
import select
import signal
import sys
import typing
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ActionYesNo, ArgumentParser, DefaultHelpFormatter

from bert_tf.api.descriptions import is_required, option_helps, titled_fields
from bert_tf.api.early_checks import check_inputs, open_models, read_values, stored
from bert_tf.api.keywords import with_kind
from bert_tf.api.progress import console
from bert_tf.errors import InputError, nearest
from bert_tf.options import choices_of
from bert_tf.startup import import_tensorflow, keep_freed_memory
from bert_tf.training.preemption import Preempted
from bert_tf.version import __version__

# Each is a module with `Options`, a dataclass, and `run(options)`, imported only if it is called.
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
    "index": "make an index of texts to search",
    "ask": "find the texts of an index nearest to a question",
    "features": "write vectors of text from chosen layers",
    "convert": "convert checkpoints of other libraries",
    "migrate": "show what to write in place of another library's BERT",
    "monitor": "show training runs in TensorBoard",
    "reproduce": "make a table of the paper: its systems, compared",
    "demo": "run all steps on a small corpus, in minutes",
}

_EPILOG = """Quick start, without data of your own:
  bert-tf demo --output demo/

With your own text (a folder of .txt files) and labelled examples:
  bert-tf vocab --corpus text/ --output vocab/
  bert-tf shards --corpus text/ --tokenizer vocab/ --output shards/
  bert-tf pretrain --shards shards/ --size small --output runs/pre
  bert-tf finetune --model runs/pre/best --train train.tsv --output runs/cls
  bert-tf export --model runs/cls/best --name classifier
  bert-tf predict --model saved_models/classifier --text "a raw string"

Every command takes --config FILE.yaml and explains itself with --help.
Pages that help and messages name (docs/serving.md) are in the repository."""


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the line breaks of descriptions and of the examples."""


def _parser(called: str | None = None, description: str | None = "", options: Any = None) -> Any:
    """The parser of `bert-tf`; only the subcommand `called` gets its description and options."""
    parser = ArgumentParser(
        prog="bert-tf", epilog=_EPILOG, version=__version__,
        description="BERT in Keras 3 and TensorFlow, from raw text to a served SavedModel.",
        formatter_class=_Formatter, exit_on_error=False,
    )  # fmt: skip
    subcommands = parser.add_subcommands(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        subparser = ArgumentParser(formatter_class=_Formatter, exit_on_error=False)
        if name == called:
            subparser.description = description
            subparser.usage = usage(name, options)
            add_options(subparser, options)
        subcommands.add_subcommand(name, subparser, help=summary)
    return parser


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
    hints = typing.get_type_hints(options)

    def shown(name: str) -> str:
        return name.upper() if fields.get(name) else f"--{name}"

    if found := re.match(r"unrecognized arguments: (\S+)", message):
        name = found[1].partition("=")[0]
        if not name.startswith("--"):
            return f"{found[1]!r} belongs to no option: put texts with spaces in quotes"
        negated = (f"no_{each}" for each in fields if hints[each] is bool)
        near = nearest(name[2:], [*fields, "config", "help", *negated])
        return f"there is no option {name}" + (f": did you mean {shown(near)}?" if near else "")
    if found := re.match(r"the following arguments are required: (.*)", message, re.S):
        return f"give {' and '.join(shown(each.split('.')[-1]) for each in found[1].split(', '))}"
    if found := re.match(r'Parser key "(?:\w+\.)?(\w+)"', message):
        value = re.search(r"(?:Got|Given) value: (.*)", message, re.S)
        given = "" if value is None else f" {value[1]}"
        hint = hints.get(found[1])
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


def _given(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument before "=", and what is after it or the next argument."""
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        yield name, value if equals else following


def check_arguments(arguments: Sequence[str], options: type) -> None:
    """Refuses what the parser would not explain, or silently accept.

    It would keep only the last values of a list option that is given twice.
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


_FULL = "the disk is full: free some space and run it again"
_NOT_WRITABLE = "choose a writable folder, or fix its permissions"
_CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _NOT_WRITABLE),
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
    given = [  # `--batch-size=8` as `--batch_size=8`; a value may begin with dashes, too
        re.sub(r"^--[a-z][\w-]*(?==|$)", lambda flag: "--" + flag[0][2:].replace("-", "_"), each)
        for each in (sys.argv[1:] if arguments is None else arguments)
    ]
    called = next((argument for argument in given if not argument.startswith("-")), None)
    if arguments is None and sys.stdout.errors == "strict":  # it may lack the text's letters
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        _run(called, given, is_own_process=arguments is None)
        sys.stdout.flush()
        return 0
    except InputError as error:
        message, code = f"error: {' '.join(str(error).split())}", 2
    except Preempted as stopped:
        message, code = str(stopped), stopped.exit_code
    except KeyboardInterrupt as interrupt:
        message, code = str(interrupt) or "interrupted", 130
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
        message, code = f"error: {error}: {_CURES[error.errno]}", 2
    named = f"bert-tf {called}" if called in COMMANDS else "bert-tf"
    print(f"{named}: {message}", file=sys.stderr)
    return code


def _run(called: str | None, arguments: Sequence[str], is_own_process: bool) -> None:
    if not arguments:
        _parser().print_help()
        return
    if called is None:
        with contextlib.suppress(ArgumentError):  # it ends the process after --help or --version
            _parser().parse_args(arguments)
        given = " ".join(arguments)
        raise InputError(f"there is no command in {given!r}: bert-tf --help lists them")
    if called not in COMMANDS:
        cure = nearest(called, COMMANDS) or f"one of {', '.join(COMMANDS)}"
        raise InputError(f"there is no command {called!r}: give {cure}")
    module = importlib.import_module(f"bert_tf.commands.{called}")
    options = read_options(called, arguments)
    for folder in open_models(options):
        console.print(f"Local copy: {folder}")
    check_inputs(options)
    if hasattr(module, "prepare"):  # what needs no TensorFlow, whose import takes seconds
        module.prepare(options)
    if getattr(module, "needs_tensorflow", True):
        import_tensorflow(for_a_command=is_own_process)
        keep_freed_memory()
    module.run(options)


def _with_recipes(arguments: Sequence[str]) -> Iterator[str]:
    """Reads `--config recipes/NAME.yaml` from those of bert-tf if there is no such file here."""
    for before, argument in itertools.pairwise(["", *arguments]):
        option, equals, path = argument.rpartition("=")
        own = Path(__file__).parent / path
        is_config = (option or before) == "--config" and path.startswith("recipes/")
        is_ours = is_config and own.is_file() and not Path(path).exists()
        yield f"{option}{equals}{own}" if is_ours else argument


def read_options(called: str, arguments: Sequence[str]) -> Any:
    """The options of a subcommand; `arguments` begin with its name."""
    arguments = [*_with_recipes(arguments)]
    module = importlib.import_module(f"bert_tf.commands.{called}")
    if hasattr(module, "translated"):  # another program's options
        arguments = module.translated(arguments)
    given = dict(_given(arguments))
    task = given.get("--task") or stored(given.get("--config")).get("task")
    options = with_kind(module.Options, task, given.get("--model"))  # of a user's own task, too
    check_arguments(arguments, options)
    try:
        parsed = _parser(called, module.__doc__, options).parse_args(arguments)
    except ArgumentError as error:
        message = parser_message(str(error), options)
        raise InputError(f"{message}; bert-tf {called} --help shows all options") from error
    values = parsed[called].as_dict()
    values.pop("config", None)
    return options(**values)


if __name__ == "__main__":
    sys.exit(main())
