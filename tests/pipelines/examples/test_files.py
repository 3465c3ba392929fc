import gzip
import io

import pytest
from cases import for_each

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.files import read_columns_of, read_table


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


TEXT, LABELLED = {"text": "text"}, {"text": "text", "label": "label"}
TSV = '\ufefflabel\ttext\r\n1\t"so he said\r\n0\tok "\u2028end\r\n'
CSV = 'text,label\n"x, ""y""\nz",yes\n,no\n'
JSONL = '{"text": "é\\n", "label": 1, "x": null}\n\n{"label": 2.5, "text": "b"}\n'
BOOLEANS = '{"text": "a", "label": true}\n{"text": "b", "label": false}\n'
LONG = "x" * 200_000  # Python's csv stops at 131,072 characters; the message blamed the quotes


@for_each(
    "name content texts labels lines",
    # Quotes: as they are, or around cells, which may have several lines
    ("a.tsv", TSV, ['"so he said', 'ok "\u2028end'], ["1", "0"], [2, 3]),
    ("a.csv", CSV, ['x, "y"\nz', ""], ["yes", "no"], [2, 4]),
    ("a.csv", f'text\n"{LONG}"\n', [LONG], None, [2]),
    ("a.TSV.gz", gzip.compress(b"text\ta\na\t1\n", mtime=0), ["a"], None, [2]),
    ("a.jsonl", JSONL, ["é\n", "b"], ["1", "2.5"], [1, 3]),
    ("a.jsonl", BOOLEANS, ["a", "b"], ["True", "False"], [1, 2]),
    # Blank lines were dropped, so that predictions no longer stood beside their lines.
    ("a.tsv", "text\na\n\nb\n\n", ["a", "", "b", ""], None, [2, 3, 4, 5]),
    ("a.csv", "text\na\n\nb\n\n", ["a", "", "b", ""], None, [2, 3, 4, 5]),
    ("c.tsv", "text\tlabel\na\t1\n\nb\t0\n", ["a", "b"], ["1", "0"], [2, 4]),
    # Excel's first line, and spaces after commas
    ("a.csv", "sep=;\r\ntext;label\r\na, b;1\r\n", ["a, b"], ["1"], [3]),
    ("a.csv", "\nsep=|\ntext|label\na;b,c|1\n", ["a;b,c"], ["1"], [4]),
    ("a.csv", 'text, label\n"a, b", yes\nc,"no"\n', ["a, b", "c"], ["yes", "no"], [2, 3]),
    ("a.csv", 'text,label\na, "b"\n', ["a"], [' "b"'], [2]),
    ("a.json", JSONL, ["é\n", "b"], ["1", "2.5"], [1, 3]),
)
def test_forms_of_files(tmp_path, name, content, texts, labels, lines):
    path = write(tmp_path, name, content)
    found = read_table(path).examples(LABELLED if labels else TEXT)
    assert found.columns == {"text": texts, **({"label": labels} if labels else {})}
    assert found.lines == lines and found.location(0) == f"{path}, line {lines[0]}"
    assert read_columns_of(found)["text"] == texts


def test_standard_input_lines_and_tables_without_a_header(tmp_path, monkeypatch):
    found = read_table(write(tmp_path, "plain", "a\n\nb\n"), "lines").examples(TEXT)
    assert (found.columns, found.lines) == ({"text": ["a", "", "b"]}, [1, 2, 3])
    found = read_table(write(tmp_path, "b.tsv", "\na\n"), header=False).examples({"text": "0"})
    assert (found.columns, found.lines) == ({"text": ["", "a"]}, [1, 2])
    assert read_columns_of(found) == {"0": ["", "a"]}
    found = read_table(write(tmp_path, "b.csv", "sep=;\na;b\n"), header=False)
    assert (found.columns, found.lines) == ({"0": ("a",), "1": ("b",)}, [2])
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


@for_each(
    "name text message",
    ("a.tsv", "text\tlabel\na\t1\n", r"no column 'sentence', .*: text, label; give --text_c"),
    ("a.tsv", "gj04\t1\n", r"no column 'sentence'.*--no_header and column numbers"),
    ("a.tsv", "text,label\na,1\n", r"no column 'sentence'.*; give --format csv if commas"),
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
    ("a.tsv", "слово\tlabel\nи\t1\n".encode("utf-16-le"), r"a\.tsv: UTF-16LE text: .*iconv"),
    ("a.tsv", b"sentence\tlabel\na\t1\n\xff\t1\n", r"a\.tsv, line 3: invalid UTF-8"),
    ("a.tsv", " \n", "the file is empty"),
    ("a.tsv", "sentence\tlabel\n", "no examples; give a file"),
    ("a.txt", "sentence\tlabel\na\t1\n", "unknown format: give --format"),
    ("a.json", '[{"sentence": "a"}]', "line 1: not a JSON object; write one object a line"),
    ("a.xlsx", b"PK\x03\x04\xff", r"an office document such as \.xlsx: .* as CSV in UTF-8"),
    ("a.csv", "sentence,label\nné,1\n".encode("latin-1"), "line 2: .*iconv -f WINDOWS-1252"),
    ("a.conll", "a O\n", "a column file holds words: give --task tagging"),
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


@for_each("delimiter", ";", "\t")
def test_a_csv_may_have_semicolons_or_tabs(tmp_path, delimiter):
    lines = ['id;"text";label', '1;"a; b, c";x']
    path = write(tmp_path, "a.csv", "\n".join(lines).replace(";", delimiter) + "\n")
    found = read_table(path).examples(LABELLED)
    assert found.columns == {"text": [f"a{delimiter} b, c"], "label": ["x"]}
    assert read_columns_of(found)["id"] == ["1"]
    with pytest.raises(InputError, match="no column 'other', there are: id, text, label; give"):
        read_table(path).examples({"text": "other"})
