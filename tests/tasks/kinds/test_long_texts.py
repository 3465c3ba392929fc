"""--long_texts windows: every token counts, in training, evaluation and exports alike."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from rounding import assert_equal_but_for_rounding, rounding
from small_runs import finetuning
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, save_model
from bert_tf.commands.finetuning import finetune
from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer
from bert_tf.models.task_models import BertClassifier, BertSentenceEncoder
from bert_tf.serving.predictor import Predictor, answer
from bert_tf.tasks.table import TASKS

WORDS = ["sea", "cow", "the", "and", "of"]
TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
CONFIG = tiny_config(
    10,
    "1x16x2",
    max_position_embeddings=8,
    initializer_range=0.2,
    intermediate_size=16,
    dropout=0.0,
)


def task_of(**settings):
    return TASKS["classification"].with_settings(
        {"long_texts": "windows", "max_length": 8, **settings}
    )


def assert_close(found, expected):
    """Equal but for a block and a head in batches of other shapes."""
    assert_equal_but_for_rounding(found, expected, 30, 16)


def texts(number, seed):
    """Long texts whose only telling word is behind the first window."""
    draw = np.random.default_rng(seed)
    for i in range(number):
        words = draw.choice(WORDS[2:], size=draw.integers(20, 30)).tolist()
        words[draw.integers(10, len(words))] = WORDS[i % 2]
        yield " ".join(words), ("wet", "dry")[i % 2]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_answers_pool_the_outputs_of_all_windows(pooling):
    model = BertClassifier(CONFIG, labels=["a", "b"], seed=3)
    tuned = Answerer(task_of(doc_stride=4, window_pooling=pooling), model, TOKENIZER, ["a", "b"])
    given = ["", "sea cow the", "sea the and cow of the sea and cow"]
    found = tuned.function()(text=tf.constant(given))
    rows = [[], [5, 6, 7], [5, 7, 8, 6, 9, 7], [9, 7, 5, 8, 6]]
    ids = np.array([[2, *row, 3] + [0] * (6 - len(row)) for row in rows])
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": (ids > 0).astype(int)}
    each = np.array(model(inputs, training=False))
    pooled = [each[0], each[1], getattr(np, pooling)(each[2:], axis=0)]
    shares = np.array(tf.nn.softmax(np.stack(pooled)))
    assert_close(found["probability"], shares.max(1))
    assert found["truncated"].numpy().tolist() == [0, 0, 0]
    # Training sees the same.
    kind = tuned.task.kind
    batch, _ = kind.batch({"text": tf.constant(given)}, [tf.zeros([3])], TOKENIZER, 8)
    assert batch["token_ids"].shape[:2] == (3, 2)
    assert_close(kind.trained(model)(batch), np.stack(pooled))


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("max", False)])
def test_vectors_pool_those_of_all_windows(pooling, normalize):
    settings = {"long_texts": "windows", "max_length": 8, "doc_stride": 4, "normalize": normalize}
    task = TASKS["embedding"].with_settings({**settings, "window_pooling": pooling})
    model = BertSentenceEncoder(CONFIG, normalize=normalize, seed=3)
    tuned = Answerer(task, model, TOKENIZER)
    given = ["", "sea cow the", "sea the and cow of the sea and cow"]
    found = tuned.function("compare")(text=tf.constant(given), text_pair=tf.constant(given[::-1]))
    rows = [[], [5, 6, 7], [5, 7, 8, 6, 9, 7], [9, 7, 5, 8, 6]]
    ids = np.array([[2, *row, 3] + [0] * (6 - len(row)) for row in rows])[:, np.newaxis]
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": (ids > 0).astype(int)}
    each = np.array(model(inputs, training=False))[:, 0]
    pooled = np.stack([each[0], each[1], getattr(np, pooling)(each[2:], axis=0)])
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True) if normalize else pooled
    assert_close(found["vector"], expected)
    assert_close(found["vector_pair"], expected[::-1])
    assert found["truncated"].numpy().tolist() == [0, 0, 0]
    none = tuned.function()(text=tf.constant([], tf.string))
    assert none["vector"].shape == (0, 16)
    # Training sees the same; losses give vectors their length.
    strings = {"text": tf.constant(given), "text_pair": tf.constant(given[::-1])}
    batch, _ = task.kind.batch(strings, [tf.zeros([3])], TOKENIZER, 8)
    assert batch["token_ids"].shape[:3] == (3, 2, 2)
    trained = task.kind.trained(model)(batch)
    both = np.stack([pooled, pooled[::-1]], 1)
    assert_close(trained, both)


@pytest.mark.slow
def test_vectors_of_long_texts_find_what_cutting_loses(tmp_path, exports_of):
    """The first half of all texts is the same: what tells them apart is behind the first window."""
    config = replace(CONFIG, vocab_size=30, hidden_size=32, num_attention_heads=4)
    words = [f"w{number}" for number in range(24)]
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", *words])
    save_model(BertEncoder(config, seed=1), tmp_path / "encoder", tokenizer)
    rows = [f"{'the ' * 12}{word} the\t{'the ' * 9}{word}" for word in words]
    (tmp_path / "pairs.tsv").write_text("\n".join(["text\ttext_pair", *rows]) + "\n")
    pairs = tmp_path / "pairs.tsv"
    data = {"task": "embedding", "train": pairs, "validation": pairs}
    options = finetuning(tmp_path, **data, epochs=20, batch_size=12, long_texts="windows")
    result = finetune(options)
    assert result.evaluation.scores["recall_at_1"] > 0.9
    best = Answerer.from_directory(tmp_path / "run" / "best")
    assert best.task.kind.long_texts == "windows"
    with exports_of("serving_default", "compare"):
        predictor = Predictor(best.export("model", root=tmp_path / "served"))
    examples = best.task.read(options.validation, "validation")
    served = answer(predictor.signature("compare"), best.evaluated_strings(examples), 7)
    np.testing.assert_allclose(
        served["score"], result.evaluation.answered.answers["score"], atol=rounding(30, 32)
    )
    cut = finetune(replace(options, long_texts=None, output=str(tmp_path / "cut"), epochs=2))
    assert cut.evaluation.scores["recall_at_1"] < 0.2


def options_of(tmp_path):
    save_model(BertEncoder(CONFIG, seed=1), tmp_path / "encoder", TOKENIZER)
    for split, number in (("train", 96), ("validation", 40)):
        rows = ["\t".join(row) for row in texts(number, len(split))]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    windows = {"long_texts": "windows", "window_pooling": "max"}
    return finetuning(tmp_path, epochs=6, histograms_every=40, **windows)


@pytest.mark.slow
def test_windows_learn_what_cutting_loses(tmp_path, exports_of):
    options = options_of(tmp_path)
    result = finetune(options)
    assert result.score == 1.0
    assert "cut: 0 of 40 texts; long ones are read in windows" in result.evaluation.remarks
    best = Answerer.from_directory(tmp_path / "run" / "best")  # task.json says how
    examples = best.task.read(options.validation, "validation")
    with exports_of("serving_default"):
        predictor = Predictor(best.export("model", root=tmp_path / "served"))
    served = answer(predictor.signature("serving_default"), {"text": examples.columns["text"]}, 7)
    assert [x.decode() for x in served["label"]] == examples.columns["label"]


def test_windows_that_lose_text_are_refused(tmp_path):
    with pytest.raises(InputError, match="--doc_stride 7 is above the 6 word pieces of a window"):
        task_of(doc_stride=7).kind.batch({"text": tf.constant(["a"])}, [], TOKENIZER, 8)
    with pytest.raises(InputError, match="--doc_stride is not for the task classification"):
        finetune(replace(options_of(tmp_path), long_texts=None, doc_stride=4))
