"""Values that hold within a block of code, and for the functions traced there."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


@contextmanager
def set_within(variable: ContextVar, value: Any) -> Iterator[Any]:
    """Gives a context variable a value until the block ends."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
