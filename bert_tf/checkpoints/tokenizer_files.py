"""The tokenizer of a model in any format: its vocabulary, and whether it lower-cases."""

import re
from typing import Any

from bert_tf.checkpoints.formats import Location
from bert_tf.errors import InputError
from bert_tf.tokenization.tokenizer import CONFIG_FILE, VOCABULARY_FILE, BertTokenizer
from bert_tf.tokenization.tokenizer_json import FILE_NAME as TOKENIZER_JSON
from bert_tf.tokenization.tokenizer_json import read_json_object


def read_tokenizer(
    location: Location, do_lower_case: bool | None, notes: list[str]
) -> BertTokenizer | None:
    """The tokenizer of a folder with vocab.txt, or with Hugging Face's tokenizer.json.

    tokenizer_config.json or tokenizer.json says whether it lower-cases. The original's checkpoints
    have neither: then `do_lower_case` decides, or the model's name, as in
    `validate_case_matches_checkpoint` of the original's tokenization.py, or capital letters in
    the vocabulary.

    Returns None if there is no vocabulary; adds a sentence on each assumption to `notes`.

    Raises:
        InputError: the files cannot be used, or nothing shows whether the model is uncased.
    """
    folder = location.folder
    has_vocabulary = (folder / VOCABULARY_FILE).is_file()
    if not has_vocabulary and not (folder / TOKENIZER_JSON).is_file():
        return None
    tokenizer = BertTokenizer.from_directory(folder)
    config = folder / CONFIG_FILE
    if not has_vocabulary:
        notes.append(f"{VOCABULARY_FILE} is made from {TOKENIZER_JSON}.")
    elif do_lower_case is None and not (
        config.is_file() and "do_lower_case" in read_json_object(config)
    ):
        do_lower_case = _casing(location, tokenizer.vocabulary, notes)
    if do_lower_case in (None, tokenizer.settings["do_lower_case"]):
        return tokenizer  # with all that its tokenizer_config.json says
    switches: dict[str, Any] = {**tokenizer.settings, "do_lower_case": do_lower_case}
    return BertTokenizer(tokenizer.vocabulary, **switches)


def _casing(location: Location, pieces: list[str], notes: list[str]) -> bool:
    for part in reversed(location.path.absolute().parts):  # the nearest name counts
        if re.search(r"(^|[-_.])uncased([-_.]|$)|^(chinese|multilingual)_L-", part):
            notes.append(f"Taken to be uncased, by the name {part!r}: do_lower_case is true.")
            return True
        if re.search(r"(^|[-_.])cased([-_.]|$)", part):
            notes.append(f"Taken to be cased, by the name {part!r}: do_lower_case is false.")
            return False
    capitals = [p for p in pieces if p != p.lower() and not (p[0] == "[" and p[-1] == "]")]
    if capitals:
        notes.append(
            f"Taken to be cased, by the capitals in its vocabulary ({capitals[0]!r}): "
            "do_lower_case is false."
        )
        return False
    raise InputError(
        f"{location.folder / VOCABULARY_FILE}: nothing shows whether its model is uncased: give "
        "--do_lower_case true if its training text was lower-cased, else --do_lower_case false."
    )
