"""Tables from files: what is read, what is refused, and where it stands."""

import gzip
import io
import json

import pytest

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.files import check_columns, read_columns_of, read_table


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


TEXT, LABELLED = {"text": "text"}, {"text": "text", "label": "label"}
BOOLEANS = '{"text": "a", "label": true}\n{"text": "b", "label": false}\n'
RECORDS = [{"q": "é\n", "n": 1, "x": None}, {"n": 2.5, "q": "b"}]


@pytest.mark.parametrize(
    ("name", "content", "roles", "options", "columns", "lines"),
    [
        # Quotes: as they are, or around cells, which may have several lines
        (
            "a.tsv",
            '\ufefflabel\tsentence\r\n1\t"so he said\r\n0\tok "\u2028end\r\n',
            {"text": "sentence", "label": "label"},
            {},
            {"text": ['"so he said', 'ok "\u2028end'], "label": ["1", "0"]},
            [2, 3],
        ),
        (
            "a.csv",
            'a,b,label\n"x, ""y""\nz",w,yes\n,"",no\n',
            {"text": "a", "text_pair": "b", "label": "label"},
            {},
            {"text": ['x, "y"\nz', ""], "text_pair": ["w", ""], "label": ["yes", "no"]},
            [2, 4],
        ),
        # Python's csv stops at 131,072 characters; the message blamed the quotes.
        ("a.csv", f'text\n"{"x" * 200_000}"\n', TEXT, {}, {"text": ["x" * 200_000]}, [2]),
        ("a.TSV.gz", gzip.compress(b"text\ta\na\t1\n"), TEXT, {}, {"text": ["a"]}, [2]),
        (
            "a.jsonl",
            "\n\n".join(map(json.dumps, RECORDS)) + "\n",
            {"text": "q", "label": "n"},
            {},
            {"text": ["é\n", "b"], "label": ["1", "2.5"]},
            [1, 3],
        ),
        (
            "a.jsonl",
            BOOLEANS,
            LABELLED,
            {},
            {"text": ["a", "b"], "label": ["True", "False"]},
            [1, 2],
        ),
        # Blank lines were dropped, so that predictions no longer stood beside their lines.
        ("a.tsv", "text\na\n\nb\n\n", TEXT, {}, {"text": ["a", "", "b", ""]}, [2, 3, 4, 5]),
        ("a.csv", "text\na\n\nb\n\n", TEXT, {}, {"text": ["a", "", "b", ""]}, [2, 3, 4, 5]),
        ("plain", "a\n\nb\n", TEXT, {"format": "lines"}, {"text": ["a", "", "b"]}, [1, 2, 3]),
        ("b.tsv", "\na\n", {"text": "0"}, {"header": False}, {"text": ["", "a"]}, [1, 2]),
        ("c.tsv", "text\tlabel\na\t1\n\nb\t0\n", TEXT, {}, {"text": ["a", "b"]}, [2, 4]),
    ],
)
def test_forms_of_files(tmp_path, name, content, roles, options, columns, lines):
    path = write(tmp_path, name, content)
    found = read_table(path, **options).examples(roles)
    assert (found.columns, found.lines) == (columns, lines)
    assert found.location(0) == f"{path}, line {lines[0]}"


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"text\none\n")))
    found = read_table("-", format="tsv").examples(TEXT)
    assert (found.columns["text"], found.location(0)) == (["one"], "standard input, line 2")


def test_broken_rows_are_skipped_where_asked_and_blank_texts_counted(tmp_path):
    path = write(tmp_path, "qqp.tsv", "text\tlabel\na\t1\nbroken\n \t0\nb\t1\n")
    found = read_table(path, skip_broken=True).examples(LABELLED)
    assert found.lines == [2, 4, 5]
    assert found.remarks() == [
        f"{path}: skipped 1 broken rows, the first in line 3",
        f"{path}: 1 examples have a blank text, the first in line 4",
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "text\tlabel\na\t1\n", r"no column 'sentence', .*: text, label; give --text_c"),
        ("a.tsv", "gj04\t1\n", r"no column 'sentence'.*--no_header and column numbers"),
        ("a.tsv", "sentence\tlabel\na\t1\nb\n", r"line 3: 1 columns where line 1 has 2"),
        ("a.csv", 'sentence,label\na,1\n"b\n\n', r"line 3: unexpected end of data"),
        ("a.tsv", "sentence\tlabel\tlabel\n", "two columns of one name"),
        ("a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence"\n', r"line 2: not JSON"),
        ("a.jsonl", '{"sentence": "a"}\n', r"line 1: no column 'label', there are: sentence"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", '{"sentence": ["a"], "label": 1}\n', r"'sentence' is \[\"a\"\]"),
        ("a.jsonl", '{"sentence": "\\ud800", "label": 1}\n', "line 1: .*surrogate"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1: not JSON"),
        ("a.jsonl", '{"sentence": NaN, "label": 1}\n', "line 1: 'sentence' is NaN; it must be"),
        ("a.jsonl", '{"sentence": true, "label": 1}\n', "'sentence' is true; it must be text"),
        ("a.tsv", "sentence\tlabel\na\t1\nsentence\tlabel\n", "line 3: it repeats the header of l"),
        ("a.tsv", b"sentence\tlabel\na\t1\n\xff\t1\n", r"a\.tsv, line 3: invalid UTF-8"),
        ("a.tsv", " \n", "the file is empty"),
        ("a.tsv", "sentence\tlabel\n", "no example; give a file"),
        ("a.txt", "sentence\tlabel\na\t1\n", "unknown format: give --format"),
        ("a.conll", "a O\n", "a column file holds words: give --task tagging"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=message) as raised:
        read_table(path).examples({"text": "sentence", "label": "label"})
    assert str(path) in str(raised.value)


def test_a_missing_file_and_a_missing_column_are_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.tsv: cannot be read"):
        read_table(tmp_path / "gone.tsv").examples(TEXT)
    path = write(tmp_path, "a.tsv", "gj04\t1\n")
    with pytest.raises(InputError, match=r"no column '7', there are: 0, 1; give --text"):
        read_table(path, header=False).examples({"text": "7"})


def test_a_csv_may_have_semicolons(tmp_path):
    path = write(tmp_path, "a.csv", 'id;"text";label\n1;"a; b, c";x\n')
    found = read_table(path).examples(LABELLED)
    assert found.columns == {"text": ["a; b, c"], "label": ["x"]}
    check_columns(path, LABELLED)
    assert read_columns_of(found)["id"] == ["1"]
    with pytest.raises(InputError, match="no column 'other', there are: id, text, label; give"):
        read_table(path).examples({"text": "other"})
