"""Words with labels: CoNLL's column files, and tables with a row for each word, become tables.

Words and labels of examples stand between single spaces, a line for each sentence. Labels of
entities are read as IOB1, IOB2, IOBES, BMES or BILOU and become IOB2; others stay.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.examples.bad_rows import refuse
from bert_tf.pipelines.examples.cells import collection
from bert_tf.pipelines.examples.reading import add_fault, read_text
from bert_tf.pipelines.examples.table import MEMORY, Examples, Source, Table

_DOCUMENT = "-DOCSTART-"
_SENTENCE_END = "-X-"
_LABEL = re.compile(r"O|[BIMESLU]-\S+")
_SPACE = re.compile(r"[ \t\n\r\v\f]")  # what ends a word for `words_between_spaces`
_OTHER_SPACES = frozenset("\r\v\f")  # do not separate columns
# Comments of as many cells as the words have.
_COMMENT = re.compile(r"#\s+(\w.*=.*|newdoc|newpar)")
_ID = re.compile(r"[0-9]+(?:[-.][0-9]+)?")  # of a word in CoNLL-U; of several, or of an empty one
_CONLL_U_COLUMNS = 10
_UPOS = 3
# Columns of the Annotated Corpus for NER.
_SENTENCE = "Sentence #"
_WORD = "Word"
_TAG = "Tag"


def chunks(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Entities by conlleval's rules: (type, first word, word behind the last) of each.

    A chunk begins at B (S, U), at any label after O or after the end of a chunk (E, L, S, U), and
    at a change of type. It ends before the next one and before O.
    """
    entities: list[tuple[str, int, int]] = []
    before = "O"
    type_before = ""
    for index, label in enumerate(labels):
        prefix, _, type_ = label.partition("-")
        if prefix != "O":
            if prefix in "BSU" or before in "OELSU" or type_ != type_before:
                entities.append((type_, index, index + 1))
            else:
                entities[-1] = (type_, entities[-1][1], index + 1)
        before = prefix
        type_before = type_
    return entities


def to_iob2(labels: Sequence[str]) -> list[str]:
    """Labels of a sentence as IOB2: B for the first word of an entity, I for the others."""
    converted = ["O"] * len(labels)
    for type_, start, end in chunks(labels):
        converted[start:end] = [f"B-{type_}", *[f"I-{type_}"] * (end - start - 1)]
    return converted


def are_entities(labels: Iterable[str]) -> bool:
    """Whether all labels are O, or a prefix and the type of an entity."""
    return all(map(_LABEL.fullmatch, labels))


def read_column_file(path: StrPath, faults: list[InputError] | None = None) -> Table:
    """Reads a column file: a word a line, and a blank line after a sentence, which is a row.

    Columns are split at spaces and tabs, in CoNLL-U at tabs. A line that begins with "-X-" ends a
    sentence, too, and "-DOCSTART-" a document; comments begin with "#" before a sentence. Where the
    first column numbers the words, the word is in the second; labels are in the last column, in
    CoNLL-U in UPOS. Sentences with a line of another number of columns are
    skipped, and these lines added to `faults`; without it InputError names the first.
    """
    documents: list[list[list[tuple[int, list[str]]]]] = [[[]]]  # document -> sentence -> word
    rows, is_numbered = _rows(path)
    width = first = 0
    odd: set[int] = set()  # sentences, by identity
    for row in rows:
        line, cells = row
        if cells[0] == _DOCUMENT:
            documents.append([[]])
        elif cells[0] in ("", _SENTENCE_END):
            documents[-1].append([])
        else:
            width = width or len(cells)
            first = first or line
            if len(cells) != width:
                fault = f"{len(cells)} columns where line {first} has {width}; repair the line"
                add_fault(InputError(f"{path}, line {line}: {fault}"), faults)
                odd.add(id(documents[-1][-1]))
            if not _OTHER_SPACES.isdisjoint("".join(cells)):
                for cell in cells:
                    _word(f"{path}, line {line}", cell)
            documents[-1][-1].append(row)
    full = [[x for x in document if x and id(x) not in odd] for document in documents]
    full = [document for document in full if document]
    sentences = [sentence for document in full for sentence in document]
    if not sentences:
        refuse(faults or [])
    label = _UPOS if is_numbered and width == _CONLL_U_COLUMNS else max(1, width - 1)
    return _word_table(
        Source(str(path), "conll"),
        list(map(str, range(width))),
        sentences,
        documents=[number for number, document in enumerate(full) for _ in document],
        usual={"text": str(int(is_numbered)), "label": str(label)},
    )


def _word_table(
    source: Source,
    names: Sequence[str],
    sentences: Sequence[Sequence[tuple[int, list[str]]]],
    **more: Any,
) -> Table:
    """A table with a row for each sentence, whose cells have a string for each word."""
    if not sentences:
        raise InputError(
            f"{source.path}: no words; give a file with a word and its label on each line"
        )
    cells = [list(zip(*(row for _, row in sentence), strict=True)) for sentence in sentences]
    word_lines = [[line for line, _ in sentence] for sentence in sentences]
    columns = {name: [row[i] for row in cells] for i, name in enumerate(names)}
    first_lines = [lines[0] for lines in word_lines]
    return Table(columns, first_lines, source, word_lines=word_lines, **more)


def _rows(path: StrPath) -> tuple[list[tuple[int, list[str]]], bool]:
    """The lines of a column file as cells, without comments; whether the first numbers the words.

    Without words of several words and empty ones, which CoNLL-U numbers 1-2 and 1.1.
    """
    lines = [line.strip(" \t\r") for line in read_text(path).split("\n")]
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
    """Whether the first cells count the words: of each sentence from 0 or 1, or of the file.

    With three columns or more, a sentence begins with any number, as in a part of a file.
    """
    last = -1
    is_start = True
    counts_several = False
    for _, cells in rows:
        if cells[0] in ("", _SENTENCE_END, _DOCUMENT):
            is_start = True
            continue
        is_next = cells[0] == str(last + 1)
        is_first = is_start and (cells[0] in ("0", "1") or len(cells) > 2)
        if len(cells) < 2 or not cells[0].isdecimal() or not (is_next or is_first):
            return False
        counts_several |= not is_start
        last = int(cells[0])
        is_start = False
    return counts_several


def is_column_file(path: StrPath) -> bool:
    """Whether a file holds words in columns, with labels or a sentence per paragraph, not texts."""
    rows = [cells for _, cells in _rows(path)[0]]
    if any(row[0] == _DOCUMENT for row in rows):
        return True
    words = [row for row in rows if row[0] not in ("", _SENTENCE_END)]
    if {len(row) for row in words} == {1}:
        return [""] in rows[:-1]
    return len({len(row) for row in words}) == 1 and all(_LABEL.fullmatch(r[-1]) for r in words)


def _sentences(table: Table) -> Table:
    """The sentences of a table with a row for each word, which begin at a new "Sentence #"."""
    sentences: list[list[tuple[int, list[str]]]] = []
    before = ""
    names = list(table.columns)
    for line, cells in zip(table.lines, zip(*table.columns.values(), strict=True), strict=True):
        number = cells[names.index(_SENTENCE)].strip()
        if not sentences or number not in ("", before):
            sentences.append([])
            before = number
        sentences[-1].append((line, [cell.strip() for cell in cells]))
    return _word_table(Source(table.source.path, table.source.format), names, sentences)


def read_words(
    table: Table, columns: Mapping[str, str], *, entities: bool = True, documents: bool = False
) -> Examples:
    """Words, and the labels of a column "label", from any table with lists of strings.

    Without labels, strings in the column of texts are texts, as "text" and "text_pair". A column
    of words is "words", one of a table of words "Word" and "Tag", if there is no other name. With
    `documents` an example is a document of a column file. Labels are `entities`, or any tags.
    """
    text = columns["text"]
    label = columns.get("label")
    is_in_memory = table.source.path == MEMORY
    if table.header and _SENTENCE in table.columns:
        table = _sentences(table)
        text = text if text in table.columns else _WORD
        label = label if label is None or label in table.columns else _TAG
    elif text == "text" and table.source.format != "conll" and (label is not None or is_in_memory):
        text = "words"
    if label is None and not is_in_memory:
        first = table.column("text", text)[0]
        if isinstance(collection(first, table.location(0), numbers=False), str):
            return table.examples(columns)
    words = _word_lists(table, text, is_whole=label is None and is_in_memory)
    roles = {"words": text}
    values = {"words": words}
    if label is not None:
        roles["label"] = label
        values["label"] = _label_lists(table, label, words, entities)
    joined = {role: [" ".join(row) for row in rows] for role, rows in values.items()}
    examples = table.with_columns(joined, roles)
    if not documents or not table.documents:
        is_divided = len({*table.documents}) > 1
        return replace(examples, documents=tuple(table.documents) if is_divided else ())
    sentences: dict[int, list[int]] = {}  # of each document
    for index, document in enumerate(table.documents):
        sentences.setdefault(document, []).append(index)
    parts = list(sentences.values())
    return replace(
        examples,
        lines=[table.lines[part[0]] for part in parts],
        columns={role: ["\n".join(x[i] for i in p) for p in parts] for role, x in joined.items()},
    )


def _word_lists(table: Table, column: str, *, is_whole: bool) -> list[list[str]]:
    """The words of each row; a string is words between spaces, or left whole."""
    rows = []
    for index, cell in enumerate(table.column("text", column)):
        cell = collection(cell, table.location(index), numbers=False)
        if isinstance(cell, list | tuple):
            words = _texts(table, index, "text", column, cell)
            if "" in words or len(_SPACE.findall(" ".join(words))) >= max(1, len(words)):
                for number, word in enumerate(words):
                    _word(_word_location(table, index, number), word)
        else:
            text = table.text(index, "text", column, cell)
            words = [text] if is_whole else [word for word in _SPACE.split(text) if word]
        if not words and not is_whole:
            raise InputError(f"{table.location(index)}: no words; leave the example out")
        rows.append(words)
    return rows


def _label_lists(
    table: Table, column: str, words: Sequence[Sequence[str]], entities: bool
) -> list[list[str]]:
    """The labels of each row, one for each word."""
    rows = []
    known: set[str] = set()
    for index, cell in enumerate(table.column("label", column)):
        cell = collection(cell, table.location(index))
        if not isinstance(cell, list | tuple):
            cell = _SPACE.split(table.text(index, "label", column, cell))
        if entities and any(type(label) is int for label in cell):
            raise InputError(
                f"{table.location(index)}: {column!r} holds numbers instead of label names; write "
                "names, such as B-PER"
            )
        labels = _texts(table, index, "label", column, cell)
        if len(labels) != len(words[index]):
            raise InputError(
                f"{table.location(index)}: {len(words[index])} words but {len(labels)} labels; "
                "give each word one"
            )
        for number, label in enumerate(labels):
            if label not in known:
                known.add(_label(_word_location(table, index, number), label, entities))
        rows.append(to_iob2(labels) if entities else labels)
    return rows


def _texts(table: Table, index: int, role: str, column: str, cell: Sequence[Any]) -> list[str]:
    return [
        x if type(x) is str and x.isascii() else table.text(index, role, column, x) for x in cell
    ]


def _word_location(table: Table, index: int, word: int) -> str:
    if table.word_lines:
        return f"{table.source.path}, line {table.word_lines[index][word]}"
    return table.location(index)


def _word(location: str, word: str, what: str = "word") -> str:
    if not word or _SPACE.search(word):
        raise InputError(
            f"{location}: the {what} {word!r} is empty or holds white space; split it, or drop it"
        )
    return word


def _label(location: str, label: str, entities: bool) -> str:
    if not entities:
        return _word(location, label, "label")
    if not are_entities([label]):
        raise InputError(
            f"{location}: the label {label!r} is neither O nor a prefix B, I, M, E, S, L or U with "
            "a type, such as B-PER; correct it, or give --task tags for labels that are no entities"
        )
    return label
