"""Words with entity labels: CoNLL's column files and JSON lines become `Examples`.

The columns "words" and "label" hold words and labels between single spaces, a line for each
sentence. Labels of entities are read as IOB1, IOB2, IOBES or BILOU and become IOB2; others stay.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.examples import records as files
from bert_tf.pipelines.examples.table import (
    Examples,
    Format,
    Source,
    format_of,
    read_examples,
    read_table,
)

_DOCUMENT = "-DOCSTART-"
_SENTENCE_END = "-X-"
_LABEL = re.compile(r"O|[BIESLU]-\S+")
_SPACE = re.compile(r"[ \t\n\r\v\f]")  # what ends a word for `words_between_spaces`
_OTHER_SPACES = frozenset("\r\v\f")  # do not separate columns
# Option -> usual names of its column in JSON lines, and the column of a column file.
_USUAL = {
    "--text_column": ({"text", "words"}, 0),
    "--label_column": ({"label", "labels", "-1"}, -1),
}
_Row = tuple[str, str, int]  # word, label, line
_COMMENT = re.compile(r"#\s+\w.*=.*")  # of as many cells as the words have
_ID = re.compile(r"[0-9]+(?:[-.][0-9]+)?")  # of a word in CoNLL-U; of several, or of an empty one
_CONLL_U_COLUMNS, _UPOS = 10, 3
_SENTENCE, _WORD, _TAG = "Sentence #", "Word", "Tag"  # columns of the Annotated Corpus for NER


def chunks(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Entities by conlleval's rules: (type, first word, word behind the last) of each.

    A chunk begins at B (S, U), at any label after O or after the end of a chunk (E, L, S, U), and
    at a change of type. It ends before the next one and before O.
    """
    found: list[tuple[str, int, int]] = []
    before, type_before = "O", ""
    for place, label in enumerate(labels):
        prefix, _, type_ = label.partition("-")
        if prefix != "O":
            if prefix in "BSU" or before in "OELSU" or type_ != type_before:
                found.append((type_, place, place + 1))
            else:
                found[-1] = (type_, found[-1][1], place + 1)
        before, type_before = prefix, type_
    return found


def to_iob2(labels: Sequence[str]) -> list[str]:
    """Labels of a sentence as IOB2: B for the first word of an entity, I for the others."""
    converted = ["O"] * len(labels)
    for type_, start, end in chunks(labels):
        converted[start:end] = [f"B-{type_}", *[f"I-{type_}"] * (end - start - 1)]
    return converted


def are_entities(labels: Iterable[str]) -> bool:
    """Whether all labels are O, or a prefix and the type of an entity."""
    return all(map(_LABEL.fullmatch, labels))


def read_columns(
    path: StrPath,
    *,
    word: int = 0,
    label: int | None = -1,
    documents: bool = False,
    entities: bool = True,
) -> Examples:
    """Reads a column file: a word a line, with its label, and a blank line after a sentence.

    Columns are split at spaces and tabs, those of CoNLL-U at tabs. A line that begins with "-X-"
    ends a sentence, too, and "-DOCSTART-" a document; comments begin with "#" before a sentence.
    `label` is a column, -1 for the last, or None for no labels. Where the first column numbers the
    words, the word is in the second; in CoNLL-U the last label is UPOS. With `documents`, an
    example is a document, not a sentence. Labels are `entities`, or any tags.
    """
    sentences: list[list[list[_Row]]] = [[[]]]  # document -> sentence -> row
    width: tuple[int, int] | None = None  # columns, and the line that showed them
    rows, is_numbered = _rows(path)
    if is_numbered:
        word = word or 1
        is_conll_u = max(len(cells) for _, cells in rows) == _CONLL_U_COLUMNS
        label = _UPOS if is_conll_u and label == -1 else label
    for number, cells in rows:
        if cells[0] == _DOCUMENT:
            sentences.append([[]])
        elif cells[0] in ("", _SENTENCE_END):
            sentences[-1].append([])
        else:
            place = f"{path}, line {number}"
            width = width or (len(cells), number)
            if len(cells) != width[0]:
                raise InputError(
                    f"{place}: {len(cells)} columns where line {width[1]} has {width[0]}; repair "
                    "the line"
                )
            last = max(word, word if label is None else label if label >= 0 else 1)
            if last >= len(cells):
                raise InputError(
                    f"{place}: no column {last}, only {len(cells)} columns counted from 0; give "
                    "a word and its label on each line, or name the columns with --text_column "
                    "and --label_column"
                )
            if not _OTHER_SPACES.isdisjoint("".join(cells)):
                cells = [_word(place, cell) for cell in cells]
            if " " in cells[word]:  # CoNLL-U's may have spaces
                _word(place, cells[word])
            of_word = "O" if label is None else _label(place, cells[label], entities)
            sentences[-1][-1].append((cells[word], of_word, number))
    examples = [[s for s in document if s] for document in sentences]
    examples = [document for document in examples if document]
    labels = None if label is None else to_iob2 if entities else list
    source = Source(str(path), "conll")
    if documents:
        return _examples(source, examples, labels)
    of_sentences = [n for n, document in enumerate(examples) for _ in document]
    found = _examples(source, [[s] for document in examples for s in document], labels)
    return replace(found, documents=tuple(of_sentences) if len(examples) > 1 else ())


def _rows(path: StrPath) -> tuple[list[tuple[int, list[str]]], bool]:
    """The lines of a column file as cells, without comments; whether the first numbers the words.

    Without words of several words and empty ones, which CoNLL-U numbers 1-2 and 1.1.
    """
    lines = [line.strip(" \t\r") for line in files.read_text(path).split("\n")]
    words = [line for line in lines if line and line[0] != "#" and not line.startswith(_DOCUMENT)]
    tabs = _CONLL_U_COLUMNS - 1
    is_conll_u = bool(words) and all(x.count("\t") == tabs and _ID.match(x) for x in words)
    split = re.compile("\t" if is_conll_u else "[ \t]+").split
    width = len(split(words[0])) if words else 0
    rows: list[tuple[int, list[str]]] = []
    is_start = True
    for number, line in enumerate(lines, 1):
        cells = split(line)
        if is_start and width and line.startswith("#"):
            is_label = _LABEL.fullmatch(cells[-1])
            is_comment = len(cells) > 1 if len(cells) != width else _COMMENT.fullmatch(line)
            if is_comment and not (is_label and len(cells) == width):
                continue
        is_start = cells[0] in ("", _SENTENCE_END, _DOCUMENT)
        if not is_conll_u or is_start or cells[0].isdecimal():
            rows.append((number, cells))
    return rows, _are_numbers(rows)


def _are_numbers(rows: Sequence[tuple[int, list[str]]]) -> bool:
    """Whether the first cells count the words of each sentence from 1."""
    expected = longest = 1
    for _, cells in rows:
        if cells[0] in ("", _SENTENCE_END, _DOCUMENT):
            expected = 1
        elif len(cells) < 2 or cells[0] != str(expected):
            return False
        else:
            expected += 1
            longest = max(longest, expected)
    return longest > 2


def is_column_file(path: StrPath) -> bool:
    """Whether a file holds words in columns, with labels or a sentence per paragraph, not texts."""
    rows = [cells for _, cells in _rows(path)[0]]
    if any(row[0] == _DOCUMENT for row in rows):
        return True
    words = [row for row in rows if row[0] not in ("", _SENTENCE_END)]
    if {len(row) for row in words} == {1}:
        return [""] in rows[:-1]
    return len({len(row) for row in words}) == 1 and all(_LABEL.fullmatch(r[-1]) for r in words)


def is_word_table(path: StrPath, format: Format | None) -> bool:
    """Whether a table has a row for each word, and a column that begins a sentence."""
    if format not in ("csv", "tsv"):
        return False
    return _SENTENCE in next(row for _, row in read_table(path, format) if row != [""])


def read_word_table(
    path: StrPath, format: str, *, word: str, label: str | None, entities: bool = True
) -> Examples:
    """Reads a table with a word and its label in each row.

    A sentence begins where "Sentence #" has another value. Columns that the table lacks are "Word"
    and "Tag".
    """
    table = [each for each in read_table(path, format) if each[1] != [""]]
    header = table[0][1]
    own = [word if word in header else _WORD, _SENTENCE]
    if label is not None:
        own.append(label if label in header else _TAG)
    if missing := [name for name in own if name not in header]:
        raise InputError(
            f"{path}: no column {missing[0]!r}, there are: {', '.join(header)}; name the columns "
            "with --text_column and --label_column"
        )
    places = [header.index(name) for name in own]
    sentences: list[list[_Row]] = []
    before = ""
    for number, row in table[1:]:
        place = f"{path}, line {number}"
        if len(row) != len(header):
            raise InputError(
                f"{place}: {len(row)} columns where the header has {len(header)}; repair the line"
            )
        cells = [row[each].strip() for each in places]
        if not sentences or cells[1] not in ("", before):
            sentences.append([])
            before = cells[1]
        of_word = "O" if label is None else _label(place, cells[2], entities)
        sentences[-1].append((_word(place, cells[0]), of_word, number))
    source = Source(str(path), format)
    labels = None if label is None else to_iob2 if entities else list
    return _examples(source, [[each] for each in sentences], labels)


def column_number(path: StrPath, option: str, name: str) -> int:
    """The place of a column: its number, or the column's usual name in JSON lines."""
    usual, number = _USUAL[option]
    if name.isdecimal() or name in usual:
        return int(name) if name.isdecimal() else number
    raise InputError(
        f"{path}: a column file has no column names such as {name!r}: give {option} a number, "
        "counted from 0"
    )


def read_texts(
    path: StrPath,
    *,
    text: str = "text",
    pair: str | None = None,
    format: Format | None = None,
    header: bool = True,
    documents: bool = False,
) -> Examples:
    """Reads texts as "text" and "text_pair", or words that are already split as "words".

    A column file holds words. In JSON lines and TensorFlow Datasets a list of strings is words, and
    a string is a text. `text` and `pair` name columns.
    """
    format, records = format or format_of(path), None
    if format == "jsonl" or files.is_dataset_name(path):
        records = list(files.read_records(path))
        if records and isinstance(records[0][2].get(text), list):
            return read_json_words(path, words=text, labels=None, records=records)
    elif format == "conll":
        word = column_number(path, "--text_column", text)
        return read_columns(path, word=word, label=None, documents=documents)
    elif format is None:
        files.read_text(path)  # raises: there is no such file
        raise InputError(
            f"{path}: unknown format: give --format lines for a text on each line, --format conll "
            "for a word on each line, or a file named .tsv, .csv, .jsonl"
        )
    elif is_word_table(path, format):
        return read_word_table(path, format, word=text, label=None)
    columns = {"text": text, **({} if pair is None else {"text_pair": pair})}
    return read_examples(path, columns, format=format, header=header, records=records)


def read_json_words(
    path: StrPath,
    *,
    words: str = "words",
    labels: str | None = "labels",
    records: Iterable[files.Record] | None = None,
    entities: bool = True,
) -> Examples:
    """Reads records with a list of words, and a list with a label for each, by their keys."""
    examples = []
    for number, place, row in files.read_records(path) if records is None else records:
        found = [_word(place, word) for word in _strings(place, words, row)]
        if not found:
            raise InputError(f"{place}: no words; remove the line")
        of_words = ["O"] * len(found)
        if labels is not None:
            given = _strings(place, labels, row, are_numbers=not entities)
            of_words = [_label(place, each, entities) for each in given]
        if len(of_words) != len(found):
            raise InputError(
                f"{place}: {len(found)} words but {len(of_words)} labels; give each word one"
            )
        examples.append([[(word, of, number) for word, of in zip(found, of_words, strict=True)]])
    source = Source(str(path), "jsonl", {"words": [words]})
    return _examples(source, examples, None if labels is None else to_iob2 if entities else list)


def _strings(place: str, key: str, row: dict[str, Any], *, are_numbers: bool = False) -> list[str]:
    values = row.get(key)
    if isinstance(values, list) and values and all(type(value) is int for value in values):
        if not are_numbers:
            raise InputError(
                f"{place}: {key!r} is no list of strings but of numbers, whose names only their "
                "data set knows; write names, such as B-PER"
            )
        values = [str(value) for value in values]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(
            f"{place}: {key!r} is no list of strings; write one, or name the keys with "
            "--text_column and --label_column"
        )
    return [files.check_text(place, key, value) for value in values]


def _word(place: str, word: str, what: str = "word") -> str:
    if not word or _SPACE.search(word):
        raise InputError(
            f"{place}: the {what} {word!r} is empty or holds white space; split it, or drop it"
        )
    return word


def _label(place: str, label: str, entities: bool) -> str:
    if not entities:
        return _word(place, label, "label")
    if not are_entities([label]):
        raise InputError(
            f"{place}: the label {label!r} is neither O nor a prefix B, I, E, S, L or U with a "
            "type, such as B-PER; correct it, or give --task tags for labels that are no entities"
        )
    return label


def _examples(
    source: Source,
    examples: list[list[list[_Row]]],
    labels: Callable[[list[str]], list[str]] | None,
) -> Examples:
    """Examples with their labels, as `labels` has those of a sentence; None for no labels."""
    path = source.path
    if not examples:
        raise InputError(f"{path}: no words; give a file with a word and its label on each line")
    words = ["\n".join(" ".join(w for w, _, _ in s) for s in example) for example in examples]
    columns = {"words": words}
    if labels is not None:
        columns["label"] = [
            "\n".join(" ".join(labels([label for _, label, _ in s])) for s in example)
            for example in examples
        ]
    lines = [example[0][0][2] for example in examples]
    extents = [(line, example[-1][-1][2]) for line, example in zip(lines, examples, strict=True)]
    source = replace(source, extents=extents)
    return Examples(files.shown_name(path), lines, columns, source=source)
