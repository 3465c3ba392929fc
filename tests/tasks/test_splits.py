"""The split into training and validation examples: nothing is on both sides."""

import json

import numpy as np
import pytest

from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning_data import FinetuningData, duplicates
from bert_tf.errors import InputError
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.splits import split, split_keys
from bert_tf.tasks.table import TASKS


def sides(task, examples, share=0.1, seed=1):
    """Training and validation examples."""
    unit, keys = split_keys(task.kind, task, examples)
    targets = task.kind.targets(examples, task.kind.label_names(task, examples))
    return [examples.take(part) for part in split(targets, keys, share, seed, unit=unit)]


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1001])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.34, 0.9])
def test_different_examples_are_split_as_ever(count, share):
    """Runs from before examples were kept together can be resumed."""
    targets = np.random.default_rng(count).integers(0, 3, count)
    order = np.random.default_rng(5).permutation(count)
    order = order[np.argsort(targets[order], kind="stable")]
    number = min(count, max(1, round(count * share)))
    places = ((np.arange(number) + 0.5) * count / number).astype(int)
    kept, aside = split(targets, range(count), share, 5)
    assert aside.tolist() == sorted(order[places])
    assert sorted([*kept, *aside]) == list(range(count))


@pytest.mark.parametrize("seed", range(5))
def test_examples_with_one_key_stay_together(seed):
    draw = np.random.default_rng(seed)
    keys = draw.integers(0, 100, 1000)
    kept, aside = split(draw.integers(0, 2, 1000), keys, 0.1, seed)
    assert not set(keys[kept]) & set(keys[aside])
    assert sorted([*kept, *aside]) == list(range(1000))
    largest = np.bincount(keys).max()
    assert abs(len(aside) - 100) <= largest / 2  # of the key that is due next
    assert aside.tolist() != split(np.zeros(1000), keys, 0.1, seed + 1)[1].tolist()


def test_keys_larger_than_the_share():
    """The smallest context is set aside, if there is another; a text is divided."""
    kept, aside = split(np.zeros(10), [*"aaaaaabbbb"], 0.1, 1, unit="context")
    assert (kept.tolist(), aside.tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    kept, aside = split(np.zeros(10), ["a"] * 10, 0.1, 1, unit="context")
    assert (len(kept), len(aside)) == (0, 10)
    keys = ["frequent"] * 60 + [str(n // 2) for n in range(40)]
    kept, aside = split(np.zeros(100), keys, 0.1, 1)
    assert not {keys[i] for i in kept} & {keys[i] for i in aside} - {"frequent"}
    assert (aside < 60).sum() == 6 and len(aside) == 10


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
    assert found == (
        "also in train: 2 of 3 validation examples (1 with the same label) and the context of 3"
    )


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
    assert found == (
        "also in train: 4 of 8 validation examples (4 with the same label) and the document of 0"
    )
    # A document that is there twice stays on one side, too.
    path.write_text("".join("-DOCSTART- O\n\n" + "".join(each) for each in documents * 2))
    train, validation = sides(task, task.read(path, "train"))
    assert not set(train.columns["words"]) & {w for w in validation.columns["words"] if "word" in w}


def test_sentences_of_a_file_without_documents_are_split_one_by_one(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("".join(f"word{n // 2} B-PER\n\n" for n in range(40)))
    train, validation = sides(TASKS["conll2003"], TASKS["conll2003"].read(path, "train"))
    assert (len(train), len(validation)) == (36, 4)
    assert not set(train.columns["words"]) & set(validation.columns["words"])


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("classification", {"text": [*"aabcdefghi"], "label": [*"xyxyxyxyxy"]}),
        ("regression", {"text": [*"aabcdefghi"], "label": [*"0123456789"]}),
        ("mrpc", {"text": ["s"] * 10, "text_pair": [*"aabcdefghi"], "label": [*"0101010101"]}),
        (
            "choice",
            {
                "context": ["s"] * 10,
                "choices": [[c, "z"] for c in "aabcdefghi"],
                "label": [*"0101010101"],
            },
        ),
    ],
)
def test_equal_rows_stay_together_and_are_counted(name, columns):
    task = TASKS[name].with_settings({"pair_column": "p"} if "text_pair" in columns else {})
    examples = Examples("d.tsv", [*range(10)], columns)
    unit, keys = split_keys(task.kind, task, examples)
    assert unit == "text" and len(set(keys)) == 9 and keys[0] == keys[1] != keys[2]
    test = Examples("t.tsv", [0], {k: v[:1] for k, v in columns.items() if k != "label"})
    splits = {"train": examples.take(range(5)), "validation": examples.take([0, 4, 9])}
    assert duplicates(task, splits) == (
        "also in train: 2 of 3 validation examples (2 with the same label)"
    )
    assert duplicates(task, {**splits, "test": test}) == (
        "also in train: 2 of 3 validation examples (2 with the same label), 1 of 1 test examples; "
        "also in validation: 1 of 1 test examples"
    )
    other = examples.take([0, 4])
    other.columns["label"][1] = "1"
    assert "2 of 2 validation examples (1 with" in duplicates(task, {**splits, "validation": other})


def read(folder, train, **more):
    """Reads as a run does; the model directory has no more than it needs."""
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", encoding="utf-8")
    sizes = dict.fromkeys(
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"), 1
    )
    (folder / "config.json").write_text(json.dumps({"vocab_size": 6, **sizes}))
    (folder / "model.safetensors").write_bytes(b"")
    task = TASKS[more.pop("task", "classification")]
    options = FinetuningOptions(
        model=str(folder), train=str(train), output="run", validation_share=0.3, seed=1, **more
    )
    return FinetuningData.read(task, options)


def test_a_run_that_was_split_otherwise_is_not_resumed(tmp_path):
    """Only a split that keeps examples together is in a run's settings, by name."""
    path = tmp_path / "d.tsv"
    path.write_text("text\tlabel\na\tx\nb\ty\nc\tx\nd\ty\n")
    data = read(tmp_path, path)
    assert data.settings().keys() == {"labels", "train", "validation"}
    assert data.doubts == ["also in train: 0 of 1 validation examples"]
    path.write_text("text\tlabel\n" + "a\tx\nb\ty\nc\tx\nd\ty\ne\tx\n" * 2)
    data = read(tmp_path, path)
    assert data.settings()["validation_share"] == "by text"
    assert not set(data.train.columns["text"]) & set(data.validation.columns["text"])
    row = {"context": "cow", "answers": [{"text": "cow", "answer_start": 0}], "question": "a"}
    path = tmp_path / "q.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 3)
    with pytest.raises(InputError, match="3 examples with 1 different contexts are too few"):
        read(tmp_path, path, task="squad")


def test_duplicates_in_published_test_examples_are_counted(tmp_path):
    header = "sentence1\tsentence2\tlabel\n"
    for name, rows in {
        "train": "a\tb\tentailment\nc\td\tnot_entailment\n",
        "dev": "a\tb\tnot_entailment\nx\td\tnot_entailment\n",
    }.items():
        (tmp_path / f"{name}.tsv").write_text(header + rows)
    (tmp_path / "test.tsv").write_text("sentence1\tsentence2\nc\td\nx\td\ny\ty\n")
    assert read(tmp_path, tmp_path, task="rte").doubts[-1] == (
        "also in train: 1 of 2 validation examples (0 with the same label), 1 of 3 test examples; "
        "also in validation: 1 of 3 test examples"
    )
    (tmp_path / "test.tsv").write_text("broken")
    assert "test examples" not in read(tmp_path, tmp_path, task="rte").doubts[-1]


@pytest.mark.parametrize("seed", range(5))
def test_the_split_is_stratified(seed):
    """A rare class could miss the validation examples, or be in them alone."""
    targets = np.random.default_rng(9).permutation([0] * 80 + [1] * 20)
    kept, aside = split(targets, range(100), 0.1, seed)
    assert sorted([*kept, *aside]) == list(range(100))
    assert np.bincount(targets[aside]).tolist() == [8, 2]
    assert aside.tolist() != split(targets, range(100), 0.1, seed + 1)[1].tolist()
    assert aside.tolist() == split(targets, range(100), 0.1, seed)[1].tolist()
