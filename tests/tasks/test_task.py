import pytest
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.tasks.task_table import TASKS

NLI = "index\tsentence1\tsentence2\tlabel\n0\tA.\tC\tnot_entailment\n1\tB.\tD\tentailment"
PAIRS = "index\tsentence1\tsentence2\n0\tA.\tC\n1\tB.\tD"
SENTENCES = "index\tsentence\n0\tA.\n1\tB."
# Task -> the published files: of training or development, of tests.
FILES = {
    "cola": ["gj04\t1\t\tA.\ngj04\t0\t*\tB.", SENTENCES],
    "sst2": ["sentence\tlabel\nA.\t1\nB.\t0", SENTENCES],
    "mrpc": [
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA.\tC\n0\t7\t8\tB.\tD",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tA.\tC\n1\t7\t8\tB.\tD",
    ],
    "qqp": [
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA.\tC\t1\nbroken\n"
        "1\t2\t3\tB.\tD\t0",
        "id\tquestion1\tquestion2\n0\tA.\tC\n1\tB.\tD",
    ],
    "stsb": [
        "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA.\tC\t1\n1\tx\tB.\tD\t0",
        "index\tgenre\tsentence1\tsentence2\n0\tx\tA.\tC\n1\tx\tB.\tD",
    ],
    "mnli": [
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA.\tC\tneutral\tcontradiction\n"
        "1\tB.\tD\tneutral\tentailment",
        PAIRS,
    ],
    "qnli": [
        NLI.replace("sentence1\tsentence2", "question\tsentence"),
        PAIRS.replace("sentence1\tsentence2", "question\tsentence"),
    ],
    "rte": [NLI, PAIRS],
    "wnli": [NLI.replace("not_entailment", "1").replace("entailment", "0"), PAIRS],
}
LABELS = {
    "mnli": ["contradiction", "entailment"],
    "qnli": ["not_entailment", "entailment"],
    "rte": ["not_entailment", "entailment"],
}


@for_each("name", *FILES)
def test_glue_s_files(name, tmp_path):
    task, (labelled, test) = TASKS[name], FILES[name]
    for split, names in task.files.items():
        is_test = split.startswith("test") or split == "ax"
        (tmp_path / names[0]).write_text((test if is_test else labelled) + "\n", encoding="utf-8")
    texts = {"text": ["A.", "B."]}
    if task.pair is not None:
        texts["text_pair"] = ["C", "D"]
    for split, names in task.files.items():
        if split.startswith("test") or split == "ax":
            for data in (tmp_path, tmp_path / names[0]):
                assert task.read(data, split, labelled=False).columns == texts
            message = r"\.tsv has no labels .*: give another --split, or .* with bert-tf predict"
            refused(message, task.read, tmp_path, split)
        else:
            found = task.read(tmp_path, split)
            assert found.columns == {**texts, "label": LABELS.get(name, ["1", "0"])}
            assert found.skipped == ((3,) if name == "qqp" else ())
    # A row that is broken is refused where each needs a prediction.
    if name == "qqp":
        refused(r"train\.tsv, line 3: 1 columns", task.read, tmp_path, "train", labelled=False)


def test_a_file_of_another_name_has_the_columns_of_the_training_data(tmp_path):
    path = tmp_path / "new.tsv"
    path.write_text(FILES["cola"][0])
    assert TASKS["cola"].read(path, "test", labelled=False).columns == {"text": ["A.", "B."]}


def test_what_a_folder_or_a_task_lacks_is_named(tmp_path):
    (tmp_path / "msr_paraphrase_train.txt").write_text(FILES["mrpc"][0])
    mrpc = TASKS["mrpc"]
    assert len(mrpc.read(tmp_path, "train")) == 2
    assert mrpc.has(tmp_path, "train") and not mrpc.has(tmp_path, "validation")
    with pytest.raises(InputError, match=r"lacks dev\.tsv: give the validation .* --split train"):
        mrpc.read(tmp_path, "validation")
    refused("no split 'dev': give one of train, validation, test", mrpc.read, tmp_path, "dev")
    refused(r"is a folder.*: give a file", TASKS["classification"].read, tmp_path, "train")


@for_each(
    "name data split count labels",
    ("cola", "glue/CoLA", "validation", 1043, {"0", "1"}),
    ("sst2", "glue/SST-2", "validation", 872, {"0", "1"}),
    ("mrpc", "glue/MRPC", "train", 4076, {"0", "1"}),
    ("mrpc", "glue/MRPC", "test", 1725, {"0", "1"}),
    ("rte", "glue/RTE", "validation", 277, {"entailment", "not_entailment"}),
    ("wnli", "glue/WNLI", "train", 518, {"0", "1"}),
    ("stsb", "glue/STS", "validation", 1500, None),
    ("conll2003", "conll2003", "test", 3453, None),
    ("conll2003_documents", "conll2003", "test", 231, None),
    ("squad", "squad", "validation", 220, None),
)
def test_real_files(name, data, split, count, labels, shared):
    task = TASKS[name]
    examples = task.read(shared / "data" / data, split)
    assert len(examples) == count and examples.skipped == ()
    if labels:
        assert set(examples.columns["label"]) == labels
    known = task.kind.label_names(task, examples)
    assert len(task.kind.targets(examples, known)) == count


@for_each(
    "name texts",
    *((name, ["sentence"]) for name in ("cola", "sst2")),
    *((name, ["sentence1", "sentence2"]) for name in ("mrpc", "rte", "wnli", "stsb")),
    ("qqp", ["question1", "question2"]),
    ("mnli", ["premise", "hypothesis"]),
    ("qnli", ["question", "sentence"]),
)
def test_glue_in_tensorflow_datasets(name, texts, tensorflow_datasets):
    """Labels by name: the order of MNLI's, QNLI's and WNLI's is not that of the task."""
    record = {**dict(zip(texts, "AB", strict=False)), "label": 3.8 if name == "stsb" else 0}
    with tensorflow_datasets([{**record, "idx": 0}]) as asked:
        found = TASKS[name].read(f"tfds:glue/{name}", "validation")
        unlabelled = TASKS[name].read(f"tfds:glue/{name}", "test", labelled=False)
    first = {"mnli": "entailment", "qnli": "entailment", "rte": "entailment", "stsb": "3.8"}
    assert found.columns["label"] == [first.get(name, "0")]
    assert list(unlabelled.columns.values()) == [["A"], ["B"]][: len(texts)]
    suffix = "_matched" if name == "mnli" else ""
    assert asked == [f"validation{suffix}", f"test{suffix}"]


DIAGNOSTIC = ("mnli", "ax", "ax", ["premise", "hypothesis"])


@for_each("name data split texts", ("cola", "cola", "test", ["sentence"]), DIAGNOSTIC)
def test_splits_without_labels_of_tfds(name, data, split, texts, tensorflow_datasets):
    record = {**dict.fromkeys(texts, "A"), "label": -1, "idx": 0}
    message = r"has no labels .* bert-tf predict"
    with tensorflow_datasets([record]), pytest.raises(InputError, match=message):
        TASKS[name].read(f"tfds:glue/{data}", split)


def test_all_splits_of_mnli_in_tensorflow_datasets(tensorflow_datasets):
    mnli = TASKS["mnli"]
    records = [{"premise": "A", "hypothesis": "B", "label": 2, "idx": 0}]
    with tensorflow_datasets(records) as asked:
        mnli.read("tfds:glue/ax", "ax", labelled=False)
        for split in ("train", "validation_mismatched", "test_mismatched"):
            mnli.read("tfds:glue/mnli", split, labelled=False)
        found = mnli.read("tfds:glue/mnli:2.0.0:validation_matched", "train")
    mismatched = ["validation_mismatched", "test_mismatched"]
    assert asked == ["test", "train", *mismatched, "validation_matched"]
    assert found.columns["label"] == ["contradiction"]
    assert mnli.has("tfds:glue/mnli", "validation")
    assert not mnli.has("tfds:glue/mnli:train", "validation")
    # The split of a name; "test" of another set than ours is no split of ours.
    assert mnli.split_of("tfds:glue/mnli:test_mismatched", "test") == "test_mismatched"
    assert mnli.split_of("tfds:glue/mnli_mismatched:test", "validation") == ""
    assert mnli.split_of("glue/MNLI/diagnostic.tsv") == "ax"
    assert mnli.split_of("own.tsv", "test") == "test"


TAGGED = {"tokens": ["Wolff", "."], "ner": [1, 0], "pos": [0, 0], "chunks": [0, 0]}
QUESTION = {"id": "q", "title": "x", "question": "A?", "context": "B C"}
ANSWER, NONE = {"text": ["C"], "answer_start": [2]}, {"text": [], "answer_start": []}
ANSWERED = {**QUESTION, "answers": ANSWER}
NOT_ANSWERED = {"is_impossible": True, "answers": NONE, "plausible_answers": ANSWER}
READ = {name: [QUESTION[name]] for name in ("id", "question", "context")}


@for_each(
    "name data record columns",
    ("conll2003", "conll2003", TAGGED, {"words": ["Wolff ."], "label": ["B-PER O"]}),
    ("squad", "squad", ANSWERED, {**READ, "answers": [["C"]], "span": [[2, 3]]}),
    ("squad2", "squad/v2.0", QUESTION | NOT_ANSWERED, {**READ, "answers": [[]], "span": [[]]}),
)
def test_other_data_sets_in_tensorflow_datasets(name, data, record, columns, tensorflow_datasets):
    with tensorflow_datasets([record]) as asked:
        assert TASKS[name].read(f"tfds:{data}", "validation").columns == columns
        unlabelled = TASKS[name].read(f"tfds:{data}", "train", labelled=False).columns
    assert unlabelled == {k: v for k, v in columns.items() if k not in ("label", "answers", "span")}
    assert asked == ["dev" if name == "conll2003" else "validation", "train"]
