"""Questions with contexts and answers: SQuAD's published JSON, JSON lines, TensorFlow Datasets."""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.examples import records as files
from bert_tf.pipelines.examples.table import Examples, Source, format_of

# What ends a word: `is_whitespace` of the original's run_squad.py.
_SPACES = frozenset(" \t\r\n\u202f")


@dataclass(frozen=True)
class Questions(Examples):
    """Questions of a file, by column: `id`, `question` and `context`.

    Labelled ones have `answers`, the texts of all right answers, and `span`, the place of the first
    in code points of the context: [start, end], [] without an answer, None if it is not there.
    """

    def place(self, index: int) -> str:
        return f"{self.path}, question {self.columns['id'][index]}"

    def remarks(self) -> list[str]:
        found = []
        spans = self.columns.get("span", [])
        if lost := [index for index, span in enumerate(spans) if span is None]:
            found.append(
                f"{self.path}: {len(lost)} of {len(self)} answers are not in their context; "
                f"training skips their questions, the first {self.columns['id'][lost[0]]}"
            )
        for role in ("question", "context"):
            texts = enumerate(self.columns[role])
            if blank := [index for index, text in texts if not text.strip()]:
                found.append(
                    f"{self.path}: {len(blank)} questions have a blank {role}, the first "
                    f"{self.columns['id'][blank[0]]}"
                )
        return found


def read_questions(
    path: StrPath, *, labelled: bool = True, unanswerable: bool = False
) -> Questions:
    """Reads questions, and their answers if `labelled`; `unanswerable` ones may have none.

    The path is SQuAD's JSON; `.jsonl` (or "-" for standard input) with an object a line that has
    `question`, `context` and, if labelled, `answers`, each with `text` and `answer_start`; or a
    name of TensorFlow Datasets, `tfds:squad/v2.0:validation`.
    """
    rows: dict[str, dict[str, Any]] = {}  # by id
    lines = []
    is_json = not _is_lines(path)
    for number, place, record in _questions_in(path) if is_json else _records(path):
        question = _text(place, record, "question")
        context = _text(place, record, "context")
        id_ = _id(place, record) if "id" in record else str(len(rows) + 1)
        if id_ in rows:
            raise InputError(f"{place}: the id {id_} occurs twice; give each question its own")
        row: dict[str, Any] = {"id": id_, "question": question, "context": context}
        rows[id_] = row
        lines.append(number)
        if labelled:
            answers = _answers(place, record)
            if not answers and not unanswerable:
                raise InputError(
                    f"{place}: the question {id_} has no answer; give it one, or --task squad2"
                )
            row["answers"] = [text for text, _ in answers]
            row["span"] = locate(context, *answers[0]) if answers else []
    if not rows:
        raise InputError(f"{path}: no question; give a file in the format of SQuAD")
    columns = {name: [each[name] for each in rows.values()] for name in row}
    own = {"question": ["question"], "context": ["context"], "id": ["id"]}
    source = Source(str(path), "json" if is_json else "jsonl", own)
    return Questions(files.shown_name(path), lines, columns, source=source)


def without(path: StrPath, dropped: Collection[int]) -> str:
    """SQuAD's published JSON without the questions of these numbers, counted from 1."""
    data, number = _load(path), 0
    for place, paragraph in _paragraphs(path, data):
        kept = []
        for record in _list(place, paragraph, "qas"):
            number += 1
            kept += [] if number in dropped else [record]
        paragraph["qas"] = kept
    return json.dumps(data, ensure_ascii=False) + "\n"


def _is_lines(path: StrPath) -> bool:
    return str(path) == "-" or files.is_dataset_name(path) or format_of(path) == "jsonl"


def _records(path: StrPath) -> Iterator[files.Record]:
    for number, place, record in files.read_records(path):
        yield number, place, {"id": str(number), **record}


def _questions_in(path: StrPath) -> Iterator[files.Record]:
    """The number, the place and the fields with the context of each question of a JSON file."""
    number = 0
    for place, paragraph in _paragraphs(path, _load(path)):
        for k, record in enumerate(_list(place, paragraph, "qas")):
            number += 1
            qas, context = f"{place}.qas[{k}]", _text(place, paragraph, "context")
            yield number, qas, {**_object(qas, record), "context": context}


def _load(path: StrPath) -> Any:
    """SQuAD's JSON; a list of articles, or of paragraphs, may stand in place of it."""
    text = files.read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        cure = "give SQuAD's .json or a .jsonl"
        raise InputError(f"{path}: not JSON ({error}); {cure}") from error


def _paragraphs(path: StrPath, data: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    is_list = isinstance(data, list)
    for i, article in enumerate(data if is_list else _list(str(path), data, "data")):
        place = f"{path}, [{i}]" if is_list else f"{path}, data[{i}]"
        if is_list and isinstance(article, dict) and "qas" in article:
            yield place, article
            continue
        for j, paragraph in enumerate(_list(place, article, "paragraphs")):
            yield f"{place}.paragraphs[{j}]", _object(f"{place}.paragraphs[{j}]", paragraph)


def _answers(place: str, record: dict[str, Any]) -> list[tuple[str, int]]:
    if is_impossible(record.get("is_impossible"), place):
        return []
    answers = record.get("answers")
    if isinstance(answers, dict):  # columns, as in TensorFlow Datasets and Hugging Face's sets
        texts, starts = (_list(place, answers, name) for name in ("text", "answer_start"))
        if len(texts) != len(starts) and not files.is_dataset_name(place):
            raise InputError(
                f"{place}: {len(texts)} answers have {len(starts)} times an answer_start; give "
                "each one"
            )
        answers = [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=False)]
    found = []
    for answer in _list(place, {"answers": answers}, "answers"):
        start = _object(place, answer).get("answer_start")
        if isinstance(start, str) and start.isdecimal():
            start = int(start)
        if not isinstance(start, int) or isinstance(start, bool):
            raise InputError(f"{place}: answer_start is {start!r}; it must be a whole number")
        found.append((_text(place, answer, "text"), start))
    return found


def is_impossible(value: Any, place: str) -> bool:
    """SQuAD's mark of questions without an answer, which some files hold as text."""
    known = {"true": True, "1": True, "false": False, "0": False, "none": False}
    if (name := str(value).strip().lower()) not in known:
        raise InputError(f"{place}: is_impossible is {value!r:.40}; write true or false")
    return known[name]


def locate(context: str, text: str, start: int) -> list[int] | None:
    """Where an answer lies in its context: [start, end], or None.

    As in the original, it may be anywhere in the words at its given place; whitespace may differ.
    """
    begin, end = (min(max(place, 0), len(context)) for place in (start, start + len(text)))
    if context[begin:end] == text and text.strip():
        return [begin, end]
    while begin > 0 and context[begin - 1] not in _SPACES:
        begin -= 1
    while 0 < end < len(context) and not _SPACES & set(context[end - 1 : end + 1]):
        end += 1
    pattern = re.compile(r"\s+".join(map(re.escape, text.split())) or r"(?!)")
    match = pattern.search(context, begin, end)
    return list(match.span()) if match else None


def _object(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place}: not a JSON object; see SQuAD's format in docs/squad.md")
    return value


def _list(place: str, value: Any, name: str) -> list[Any]:
    found = _object(place, value).get(name)
    if not isinstance(found, list):
        raise InputError(f"{place}: no list {name!r}; see SQuAD's format in docs/squad.md")
    return found


def _id(place: str, record: dict[str, Any]) -> str:
    value = record["id"]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else _text(place, record, "id")


def _text(place: str, value: Any, name: str) -> str:
    text = _object(place, value).get(name)
    if not isinstance(text, str):
        raise InputError(f"{place}: {name!r} is {json.dumps(text)[:40]}; it must be a string")
    return files.check_text(place, name, text)
