"""The exception for mistakes in the user's input, and cures that messages name."""

import contextlib
import difflib
import shlex
from collections.abc import Iterable, Iterator
from importlib import metadata


class InputError(ValueError):
    """Raised for input that cannot be used; any other exception is a defect of bert-tf.

    The message is one line that names the cause (file, and record or line), what was expected,
    and what to do; notes list further causes. The commands print both without a traceback and exit
    with code 2.
    """


@contextlib.contextmanager
def needing_tensorflow(user: str) -> Iterator[None]:
    """Names the packages to install where TensorFlow is missing; `user` is what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise InputError(
            f"{user} needs TensorFlow for raw text: pip install tensorflow. Models of token ids do "
            "without it: open them with from_directory"
        ) from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name that a user may have meant, or None."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def pip_install(extra: str) -> str:
    """The command that installs the packages of an extra of pyproject.toml.

    Names the packages, not bert-tf[EXTRA], which pip would look for on an index.
    """
    requirements = (text.split(";") for text in metadata.requires("bert-tf") or ())
    packages = [
        shlex.quote(package.strip())
        for package, *marker in requirements
        if marker and marker[0].strip() == f'extra == "{extra}"'
    ]
    return f"pip install {' '.join(packages)}"
