"""Hugging Face's tokenizer.json, which replaces vocab.txt in newer directories."""

import json
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError

FILE_NAME = "tokenizer.json"


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file; InputError where it holds something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); restore the file") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: holds no JSON object; restore the file")
    return values


def read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Reads a WordPiece tokenizer of Hugging Face's `tokenizers`.

    Returns:
        The pieces in the order of their ids, and arguments of `BertTokenizer`.

    Raises:
        InputError: the file cannot be read, or holds another kind of tokenizer or ids with gaps.
    """
    values = read_json_object(path)
    model, normalizer = values.get("model") or {}, values.get("normalizer") or {}
    if model.get("type") != "WordPiece" or normalizer.get("type") != "BertNormalizer":
        raise InputError(
            f"{path}: holds a {model.get('type')} tokenizer, not BERT's; give a model with a "
            "vocab.txt"
        )
    ids = dict(model.get("vocab") or {})
    for added in values.get("added_tokens", ()):
        ids.setdefault(added["content"], added["id"])
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise InputError(f"{path}: its ids do not run from 0 to {len(pieces) - 1}; save it again")
    return pieces, {
        "do_lower_case": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
    }
