"""Vectors of texts: what is read, losses against their formulae, files of sentence-transformers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from preloaded import run_code  # tests/processes/preloaded.py
from rounding import assert_equal_but_for_rounding
from tiny import tiny_config

from bert_tf import BertConfig, BertSentenceEncoder, BertTokenizer, save_model
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.commands.data_in_memory import examples_in_memory
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning import finetune
from bert_tf.commands.search_index import vectors_of
from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer
from bert_tf.models.classes import class_of_kind
from bert_tf.models.task_models import _SentencePooling
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.of_model import of_model
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.scoring.metrics import retrieval_scores
from bert_tf.tasks.table import TASKS

TASK = TASKS["embedding"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
CONFIG = tiny_config(len(PIECES), intermediate_size=8, initializer_range=0.5)
PROMPTS = "config_sentence_transformers.json"


def kind(**settings):
    return TASK.kind.with_settings(settings)


def assert_close(found, expected):
    """Equal but for a block and a pooling in batches of other shapes."""
    assert_equal_but_for_rounding(found, expected, 30, 8)


def cosines(one, others):
    one, others = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (one, others))
    return one @ others.T


# Reading.


def write(path, *rows):
    path.write_text("\n".join("\t".join(row) for row in rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("settings", "rows", "columns"),
    [
        ({}, [("text", "text_pair"), ("a", "b")], {"text": ["a"], "text_pair": ["b"]}),
        (
            {"negatives": "wrong*"},
            [("text", "text_pair", "wrong0", "wrong1"), ("a", "b", "c", "d")],
            {"text": ["a"], "text_pair": ["b"], "negatives": [["c", "d"]]},
        ),
        (
            {"embedding_loss": "cosent"},
            [("text", "text_pair", "label"), ("a", "b", "2.5")],
            {"text": ["a"], "text_pair": ["b"], "label": ["2.5"]},
        ),
        ({"embedding_loss": "simcse"}, [("text",), ("a",)], {"text": ["a"], "text_pair": ["a"]}),
    ],
)
def test_what_a_loss_reads(tmp_path, settings, rows, columns):
    task = TASK.with_settings(settings)
    assert task.read(write(tmp_path / "d.tsv", *rows), "train").columns == columns


@pytest.mark.parametrize(
    ("settings", "rows", "message"),
    [
        ({}, [("text", "pair"), ("a", "b")], "no column 'text_pair'.*--pair_column"),
        (
            {"negatives": "wrong"},
            [("text", "text_pair"), ("a", "b")],
            "no column 'wrong'.*give --negatives",
        ),
        (
            {"embedding_loss": "cosent"},
            [("text", "text_pair"), ("a", "b")],
            "no column 'label'.*--label_column",
        ),
        (
            {"embedding_loss": "cosine"},
            [("text", "text_pair", "label"), ("a", "b", "much")],
            "line 2: the score 'much' is not a number",
        ),
    ],
)
def test_mistakes_in_files_are_named(tmp_path, settings, rows, message):
    task = TASK.with_settings(settings)
    with pytest.raises(InputError, match=message):
        task.kind.targets(task.read(write(tmp_path / "d.tsv", *rows), "train"), [])


def test_numbers_and_scores_of_pairs(tmp_path):
    rows = [("text", "text_pair", "label"), ("a", "b", "1"), ("a", "c", "4"), ("c", "b", "5")]
    examples = TASK.read(write(tmp_path / "d.tsv", *rows), "train")
    assert kind().targets(examples, []).tolist() == [[0, 1], [0, 2], [2, 1]]
    cosine = kind(embedding_loss="cosine")
    _, targets = cosine.training_rows(TASK, examples, [], None)
    np.testing.assert_allclose(targets, [0.2, 0.8, 1.0])


def test_retrieval_counts_equal_texts_once():
    questions = np.eye(3)
    answers = np.array([[1.0, 0, 0], [0.9, 0.1, 0], [1.0, 0, 0]])
    found = retrieval_scores(questions, answers, ["a", "b", "c"], ["x", "y", "x"])
    # Candidates are x and y. b finds y; c is as far from both.
    assert found["mrr"] == pytest.approx((1 + 1 + 1 / 1.5) / 3)
    assert found["recall_at_1"] == pytest.approx(2 / 3)
    several = retrieval_scores(questions[:1].repeat(2, 0), np.eye(3)[1:], ["a"] * 2, ["x", "y"])
    assert several["recall_at_10"] == 1


# Models and files.


def made(folder, pooling="mean", normalize=True):
    model = BertSentenceEncoder(CONFIG, pooling, normalize, seed=1)
    save_model(model, folder, BertTokenizer(PIECES), max_length=12)
    return model


INPUTS = {
    "token_ids": np.array([[[2, 5, 6, 3], [2, 7, 3, 0]]]),
    "segment_ids": np.zeros((1, 2, 4), int),
    "padding_mask": np.array([[[1, 1, 1, 1], [1, 1, 1, 0]]]),
}


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", lambda x: x.mean(0)),
        ("max", lambda x: x.max(0)),
        ("last", lambda x: x[-1]),
        ("cls", lambda x: x[0]),
    ],
)
def test_poolings_read_tokens_alone(pooling, expected):
    """Of masks with holes, and of negative numbers, which padding is not above."""
    mask = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]])
    states = -1 - np.random.default_rng(0).random((2, 5, 4)).astype(np.float32)
    found = _SentencePooling(pooling, False, BertConfig().architecture)(states, mask, mask[None])
    rows = [expected(row[row_mask > 0]) for row, row_mask in zip(states, mask, strict=True)]
    assert_close(found[0], np.stack(rows))


def test_a_preset_embeds_as_its_directory_does(tmp_path):
    model = made(tmp_path)
    preset = BertSentenceEncoder.from_preset(tmp_path)
    found = preset.embed(["sea ship", "cow"])
    assert_close([row["vector"] for row in found], model(INPUTS)[0])
    with pytest.raises(InputError, match="train it with"):
        preset.fit(["sea"], ["ship"])


def test_prompts_and_similarity_of_others_are_honoured(tmp_path):
    """Each text becomes what sentence-transformers encodes: its prompt and the text."""
    made(tmp_path, normalize=False)
    prompts = {"query": "cow ", "passage": "barn ", "every": "ship "}
    said = {"prompts": prompts, "default_prompt_name": "every", "similarity_fn_name": "dot"}
    plain = Answerer.from_directory(tmp_path)
    (tmp_path / PROMPTS).write_text(json.dumps(said))
    task = of_model(tmp_path)

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
    (tmp_path / PROMPTS).unlink()
    replace(plain, task=task).save(tmp_path)
    (tmp_path / "task.json").unlink()
    assert of_model(tmp_path) == task


@pytest.mark.slow
def test_an_index_and_its_questions_have_their_prompts(tmp_path):
    made(tmp_path)
    expected, _ = vectors_of(Answerer.open(tmp_path), ["cow sea", "barn sea"], 2)
    (tmp_path / PROMPTS).write_text(json.dumps({"prompts": {"query": "cow ", "corpus": "barn "}}))
    for role, vector in zip(("query", "document"), expected, strict=True):
        assert_close(vectors_of(Answerer.open(tmp_path), ["sea"], 2, role=role)[0], [vector])


def test_similarity_and_reranking_are_cosines(tmp_path):
    made(tmp_path, normalize=False)
    module = Answerer.from_directory(tmp_path).module()
    texts = tf.constant(["sea ship", "cow", ""])
    vectors = module.signature()(text=texts)["vector"].numpy()
    expected = cosines(vectors, vectors)
    pair = module.signature("compare")(text=texts[:1], text_pair=texts[1:2])
    assert_close(pair["score"], expected[0, 1:2])
    order = module.signature("rerank")(query=texts[:2], texts=tf.tile(texts[None], [2, 1]))
    assert_close(order["scores"], expected[:2])
    assert module.signature("rerank")(query=[], texts=tf.zeros([0, 0], tf.string))


@pytest.mark.parametrize("task", [pytest.param("mrpc", marks=pytest.mark.slow), "stsb"])
def test_models_of_pairs_rerank(task):
    """As they answer each pair alone."""
    task = TASKS[task].with_settings({"max_length": 8})
    labels = list(task.labels)
    model = class_of_kind(task.kind)(CONFIG, seed=1, **task.kind.head(labels))
    tuned = Answerer(task, model, BertTokenizer(PIECES), labels)
    queries, texts = ["sea ship", "cow " * 20], [["cow", "barn " * 20, ""], ["sea", "sea", "ship"]]
    found = tuned.function("rerank")(query=tf.constant(queries), texts=tf.constant(texts))
    firsts, seconds = tf.repeat(queries, 3), tf.reshape(texts, [-1])
    alone = tuned.function()(text=firsts, text_pair=seconds)
    scores = (
        alone["score"]
        if "score" in alone
        else tuned.model(
            task.kind.model_inputs({"text": firsts, "text_pair": seconds}, tuned.tokenizer, 8)
        )
    )
    if "score" not in alone:
        scores = tf.nn.softmax(scores)[:, -1]
    assert_close(tf.reshape(found["scores"], [-1]), scores)
    assert found["truncated"].numpy().ravel().tolist() == alone["truncated"].numpy().tolist()
    single = TASKS["classification"]
    assert "rerank" not in single.kind.signatures(single)


# Training.


def options_of(folder, rows, **more):
    made(folder / "model")
    data = write(folder / "d.tsv", *rows)
    given = {"validation": str(data), "batch_size": 4, "epochs": 1, "strategy": "one", **more}
    return FinetuningOptions(
        model=str(folder / "model"),
        task="embedding",
        train=str(data),
        output=str(folder / "run"),
        **given,
    )


PAIRS = [("text", "text_pair", "label")] + [
    (f"{a} {b}", f"{b} {a}" if i % 2 else b, str(i % 3))
    for i, (a, b) in enumerate([("sea", "ship"), ("cow", "barn"), ("sea", "cow")] * 2)
]


def test_features_have_no_vectors(tmp_path):
    with pytest.raises(InputError, match="--features_only is not for vectors"):
        finetune(options_of(tmp_path, PAIRS, features_only="last"))


@pytest.mark.slow
def test_simcse_is_validated_with_scores(tmp_path):
    options = options_of(tmp_path, PAIRS, embedding_loss="simcse", dropout=0.3)
    alone = write(tmp_path / "alone.tsv", ("text",), *[(row[0],) for row in PAIRS[1:]])
    with pytest.raises(InputError, match="has no scores of pairs"):
        finetune(replace(options, validation=str(alone), output=str(tmp_path / "other")))
    result = finetune(replace(options, train=str(alone)))
    assert list(result.evaluation.scores) == ["examples", "spearman", "pearson"]
    assert read_sentence_files(tmp_path / "run" / "best")["pooling"] == "mean"


# Logical devices must be made before TensorFlow starts, hence a process of its own.
_TWO = """
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from bert_tf import AdamWeightDecay, BertConfig, BertSentenceEncoder
from bert_tf.networks.tensorflow.losses import cosent, in_batch_accuracy, in_batch_cross_entropy
from bert_tf.training.strategy import distribute_batches, make_strategy
from bert_tf.training.trainer import Trainer

config = BertConfig(
    vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    initializer_range=0.5,
)
draw = np.random.default_rng(1)
ids = draw.integers(1, 9, (6, 3, 5)).astype("int32")
inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids // ids}
numbers, scores = np.arange(12).reshape(6, 2).astype("int32"), np.arange(6).astype("float32")
cases = {
    "infonce": (in_batch_cross_entropy(20.0), numbers, {"accuracy": in_batch_accuracy}),
    "cosent": (cosent(20.0), scores, {}),
}


def trained(strategy, loss, targets, metrics):
    with strategy.scope():
        trainer = Trainer(
            BertSentenceEncoder(config, seed=3), AdamWeightDecay(1e-2), loss=loss, metrics=metrics,
            whole_batches=True,
        )
    data = tf.data.Dataset.from_tensors((inputs, targets)).repeat()
    batches = trainer.iterate(distribute_batches(lambda *_: data, strategy, 6))
    logs = []
    for _ in range(5):
        trainer.reset_means()
        logs.append({key: float(value) for key, value in trainer.train(batches).items()})
    return logs


strategies = [make_strategy(name) for name in ("one", "mirrored")]
assert strategies[1].num_replicas_in_sync == 2
for name, case in cases.items():
    one, two = (trained(strategy, *case) for strategy in strategies)
    for ours, theirs in zip(two, one):
        # Sums over 6 rows and 8 units in another order; a step multiplies what the last one left.
        for key in ("loss", "gradient_norm"):
            assert abs(ours[key] - theirs[key]) <= 1e-3 * abs(theirs[key]), (name, key, two, one)
    assert one[-1]["loss"] < one[0]["loss"], one
    print(name, one, two)
"""


@pytest.mark.slow
def test_two_replicas_learn_as_one():
    """Texts are compared across replicas: loss and gradient are those of the whole batch."""
    done = run_code(_TWO)
    assert done.returncode == 0, done.stderr


def test_texts_alone_and_scores_in_memory():
    scored = TASK.with_settings({"embedding_loss": "cosent"})
    _, alone = examples_in_memory(TASK, ["a", "b"], labelled=False)
    assert list(alone.columns) == ["text"]
    with pytest.raises(InputError, match="the data has no labels"):
        examples_in_memory(scored, {"text": ["a"], "text_pair": ["b"]})


@pytest.mark.parametrize("loss", ["infonce", "cosent", "cosine"])
def test_scores_are_those_that_are_announced(loss):
    columns = {"text": ["a", "b", "c"], "text_pair": ["x", "y", "z"], "label": ["1", "2", "3"]}
    vectors = np.eye(3, dtype=np.float32)
    answers = {"score": np.array([0.1, 0.9, 0.2]), "vector": vectors, "vector_pair": vectors}
    of_loss = kind(embedding_loss=loss)
    found = of_loss.scores(Answered(TASK, Examples("d.tsv", [2, 3, 4], columns), answers))
    assert list(found) == of_loss.score_names(TASK, [])


def test_a_prompt_counts_in_lengths():
    columns = {"text": ["ship", "ship sea"], "text_pair": ["cow cow", "cow"]}
    for prompt, lengths in (("", [4, 4]), ("sea ", [5, 5])):
        found = kind(prompt=prompt).lengths(columns, BertTokenizer(PIECES))
        assert found.tolist() == lengths


def test_the_report_names_the_pairs_that_are_furthest_off():
    columns = {"text": ["a", "b", "c"], "text_pair": ["x", "y", "z"], "label": ["1", "2", "3"]}
    answers = {"score": np.array([0.1, 0.9, 0.2], np.float32)}
    given = Answered(TASK, Examples("d.tsv", [2, 3, 4], columns), answers)
    (errors,) = report(kind(embedding_loss="cosent"), given)
    assert [row[0] for row in errors.rows] == ["d.tsv, line 3", "d.tsv, line 4"]
    (low,) = report(kind(), given)
    assert low.rows[0][0] == "d.tsv, line 2"
