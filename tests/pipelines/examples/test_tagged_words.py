import gzip

import pytest
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.files import read_table
from bert_tf.pipelines.examples.tagged_words import is_column_file, read_words

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


def read(path, text="text", label="label", format=None, **options):
    columns = {"text": text} | ({} if label is None else {"label": label})
    return read_words(read_table(path, format, default="conll"), columns, **options)


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "data.txt"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_sentence_or_a_document_is_an_example(write, tmp_path):
    examples = read(write(COLUMNS))
    assert examples.columns == {
        "words": ["EU rejects German", "Peter", "a\u00a0b", "Blackburn"],
        "label": ["B-ORG O B-MISC", "B-PER", "O", "B-PER"],
    }
    assert examples.lines == [3, 7, 9, 12]
    assert examples.documents == (0, 0, 0, 1)
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(COLUMNS.encode()))
    examples = read(path, documents=True)
    assert examples.columns["words"] == ["EU rejects German\nPeter\na\u00a0b", "Blackburn"]
    assert examples.columns["label"] == ["B-ORG O B-MISC\nB-PER\nO", "B-PER"]
    assert examples.lines == [3, 12]


def test_columns_by_number_and_words_without_labels(write):
    path = write("1 Anna B-PER x\n2 . O x\n")
    for word in ("1", "0", "text", "words"):
        assert read(path, word, "2").columns == {"words": ["Anna ."], "label": ["B-PER O"]}
    assert read(path, "3", None).columns == {"words": ["x x"]}
    for column, option in (("word", "--text_column"), ("pos", "--label_column")):
        with pytest.raises(InputError, match=f"such as '{column}': give {option} a number, coun"):
            read(path, *((column, "2") if column == "word" else ("1", column)))


CONLL_U = """# sent_id = 1
# text = in the sea of a very great old cow
1-2\tim\t_\t_\t_\t_\t_\t_\t_\t_
1\tin\tin\tADP\tIN\t_\t3\tcase\t_\t_
2\tthe\tthe\tDET\tDT\t_\t3\tdet\t_\tSpaceAfter=No

# sent_id = 2
1\t#\t#\tSYM\t#\t_\t3\tcase\t_\t_
1.1\tleft\t_\t_\t_\t_\t_\t_\t_\t_
2\tsea\tsea\tNOUN\tNN\t_\t0\troot\t_\t_

"""


# Its comment has as many cells as the rows.
MULTICONER = "# id 7\tdomain=en\neli _ _ B-PER\n. _ _ O\n\n\n# id 8\tdomain=en\n# _ _ O\n"
GERMEVAL = "#\thttp://x [2009]\n1\tAnna\tB-PER\tO\n2\t.\tO\tO\n"
NUMBERED = "0 EU B-ORG\n1 rejects O\n\n{} Peter B-PER\n{} . O\n"
NEW_PARAGRAPH = "# newdoc\n# newpar\nEU B-ORG\n. O\n\n# newpar\nno O\n"
BMES = "a B-LOC\nb M-LOC\nc E-LOC\nd S-LOC\n"
TAGS = {"entities": False}


@for_each(
    "text options words labels",
    (MULTICONER, {}, ["eli .", "#"], ["B-PER O", "O"]),
    (GERMEVAL, {"label": "2"}, ["Anna ."], ["B-PER O"]),
    ("# A\n#tag B\n\n#tag B\n\na C\n", TAGS, ["# #tag", "#tag", "a"], ["A B", "B", "C"]),
    (NUMBERED.format(0, 1), {}, ["EU rejects", "Peter ."], ["B-ORG O", "B-PER O"]),
    (NUMBERED.format(2, 3), {}, ["EU rejects", "Peter ."], ["B-ORG O", "B-PER O"]),
    (NUMBERED.format(3, 4), {}, ["EU rejects", "Peter ."], ["B-ORG O", "B-PER O"]),
    (NUMBERED.format(3, 9), {}, ["0 1", "3 9"], ["B-ORG O", "B-PER O"]),
    ("1918 B\n1919 I\n", TAGS, ["1918 1919"], ["B I"]),
    ("1 B\n2 I\n\n1 B\n9 I\n", TAGS, ["1 2", "1 9"], ["B I", "B I"]),
    (NEW_PARAGRAPH, {}, ["EU .", "no"], ["B-ORG O", "O"]),
    (BMES, {}, ["a b c d"], ["B-LOC I-LOC I-LOC B-LOC"]),
    (CONLL_U, TAGS, ["in the", "# sea"], ["ADP DET", "SYM NOUN"]),
)
def test_comments_and_numbers_of_words_are_no_words(text, options, words, labels, write):
    assert read(write(text), **options).columns == {"words": words, "label": labels}


def test_column_files_are_known_by_their_names_and_content(write):
    path = write(CONLL_U, "a.conllu")
    assert read(path, label=None).columns == {"words": ["in the", "# sea"]}
    assert is_column_file(write("# id 7\tdomain=en\neli _ _ B-PER\n. _ _ O\n"))


def test_a_table_with_a_row_for_each_word(write):
    header = "Sentence #,Word,POS,Tag\n"
    rows = 'Sentence: 1,Anna,NNP,B-per\n,"""",``,O\nSentence: 2,no,UH,O\n'
    path = write(header + rows, "a.csv")
    found = read(path)
    assert found.columns == {"words": ['Anna "', "no"], "label": ["B-per O", "O"]}
    assert found.lines == [2, 4]
    assert read(path, label="POS", entities=False).columns["label"] == ["NNP ``", "UH"]
    assert read(path, label=None).columns == {"words": ['Anna "', "no"]}
    refused(r"a.csv, line 2: the label 'NNP' is neither O n", read, path, label="POS")
    with pytest.raises(InputError, match="no column 'Tag', there are: Sentence #, Word, POS"):
        read(write("Sentence #,Word,POS\n1,a,b\n", "a.csv"))


def test_words_and_labels_in_json_lines(write):
    path = write(
        '{"words": ["Anna", "."], "labels": ["S-PER", "O"]}\n\n{"words": "é  a", "labels": "O O"}',
        "a.jsonl",
    )
    examples = read(path, label="labels")
    assert examples.columns == {"words": ["Anna .", "é a"], "label": ["B-PER O", "O O"]}
    assert examples.lines == [1, 3]
    assert read(path, "words", None).columns == {"words": ["Anna .", "é a"]}
    texts = write('{"text": "é a", "more": "b"}\n', "b.jsonl")
    assert read(texts, label=None).columns == {"text": ["é a"]}


def test_lists_in_cells_and_numbers(write):
    path = write("words,label\n\"['Anna', '.']\",\"['B-PER', 'O']\"\n", "a.csv")
    expected = {"words": ["Anna ."], "label": ["B-PER O"]}
    assert read(path).columns == expected
    assert read(path, "words", None).columns == {"words": ["Anna ."]}
    with pytest.raises(InputError, match=r"line 2: .* is a list in brackets that Python"):
        read(write("words,label\n['Anna' '.'],\"['B-PER', 'O']\"\n", "a.csv"))
    path = write('{"words": ["a", "b"], "labels": [7, 0]}\n', "a.jsonl")
    assert read(path, label="labels", entities=False).columns["label"] == ["7 0"]
    refused("holds numbers instead of label names", read, path, label="labels")


@for_each(
    "text expected",
    ("a O\nb NN O\n", "line 2: 3 columns where line 1 has 2"),
    ("a\nb\n", "line 1: no column 1"),
    ("a O\nb PER\n", "line 2: the label 'PER' is neither"),
    ("a O\nb I-\n", "line 2: the label 'I-' is neither"),
    ("-DOCSTART- -X- O\n\n", "no words"),
    ("a O\n\f O\n", r"line 2: the word '\x0c' is empty or holds white space"),
    ("a O\nb\vc O\n", r"line 2: the word 'b\x0bc' is empty or holds white space"),
    ("a O\rb O\n", r"line 1: the word 'O\rb' is empty or holds white space"),
    ('{"words": [["a"]], "label": ["O"]}', "'words' is [\"a\"]; it must be text"),
    ('{"words": ["a"]}', "no column 'label', there are: words; give --label_column one"),
    ('{"words": ["a b"], "label": ["O"]}', "holds white space"),
    ('{"words": [""], "label": ["O"]}', "the word '' is empty"),
    ('{"words": ["\\ud800"], "label": ["O"]}', "'words' has half of a surrogate pair"),
    ('{"words": [], "label": []}', "no words"),
    ('{"words": ["a"], "label": []}', "1 words but 0 labels"),
    ('{"words": ["a"], "label": ["X"]}', "the label 'X' is neither"),
)
def test_mistakes_are_named(text, expected, write):
    is_json = text[0] == "{"
    first = '{"words": ["a"], "label": ["O"]}\n' if is_json else ""
    path = write(first + text, "a.jsonl" if is_json else "a.txt")
    line = refused("", read, path)
    assert line.startswith(f"{path}, line 2" if is_json else str(path)) and expected in line


@for_each(
    "lines is_column",
    (["EU B-ORG", "rejects O", "", "Peter B-PER"], True),
    (["EU NNP I-NP B-ORG", "rejects VBZ I-VP O"], True),
    (["-DOCSTART- -X- -X- O", "", "EU NNP"], True),
    (["EU", "rejects", "", "Peter"], True),
    (["the ship sailed", "the wheat grew"], False),
    (["EU rejects German call", "Peter Blackburn"], False),
    (["ship", "wheat"], False),
)
def test_texts_are_told_from_words_in_columns(write, lines, is_column):
    assert is_column_file(write("\n".join(lines) + "\n")) is is_column
