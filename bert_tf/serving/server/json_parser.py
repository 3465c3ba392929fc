"""Reads the JSON of requests to TensorFlow Serving's REST API.

Keys given twice and strings that are not UTF-8, which TensorFlow Serving accepts, are refused.
"""

import itertools
import json
import math
import re
from typing import Any

from bert_tf.serving.server.errors import ServingError, invalid

_SHOWN_BYTES = 256  # of a value in a message


def parse(body: bytes) -> dict[str, Any]:
    """Reads the body of a request.

    Raises:
        ServingError: it is not JSON (`JSON Parse error: ... at offset: N`, in bytes), not an
            object, or an object in it has a key twice.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")

    def decimal(token: str) -> float:
        value = float(token)
        if math.isinf(value):
            raise json.JSONDecodeError("Number too big for a double", text, text.index(token))
        return value

    def integer(token: str) -> int | float:
        """Integers beyond 64 bits are doubles, as in TensorFlow Serving."""
        is_short = len(token) <= 20  # longer ones take Python quadratic time
        return value if is_short and -(2**63) <= (value := int(token)) < 2**64 else decimal(token)

    try:
        text = body.decode("utf-8-sig")
        if "\\u" in text:
            _refuse_lone_surrogates(text)
        document = json.loads(
            text, parse_int=integer, parse_float=decimal, object_pairs_hook=_object
        )
    except UnicodeDecodeError as error:
        raise _parse_error("Invalid UTF-8", error.start) from None
    except json.JSONDecodeError as error:
        raise _parse_error(error.msg, len(text[: error.pos].encode())) from None
    except RecursionError:
        raise _parse_error("The document is nested too deeply", 0) from None
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {shown(document)} Is not object")
    return document


def _parse_error(reason: str, offset: int) -> ServingError:
    return invalid(f"JSON Parse error: {reason}. at offset: {offset}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        places = {key: place for place, (key, _) in enumerate(pairs)}
        twice = next(key for place, (key, _) in enumerate(pairs) if places[key] != place)
        raise invalid(f"JSON Value: {shown(found)} Not formatted correctly, duplicate key: {twice}")
    return found


def _refuse_lone_surrogates(text: str) -> None:
    """Python's parser takes half a pair of escapes for a character, which no UTF-8 holds."""
    pair = r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w"
    for escape in re.finditer(rf"{pair}|(\\u[dD][89a-fA-F])|\\.", text, re.DOTALL):
        if escape[1]:
            raise json.JSONDecodeError("Half of a surrogate pair", text, escape.start())


def shown(value: Any) -> str:
    """A JSON value as a message shows it: its first 256 bytes."""
    parts = json.JSONEncoder(ensure_ascii=False, indent=4).iterencode(value)
    text = "".join(itertools.islice(parts, _SHOWN_BYTES))
    return text.encode()[:_SHOWN_BYTES].decode(errors="ignore")
