"""Docstrings of functions whose arguments are a command's options."""

import inspect
import re
import textwrap
from typing import Any

from bert_tf.options import option_helps, titled_fields


def without_dashes(text: str, names: Any) -> str:
    """The text with `batch_size` for `--batch_size`, for each of the options' names."""
    return re.sub(r"--(?:no_)?(\w+)", lambda m: m[1] if m[1] in names else m[0], text)


def with_arguments(docstring: str, options: type) -> str:
    """The docstring of a function with a section "Args:" of the options, before "Returns:"."""
    helps = option_helps(options)
    lines = ["Args:"]
    for _, field in titled_fields(options):
        text = f"{field.name}: {without_dashes(helps[field.name], helps)}"
        indents = {"initial_indent": " " * 4, "subsequent_indent": " " * 8}
        lines += textwrap.wrap(text, 96, break_on_hyphens=False, **indents)  # type: ignore[arg-type]
    summary, returns, rest = inspect.cleandoc(docstring).partition("Returns:")
    return f"{summary}{chr(10).join(lines)}\n\n{returns}{rest}"
