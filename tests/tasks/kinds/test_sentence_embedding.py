import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from preloaded import run_code  # tests/processes/preloaded.py
from rounding import assert_equal_but_for_rounding
from small_runs import finetuning
from tiny import tiny_config

from bert_tf import BertConfig, BertSentenceEncoder, BertTokenizer, save_model
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.errors import InputError
from bert_tf.models.loading import class_of_kind
from bert_tf.models.task_models import _SentencePooling
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.model_task import task_of_model
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer
from bert_tf.text.opening import load_answerer

TASK = TASKS["embedding"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
CONFIG = tiny_config(len(PIECES), intermediate_size=8, initializer_range=0.5)
PROMPTS = "config_sentence_transformers.json"
SCORED = {"text": ["a", "b", "c"], "text_pair": ["x", "y", "z"], "label": ["1", "2", "3"]}


def kind(**settings):
    return TASK.kind.with_settings(settings)


def assert_close(found, expected):
    """Equal but for a block and a pooling in batches of other shapes."""
    assert_equal_but_for_rounding(found, expected, 30, 8)


def write(path, *rows):
    path.write_text("\n".join(rows).replace("|", "\t") + "\n")
    return path


@pytest.fixture
def model(tmp_path):
    """A model in a directory with a tokenizer; its vectors have any length."""
    model = BertSentenceEncoder(CONFIG, "mean", False, seed=1)
    save_model(model, tmp_path / "model", BertTokenizer(PIECES), max_length=12)
    return model


def read(folder, settings, header):
    """The kind, and what it reads of a file with these columns, which have a, b, c, d."""
    task = TASK.with_settings(settings)
    row = "a|b|c|d"[: 2 * header.count("|") + 1]
    return task.kind, task.read(write(folder / "d.tsv", header, row), "train")


PAIR = {"text": ["a"], "text_pair": ["b"]}
WRONG = {"negatives": [["c", "d"]]}


@for_each(
    "settings header columns",
    ({}, "text|text_pair", PAIR),
    ({"negatives": "wrong*"}, "text|text_pair|wrong0|wrong1", PAIR | WRONG),
    ({"embedding_loss": "cosent"}, "text|text_pair|label", PAIR | {"label": ["c"]}),
    ({"embedding_loss": "simcse"}, "text", {"text": ["a"], "text_pair": ["a"]}),
)
def test_what_a_loss_reads(tmp_path, settings, header, columns):
    assert read(tmp_path, settings, header)[1].columns == columns


@for_each(
    "settings header message",
    ({}, "text|pair", "no column 'text_pair'.*--pair_column"),
    ({"negatives": "wrong"}, "text|text_pair", "no column 'wrong'.*give --negatives"),
    ({"embedding_loss": "cosent"}, "text|text_pair", "no column 'label'.*--label_column"),
    ({"embedding_loss": "cosine"}, "text|text_pair|label", "line 2: the score 'c' is not a n"),
)
def test_mistakes_in_files_are_named(tmp_path, settings, header, message):
    with pytest.raises(InputError, match=message):
        kind, examples = read(tmp_path, settings, header)
        kind.targets(examples, [])


def test_numbers_scores_and_lengths_of_pairs():
    columns = {"text": ["a", "a", "c"], "text_pair": ["b", "c", "b"], "label": ["1", "4", "5"]}
    examples = Examples("d.tsv", [2, 3, 4], columns)
    assert kind().targets(examples, []).tolist() == [[0, 1], [0, 2], [2, 1]]
    wrong = Examples("d.tsv", [2, 3, 4], columns | {"negatives": [["d"], ["a"], ["b"]]})
    assert kind().targets(wrong, []).tolist() == [[0, 1, 2], [0, 3, 0], [3, 1, 1]]
    _, targets = kind(embedding_loss="cosine").training_rows(TASK, examples, [], None)
    np.testing.assert_allclose(targets, [0.2, 0.8, 1.0])
    columns = {"text": ["ship", "ship sea"], "text_pair": ["cow cow", "cow"]}
    for prompt, lengths in (("", [4, 4]), ("sea ", [5, 5])):
        found = kind(prompt=prompt).lengths(columns, BertTokenizer(PIECES))
        assert found.tolist() == lengths


@for_each(
    "pooling expected",
    ("mean", lambda x: x.mean(0)),
    ("max", lambda x: x.max(0)),
    ("last", lambda x: x[-1]),
    ("cls", lambda x: x[0]),
)
def test_poolings_read_tokens_alone(pooling, expected):
    """Of masks with holes, and of negative numbers, which padding is not above."""
    mask = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]])
    states = -1 - np.random.default_rng(0).random((2, 5, 4)).astype(np.float32)
    found = _SentencePooling(BertConfig(), pooling, False)(states, mask, mask[None])
    rows = [expected(row[row_mask > 0]) for row, row_mask in zip(states, mask, strict=True)]
    assert_close(found[0], np.stack(rows))


def test_prompts_and_similarity_of_others_are_honoured(tmp_path, model):
    """Each text becomes what sentence-transformers encodes: its prompt and the text."""
    folder = tmp_path / "model"
    prompts = {"query": "cow ", "passage": "barn ", "every": "ship "}
    said = {"prompts": prompts, "default_prompt_name": "every", "similarity_fn_name": "dot"}
    plain = load_answerer(folder)
    (folder / PROMPTS).write_text(json.dumps(said))
    task = task_of_model(folder)

    def answer(task, signature, **strings):
        strings = {name: tf.constant(values) for name, values in strings.items()}
        return task.kind.signatures(task)[signature].respond(strings, plain)

    texts = ["sea", "barn cow"]
    prompted = [prompt + text for prompt in ("ship ", "cow ", "barn ") for text in texts]
    every, query, document = np.split(answer(plain.task, "embed", text=prompted)["vector"], 3)
    for signature, expected in {"embed": every, "query": query, "document": document}.items():
        assert_close(answer(task, signature, text=texts)["vector"], expected)
    pair = answer(task, "compare", text=texts[:1], text_pair=texts[1:])
    assert_close(pair["score"], [every[0] @ every[1]])
    order = answer(task, "rerank", query=texts[:1], texts=[texts])
    assert_close(order["scores"], [document @ query[0]])
    strings = {"text": tf.constant(texts[:1]), "text_pair": tf.constant(texts[1:])}
    inputs = task.kind.model_inputs(strings, plain.tokenizer, task.max_length)
    assert inputs["token_ids"].numpy().tolist()[0][0] == [2, 6, 5, 3, 0]
    # They are kept, for us and for sentence-transformers.
    assert TASK.with_settings(task.settings()) == task
    (folder / PROMPTS).unlink()
    replace(plain, task=task).save(folder)
    (folder / "task.json").unlink()
    assert task_of_model(folder) == task


def test_similarity_and_reranking_are_cosines(tmp_path, model):
    module = load_answerer(tmp_path / "model").module()
    texts = tf.constant(["sea ship", "cow", ""])
    vectors = module.signature()(text=texts)["vector"].numpy()
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    pair = module.signature("compare")(text=texts[:1], text_pair=texts[1:2])
    assert_close(pair["score"], [vectors[0] @ vectors[1]])
    order = module.signature("rerank")(query=texts[:2], texts=tf.tile(texts[None], [2, 1]))
    assert_close(order["scores"], vectors[:2] @ vectors.T)
    assert module.signature("rerank")(query=[], texts=tf.zeros([0, 0], tf.string))


@for_each("task", slow("mrpc"), "stsb")
def test_models_of_pairs_rerank(task):
    task = TASKS[task].with_settings({"max_length": 8})
    labels = list(task.labels)
    model = class_of_kind(task.kind)(CONFIG, seed=1, **task.kind.head(labels))
    tuned = Answerer(task, model, BertTokenizer(PIECES), labels)
    queries, texts = ["sea ship", "cow " * 20], [["cow", "barn " * 20, ""], ["sea", "sea", "ship"]]
    found = tuned.function("rerank")(query=tf.constant(queries), texts=tf.constant(texts))
    alone = tuned.function()(text=tf.repeat(queries, 3), text_pair=tf.reshape(texts, [-1]))
    if labels:  # the probability of the last
        is_last = alone["labels"] == labels[-1]
        alone["score"] = tf.boolean_mask(alone["probabilities"], is_last)
    assert_close(tf.reshape(found["scores"], [-1]), alone["score"])
    assert found["truncated"].numpy().ravel().tolist() == alone["truncated"].numpy().tolist()
    single = TASKS["classification"]
    assert "rerank" not in single.kind.signatures(single)


def test_features_have_no_vectors_and_fit_compares_no_texts(tmp_path, model):
    with pytest.raises(InputError, match="train it with"):
        BertSentenceEncoder.from_preset(tmp_path / "model").fit(["sea"], ["ship"])
    pairs = write(tmp_path / "pairs.tsv", "text|text_pair", "sea|ship")
    data = {"model": tmp_path / "model", "train": pairs, "validation": pairs}
    options = finetuning(tmp_path, **data, task="embedding", features_only="last")
    refused("--features_only is not for vectors", run_finetuning, options)


@pytest.mark.slow
def test_simcse_is_validated_with_scores(tmp_path, model):
    texts = ["sea ship", "cow barn", "sea cow"] * 2
    alone = write(tmp_path / "alone.tsv", "text", *texts)
    rows = [f"{text}|{text[:3]}|{number % 3}" for number, text in enumerate(texts)]
    scored = write(tmp_path / "scored.tsv", "text|text_pair|label", *rows)
    data = {"model": tmp_path / "model", "train": alone, "validation": alone}
    learning = {"task": "embedding", "embedding_loss": "simcse", "dropout": 0.3, "epochs": 1}
    options = finetuning(tmp_path, **data, **learning)
    refused("has no scores of pairs", run_finetuning, options)
    output = tmp_path / "scored"
    result = run_finetuning(replace(options, validation=str(scored), output=str(output)))
    assert list(result.evaluation.scores) == ["examples", "spearman", "pearson"]
    assert read_sentence_files(output / "best")["pooling"] == "mean"


# Logical devices must be made before TensorFlow starts, hence a process of its own.
_TWO = """
import sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
sys.path.insert(0, sys.argv[1])
import pytest
from small_trainers import *
from bert_tf import BertSentenceEncoder
from bert_tf.networks.tensorflow.embedding_losses import *
from bert_tf.training.strategy import distribute_batches, make_strategy

ids = np.random.default_rng(1).integers(1, V, (6, 3, T)).astype("int32")
inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids // ids}
strategies = [make_strategy(name) for name in ("one", "mirrored")]
numbers, scores = np.arange(18).reshape(6, 3).astype("int32"), np.arange(6).astype("float32")
for loss, targets, metrics in (
    (in_batch_cross_entropy(20.0), numbers, {"accuracy": in_batch_accuracy}),
    (cosent(20.0), scores, {}),
):
    lines = []
    for strategy in strategies:
        with strategy.scope():
            model = BertSentenceEncoder(config(), seed=3)
            trainer = Trainer(model, adam(), loss=loss, metrics=metrics, whole_batches=True)
        batches = dataset([(inputs, targets)] * 5)
        lines.append(fit(trainer, distribute_batches(lambda *_: batches, strategy, 6), 5))
    one, two = lines
    assert strategy.num_replicas_in_sync == 2
    for ours, theirs in zip(two, one, strict=True):
        # Sums over 6 rows and 8 units in another order; a step multiplies what the last one left.
        for key in ("loss", "gradient_norm"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-3), (key, one, two)
    assert one[-1]["loss"] < one[0]["loss"], one
"""


@pytest.mark.slow
def test_two_replicas_learn_as_one():
    """Texts are compared across replicas: loss and gradient are those of the whole batch."""
    run_code(_TWO, [Path(__file__).parents[2] / "training"], check=True)


VECTORS = np.eye(3, dtype=np.float32)
ANSWERS = {"score": [0.1, 0.9, 0.2], "vector": VECTORS, "vector_pair": VECTORS}


@for_each("loss", "infonce", "cosent", "cosine")
def test_scores_are_those_that_are_announced(loss, answered):
    of_loss = kind(embedding_loss=loss)
    scores = of_loss.scores(answered(TASK, SCORED, ANSWERS))
    assert list(scores) == of_loss.score_names(TASK, [])


def test_the_report_names_the_pairs_that_are_furthest_off(answered):
    given = answered(TASK, SCORED, ANSWERS)
    (errors,) = report(kind(embedding_loss="cosent"), given)
    assert [row[0] for row in errors.rows] == ["d.tsv, line 3", "d.tsv, line 4"]
    (low,) = report(kind(), given)
    assert low.rows[0][0] == "d.tsv, line 2"


def test_texts_of_a_pair_are_read_with_dropout_in_training():
    seen = []

    def model(rows, training=False):
        seen.append(training)
        return rows["token_ids"]

    outputs = TASKS["embedding"].kind.row_outputs(model)
    for training in (True, False):
        outputs({"token_ids": tf.constant([[2, 5, 3]])}, training)
    assert seen == [True, False]
