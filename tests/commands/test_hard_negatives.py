"""`finetune --mine_negatives`: which texts are chosen, and runs that train with them."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from command_line import words
from small_runs import finetuning
from stored_models import run_peer  # tests/checkpoints/stored_models.py
from tiny import tiny_config

from bert_tf import BertSentenceEncoder, BertTokenizer, save_model
from bert_tf.cli import main
from bert_tf.commands import finetuning_run, hard_negatives
from bert_tf.commands.finetuning_data import FinetuningData
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.commands.hard_negatives import with_mined_negatives
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.opening import load_answerer

PEER = Path(__file__).with_name("hard_negatives_peer.py")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn", "wind"]
CONFIG = tiny_config(len(PIECES), intermediate_size=8, initializer_range=0.5)
PAIRS = [("sea", "ship"), ("cow", "barn"), ("wind", "sea wind"), ("barn", "cow"), ("ship", "sea")]


def at(*degrees):
    """Vectors of these angles and any length."""
    angles = np.radians(degrees)
    lengths = 1 + np.arange(len(angles))[:, None]
    return lengths * np.stack([np.cos(angles), np.sin(angles)], 1)


def found(vectors, pairs, count):
    return hard_negatives.hard_negatives(vectors, np.array(pairs), count).tolist()


def test_the_nearest_texts_are_chosen_that_are_surely_wrong():
    # Five second texts, and the question (5) with the pair's similarity cos 30 = 0.87: text 1 is
    # nearer, and text 2 (cos 32 = 0.85) is less than 5% less similar.
    vectors = at(30, 5, -32, 60, -40, 0)
    pairs = [(5, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert found(vectors, pairs, 2)[0] == [4, 3]
    # Other right answers of the question are none, whatever their similarity, nor is the question.
    assert found(vectors, [*pairs, (5, 4)], 2)[0] == [3, 0]
    assert found(vectors, [(4, 0), *pairs[1:]], 1)[0] == [3]


def test_the_pair_s_own_text_fills_what_is_missing():
    assert found(at(30, 50, 10, 0), [(3, 0), (3, 1), (2, 2)], 2) == [[0, 0], [1, 1], [0, 1]]
    assert found(at(0, 10), [(1, 0)], 3) == [[0, 0, 0]]


def test_blocks_and_ties_change_nothing(monkeypatch):
    draw = np.random.default_rng(0)
    vectors = draw.choice([-1.0, 1.0], (40, 4))  # many equal ones; all products are exact
    pairs = np.stack([draw.integers(0, 40, 60), draw.integers(0, 25, 60)], 1)
    pairs[0, 1] = 24
    done = []
    whole = hard_negatives.hard_negatives(vectors, pairs, 4)
    monkeypatch.setattr(hard_negatives, "_SIMILARITIES", 7 * 25)
    blocks = hard_negatives.hard_negatives(vectors, pairs, 4, lambda *x: done.append(x[1:]))
    np.testing.assert_array_equal(blocks, whole)
    assert done[0] == (7, 60) and done[-1] == (60, 60)


@pytest.fixture
def folder(tmp_path):
    model = BertSentenceEncoder(CONFIG, "mean", True, seed=1)
    save_model(model, tmp_path / "model", BertTokenizer(PIECES), max_length=12)
    rows = ["text\ttext_pair", *("\t".join(pair) for pair in PAIRS)]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


def embedding(folder, **options):
    data = {"model": folder / "model", "train": folder / "pairs.tsv", "batch_size": 3}
    return finetuning(folder, **data, validation=folder / "pairs.tsv", task="embedding", **options)


def test_the_model_chooses_by_its_own_vectors(folder):
    options = embedding(folder).with_defaults_of(TASKS["embedding"])
    model = load_answerer(folder / "model")
    data = FinetuningData.read(model.task, options)
    mined = with_mined_negatives(data, model, 1, 2, lambda *_: None)
    vectors = {
        text: model.function()(text=tf.constant([text]))["vector"][0].numpy()
        for pair in PAIRS
        for text in pair
    }
    for (question, right), (wrong,) in zip(PAIRS, mined.columns["negatives"], strict=True):
        near = {text: vectors[question] @ vectors[text] for _, text in PAIRS}
        limit = near[right] - 0.05 * abs(near[right])
        others = {x: n for x, n in near.items() if x not in (question, right) and n <= limit}
        assert wrong == max(others, key=others.get, default=right)
    assert mined.arrays[0].shape == (5, 3)


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
def test_they_are_those_of_sentence_transformers(folder):
    (folder / "pairs.json").write_text(json.dumps(PAIRS))
    names = [folder / name for name in ("model", "pairs.json", "out.npz")]
    theirs = run_peer("hugging-face", PEER, *names)["mined"].tolist()
    model = load_answerer(folder / "model")
    data = FinetuningData.read(model.task, embedding(folder).with_defaults_of(TASKS["embedding"]))
    mined = with_mined_negatives(data, model, 2, 2, lambda *_: None).columns["negatives"]
    ours = {pair: wrong for pair, wrong in zip(PAIRS, mined, strict=True) if pair[1] not in wrong}
    # They leave pairs out that have too few, and may take the question itself.
    others = [row for row in theirs if row[0] not in row[2:]]
    assert others
    for question, right, *wrong in others:
        assert ours[question, right] == wrong


def test_a_run_trains_with_them_and_says_so(folder, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(
        finetuning_run,
        "with_mined_negatives",
        lambda *args: seen.append(with_mined_negatives(*args)) or seen[-1],
    )
    files = {"model": folder / "model", "train": folder / "pairs.tsv"}
    files["validation"] = files["train"]
    line = "finetune --task embedding --mine_negatives 2 --epochs 1 --batch_size 3 --max_length 8"
    assert main(words(line, **files, output=folder / "run")) == 0
    shown = capsys.readouterr().err
    assert "hard negatives: 2 for each pair" in shown
    assert "finding hard negatives" in shown
    batch, numbers = next(iter(seen[0].batches(5, seed=0)))
    assert batch["token_ids"].shape[:2] == numbers.shape == (5, 4)
    # The model is as others: nothing of its data is recorded.
    assert load_answerer(folder / "run" / "best").task.kind.negatives is None


@for_each(
    "options message",
    ({"embedding_loss": "simcse"}, "is for infonce"),
    ({"negatives": "wrong"}, "without negatives of their own"),
)
def test_what_cannot_be_mined_is_refused(folder, options, message):
    refused(message, run_finetuning, embedding(folder, mine_negatives=1, **options))


def test_other_tasks_refuse_it(folder):
    options = finetuning(folder, model=folder / "model", task="classification", mine_negatives=1)
    refused("--mine_negatives is not for the task classification", run_finetuning, options)
