"""Tables from files: what is read, what is refused, and where it stands."""

import gzip
import io
import json

import pytest

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.files import check_columns, read_columns_of, read_examples


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(path, text="text", label=None, pair=None, **options):
    roles = {"text": text, "text_pair": pair, "label": label}
    columns = {role: column for role, column in roles.items() if column is not None}
    return read_examples(path, columns, **options)


def test_tsv_takes_quotes_as_they_are(tmp_path):
    path = write(
        tmp_path, "a.tsv", '\ufefflabel\tsentence\r\n1\t"so he said\r\n0\tok "\u2028end\r\n'
    )
    found = read(path, "sentence", "label")
    assert found.columns == {"text": ['"so he said', 'ok "\u2028end'], "label": ["1", "0"]}
    assert [found.location(i) for i in range(2)] == [f"{path}, line 2", f"{path}, line 3"]


def test_csv_takes_quotes_for_quotes(tmp_path):
    path = write(tmp_path, "a.csv", 'a,b,label\n"x, ""y""\nz",w,yes\n,"",no\n')
    found = read(path, "a", "label", pair="b")
    assert found.columns == {
        "text": ['x, "y"\nz', ""],
        "text_pair": ["w", ""],
        "label": ["yes", "no"],
    }


def test_csv_takes_cells_of_any_length(tmp_path):
    """Python's csv stops at 131,072 characters; the message blamed the quotes."""
    path = write(tmp_path, "a.csv", f'text,label\n"{"x" * 200_000}",1\n')
    assert len(read(path).columns["text"][0]) == 200_000


def test_gzip(tmp_path):
    path = tmp_path / "a.TSV.gz"
    path.write_bytes(gzip.compress(b"text\tlabel\na\t1\n"))
    assert read(path, label="label").columns == {"text": ["a"], "label": ["1"]}


def test_jsonl(tmp_path):
    rows = [{"q": "é\n", "n": 1, "x": None}, {"n": 2.5, "q": "b"}]
    path = write(tmp_path, "a.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n")
    assert read(path, "q", "n").columns == {"text": ["é\n", "b"], "label": ["1", "2.5"]}


def test_blank_lines_of_one_column_are_examples(tmp_path):
    """They were dropped, so that predictions no longer stood beside their lines."""
    expected = ["a", "", "b", ""]
    for name, text in (("a.tsv", "text\na\n\nb\n\n"), ("a.csv", "text\na\n\nb\n\n")):
        assert read(write(tmp_path, name, text)).columns["text"] == expected
    plain = write(tmp_path, "plain", "a\n\nb\n\n")
    assert read(plain, format="lines").columns == {"text": expected}
    assert read(write(tmp_path, "b.tsv", "\na\n"), "0", header=False).lines == [1, 2]
    table = write(tmp_path, "c.tsv", "text\tlabel\na\t1\n\nb\t0\n")
    assert read(table, label="label").lines == [2, 4]


def test_files_as_published(tmp_path):
    """No header (CoLA), .txt with a byte order mark (MRPC), columns by number."""
    cola = write(tmp_path, "train.tsv", "gj04\t1\t\tA sentence.\ngj04\t0\t*\tAnother one.\n")
    found = read(cola, "3", "1", header=False)
    assert found.columns == {"text": ["A sentence.", "Another one."], "label": ["1", "0"]}
    assert found.lines == [1, 2]
    mrpc = write(tmp_path, "msr.txt", "\ufeffQuality\t#1 ID\t#1 String\n1\t7\tText\n")
    assert read(mrpc, "#1 String", "Quality", format="tsv").columns["label"] == ["1"]
    assert read(mrpc, "2", "0", format="tsv").columns["text"] == ["Text"]
    with pytest.raises(InputError, match=r"no column '7', there are: 0, 1, 2, 3; give --text"):
        read(cola, "7", header=False)


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"text\none\n")))
    found = read("-", format="tsv")
    assert (found.columns["text"], found.location(0)) == (["one"], "standard input, line 2")


def test_broken_rows_are_skipped_where_asked_and_blank_texts_counted(tmp_path):
    path = write(tmp_path, "qqp.tsv", "text\tlabel\na\t1\nbroken\n \t0\nb\t1\n")
    found = read(path, label="label", skip_broken=True)
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
        ("a.csv", "text,label\n", r"a\.csv: no column 'sentence', there are: text, label"),
        ("a.tsv", "sentence\tother\n", "no column 'label', .*; give --label_column"),
        ("a.tsv", "sentence\tlabel\na\t1\nb\n", r"line 3: 1 columns where line 1 has 2"),
        ("a.csv", 'sentence,label\na,1\n"b\n\n', r"line 3: unexpected end of data"),
        ("a.csv", "sentence,label\na,1,2\n", r"line 2: 3 columns"),
        ("a.tsv", "sentence\tlabel\tlabel\n", "two columns of one name"),
        ("a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence"\n', r"line 2: not JSON"),
        ("a.jsonl", '{"sentence": "a"}\n', r"line 1: no column 'label', there are: sentence"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", '{"sentence": ["a"], "label": 1}\n', r"'sentence' is \[\"a\"\]"),
        ("a.jsonl", '{"sentence": "\\ud800", "label": 1}\n', "line 1: .*surrogate"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1: not JSON"),
        ("a.jsonl", '{"sentence": NaN, "label": 1}\n', "line 1: 'sentence' is NaN; it must be"),
        ("a.jsonl", '{"sentence": "a", "label": -Infinity}\n', "'label' is -Infinity; it must be"),
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
        read(path, "sentence", "label")
    assert str(path) in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.tsv: cannot be read"):
        read(tmp_path / "gone.tsv")


def test_what_is_unambiguous_is_read(tmp_path):
    """Booleans as labels, and a CSV with semicolons."""
    path = write(
        tmp_path, "a.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": false}\n'
    )
    assert read(path, label="label").columns["label"] == ["True", "False"]
    path = write(tmp_path, "a.csv", 'id;"text";label\n1;"a; b, c";x\n')
    found = read(path, label="label")
    assert found.columns == {"text": ["a; b, c"], "label": ["x"]}
    check_columns(path, {"text": "text", "label": "label"})
    assert read_columns_of(found)["id"] == ["1"]
    with pytest.raises(InputError, match="no column 'other', there are: id, text, label; give"):
        read(path, "other")


def test_a_row_of_several_lines_is_named_by_its_first(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"a\nb\nc",x\n"d\n",y\n')
    assert read(path, label="label").lines == [2, 5]
