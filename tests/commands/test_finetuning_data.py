import json
from dataclasses import replace

import numpy as np
import tensorflow as tf
from cases import for_each, refused

from bert_tf import BertConfig, BertTokenizer
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning_data import FinetuningData, duplicates
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.splits import split, split_keys
from bert_tf.tasks.task_table import TASKS

LENGTH, SIZE = 16, 4
WORDS = ["a", "b", "c", "##c"]
TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
TEXTS = [" ".join(["a", "bc"] * (1 + i % 5)) for i in range(10)]  # 3, 6, 9, 12 or 15 pieces
OTHERS = ["b" + " c" * (i % 3) for i in range(10)]
CLASSES = np.zeros(10, np.int32)
QUESTIONS = {"question": OTHERS, "context": TEXTS, "window": np.zeros(10, np.int32)}
TAGS = np.array([[i % 3 if i < len(t.split()) else -1 for i in range(10)] for t in TEXTS])
# Task -> columns, targets; whether each row's length is known exactly.
ROWS = {
    "classification": ({"text": TEXTS, "text_pair": OTHERS}, CLASSES, True),
    "choice": ({"context": TEXTS, "choices": [[t, "a b c a"] for t in OTHERS]}, CLASSES, True),
    "squad": (QUESTIONS, np.zeros([10, 2], np.int32), False),
    "tagging": ({"words": TEXTS}, TAGS, False),
}


def data(task: str) -> FinetuningData:
    columns, targets, _ = ROWS[task]
    dataset = TASKS[task].with_settings({"max_length": LENGTH, "pair_column": "p"})
    return FinetuningData(dataset, TOKENIZER, None, [], None, None, [], columns, [targets])


@for_each("task", "choice", "tagging")
def test_fixed_lengths_add_nothing_but_padding(task):
    rows = data(task)
    fixed = rows.batches(2, seed=1, fixed_length=True).take(5)
    tokens = {**fixed.element_spec[0], "": None}
    assert {spec.shape[-1] for name, spec in tokens.items() if name} == {LENGTH}
    shorter = 0
    for padded, batch in zip(fixed, rows.batches(2, seed=1), strict=False):
        shorter += batch[0]["token_ids"].shape[-1] < LENGTH
        for ours, expected in zip(tf.nest.flatten(padded), tf.nest.flatten(batch), strict=True):
            gaps = np.subtract(ours.shape, expected.shape)
            np.testing.assert_array_equal(ours, np.pad(expected, [(0, gap) for gap in gaps]))
    assert shorter


@for_each("task", *[task for task, (*_, exact) in ROWS.items() if exact])
def test_lengths_are_those_of_the_rows(task):
    rows = data(task)
    uncut = rows.task.kind.lengths(rows.columns, TOKENIZER)
    assert (uncut > LENGTH).any() and (uncut < LENGTH).any()
    strings = {name: tf.constant(values) for name, values in rows.columns.items()}
    (inputs, _) = rows.task.kind.batch(strings, [CLASSES], TOKENIZER, LENGTH)
    found = tf.reduce_sum(inputs["padding_mask"], -1)
    found = found if found.shape.rank == 1 else tf.reduce_max(found, -1)
    np.testing.assert_array_equal(found, rows.lengths)
    np.testing.assert_array_equal(rows.lengths, np.minimum(uncut, LENGTH))


@for_each("task", "classification", "tagging")
def test_batches_are_of_like_length_where_each_row_has_one_loss(task):
    """A tagger's loss is a mean over the words of a batch: it would favour short sentences."""
    columns, targets, _ = ROWS[task]
    many = {name: list(values) * 32 for name, values in columns.items()}
    rows = replace(data(task), columns=many, arrays=[np.concatenate([targets] * 32)])
    real = widest = 0
    for inputs, *_ in rows.batches(SIZE, seed=1).take(80):
        mask = inputs["padding_mask"].numpy()
        real, widest = real + mask.sum(), widest + mask.size
    padding = 1 - real / widest
    assert padding > 0.2 if task == "tagging" else padding < 0.15, padding


CHOICES = [[c, "z"] for c in "aabcdefghi"]


def sides(task, examples, share=0.1, seed=1):
    unit, keys = split_keys(task.kind, task, examples)
    targets = task.kind.targets(examples, task.kind.label_names(task, examples))
    return [examples.take(part) for part in split(targets, keys, share, seed, unit=unit)]


def test_all_questions_of_a_context_are_on_one_side():
    numbers = range(1000)
    columns = {
        "id": [*map(str, numbers)],
        "question": [f"question {n}" for n in numbers],
        "context": [f"context {n // 5}" for n in numbers],
        "answers": [["context"]] * 1000,
        "span": [[0, 7]] * 1000,
    }
    task = TASKS["squad"]
    train, validation = sides(task, Examples("q.json", [*numbers], columns))
    assert (len(train), len(validation)) == (900, 100)
    assert not set(train.columns["context"]) & set(validation.columns["context"])
    found = duplicates(task, {"train": train, "validation": validation})
    assert found == "also in train: 0 of 100 validation examples and the context of 0"
    # A file of the user's own that divides contexts: one question is the same, three contexts are.
    elsewhere = validation.take([0, 1, 2])
    own = train.take([0, 0, 1])
    own.columns["question"][1] = "another"
    own.columns["answers"][2] = ["other"]
    elsewhere.columns.update(own.columns)
    found = duplicates(task, {"train": train, "validation": elsewhere})
    told = "also in train: 2 of 3 validation examples (1 with the same label)"
    assert found == f"{told} and the context of 3"


def test_all_sentences_of_a_document_are_on_one_side(tmp_path):
    documents = [[f"word{n} B-PER\n\nlast{n % 3} O\n\n"] for n in range(40)]
    path = tmp_path / "train.txt"
    path.write_text("".join("-DOCSTART- O\n\n" + "".join(each) for each in documents))
    task = TASKS["conll2003"]
    examples = task.read(path, "train")
    train, validation = sides(task, examples)
    assert (len(train), len(validation)) == (72, 8)
    assert not set(train.documents) & set(validation.documents)
    found = duplicates(task, {"train": train, "validation": validation})
    told = "also in train: 4 of 8 validation examples (4 with the same label)"
    assert found == f"{told} and the document of 0"
    # A document that is there twice stays on one side, too.
    path.write_text("".join("-DOCSTART- O\n\n" + "".join(each) for each in documents * 2))
    train, validation = sides(task, task.read(path, "train"))
    assert not set(train.columns["words"]) & {w for w in validation.columns["words"] if "word" in w}
    # Without documents, sentences are split one by one.
    path.write_text("".join(f"word{n // 2} B-PER\n\n" for n in range(40)))
    train, validation = sides(task, task.read(path, "train"))
    assert (len(train), len(validation)) == (36, 4)
    assert not set(train.columns["words"]) & set(validation.columns["words"])


@for_each(
    "name columns",
    ("classification", {"text": [*"aabcdefghi"], "label": [*"xyxyxyxyxy"]}),
    ("regression", {"text": [*"aabcdefghi"], "label": [*"0123456789"]}),
    ("mrpc", {"text": ["s"] * 10, "text_pair": [*"aabcdefghi"], "label": [*"0101010101"]}),
    ("choice", {"context": ["s"] * 10, "choices": CHOICES, "label": [*"0101010101"]}),
)
def test_equal_rows_stay_together_and_are_counted(name, columns):
    task = TASKS[name].with_settings({"pair_column": "p"} if "text_pair" in columns else {})
    examples = Examples("d.tsv", [*range(10)], columns)
    unit, keys = split_keys(task.kind, task, examples)
    assert unit == "text" and len(set(keys)) == 9 and keys[0] == keys[1] != keys[2]
    test = Examples("t.tsv", [0], {k: v[:1] for k, v in columns.items() if k != "label"})
    splits = {"train": examples.take(range(5)), "validation": examples.take([0, 4, 9])}
    told = "also in train: 2 of 3 validation examples (2 with the same label)"
    assert duplicates(task, splits) == told
    told += ", 1 of 1 test examples; also in validation: 1 of 1 test examples"
    assert duplicates(task, {**splits, "test": test}) == told
    other = examples.take([0, 4])
    other.columns["label"][1] = "1"
    assert "2 of 2 validation examples (1 with" in duplicates(task, {**splits, "validation": other})


def read(folder, train, **more):
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", encoding="utf-8")
    BertConfig.named("1x1x1", intermediate_size=1, vocab_size=6).to_json(folder / "config.json")
    (folder / "model.safetensors").write_bytes(b"")
    task = TASKS[more.pop("task", "classification")]
    paths = {"model": str(folder), "train": str(train), "output": "run"}
    options = FinetuningOptions(**paths, validation_share=0.3, seed=1, **more)
    return FinetuningData.read(task, options)


def test_a_run_that_was_split_otherwise_is_not_resumed(tmp_path):
    """Only a split that keeps examples together is in a run's settings, by name."""
    path = tmp_path / "d.tsv"
    path.write_text("text\tlabel\na\tx\nb\ty\nc\tx\nd\ty\n")
    data = read(tmp_path, path)
    assert "validation_share" not in data.settings
    assert data.remarks[0] == "also in train: 0 of 1 validation examples"
    path.write_text("text\tlabel\n" + "a\tx\nb\ty\nc\tx\nd\ty\ne\tx\n" * 2)
    data = read(tmp_path, path)
    assert data.settings["validation_share"] == "by text"
    assert not set(data.train.columns["text"]) & set(data.validation.columns["text"])
    row = {"context": "cow", "answers": [{"text": "cow", "answer_start": 0}], "question": "a"}
    path = tmp_path / "q.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 3)
    refused("3 examples with 1 different contexts are too few", read, tmp_path, path, task="squad")


def test_duplicates_in_published_test_examples_are_counted(tmp_path):
    header = "sentence1\tsentence2\tlabel\n"
    files = {"train": "a\tb\tentailment\nc\td\tnot_entailment\n"}
    files["dev"] = "a\tb\tnot_entailment\nx\td\tnot_entailment\n"
    for name, rows in files.items():
        (tmp_path / f"{name}.tsv").write_text(header + rows)
    (tmp_path / "test.tsv").write_text("sentence1\tsentence2\nc\td\nx\td\ny\ty\n")
    assert read(tmp_path, tmp_path, task="rte").remarks[1] == (
        "also in train: 1 of 2 validation examples (0 with the same label), 1 of 3 test examples; "
        "also in validation: 1 of 3 test examples"
    )
    (tmp_path / "test.tsv").write_text("broken")
    assert "test examples" not in read(tmp_path, tmp_path, task="rte").remarks[1]
