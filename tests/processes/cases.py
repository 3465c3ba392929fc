"""Cases of a test: rows of a table, further ones that are slow, and mistakes that are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from bert_tf.errors import InputError


def for_each(names: str, *rows: Any, **options: Any) -> pytest.MarkDecorator:
    """A test of each row: `@for_each("text label", ("a", 1), ("b", 2))`.

    As `pytest.mark.parametrize`, whose options it takes, with names between spaces.
    """
    return pytest.mark.parametrize(",".join(names.split()), rows, **options)


def slow(*values: Any) -> Any:
    """A row of `for_each` that the slow suite alone runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def refused(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Calls what must be refused with a line in which `re` finds `message`; returns the line."""
    with pytest.raises(InputError, match=message or None) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
