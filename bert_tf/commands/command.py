"""What a command is, and how it becomes a Python function whose keyword arguments are options."""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Generic, ParamSpec, TypeVar

from bert_tf.commands.early_checks import check_inputs, open_models
from bert_tf.commands.progress import console, in_notebook
from bert_tf.errors import InputError
from bert_tf.options import (
    CheckedOptions,
    joined,
    option,
    option_helps,
    titled_fields,
    unknown_option,
)
from bert_tf.startup import import_tensorflow, is_tensorflow_loaded, keep_freed_memory
from bert_tf.tasks.task_options import TaskOptions

P = ParamSpec("P")
R = TypeVar("R")

# Data in memory that options with data=... take.
COLUMNS = "columns: a data frame, a datasets.Dataset, a dict of lists or a list of dicts"
EXAMPLES = f"a tuple (inputs, labels), or {COLUMNS}"


@dataclass(kw_only=True)
class CommandOptions(CheckedOptions):
    """What a call shows."""

    verbose: bool | None = option(None, python=True)
    """show progress and notices, on standard error or in the notebook; by default in notebooks
    alone. The result keeps the notices."""

    @property
    def shown(self) -> bool:
        """Whether the call shows its progress."""
        return in_notebook() if self.verbose is None else self.verbose


def check(options: CommandOptions) -> None:
    """Refuses what cannot be read or written; models of the hub and of buckets become local."""
    for folder in open_models(options):
        if options.shown:
            console.print(f"Local copy: {folder}")
    check_inputs(options)


def print_lines(result: Any, options: CommandOptions) -> None:
    """Prints the lines of a result."""
    if str(result):
        console.print(str(result))


def _nothing(options: Any) -> None:
    """Prepares nothing."""


@dataclass(kw_only=True)
class Command(Generic[P, R]):
    """A command of `bert-tf`, which is a Python function, too."""

    name: str  # on the command line
    help: str | None  # above the options: the docstring of its module
    options: Callable[P, object]  # class of its options, a `CommandOptions`
    run: Callable[[Any], R]  # takes the options, does the work and returns a result
    show: Callable[[Any, Any], object] = print_lines  # prints a result; takes the options, too
    # Checks options without TensorFlow, whose import takes seconds.
    prepare: Callable[[Any], object] = _nothing
    # Sets what a process that does nothing else needs before it imports TensorFlow.
    prepare_process: Callable[[Any], object] = _nothing
    common: str = ""  # options that --help shows, with spaces between; --help_all shows all
    needs_tensorflow: bool = True  # before `run`, on the command line

    def function(self, name: str) -> Callable[P, R]:
        """A function of this name that takes the fields of `options` as keyword arguments.

        It checks them as the command does, then calls `prepare`, imports TensorFlow and calls
        `run`, whose docstring it has, with the options.
        """
        cls: Any = self.options

        def call(*positional: Any, **values: Any) -> R:
            extended = with_kind(cls, values.get("task"), values.get("model"))
            names = {field.name: field for field in fields(extended)}
            _check_names(name, cls, positional, values, names)
            try:
                checked = extended(**values)
                check(checked)
                self.prepare(checked)
                _start()
                return self.run(checked)
            except InputError as error:
                error.args = (_without_dashes(str(error), names),)
                raise

        returned = inspect.signature(self.run).return_annotation
        parameters = [_parameter(field) for _, field in titled_fields(cls)]
        annotations = {parameter.name: parameter.annotation for parameter in parameters}
        described: Any = call
        described.__name__ = described.__qualname__ = name
        described.__module__ = self.run.__module__
        described.__signature__ = inspect.Signature(parameters, return_annotation=returned)
        described.__annotations__ = {**annotations, "return": returned}
        described.__doc__ = _with_arguments(self.run.__doc__ or "", cls)
        return described


def with_kind(options: type, task: object, model: object) -> type:
    """The options of a command, extended by the options of a user's own task, which is imported.

    The command reports a task that is unusable.
    """
    if not issubclass(options, TaskOptions):
        return options
    from bert_tf.tasks.model_task import named_task, task_of_model
    from bert_tf.tasks.task_table import TASKS, check_name

    said, directory = (
        os.fspath(x) if isinstance(x, str | os.PathLike) else None for x in (task, model)
    )
    with suppress(InputError):
        name, _ = named_task(directory, said)
        if name is not None and name not in TASKS:
            check_name(name)
            import_tensorflow()
            users_task = task_of_model(directory, {"task": said})
            return options if users_task is None else joined(options, users_task.kind.options)
    return options


def _start() -> None:
    keras = sys.modules.get("keras")
    if keras is not None and (backend := keras.config.backend()) != "tensorflow":
        raise InputError(
            f"Keras runs on {backend} in this process: set KERAS_BACKEND=tensorflow before it is "
            "imported"
        )
    if not is_tensorflow_loaded():
        import_tensorflow()
    keep_freed_memory()


def _parameter(field: Field) -> inspect.Parameter:
    default: Any = inspect.Parameter.empty if field.default is MISSING else field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=default, annotation=field.type)


def _check_names(
    function: str,
    options: type,
    positional: Collection[Any],
    values: Collection[str],
    known: Mapping[str, Field],
) -> None:
    """Raises TypeError, as Python does for calls that do not fit the signature."""
    if positional:
        first = titled_fields(options)[0][1].name
        raise TypeError(f"{function}() takes its arguments by name, such as {first}=...")
    for name in values:
        if name not in known:
            raise TypeError(f"{function}(): {unknown_option(name, known)}")
    required = (x.name for x in known.values() if x.default is x.default_factory is MISSING)
    if missing := [name for name in required if name not in values]:
        raise TypeError(f"{function}() needs {' and '.join(missing)}: give a value")


def _without_dashes(text: str, names: Collection[str]) -> str:
    """The text with `batch_size` for `--batch_size`, for each of the options' names."""
    return re.sub(r"--(?:no_)?(\w+)", lambda m: m[1] if m[1] in names else m[0], text)


def _with_arguments(docstring: str, options: type) -> str:
    """The docstring with the sections "Args:", of the options, and "Raises:"."""
    helps = option_helps(options)
    lines = ["Args:"]
    for _, field in titled_fields(options):
        text = helps[field.name]
        if in_memory := field.metadata.get("data"):
            text = f"{text.removesuffix('.')}; or in memory {in_memory}."
        text = f"{field.name}: {_without_dashes(text, helps)}"
        indents = {"initial_indent": " " * 4, "subsequent_indent": " " * 8}
        lines += textwrap.wrap(text, 96, break_on_hyphens=False, **indents)  # type: ignore[arg-type]
    summary, _, rest = inspect.cleandoc(docstring).partition("Returns:")
    returns, _, errors = rest.partition("Raises:")
    return (
        f"{summary}{chr(10).join(lines)}\n\nReturns:{returns.rstrip()}\n\nRaises:\n"
        f"    InputError: an argument, or what it names, cannot be used; the message says why."
        f"{errors.rstrip()}\n"
    )
