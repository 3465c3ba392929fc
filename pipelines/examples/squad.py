"""Questions with contexts and answers, from any table; SQuAD's published JSON becomes one."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.examples.cells import collection, whole
from bert_tf.pipelines.examples.reading import is_dataset_name, read_text
from bert_tf.pipelines.examples.table import MISSING, Examples, Source, Table

# What ends a word: `is_whitespace` of the original's run_squad.py.
_SPACES = frozenset(" \t\r\n\u202f")
_ANSWERS = ("answers", "answer", "answer_start", "is_impossible")  # columns


def read_json(path: StrPath) -> Table:
    """The questions of SQuAD's published JSON, with their number for a line."""
    questions = list(_questions(path, _load(path)))
    records = [
        {**_object(location, record), "context": paragraph.get("context")}
        for location, paragraph, record in questions
    ]
    table = Table.of_records(enumerate(records, 1), Source(str(path), "json"))
    return replace(table, locations=[location for location, *_ in questions])


def has_a_question_a_line(path: StrPath) -> bool:
    """Whether a file is JSON lines, by its first one."""
    first = read_text(path).lstrip().partition("\n")[0]
    with suppress(ValueError, RecursionError):
        record = json.loads(first)
        return isinstance(record, dict) and "question" in record
    return False


def read_questions(table: Table, *, labelled: bool = True, unanswerable: bool = False) -> Examples:
    """Questions with their context, and the answers if `labelled`; `unanswerable` may have none.

    Labelled ones have `answers`, the texts of all right answers, and `span`, where the first is in
    code points of the context: [start, end], [] without an answer, None if it is not there.
    `answers` of the table are SQuAD's: objects, or one with lists, that have `text` and
    `answer_start`; or a text or several, with their `answer_start` in a column of its own. A text
    without a start is the first such in the context.
    """
    if not len(table):
        raise InputError(f"{table.source.path}: no questions; give a file in SQuAD format")
    columns: dict[str, list[Any]] = {x: table.texts("", x) for x in ("question", "context")}
    ids = table.columns.get("id", [MISSING] * len(table))
    columns["id"] = [
        str(line) if x is MISSING else table.text(index, "", "id", x)
        for index, (line, x) in enumerate(zip(table.lines, ids, strict=True))
    ]
    known: set[str] = set()
    for index, name in enumerate(columns["id"]):
        if name in known:
            raise InputError(
                f"{table.location(index)}: the id {name} occurs twice; give each question its own"
            )
        known.add(name)
    if labelled:
        columns |= {"answers": [], "span": []}
        for index, context in enumerate(columns["context"]):
            answers = _answers(table, index)
            if not answers and not unanswerable:
                raise InputError(
                    f"{table.location(index)}: the question {columns['id'][index]} has no answer; "
                    "give it one, or --task squad2"
                )
            columns["answers"].append([text for text, _ in answers])
            columns["span"].append(locate(context, *answers[0]) if answers else [])
    names = [name for name in ("question", "context", "id") if name in table.columns]
    return table.with_columns(columns, dict(zip(names, names, strict=True)))


def _load(path: StrPath) -> Any:
    """SQuAD's JSON; a list of articles, or of paragraphs, may stand in its place."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        cure = "give SQuAD's .json or a .jsonl"
        raise InputError(f"{path}: not JSON ({error}); {cure}") from error


def _questions(path: StrPath, data: Any) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """The location of each question, its paragraph and its record."""
    is_list = isinstance(data, list)
    for i, article in enumerate(data if is_list else _list(str(path), data, "data")):
        location = f"{path}, [{i}]" if is_list else f"{path}, data[{i}]"
        if isinstance(article, dict) and "question" in article:  # run_qa.py's flat form
            yield location, article, article
            continue
        if is_list and isinstance(article, dict) and "qas" in article:
            paragraphs = [(location, article)]
        else:
            listed = enumerate(_list(location, article, "paragraphs"))
            paragraphs = [(f"{location}.paragraphs[{j}]", x) for j, x in listed]
        for location, paragraph in paragraphs:
            for k, record in enumerate(_list(location, paragraph, "qas")):
                yield f"{location}.qas[{k}]", paragraph, record


def _answers(table: Table, index: int) -> list[tuple[str, int | None]]:
    """The texts of the answers to a question, each with its start, if there are any."""
    location = table.location(index)
    cells = {name: column[index] for name, column in table.columns.items() if name in _ANSWERS}
    impossible = cells.get("is_impossible", MISSING)
    if impossible not in (MISSING, None) and is_impossible(impossible, location):
        return []
    answers = cells.get("answers", cells.get("answer", MISSING))
    answers = collection(answers, location, numbers=False)
    answers = [*answers] if isinstance(answers, tuple | set) else answers
    if answers is None or answers in ("", []):
        return []
    is_flat = isinstance(answers, str) or (
        isinstance(answers, list) and all(isinstance(x, str) for x in answers)
    )
    if is_flat:  # texts, whose starts are in a column of their own, if anywhere
        texts = [answers] if isinstance(answers, str) else answers
        starts = collection(cells.get("answer_start"), location)
        starts = [None] * len(texts) if starts in (None, "", MISSING) else starts
        answers = {"text": texts, "answer_start": starts if isinstance(starts, list) else [starts]}
    if isinstance(answers, dict) and isinstance(answers.get("text"), str):
        answers = [answers]
    if isinstance(answers, dict):  # columns, as in TensorFlow Datasets and Hugging Face's sets
        texts, starts = (_list(location, answers, name) for name in ("text", "answer_start"))
        if len(texts) != len(starts) and not is_dataset_name(location):
            raise InputError(
                f"{location}: {len(texts)} answers but {len(starts)} values of answer_start; give "
                "one for each answer"
            )
        answers = [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=False)]
    texts_at: list[tuple[str, int | None]] = []
    for answer in _list(location, {"answers": answers}, "answers"):
        start = _object(location, answer).get("answer_start")
        number = whole(str(start).strip())
        is_known = not (is_flat and start is None)
        if is_known and (isinstance(start, bool) or not number.removeprefix("-").isdecimal()):
            raise InputError(f"{location}: answer_start is {start!r}; it must be a whole number")
        text = table.text(index, "", "text", answer.get("text"))
        texts_at.append((text, int(number) if is_known else None))
    return texts_at


def is_impossible(value: Any, location: str) -> bool:
    """SQuAD's mark of questions without an answer, which some files hold as text."""
    known = {"true": True, "1": True, "false": False, "0": False, "none": False, "": False}
    if (name := whole(str(value).strip().lower())) not in known:
        raise InputError(f"{location}: is_impossible is {value!r:.40}; write true or false")
    return known[name]


def locate(context: str, text: str, start: int | None) -> list[int] | None:
    """Where an answer lies in its context: [start, end], or None.

    As in the original, it may be anywhere in the words at its start; whitespace may differ. Without
    a start it is the first that is the same.
    """
    if start is None:
        if text not in context:
            return None
        start = context.index(text)
    begin, end = (min(max(at, 0), len(context)) for at in (start, start + len(text)))
    if context[begin:end] == text and text.strip():
        return [begin, end]
    while begin > 0 and context[begin - 1] not in _SPACES:
        begin -= 1
    while 0 < end < len(context) and not _SPACES & set(context[end - 1 : end + 1]):
        end += 1
    pattern = re.compile(r"\s+".join(map(re.escape, text.split())) or r"(?!)")
    match = pattern.search(context, begin, end)
    return list(match.span()) if match else None


def _object(location: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{location}: not a JSON object; see SQuAD's format in docs/squad.md")
    return value


def _list(location: str, value: Any, name: str) -> list[Any]:
    items = _object(location, value).get(name)
    if not isinstance(items, list):
        raise InputError(f"{location}: no list {name!r}; see SQuAD's format in docs/squad.md")
    return items
