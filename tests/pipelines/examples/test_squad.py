import gzip
import json

from cases import for_each, refused

from bert_tf.pipelines.examples import squad as questions
from bert_tf.pipelines.examples.files import read_columns_of, read_table

CONTEXT = "서울은 수도다. The “Fab Four” 😀 met\nin  1957 (Liverpool)."


def read_questions(path, **options):
    return questions.read_questions(read_table(path, default="json"), **options)


def answer(text: str, start: int | None = None) -> dict:
    return {"text": text, "answer_start": CONTEXT.index(text) if start is None else start}


def squad(*questions: dict, context: str = CONTEXT) -> dict:
    """A file in the published format, one paragraph."""
    usual = {"question": "who?", "answers": [answer("Fab Four")]}
    qas = [{"id": f"q{i}", **usual, **question} for i, question in enumerate(questions)]
    return {"data": [{"title": "x", "paragraphs": [{"context": context, "qas": qas}]}]}


def write(path, content):
    text = content if isinstance(content, str) else json.dumps(content)
    data = text.encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@for_each("name", "train.json", "train.json.gz")
def test_published_format(tmp_path, name):
    content = squad(
        {"answers": [answer("😀"), answer("Fab Four")]},
        {"question": "when?", "answers": [], "is_impossible": True},
        {"answers": [answer("수도다")], "is_impossible": True},  # the flag wins
    )
    path = write(tmp_path / name, content)
    found = read_questions(path, unanswerable=True)
    columns = {"id": ["q0", "q1", "q2"], "question": ["who?", "when?", "who?"]}
    columns |= {"context": [CONTEXT] * 3, "answers": [["😀", "Fab Four"], [], []]}
    place = CONTEXT.index("😀")
    assert found.columns == {**columns, "span": [[place, place + 1], [], []]}
    assert found.remarks() == []
    assert read_questions(path, labelled=False).columns.keys() == {"id", "question", "context"}
    assert found.take([2, 0]).columns["id"] == ["q2", "q0"]
    assert found.take([1]).location(0) == f"{path}, question q1"


@for_each(
    "text start place",
    ("Fab Four", None, "Fab Four"),
    ("Fab Four", CONTEXT.index("Fab") - 1, "Fab Four"),  # one off: within the words
    ("Four", CONTEXT.index("Fab"), None),  # another word
    ("met in 1957", CONTEXT.index("met"), "met\nin  1957"),  # other whitespace
    ("1957 (Liverpool).", None, "1957 (Liverpool)."),
    ("Liverpool", len(CONTEXT) - 3, "Liverpool"),
    ("Beatles", CONTEXT.index("Fab"), None),
    ("Fab Four", 10_000, None),
    ("Fab Four", -5, None),
    ("", 3, None),
    (" ", CONTEXT.index(" "), None),
)
def test_where_an_answer_is(tmp_path, text, start, place):
    path = write(tmp_path / "data.json", squad({"answers": [answer(text, start)]}, {}))
    found = read_questions(path)
    span = found.columns["span"][0]
    assert (span and CONTEXT[slice(*span)]) == place
    assert found.columns["answers"][0] == [text]  # scored all the same
    remark = f"{path}: 1 of 2 answers are not in their context; training skips their questions, "
    assert found.remarks() == ([] if place else [f"{remark}first question q0"])


@for_each("space found", ("\u00a0", True), ("\u202f", False))
def test_only_some_spaces_end_a_word(space, found, tmp_path):
    """As in the original: a place one word too early still finds the answer beyond U+00A0."""
    context = f"the{space}sea"
    qas = {"answers": [{"text": "sea", "answer_start": 0}]}
    path = write(tmp_path / "data.json", squad(qas, context=context))
    assert read_questions(path).columns["span"] == [[4, 7] if found else None]


def test_json_lines_in_both_forms(tmp_path):
    lists = {"text": [" "], "answer_start": [0]}
    rows = [
        {"question": "who?", "context": CONTEXT, "answers": [answer("Fab Four")]},
        {"id": "b", "question": "", "context": " ", "answers": lists},
    ]
    path = write(tmp_path / "own.jsonl", "\n\n".join(map(json.dumps, rows)))
    found = read_questions(path)
    assert (found.columns["id"], found.lines) == (["1", "b"], [1, 3])
    assert found.take([1]).lines == [3]
    assert read_columns_of(found)["context"] == [CONTEXT, " "]
    assert found.columns["answers"] == [["Fab Four"], [" "]]
    lost, blank = found.remarks()
    assert lost.endswith("training skips their questions, first question b")
    assert blank.endswith("1 examples have a blank text, the first in question b")


@for_each("column", "answers", "answer")
def test_a_table_has_the_texts_of_answers(tmp_path, column):
    text = f"question,context,{column},is_impossible\nwho?,a sea,sea,\nwhy?,a sea,,1.0\n"
    path = write(tmp_path / "a.csv", text)
    found = read_questions(path, unanswerable=True)
    assert found.columns["id"] == ["2", "3"]
    assert found.columns["answers"] == [["sea"], []]
    assert found.columns["span"] == [[2, 5], []]


LEE = {"question": "who?", "context": "Lee and Lee chair it."}
HASHES = "{'text': array(['Lee'], dtype=object), 'answer_start': array([8], dtype=int32)}"


@for_each(
    "answers",
    {"answer": "Lee", "answer_start": 8},
    {"answers": "Lee", "answer_start": 8.0},
    {"answers": ["Lee"], "answer_start": [8]},
    {"answers": "['Lee']", "answer_start": "[8]"},
    {"answers": "['Lee']", "answer_start": "8.0"},
    {"answers": "{'text': ['Lee'], 'answer_start': [8]}"},
    {"answers": "[{'text': 'Lee', 'answer_start': 8}]"},
    {"answers": HASHES},  # as NumPy's arrays in a data frame are written
    {"answers": {"text": ["Lee"], "answer_start": [8.0]}},
)
@for_each("name", "a.jsonl", "a.csv")
def test_the_start_of_a_flat_answer_counts(tmp_path, answers, name):
    row = LEE | answers
    if name == "a.csv":
        cells = ['"' + str(cell).replace('"', '""') + '"' for cell in row.values()]
        content = f"{','.join(row)}\n{','.join(cells)}\n"
    else:
        content = json.dumps(row)
    found = read_questions(write(tmp_path / name, content))
    assert (found.columns["answers"], found.columns["span"]) == ([["Lee"]], [[8, 11]])


def test_answers_that_are_texts_or_none_and_flat_questions(tmp_path):
    """Without a start it is the first such; an empty list is a question without an answer."""
    rows = [{"answers": ["Lee", "it"]}, {"answers": "[]", "answer_start": ""}, {"answers": "[1]"}]
    content = "\n".join(json.dumps(LEE | row) for row in rows)
    found = read_questions(write(tmp_path / "a.jsonl", content), unanswerable=True)
    assert found.columns["answers"] == [["Lee", "it"], [], ["[1]"]]
    assert found.columns["span"] == [[0, 3], [], None]
    path = write(tmp_path / "b.jsonl", json.dumps(LEE | {"answers": "['Lee' 'it']"}))
    refused("line 1: \"\\['Lee' 'it'\\]\" is a list in brackets that", read_questions, path)
    for names, end in (["a"], ""), (["a", "b"], "\n"):  # a JSON file with a question a line
        rows = [json.dumps(LEE | {"id": name, "answer": "Lee"}) for name in names]
        found = read_questions(write(tmp_path / "lines.json", "\n".join(rows) + end))
        assert found.columns["id"] == names
    flat = LEE | {"id": "a", "answers": {"text": ["Lee"], "answer_start": [8]}}
    for content in ({"version": "v", "data": [flat]}, [flat]):
        found = read_questions(write(tmp_path / "a.json", content))
        assert (found.columns["span"], found.columns["id"]) == ([[8, 11]], ["a"])


@for_each("is_list", False, True)
def test_what_is_unambiguous_is_read(tmp_path, is_list):
    """A list of paragraphs, numbers as ids, places and marks as text."""
    met = {"text": "met", "answer_start": str(CONTEXT.index("met"))}
    answered = {"id": 7, "is_impossible": "false", "answers": [met]}
    content = squad(answered, {"is_impossible": "True"}, {"is_impossible": 0})
    if is_list:
        content = content["data"][0]["paragraphs"]
    found = read_questions(write(tmp_path / "a.json", content), unanswerable=True)
    assert found.columns["id"] == ["7", "q1", "q2"]
    assert found.columns["answers"] == [["met"], [], ["Fab Four"]]


@for_each(
    "content message",
    ("", "the file is empty"),
    ("{", "not JSON"),
    ("[]", "no question"),
    ("[1]", r"bad.json, \[0\]: not a JSON object"),
    ({"articles": []}, "no list 'data'"),
    ({"data": [{"paragraphs": {}}]}, r"data\[0\]: no list 'paragraphs'"),
    (squad({}, {"id": "q0"}), r"qas\[1\]: the id q0 occurs twice"),
    (squad({}, {"id": [7]}), r"paragraphs\[0\].qas\[1\]: 'id' is \[7\]; it must be"),
    (squad({"is_impossible": "maybe"}), "is_impossible is 'maybe'; write true or false"),
    (squad({"answers": {"text": ["a", "b"], "answer_start": [0]}}), "2 answers but 1 values"),
    (squad({"answers": []}), "the question q0 has no answer; give it one, or --task squad2"),
    (squad({"answers": 1}), r"qas\[0\]: no list 'answers'"),
    (squad({"answers": [{"text": "x"}]}), "answer_start is None; it must be a whole number"),
    (squad({"answers": [answer("", 1.5)]}), "answer_start is 1.5"),
    (squad({"answers": [7]}), r"qas\[0\]: not a JSON object"),
    (squad({}, context=None), r"qas\[0\]: 'context' is null"),
)
def test_bad_files_are_refused_by_record(tmp_path, content, message):
    path = write(tmp_path / "bad.json", content)
    assert refused(message, read_questions, path).startswith(str(path))


def test_bad_lines_are_refused_by_number(tmp_path):
    path = write(tmp_path / "bad.jsonl", '{"question": "a", "context": "b"}\n{"question": "a"}\n')
    refused("line 2: no column 'context', there are: qu", read_questions, path, labelled=False)
    path = write(tmp_path / "bad.jsonl", '{"question": "a", "context": "b"}\n')
    refused(r"bad\.jsonl, line 1: no list 'answers'", read_questions, path)
    refused("cannot be read", read_questions, tmp_path / "none.json")
