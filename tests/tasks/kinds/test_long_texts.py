from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from rounding import assert_equal_but_for_rounding, rounding
from small_runs import finetuning
from tiny import tiny_config

from bert_tf import BertClassifier, BertEncoder, BertSentenceEncoder, BertTokenizer, save_model
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.serving.predictor import Predictor, answer
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer
from bert_tf.text.opening import load_answerer

WORDS = ["sea", "cow", "the", "and", "of"]
TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
CONFIG = tiny_config(10, "1x16x2", max_position_embeddings=8, initializer_range=0.2, dropout=0.0)
SETTINGS = {"long_texts": "windows", "max_length": 8, "doc_stride": 4}
TEXTS = ["", "sea cow the", "sea the and cow of the sea and cow"]
WINDOWS = [[], [5, 6, 7], [5, 7, 8, 6, 9, 7], [9, 7, 5, 8, 6]]  # of the texts, two of the last
IDS = np.array([[2, *row, 3] + [0] * (6 - len(row)) for row in WINDOWS])
INPUTS = {"token_ids": IDS, "segment_ids": 0 * IDS, "padding_mask": (IDS > 0).astype(int)}


def pooled(outputs, pooling):
    """The outputs of the texts, from those of their windows."""
    outputs = np.array(outputs)
    return np.stack([*outputs[:2], getattr(np, pooling)(outputs[2:], axis=0)])


def assert_close(found, expected):
    """Equal but for a block and a head in batches of other shapes."""
    assert_equal_but_for_rounding(found, expected, 30, 16)


def test_answers_pool_the_outputs_of_all_windows():
    model = BertClassifier(CONFIG, labels=["a", "b"], seed=3)
    task = TASKS["classification"].with_settings({**SETTINGS, "window_pooling": "mean"})
    tuned = Answerer(task, model, TOKENIZER, ["a", "b"])
    found = tuned.function()(text=tf.constant(TEXTS))
    logits = pooled(model(INPUTS, training=False), "mean")
    assert_close(found["probability"], np.max(tf.nn.softmax(logits), 1))
    assert found["truncated"].numpy().tolist() == [0, 0, 0]
    # Training sees the same.
    batch, _ = task.kind.batch({"text": tf.constant(TEXTS)}, [tf.zeros([3])], TOKENIZER, 8)
    assert batch["token_ids"].shape[:2] == (3, 2)
    assert_close(task.kind.trained(model)(batch), logits)


@for_each("pooling normalize", ("max", True), slow("mean", False))
def test_vectors_pool_those_of_all_windows(pooling, normalize):
    settings = {**SETTINGS, "normalize": normalize, "window_pooling": pooling}
    task = TASKS["embedding"].with_settings(settings)
    model = BertSentenceEncoder(CONFIG, normalize=normalize, seed=3)
    tuned = Answerer(task, model, TOKENIZER)
    strings = {"text": tf.constant(TEXTS), "text_pair": tf.constant(TEXTS[::-1])}
    found = tuned.function("compare")(**strings)
    inputs = {name: values[:, np.newaxis] for name, values in INPUTS.items()}
    vectors = pooled(model(inputs, training=False)[:, 0], pooling)
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors
    assert_close(found["vector"], expected)
    assert_close(found["vector_pair"], expected[::-1])
    assert found["truncated"].numpy().tolist() == [0, 0, 0]
    none = tuned.function()(text=tf.constant([], tf.string))
    assert none["vector"].shape == (0, 16)
    # Training sees the same; losses give vectors their length.
    batch, _ = task.kind.batch(strings, [tf.zeros([3])], TOKENIZER, 8)
    assert batch["token_ids"].shape[:3] == (3, 2, 2)
    both = np.stack([vectors, vectors[::-1]], 1)
    assert_close(task.kind.trained(model)(batch), both)


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
    result = run_finetuning(options)
    assert result.evaluation.scores["recall_at_1"] > 0.9
    best = load_answerer(tmp_path / "run" / "best")
    assert best.task.kind.long_texts == "windows"
    with exports_of("serving_default", "compare"):
        predictor = Predictor(best.export("model", root=tmp_path / "served"))
    examples = best.task.read(options.validation, "validation")
    served = answer(predictor.signature("compare"), best.evaluated_strings(examples), 7)
    expected = result.evaluation.answered.answers["score"]
    np.testing.assert_allclose(served["score"], expected, atol=rounding(30, 32))
    cut = run_finetuning(replace(options, long_texts=None, output=str(tmp_path / "cut"), epochs=2))
    assert cut.evaluation.scores["recall_at_1"] < 0.2
