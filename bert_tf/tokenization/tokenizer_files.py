"""The files of a tokenizer, read into one set of settings: each is honoured or refused by name."""

import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.errors import InputError
from bert_tf.files.model_files import (
    ADDED_TOKENS,
    CONFIG,
    SENTENCE_CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    VOCABULARY,
    read_json,
)
from bert_tf.tokenization.added_tokens import AddedToken
from bert_tf.tokenization.normalizer import LONGEST_WORD
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS, Vocabulary, read_vocabulary

SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "special_tokens_in_text")
# Tokenizers of Hugging Face that are BERT's under the name of another model.
_CLASSES = re.compile(
    r"(Bert|DistilBert|Electra|MobileBert|ConvBert|LayoutLM|Lxmert|RetriBert|SqueezeBert|Realm|"
    r"DPR\w*)Tokenizer(Fast|Legacy)?"
)
_JSON_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # what tokenizer.json says
_FIXED: dict[str, Any] = {
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "wordpieces_prefix": "##",
    "clean_text": True,
    "padding_side": "right",
    "truncation_side": "right",
    "split_special_tokens": False,
    **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
}
_FORMS: dict[str, type] = {
    "never_split": list,
    "added_tokens_decoder": dict,
    "additional_special_tokens": list,
}
_PACKED = ["[CLS]:0", "A:0", "[SEP]:0", "B:1", "[SEP]:1"]  # tokens and texts, with their segments
_LONGEST_THERE = 100  # by default in Hugging Face; in the original it is LONGEST_WORD
_FLAGS = {field.name for field in fields(AddedToken)} - {"content"}


class TokenizerFiles(NamedTuple):
    vocabulary: list[str]  # pieces of words, without added tokens beyond them
    switches: dict[str, Any]  # as a `BertTokenizer` takes them
    added_tokens: list[AddedToken]
    config: dict[str, Any]  # the rest of tokenizer_config.json
    casing: str | None  # what do_lower_case rests on, "" for nothing; None if a file says it


def read_tokenizer_files(path: Path) -> TokenizerFiles:
    """Reads all files of a tokenizer in a folder, or a vocab.txt with those beside it.

    InputError if a file is missing or damaged, or says what is not computed here.
    """
    if not path.exists():
        raise InputError(f"{path}: no such folder; give a folder with a {VOCABULARY}")
    folder = path if path.is_dir() else path.parent
    is_alone = path.is_file() and path.name != VOCABULARY  # the folder may be of others

    def read(name: str) -> dict[str, Any]:
        file = folder / name
        return read_json(file) if file.exists() and not is_alone else {}

    config, model = read(TOKENIZER_CONFIG), read(CONFIG)
    settings = {**read(SPECIAL_TOKENS_MAP), **config}
    in_json = read(TOKENIZER_JSON)
    parsed = _read_tokenizer_json(folder / TOKENIZER_JSON, in_json) if in_json else None
    settings["tokenizer_class"] = settings.get("tokenizer_class") or model.get("tokenizer_class")
    _check(folder, settings, parsed is not None)
    vocabulary = path if path.is_file() else path / VOCABULARY
    if parsed is None or vocabulary.exists():
        pieces = read_vocabulary(vocabulary).pieces
        if parsed is not None:
            _check_same(pieces, parsed, vocabulary)
    else:
        pieces = list(parsed.vocabulary)
    switches = {} if parsed is None else dict(parsed.switches)
    switches |= {name: config.pop(name) for name in SWITCHES if name in config}
    for name, value in switches.items():
        check_switch(name, value, f"{folder / TOKENIZER_CONFIG}: ")
    casing = None
    if "do_lower_case" not in switches:
        is_uncased, casing = _judged_casing(path, pieces)
        switches["do_lower_case"] = is_uncased
    if read(SENTENCE_CONFIG).get("do_lower_case") and not switches["do_lower_case"]:
        # sentence-transformers lower-cases before the tokenizer, and leaves accents to it.
        switches |= {"do_lower_case": True, "strip_accents": bool(switches.get("strip_accents"))}
    records = _added_tokens(folder, settings, parsed, read(ADDED_TOKENS))
    added = _in_order(folder, records, pieces, model.get("vocab_size"))
    return TokenizerFiles(pieces, switches, added, config, casing)


def check_switch(name: str, value: object, source: str = "") -> None:
    """InputError for a switch that is neither true nor false."""
    if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
        raise InputError(f"{source}{name} is {value!r}; make it true or false")


def _check(folder: Path, settings: dict[str, Any], has_json: bool) -> None:
    """Refuses another tokenizer, and settings that are not computed here."""
    name = str(settings.get("tokenizer_class") or "BertTokenizer")
    code = settings.get("auto_map")
    has_code = isinstance(code, dict) and "AutoTokenizer" in code
    if has_code or not (_CLASSES.fullmatch(name) or (has_json and name in _JSON_CLASSES)):
        kind = "code of its own (auto_map)" if has_code else f"a {name}"
        raise InputError(
            f"{folder} needs {kind} as its tokenizer, but only BERT's is supported: give a model "
            "with a BertTokenizer"
        )
    for key, expected in _FIXED.items():
        value = settings.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        _check_value(folder / TOKENIZER_CONFIG, key, expected if value is None else value, expected)
    for key, form in _FORMS.items():
        if not isinstance(settings.get(key) or form(), form):
            raise InputError(
                f"{folder / TOKENIZER_CONFIG}: {key} is no {form.__name__}: restore the file"
            )
    if never := set(settings.get("never_split") or ()) - set(SPECIAL_TOKENS):
        raise InputError(
            f"{folder / TOKENIZER_CONFIG}: never_split names {min(map(str, never))!r}, which is "
            "not supported: record the words as added tokens"
        )


def _check_value(path: Path, key: str, value: Any, expected: Any) -> None:
    if value != expected:
        raise InputError(
            f"{path}: {key} is {value!r}, but only {expected!r} is supported: give another model"
        )


class _TokenizerJson(NamedTuple):
    vocabulary: list[str]
    switches: dict[str, Any]
    added: list[dict[str, Any]]


def _read_tokenizer_json(path: Path, values: dict[str, Any]) -> _TokenizerJson:
    """The pieces, switches and added tokens in a file of Hugging Face's `tokenizers`."""

    def part(name: str) -> dict[str, Any]:
        return value if isinstance(value := values.get(name), dict) else {}

    model, normalizer = part("model"), part("normalizer")
    if model.get("type") != "WordPiece":
        raise InputError(
            f"{path}: holds a {model.get('type')} tokenizer, not BERT's; give a model with a "
            "vocab.txt"
        )
    before: Any = "BertPreTokenizer"
    if "pre_tokenizer" in values:
        before = part("pre_tokenizer").get("type")
    longest = model.get("max_input_chars_per_word", _LONGEST_THERE)
    for key, value, expected in (
        ("normalizer", normalizer.get("type"), "BertNormalizer"),
        ("pre_tokenizer", before, "BertPreTokenizer"),
        (
            "max_input_chars_per_word",
            LONGEST_WORD if longest == _LONGEST_THERE else longest,
            LONGEST_WORD,
        ),
        ("clean_text", normalizer.get("clean_text", True), True),
        ("unk_token", model.get("unk_token", "[UNK]"), "[UNK]"),
        ("continuing_subword_prefix", model.get("continuing_subword_prefix", "##"), "##"),
        ("post_processor", _packed(part("post_processor")), _PACKED),
    ):
        _check_value(path, key, value, expected)
    try:
        word_ids = dict(model["vocab"])
        added = [dict(token) for token in values.get("added_tokens") or ()]
        ids = word_ids | {t["content"]: t["id"] for t in added if t["content"] not in word_ids}
        pieces = sorted(ids, key=ids.__getitem__)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: its vocabulary is not in the form of Hugging Face's tokenizers; give a model "
            "with a vocab.txt"
        ) from error
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise InputError(f"{path}: its ids do not run from 0 to {len(pieces) - 1}; save it again")
    # A word's pieces do not include added tokens, but these may fill gaps among them.
    last = max(word_ids.values(), default=-1)
    switches = {
        "do_lower_case": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
    }
    return _TokenizerJson(pieces[: last + 1], switches, added)


def _packed(post_processor: dict[str, Any]) -> list[str]:
    """The special tokens around two texts, A and B, with the segments of all."""
    packed = _PACKED if not post_processor else [str(post_processor.get("type"))]
    with suppress(LookupError, TypeError, ValueError, AttributeError):  # of another form
        if post_processor.get("type") == "BertProcessing":
            first, last = (str(post_processor[key][0]) for key in ("cls", "sep"))
            packed = [f"{first}:0", "A:0", f"{last}:0", "B:1", f"{last}:1"]
        if post_processor.get("type") == "TemplateProcessing":
            single, packed = (
                [f"{part['id']}:{part['type_id']}" for piece in pieces for part in piece.values()]
                for pieces in (post_processor["single"], post_processor["pair"])
            )
            if single != _PACKED[:3] or packed == ["A:0", "B:1"]:  # a template of one text alone
                packed = [*single, *_PACKED[3:]]
    return packed


def _check_same(pieces: list[str], in_json: _TokenizerJson, path: Path) -> None:
    """Refuses a vocab.txt and a tokenizer.json of different models."""
    for index, piece in enumerate(in_json.vocabulary):
        mine = pieces[index] if index < len(pieces) else None
        if mine != (piece.strip() or piece):
            raise InputError(
                f"{path}: line {index + 1} is {mine!r}, and {TOKENIZER_JSON} beside it has "
                f"{piece!r} for this id: delete the one that is not the model's"
            )


Records = dict[str, tuple[int | None, AddedToken]]  # by content: the id, if a file says it


def _added_tokens(
    folder: Path, settings: dict[str, Any], in_json: _TokenizerJson | None, older: dict[str, Any]
) -> Records:
    """What all files say of added tokens; as in Hugging Face, tokenizer_config.json comes first."""
    records: Records = {}

    def add(token: Any, number: Any, **flags: Any) -> None:
        token = token if isinstance(token, dict) else {"content": token}
        content = token.get("content")
        flags |= {name: token[name] for name in _FLAGS & token.keys()}
        is_number = number is None or (isinstance(number, int) and not isinstance(number, bool))
        if (
            not isinstance(content, str)
            or not content
            or not is_number
            or not all(isinstance(value, bool) for value in flags.values())
        ):
            raise InputError(
                f"{folder}: the added token {token} is not in Hugging Face's form: restore the file"
            )
        known, _ = records.get(content, (None, None))
        if known is not None and number not in (known, None):
            raise InputError(
                f"{folder}: the added token {content!r} has the ids {known} and {number}: restore "
                "the model's own tokenizer files"
            )
        records[content] = (known if number is None else number, AddedToken(content, **flags))

    for token in in_json.added if in_json else ():
        add(token, token.get("id"))
    for key, token in (settings.get("added_tokens_decoder") or {}).items():
        add(token, int(key) if key.isdecimal() else key)
    extra = settings.get("extra_special_tokens") or ()
    named = [*(settings.get("additional_special_tokens") or ())]
    named += extra.values() if isinstance(extra, dict) else extra
    contents = [token.get("content") if isinstance(token, dict) else token for token in named]
    for content, number in older.items():
        if content not in records:
            special = content in contents or content in SPECIAL_TOKENS
            add(content, number, normalized=not special, special=special)
    for name, token in zip(contents, named, strict=True):
        if name not in records:
            add(token, None, normalized=False, special=True)
    return records


def _in_order(folder: Path, records: Records, pieces: list[str], rows: Any) -> list[AddedToken]:
    """Added tokens by their ids, those beyond the vocabulary last; `rows` are the embeddings."""
    ids = Vocabulary(pieces).ids
    tokens = []
    numbered = sorted(
        records.values(),
        key=lambda record: (record[0] is None, ids.get(record[1].content, record[0] or 0)),
    )
    count = len(pieces)
    for number, token in numbered:
        expected = ids.get(token.content, count)
        if number not in (expected, None):
            raise InputError(
                f"{folder}: the added token {token.content!r} has the id {number}, and in the "
                f"vocabulary it is {expected}: restore the model's own tokenizer files"
            )
        if expected == count:
            count += 1
            if isinstance(rows, int) and count > rows:
                raise InputError(
                    f"{folder}: the added token {token.content!r} has the id {expected}, and the "
                    f"model has {rows} embeddings (vocab_size): restore its own config and weights"
                )
        is_plain = not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        if token.content not in SPECIAL_TOKENS or not is_plain:
            tokens.append(token)
    return tokens


def _judged_casing(path: Path, pieces: list[str]) -> tuple[bool, str]:
    """Whether a model is uncased, by its name (as in the original's tokenization.py) or pieces."""
    for part in reversed(path.absolute().parts):  # the nearest name counts
        if re.search(r"(^|[-_.])uncased([-_.]|$)|^(chinese|multilingual)_L-", part):
            return True, f"Taken to be uncased, by the name {part!r}: do_lower_case is true."
        if re.search(r"(^|[-_.])cased([-_.]|$)", part):
            return False, f"Taken to be cased, by the name {part!r}: do_lower_case is false."
    if capitals := [p for p in pieces if p != p.lower() and not (p[0] == "[" and p[-1] == "]")]:
        return False, (
            f"Taken to be cased, by the capitals in its vocabulary ({capitals[0]!r}): "
            "do_lower_case is false."
        )
    return True, ""
