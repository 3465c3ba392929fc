import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import for_each, refused

from bert_tf.commands.data_in_memory import (
    columns_of,
    documents_as_file,
    examples_as_files,
    examples_in_memory,
    table_in_memory,
    write_table,
)
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.vocab import Options as VocabularyOptions
from bert_tf.errors import InputError
from bert_tf.files.owners import SEEDS
from bert_tf.tasks.task_table import find_task

TEXTS = ["a good film", "a bad one", ""]
LABELS = ["good", "bad", "good"]


class ClassLabel:
    names = ("bad", "good")


class Dataset:
    def __init__(self, columns):
        self._values = columns
        self.column_names = list(columns)
        self.features = {"text": None, "label": ClassLabel()}

    def __getitem__(self, name):
        return self._values[name]


RECORDS = [{"text": t, "label": x} for t, x in zip(TEXTS, LABELS, strict=True)]
DATASET = Dataset({"text": TEXTS, "label": [1, 0, 1]})


@for_each("data", (TEXTS, LABELS), RECORDS, DATASET, ids=type)
def test_forms_give_the_same_examples(data):
    task, examples = examples_in_memory(find_task("classification"), data, ["bad", "good"])
    assert task.pair is None
    assert examples.columns == {"text": TEXTS, "label": LABELS}
    is_tuple = isinstance(data, tuple)
    assert columns_of(data) == ({} if is_tuple else {"text": TEXTS, "label": LABELS})


@for_each("name columns", ("classification", "label"), ("multi_label", "bad, good"))
def test_labels_beside_inputs_are_not_read(name, columns):
    task = find_task(name).with_settings({"label": columns})
    data = {"text": TEXTS} | {column: [None, 5, "unknown"] for column in columns.split(", ")}
    _, examples = examples_in_memory(task, data, labelled=False)
    assert examples.columns == {"text": TEXTS}


@for_each(
    "data message",
    ((TEXTS, LABELS, LABELS), "a tuple of 3: give .inputs, labels."),
    (TEXTS, "no labels: give .inputs, labels., or a column 'label'"),
    ((TEXTS, np.array([1, 0, 1])), "label 0 is 1, and the labels have names .bad, good., wh"),
)
def test_data_that_cannot_be_used_is_refused(data, message):
    refused(message, examples_in_memory, find_task("classification"), data, ["bad", "good"])


def test_labels_and_questions_that_are_refused():
    task = find_task("mnli")
    data = {"sentence1": TEXTS, "sentence2": TEXTS, "gold_label": [0, 1, 2]}
    with pytest.raises(InputError, match=r"label 0 is 0, and the labels have names .contradicti"):
        examples_in_memory(task, data, task.labels)
    with pytest.raises(InputError, match=r"label 0 is 0, and the labels have names .B-X, O"):
        examples_in_memory(find_task("tagging"), (["a"], [[0]]), ["B-X", "O"])
    answers = {"text": ["sea", "wide"], "answer_start": [4]}
    with pytest.raises(InputError, match="example 0: 2 answers but 1 values of answer_start"):
        examples_in_memory(find_task("squad2"), {**SQUAD, "answers": [answers] * 3})
    with pytest.raises(InputError, match="example 1: the id 7 occurs twice"):
        examples_in_memory(find_task("squad2"), {**SQUAD, "id": [7, 7, 8]})
    task = find_task("embedding").with_settings({"negatives": "no"})
    with pytest.raises(InputError, match="no column 'no', there are: text, text_pair; give --neg"):
        examples_in_memory(task, {"text": TEXTS, "text_pair": TEXTS})


SQUAD = {
    "id": [7, "b", 9],
    "question": ["?"] * 3,
    "context": ["the sea is wide"] * 3,
    "answers": ["sea", [{"text": "sea", "answer_start": "4"}], float("nan")],
    "is_impossible": [None, "false", 1.0],
}
SWAG = {"sent1": ["He"], "sent2": ["She"], "ending0": ["ran"], "ending1": ["sat"], "label": [1]}
MARKS = {"text": TEXTS, "cow": [0, 1, 1], "sea": [True, False, True]}
NAMES = {"label": ["sea", "cow", "cow,sea"]}
PAIRS = {"text": TEXTS, "text_pair": TEXTS}
PAIR = (TEXTS[:2], TEXTS[:2])
WRONG = [["a", "x"], ["b", " "], ["c", "y"]]
# Task with settings, data, values that are read.
READ_BACK = [
    ("masked_words", TEXTS, {"sentence": TEXTS[:2]}),
    ("classification", (TEXTS, LABELS), {"text": TEXTS, "label": LABELS}),
    ("classification", ((TEXTS, TEXTS), [1, 0, 1]), {"label": ["1", "0", "1"]}),
    ("regression", (TEXTS, np.array([1.5, 2, 3])), {"label": ["1.5", "2.0", "3.0"]}),
    ("multi_label", (TEXTS, [{"b", "a"}, [], "b,c"]), {"label": ["a,b", "", "b,c"]}),
    ("multi_label", (TEXTS, [{"cow": 0, "sea": 1}, {"cow": 1}, {"cow": 1, "sea": 1}]), NAMES),
    ("multi_label label_column=cow,sea", MARKS, NAMES),
    ("multi_label label_column=cow,sea", (TEXTS, [["sea"], "cow", ["sea", "cow"]]), NAMES),
    ("embedding negatives=no", {**PAIRS, "no": [*"x y"]}, {"negatives": [["x"], [" "], ["y"]]}),
    ("embedding negatives=no*", {**PAIRS, "no1": [*"x y"], "no0": [*"abc"]}, {"negatives": WRONG}),
    ("embedding negatives=no*", {**PAIRS, "no": WRONG}, {"negatives": WRONG}),
    ("embedding embedding_loss=cosent", (PAIR, [1.5, 2]), {"label": ["1.5", "2"]}),
    (  # files were split at every white space of Unicode: labels shifted
        "tags",
        ([["a\u00a0b", "c\u3000"], ["d"]], [["X\u2003", "Y"], ["Y"]]),
        {"words": ["a\u00a0b c\u3000", "d"], "label": ["X\u2003 Y", "Y"]},
    ),
    ("tagging", (["a  b", "c"], ["I-X O", "O"]), {"words": ["a b", "c"], "label": ["B-X O", "O"]}),
    ("tagging text_column=tokens", {"tokens": [["a"]], "labels": [["S-X"]]}, {"label": ["B-X"]}),
    ("swag", ((["He"], [["ran", "sat"]]), ["B"]), {"context": ["He"], "choices": [["ran", "sat"]]}),
    ("swag", SWAG, {"choices": [["She ran", "She sat"]], "label": ["1"]}),
    (
        "swag",
        {"sent1": [""], "sent2": ["b"], "ending": [["a", "c"]], "label": [0]},
        {"choices": [["b a", "b c"]]},
    ),
    ("squad", ((["?"], ["a sea"]), ["sea"]), {"id": ["0"], "span": [[2, 5]]}),
    ("squad2", SQUAD, {"id": ["7", "b", "9"], "answers": [["sea"], ["sea"], []]}),
]


@for_each("case data values", *READ_BACK)
def test_examples_in_memory_become_files_that_are_read_back(case, data, values, tmp_path):
    name, *settings = case.split()
    task = find_task(name).with_settings(dict(setting.split("=") for setting in settings))
    task, table, columns = table_in_memory(task, data)
    examples = task.examples(table, columns)
    assert {role: examples.columns[role] for role in values} == values
    path = write_table(tmp_path / "train.jsonl", table)
    assert task.read(path, "train").columns == examples.columns


def options(tmp_path, **changed):
    paths = {"model": str(tmp_path / "m"), "output": str(tmp_path / "run")}
    return FinetuningOptions(**{**paths, "train": (TEXTS, LABELS), **changed})


def lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_pairs_splits_and_columns(tmp_path):
    pairs = options(tmp_path, train=(([*TEXTS], [*TEXTS]), LABELS))
    with examples_as_files(pairs) as files:
        assert files.pair_column == "text_pair"
        row = {"text": "a bad one", "text_pair": "a bad one", "label": "bad"}
        assert lines(files.train)[1] == row
    splits = {"train": (TEXTS, LABELS), "validation": (["x"], ["y"])}
    split = {name: {"review": x, "label": y} for name, (x, y) in splits.items()}
    named = options(tmp_path, train=None, data=split, text_column="review")
    with examples_as_files(named) as files:
        assert files.data is None
        assert lines(files.validation) == [{"review": "x", "label": "y"}]


def test_a_begun_run_keeps_its_data(tmp_path):
    with examples_as_files(options(tmp_path)) as files:
        (tmp_path / "run" / "config.yaml").write_text("")
    with examples_as_files(options(tmp_path)):
        pass
    other = {"train": (TEXTS[:2], LABELS[:2])}
    begun = examples_as_files(options(tmp_path, **other))
    refused("holds a run with other data for train", begun.__enter__)
    assert len(lines(files.train)) == 3
    with examples_as_files(options(tmp_path, **other, override=True)):
        assert len(lines(files.train)) == 2


def test_paths_and_a_dry_run_leave_no_file_and_examples_are_kept_beside_the_run(tmp_path):
    with examples_as_files(options(tmp_path, dry_run=True)) as files:
        assert len(lines(files.train)) == 3
    assert not list(tmp_path.iterdir())
    paths = options(tmp_path, train="a.tsv")
    with examples_as_files(paths) as files:
        assert files is paths
    with examples_as_files(options(tmp_path, validation={"text": ["x"], "label": [1]})) as files:
        pass
    assert files.train == str(tmp_path / "run" / "data" / "train.jsonl")
    assert lines(files.train)[0] == {"text": "a good film", "label": "good"}
    assert lines(files.validation) == [{"text": "x", "label": 1}]


def test_documents_lie_beside_the_output_until_the_end(tmp_path):
    given = VocabularyOptions(output=str(tmp_path / "out"), text_field="body")
    with documents_as_file(replace(given, documents=np.array(["one", "two\nlines"]))) as files:
        (path,) = files.corpus
        assert lines(path) == [{"body": "one"}, {"body": "two\nlines"}]
    assert not list(tmp_path.iterdir())
    one = replace(given, documents=["one"])
    with pytest.raises(KeyboardInterrupt), documents_as_file(one, ".journal") as files:
        (path,) = files.corpus
        (tmp_path / "out" / ".journal").mkdir(parents=True)
        raise KeyboardInterrupt
    assert lines(path) == [{"body": "one"}]
    before = Path(path).stat()
    with documents_as_file(one, ".journal") as files:  # the unfinished work goes on with it
        assert files.corpus == [path]
        assert Path(path).stat() == before
    for documents, message in (
        (["a", None], "document 1 is None: give a text"),
        ("a text", "documents is 'a text': give a list"),
        ([], "documents is empty"),
        (["\ud800"], "document 0 is not valid Unicode"),
    ):
        other = replace(given, documents=documents)
        with pytest.raises(InputError, match=message), documents_as_file(other):
            pass


def test_files_of_others_are_not_replaced(tmp_path):
    theirs = [tmp_path / "run" / "data" / "train.jsonl", tmp_path / "out.documents.jsonl"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    made = examples_as_files(options(tmp_path))
    refused(r"data/train\.jsonl: would be replaced, and no run of", made.__enter__)
    given = VocabularyOptions(documents=["one"], output=str(tmp_path / "out"))
    with documents_as_file(given):
        pass
    assert [path.read_text() for path in theirs] == ["theirs", "theirs"]
    theirs[0].unlink()
    for texts in (TEXTS[:2], TEXTS[:3]):  # its own file, of a run that was not begun
        with examples_as_files(options(tmp_path, train=(texts, LABELS[: len(texts)]))) as files:
            assert len(lines(files.train)) == len(texts)
    several = examples_as_files(options(tmp_path, seeds=2), SEEDS)
    refused("holds a run of one seed, not runs of several seeds", several.__enter__)
