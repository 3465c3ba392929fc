"""The `bert-tf` command: finds the subcommand, reads its options, reports its errors."""

import errno
import importlib
import sys
from collections.abc import Sequence

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from bert_tf.cli.options import add_options
from bert_tf.errors import InputError
from bert_tf.startup import import_tensorflow, keep_freed_memory
from bert_tf.training.preemption import Preempted
from bert_tf.version import __version__

# Each subcommand is a module with `Options` (a dataclass) and `run(options)`. Only the one that
# is called is imported, so that `bert-tf --help` answers at once.
COMMANDS = {
    "vocab": "learn a WordPiece vocabulary from text",
    "shards": "turn text into TFRecord shards of pre-training instances",
    "inspect": "look at instances, statistics and checksums of shards",
    "pretrain": "pre-train a BERT on shards: masked words and next sentences",
    "finetune": "fine-tune a model to classify sentences or pairs of them",
    "evaluate": "score a fine-tuned model on labelled data",
    "export": "write a SavedModel that takes raw strings, for TensorFlow Serving",
    "predict": "answer raw strings from an exported SavedModel",
    "convert": "read and write the checkpoints of others: TensorFlow 1, Hugging Face, KerasHub",
    "monitor": "watch runs in TensorBoard",
    "demo": "do all of it on text that is on every machine, in minutes",
}

_EPILOG = """A first run, from text to a served model:
  bert-tf vocab --corpus text/ --output vocab/
  bert-tf shards --corpus text/ --tokenizer vocab/ --output shards/
  bert-tf pretrain --shards shards/ --size small --output runs/pretrained
  bert-tf finetune --model runs/pretrained/best --train train.tsv --output runs/classifier
  bert-tf export --model runs/classifier/best --name classifier
  bert-tf predict --model saved_models/classifier --text "a raw string"
Every command takes --config FILE.yaml and explains itself with --help."""


class _Formatter(DefaultHelpFormatter):
    """Keeps the line breaks of descriptions and of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _parser(called: str | None) -> ArgumentParser:
    """The parser of `bert-tf`; only the subcommand `called` gets its options."""
    parser = ArgumentParser(
        prog="bert-tf",
        description="BERT in Keras 3 and TensorFlow, from raw text to a served SavedModel.",
        epilog=_EPILOG,
        version=__version__,
        formatter_class=_Formatter,
    )
    subcommands = parser.add_subcommands(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        subparser = ArgumentParser(description=summary, formatter_class=_Formatter)
        if name == called:
            module = importlib.import_module(f"bert_tf.cli.{name}")
            subparser.description = module.__doc__
            add_options(subparser, module.Options)
        subcommands.add_subcommand(name, subparser, help=summary)
    return parser


def _underscored(argument: str) -> str:
    """`--batch-size=8` as `--batch_size=8`; anything but an option stays as it is."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `bert-tf` with `arguments` (the process's own by default); returns the exit code.

    Exit codes: 0 done; 2 the user's input or options cannot be used (one line on standard error
    says why and what to do); 75 preempted (SIGTERM): a checkpoint is saved, run the same command
    again; 130 interrupted, saved likewise. Any other exception is a defect and is raised.
    """
    arguments = [
        _underscored(argument) for argument in (sys.argv[1:] if arguments is None else arguments)
    ]
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = _parser(called)
    if not arguments:
        parser.print_help()
        return 0
    parsed = parser.parse_args(arguments)
    assert called is not None  # or the parser has ended the process
    module = importlib.import_module(f"bert_tf.cli.{called}")
    values = parsed[called].as_dict()
    values.pop("config", None)
    try:
        options = module.Options(**values)
        keep_freed_memory()
        import_tensorflow()
        module.run(options)
    except InputError as error:
        return _fail(called, str(error))
    except Preempted as stopped:
        print(f"bert-tf {called}: {stopped}", file=sys.stderr)
        return stopped.exit_code
    except KeyboardInterrupt as interrupt:
        return _fail(called, str(interrupt) or "interrupted", code=130)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail(called, f"the disk is full ({error}): free some space and run it again")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return _fail(called, f"{error}: choose a place you may write to, or mend its rights")
        raise
    return 0


def _fail(command: str | None, message: str, code: int = 2) -> int:
    print(f"bert-tf {command}: error: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
