"""Functions that take a command's options as keyword arguments."""

import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from typing import Any, ParamSpec, Protocol, TypeVar

from bert_tf.api.descriptions import with_arguments, without_dashes
from bert_tf.api.early_checks import check_inputs, open_models
from bert_tf.api.progress import console, in_notebook
from bert_tf.errors import InputError, nearest
from bert_tf.options import is_required, joined, titled_fields
from bert_tf.startup import import_tensorflow, keep_freed_memory
from bert_tf.tasks.task_options import TaskOptions

P = ParamSpec("P")
R = TypeVar("R")


class DataFrame(Protocol):  # of pandas
    columns: Any
    iloc: Any


class Dataset(Protocol):  # `datasets.Dataset`
    column_names: Any


PathName = str | os.PathLike[str]
PathNames = PathName | Sequence[PathName]
Texts = Iterable[str] | Any  # such as a column of a data frame
Data = PathName | Sequence[Any] | Mapping[str, Any] | DataFrame | Dataset


@dataclass(kw_only=True)
class Verbosity:
    """What a call shows."""

    verbose: bool | None = None
    """show progress and notices, on standard error or in the notebook; by default in notebooks
    alone. The result keeps the notices."""


class Command(Protocol[P, R]):
    of: Callable[..., R]  # takes the command's options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def keywords(given: Callable[P, object]) -> Callable[[Callable[..., R]], Command[P, R]]:
    """Turns `function(options, shown=..., ...)` into one whose keyword arguments are the options.

    `given` is the dataclass of the arguments, with their help. Its last base is the class of the
    options; it may widen their types, to data in memory, and add arguments for the function.
    """
    cls: Any = given
    options: type = cls.__bases__[-1]

    def decorate(function: Callable[..., R]) -> Command[P, R]:
        @functools.wraps(function)
        def call(*positional: Any, **values: Any) -> R:
            own = with_kind(options, values.get("task"), values.get("model"))
            hints = _hints(cls, own)
            _check_names(function.__name__, cls, positional, values, hints)
            values = {name: _value(name, value, hints[name]) for name, value in values.items()}
            verbose = values.pop("verbose", None)
            shown = in_notebook() if verbose is None else verbose
            names = {field.name for field in fields(own)}
            more = {name: values.pop(name) for name in [*values] if name not in names}
            try:
                # Lists that the function has another argument for are empty.
                empty: dict[str, Any] = {x.name: [] for x in fields(own) if is_required(x)}
                checked = own(**(empty | values))
                for folder in open_models(checked):
                    if shown:
                        console.print(f"Local copy: {folder}")
                check_inputs(checked)
                _start()
                return function(checked, shown=shown, **more)
            except InputError as error:
                error.args = (without_dashes(str(error), names),)
                raise

        returned = inspect.signature(function).return_annotation
        parameters = [_parameter(field) for _, field in titled_fields(cls)]
        annotations = {each.name: each.annotation for each in parameters}
        described: Any = call
        described.__signature__ = inspect.Signature(parameters, return_annotation=returned)
        described.__annotations__ = annotations | {"return": returned}
        described.__doc__ = with_arguments(function.__doc__ or "", cls)
        described.of = function
        del described.__wrapped__  # it takes options
        return described

    return decorate


def _hints(given: type, options: type) -> dict[str, Any]:
    """Argument -> the type to check: the option's, or Any if data in memory is an alternative."""
    found, narrow = typing.get_type_hints(given), typing.get_type_hints(options)
    for name, hint in narrow.items():
        is_wider = found.get(name, hint) != hint and typing.get_origin(hint) is not list
        found[name] = Any if is_wider else hint
    return found


def with_kind(options: type, task: object, model: object) -> type:
    """The options of a command with those of the kind of a user's own task, which is imported.

    The command reports a task that is unusable.
    """
    if not issubclass(options, TaskOptions):
        return options
    from bert_tf.tasks.of_model import named_task, of_model
    from bert_tf.tasks.table import TASKS, check_name

    said, directory = (
        os.fspath(x) if isinstance(x, str | os.PathLike) else None for x in (task, model)
    )
    with suppress(InputError):
        name, _ = named_task(directory, said)
        if name is not None and name not in TASKS:
            check_name(name)
            import_tensorflow()
            own = of_model(directory, {"task": said})
            return options if own is None else joined(options, own.kind.options)
    return options


def _start() -> None:
    keras = sys.modules.get("keras")
    if keras is not None and (backend := keras.config.backend()) != "tensorflow":
        raise InputError(
            f"Keras runs on {backend} in this process: set KERAS_BACKEND=tensorflow before it is "
            "imported"
        )
    if "tensorflow_text" not in sys.modules:
        import_tensorflow()
    keep_freed_memory()


def _parameter(field: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if is_required(field) else field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=default, annotation=field.type)


def _check_names(
    function: str, given: type, positional: Sequence[Any], values: Any, known: Mapping[str, Any]
) -> None:
    """Raises TypeError, as Python does for calls that do not fit the signature."""
    if positional:
        first = titled_fields(given)[0][1].name
        raise TypeError(f"{function}() takes its arguments by name, such as {first}=...")
    for name in values:
        if name not in known:
            near = nearest(name, known)
            cure = f": did you mean {near}?" if near else ""
            raise TypeError(f"{function}() has no argument {name!r}{cure}")
    required = (each.name for each in fields(given) if is_required(each))
    if missing := [name for name in required if name not in values]:
        raise TypeError(f"{function}() needs {' and '.join(missing)}: give a value")


_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "a string"}


def _value(name: str, value: Any, hint: Any) -> Any:
    """The value as the command line would give it; raises InputError for one of another type."""
    if type(value).__module__ == "numpy" and not getattr(value, "shape", ()):
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if typing.get_origin(hint) is list:
        (item,) = typing.get_args(hint)
        if isinstance(value, Mapping):  # label_map
            return [f"{key}={each}" for key, each in value.items()]
        if value is None or isinstance(value, str | int | float):
            return value if value is None else [_value(name, value, item)]
        return [_value(f"{name} {i}", each, item) for i, each in enumerate(value)]
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None or not set(members) <= {*_NAMES, types.NoneType}:
        return value  # choices are checked with ranges; data in memory where it is read
    kinds = [member for member in members if member in _NAMES]
    if isinstance(value, int) and not isinstance(value, bool) and kinds == [float]:
        value = float(value)
    if type(value) not in kinds and not (isinstance(value, str) and str in kinds):
        expected = " or ".join(_NAMES[kind] for kind in kinds)
        raise InputError(f"{name} is {value!r:.60}: give {expected}")
    return value
