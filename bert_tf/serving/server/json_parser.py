"""Reads JSON as TensorFlow Serving's REST API does, and says in its words what is wrong with it.

Where it takes what nobody means (keys given twice, strings that are not UTF-8), the body is
refused.
"""

import json
import math
import re
from typing import Any, NoReturn

import numpy as np

from bert_tf.serving.server.errors import invalid
from bert_tf.serving.server.json_answers import decimals

DEEPEST = 32  # dimensions of a tensor; NumPy has 64
_SHOWN_BYTES = 256  # of a value in a message

# Python's word for a JSON error -> RapidJSON's, which TensorFlow Serving parses with.
_PARSE_ERRORS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Illegal trailing comma before end of array": "Invalid value.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Invalid control character at": "Invalid encoding in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Extra data": "The document root must not be followed by other values.",
}
_MISSING_COMMA = {
    "{": "Missing a comma or } after an object member.",
    "[": "Missing a comma or ] after an array element.",
}


class _Number(Exception):
    """A number that no double holds; its text."""


def parse(body: bytes) -> dict[str, Any]:
    """Reads the body of a request.

    Raises:
        ServingError: it is not JSON (`JSON Parse error: ... at offset: N`, in bytes), not an
            object, or an object in it has a key twice.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse("Invalid encoding in string.", error.start)
    try:
        document = json.loads(
            text, parse_int=_integer, parse_float=_decimal, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        place = error.pos
        if error.msg.startswith("Illegal trailing comma"):  # since Python 3.13, at the comma
            place = len(text) - len(text[place + 1 :].lstrip(" \t\r\n"))
        before = text[:place]
        if not text.strip(" \t\r\n"):
            reason = "The document is empty."
        elif error.msg == "Expecting ',' delimiter":
            reason = _MISSING_COMMA[_open_brackets(before)[-1][0]]
        else:
            reason = _PARSE_ERRORS.get(error.msg, error.msg)
        _refuse(reason, len(before.encode()))
    except _Number as error:
        offset = len(text[: text.index(str(error))].encode())
        _refuse("Number too big to be stored in double.", offset)
    except RecursionError:
        _, place = _open_brackets(text, most=DEEPEST)[-1]
        _refuse("Nested too deeply.", len(text[:place].encode()))
    if "\\u" in text:
        _refuse_lone_surrogates(text)
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {shown(document)} Is not object")
    return document


def _refuse(reason: str, offset: int) -> NoReturn:
    raise invalid(f"JSON Parse error: {reason} at offset: {offset}")


def _integer(token: str) -> int | float:
    """Integers beyond 64 bits are doubles, as RapidJSON reads them."""
    if len(token) <= 20 and -(2**63) <= (value := int(token)) < 2**64:
        return value
    return _decimal(token)


def _decimal(token: str) -> float:
    value = float(token)
    if math.isinf(value):
        raise _Number(token)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        places = {key: place for place, (key, _) in enumerate(pairs)}
        twice = next(key for place, (key, _) in enumerate(pairs) if places[key] != place)
        raise invalid(f"JSON Value: {shown(found)} Not formatted correctly, duplicate key: {twice}")
    return found


def _open_brackets(text: str, most: float = math.inf) -> list[tuple[str, int]]:
    """The brackets that are open at the end of `text`, or where they get more than `most`.

    Returns:
        Each bracket and its place, the outermost first.
    """
    found: list[tuple[str, int]] = []
    # Possessive, or each character of a string would cost memory for a way back.
    for token in re.finditer(r'"(?:[^"\\]++|\\.)*+"|[][{}]', text, re.DOTALL):
        if len(found) > most:
            break
        if token[0] in "[{":
            found.append((token[0], token.start()))
        elif token[0] in "]}":
            found.pop()
    return found


def _refuse_lone_surrogates(text: str) -> None:
    """Python's parser takes half a pair of escapes for a character, which no UTF-8 holds."""
    pair = r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w"
    for escape in re.finditer(rf"{pair}|(\\u[dD][89a-fA-F])|\\.", text, re.DOTALL):
        if escape[1]:
            offset = len(text[: escape.start()].encode())
            _refuse("The surrogate pair in string is invalid.", offset)


def shown(value: Any) -> str:
    """A JSON value as a message shows it: its first 256 bytes."""
    if type(value) is float:
        return decimals(np.array([value]))[0]
    encoder = json.JSONEncoder(ensure_ascii=False, indent=4)
    parts: list[str] = []
    for part in encoder.iterencode(value):
        parts.append(part)
        if sum(map(len, parts)) >= _SHOWN_BYTES:
            break
    return "".join(parts).encode()[:_SHOWN_BYTES].decode(errors="ignore")
