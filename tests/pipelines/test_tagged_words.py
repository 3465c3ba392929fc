"""Column files and JSON lines of words with labels."""

import gzip

import pytest

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.tagged_words import column_number, read_columns, read_json_words

COLUMNS = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter\tNNP\tI-NP\tI-PER
-X- -X- -X- O
a\u00a0b NN I-NP O\r
-DOCSTART- -X- O O

Blackburn NNP I-NP I-PER
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "data.txt"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_sentence_is_an_example(write):
    examples = read_columns(write(COLUMNS))
    assert examples.columns == {
        "words": ["EU rejects German", "Peter", "a\u00a0b", "Blackburn"],
        "label": ["B-ORG O B-MISC", "B-PER", "O", "B-PER"],
    }
    assert examples.lines == [3, 7, 9, 12]


def test_a_document_is_an_example_with_a_line_a_sentence(write, tmp_path):
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(COLUMNS.encode()))
    examples = read_columns(path, documents=True)
    assert examples.columns["words"] == ["EU rejects German\nPeter\na\u00a0b", "Blackburn"]
    assert examples.columns["label"] == ["B-ORG O B-MISC\nB-PER\nO", "B-PER"]


def test_columns_by_number_and_words_without_labels(write):
    path = write("1 Anna B-PER x\n2 . O x\n")
    assert read_columns(path, word=1, label=2).columns["words"] == ["Anna ."]
    assert read_columns(path, word=1, label=None).columns == {"words": ["Anna ."]}


@pytest.mark.parametrize(
    ("option", "name", "number"),
    [
        ("--text_column", "text", 0), ("--text_column", "words", 0), ("--text_column", "2", 2),
        ("--label_column", "label", -1), ("--label_column", "labels", -1),
        ("--label_column", "-1", -1), ("--label_column", "1", 1),
        ("--text_column", "word", None), ("--label_column", "pos", None),
        ("--label_column", "words", None),
    ],
)  # fmt: skip
def test_columns_of_a_column_file_have_no_names(option, name, number):
    if number is not None:
        assert column_number("data.txt", option, name) == number
    else:
        with pytest.raises(InputError, match=f"such as '{name}': give {option} a number, counted"):
            column_number("data.txt", option, name)


def test_json_lines(write):
    path = write(
        '{"words": ["Anna", "."], "labels": ["S-PER", "O"]}\n\n{"words": ["é"], "labels": ["O"]}'
    )
    examples = read_json_words(path)
    assert examples.columns == {"words": ["Anna .", "é"], "label": ["B-PER O", "O"]}
    assert read_json_words(path, labels=None).columns == {"words": ["Anna .", "é"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a O\nb NN O\n", "line 2: 3 columns where line 1 has 2"),
        ("a\nb\n", "line 1: no column 1"),
        ("a O\nb PER\n", "line 2: the label 'PER' is neither"),
        ("a O\nb I-\n", "line 2: the label 'I-' is neither"),
        ("-DOCSTART- -X- O\n\n", "no words"),
        ("\n", "the file is empty"),
        ("a O\n\f O\n", r"line 2: the word '\x0c' is empty or holds white space"),
        ("a O\nb\vc O\n", r"line 2: the word 'b\x0bc' is empty or holds white space"),
        ("a O\rb O\n", r"line 1: the word 'O\rb' is empty or holds white space"),
        ("a\rb O\n", r"line 1: the word 'a\rb' is empty or holds white space"),
    ],
)
def test_bad_columns_are_named(text, expected, write):
    with pytest.raises(InputError, match=r"data\.txt") as error:
        read_columns(write(text))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "not JSON"),
        ('{"words": "a b", "labels": ["O"]}', "'words' is no list of strings"),
        ('{"words": ["a"], "labels": [0]}', "'labels' is no list of strings"),
        ('{"words": ["a b"], "labels": ["O"]}', "holds white space"),
        ('{"words": [""], "labels": ["O"]}', "the word '' is empty"),
        ('{"words": ["\\ud800"], "labels": ["O"]}', "'words' has half of a surrogate pair"),
        ('{"words": [], "labels": []}', "no words"),
        ('{"words": ["a"], "labels": []}', "1 words but 0 labels"),
        ('{"words": ["a"], "labels": ["X"]}', "the label 'X' is neither"),
    ],
)
def test_bad_json_lines_are_named(line, expected, write):
    with pytest.raises(InputError, match=r"data\.txt, line 2") as error:
        read_json_words(write('{"words": ["a"], "labels": ["O"]}\n' + line))
    assert expected in str(error.value)
