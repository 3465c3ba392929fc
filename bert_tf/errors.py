"""The exception for mistakes in the user's input, and the names that were meant."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Raised for input that cannot be used; any other exception is a defect of bert-tf.

    The message is one line that names the cause (file, and record or line), what was expected,
    and what to do. The commands print it without a traceback and exit with code 2.
    """


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The name that a user may have meant, or None."""
    return next(iter(difflib.get_close_matches(given, list(known), n=1)), None)
