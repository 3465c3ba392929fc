"""The `bert-tf` command: reads the options of a subcommand, runs it, reports its errors."""

import contextlib
import errno
import importlib
import os
import re
import select
import signal
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from bert_tf.api.early_checks import check_inputs, open_models
from bert_tf.cli.command_line import (
    add_options,
    check_arguments,
    parser_message,
    usage,
    with_own_kind,
)
from bert_tf.cli.progress import console
from bert_tf.errors import InputError, nearest
from bert_tf.startup import import_tensorflow, keep_freed_memory
from bert_tf.training.preemption import Preempted
from bert_tf.version import __version__

# Each subcommand is a module with `Options` (a dataclass) and `run(options)`. Only the one that
# is called is imported, so that `bert-tf --help` answers at once.
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

Every command takes --config FILE.yaml and explains itself with --help."""


class _Formatter(DefaultHelpFormatter):
    """Keeps the line breaks of descriptions and of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _parser(called: str | None = None, description: str | None = "", options: Any = None) -> Any:
    """The parser of `bert-tf`; only the subcommand `called` gets its description and options."""
    parser = ArgumentParser(
        prog="bert-tf",
        description="BERT in Keras 3 and TensorFlow, from raw text to a served SavedModel.",
        epilog=_EPILOG,
        version=__version__,
        formatter_class=_Formatter,
        exit_on_error=False,
    )
    subcommands = parser.add_subcommands(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        subparser = ArgumentParser(formatter_class=_Formatter, exit_on_error=False)
        if name == called:
            subparser.description = description
            subparser.usage = usage(name, options)
            add_options(subparser, options)
        subcommands.add_subcommand(name, subparser, help=summary)
    return parser


_CURES = {
    errno.ENOSPC: "the disk is full: free some space and run it again",
    errno.EDQUOT: "the disk is full: free some space and run it again",
    errno.EIO: "run the same command again",
    errno.EACCES: "choose a writable folder, or fix its permissions",
    errno.EPERM: "choose a writable folder, or fix its permissions",
    errno.EROFS: "choose a writable folder, or fix its permissions",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `bert-tf` with `arguments` (the process's own by default); returns the exit code.

    Exit codes: 0 done; 2 the user's input or options cannot be used (a line on standard error
    says why and what to do); 75 preempted (SIGTERM) after a checkpoint was saved: run the same
    command again; 130 interrupted, saved likewise; 141 the reader of standard output has left, as
    `head` does. Any other exception is a defect and is raised.
    """
    arguments = [  # `--batch-size=8` as `--batch_size=8`
        re.sub("^--[^=]+", lambda flag: "--" + flag[0][2:].replace("-", "_"), each)
        for each in (sys.argv[1:] if arguments is None else arguments)
    ]
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        _run(called, arguments)
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


def _run(called: str | None, arguments: Sequence[str]) -> None:
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
    module = importlib.import_module(f"bert_tf.cli.{called}")
    options = read_options(called, arguments)
    for folder in open_models(options):
        console.print(f"Local copy: {folder}")
    check_inputs(options)
    if hasattr(module, "prepare"):  # what needs no TensorFlow, whose import takes seconds
        module.prepare(options)
    if getattr(module, "needs_tensorflow", True):
        keep_freed_memory()
        import_tensorflow()
    module.run(options)


def read_options(called: str, arguments: Sequence[str]) -> Any:
    """The options of a subcommand; `arguments` begin with its name."""
    module = importlib.import_module(f"bert_tf.cli.{called}")
    if hasattr(module, "translated"):  # another program's options
        arguments = module.translated(arguments)
    options = with_own_kind(module.Options, arguments)
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
