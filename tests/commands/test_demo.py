"""`bert-tf demo`, whole: what the README promises of it."""

import json
import os
import random

import pytest
from command_line import run
from tiny import tiny_config

from bert_tf.serving.predictor import Predictor, answer, rows


@pytest.fixture(scope="module")
def graphs_as_traced():
    """Here they are optimized, as for users: steps take most of the time."""


@pytest.fixture
def few_steps(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr("bert_tf.commands.demo._EPOCHS", 1)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def accuracy(run) -> float:
    return json.loads((run / "test" / "metrics.json").read_text())["accuracy"]


@pytest.mark.slow
def test_a_pre_trained_model_needs_fewer_labels(tmp_path):
    """Four topics of a hundred words each, 16 labelled sentences: most words have no label."""
    draw = random.Random(1)
    names = [f"w{number}" for number in draw.sample(range(400), 400)]
    topics = [names[first : first + 100] for first in range(0, 400, 100)]

    def sentence(topic):
        return " ".join(draw.choices(topics[topic % 4], k=8))

    def write(name, rows):
        lines = [f"{sentence(i)}\t{i % 4}" for i in range(rows)]
        (tmp_path / name).write_text("\n".join(["text\tlabel", *lines]))

    documents = ("\n".join(sentence(topic) for _ in range(12)) for topic in range(300))
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "vocab.txt").write_text("\n".join([*special, *names]) + "\n")
    more = {"intermediate_size": 256, "max_position_embeddings": 32, "initializer_range": 0.06}
    tiny_config(405, "2x64x2", **more).to_json(tmp_path / "config.json")
    write("train.tsv", 16)
    write("test.tsv", 400)
    shards, size = tmp_path / "shards", tmp_path / "config.json"
    texts = {"corpus": tmp_path / "corpus.txt", "tokenizer": tmp_path / "vocab"}
    run("shards --max_seq_length 32", **texts, output=shards)
    line = "pretrain --steps 300 --batch_size 32 --learning_rate 0.001 --dropout 0"
    run(line, shards=shards, size=size, output=tmp_path / "pretrained")
    scores = []
    for name, more in (("from_pretrained", ""), ("from_random", " --from_scratch")):
        line = f"finetune --epochs 20 --batch_size 8 --learning_rate 5e-4 --max_length 16{more}"
        files = {"train": tmp_path / "train.tsv", "output": tmp_path / name}
        run(line, model=tmp_path / "pretrained" / "last", **files)
        model, data = tmp_path / name / "last", tmp_path / "test.tsv"
        run("evaluate", model=model, data=data, output=tmp_path / name / "test")
        scores.append(accuracy(tmp_path / name))
    assert scores[0] > 0.9 > scores[1] + 0.1, scores


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("BERT_TF_DEMO" not in os.environ, reason="takes minutes: set BERT_TF_DEMO=1")
def test_pre_training_wins_on_the_installed_documentation(tmp_path, capsys):
    output = tmp_path / "demo"
    run("demo", output=output)
    random, pretrained = accuracy(output / "from_random"), accuracy(output / "from_pretrained")
    assert pretrained > random + 0.05
    assert pretrained > 0.45  # below every run of the README
    captured = capsys.readouterr()
    answers = [json.loads(line) for line in captured.out.splitlines() if '"text"' in line]
    assert len(answers) == 5
    assert "[MASK]" in captured.err[captured.err.index("Words hidden in text") :]

    # What is tested on was seen neither in pre-training nor in fine-tuning.
    test = (output / "labelled" / "test.tsv").read_text().splitlines()[1:]
    train = set((output / "labelled" / "train.tsv").read_text().splitlines())
    assert len(test) == 800 and not train.intersection(test)
    predictor = Predictor(output / "saved_models" / "demo")
    outputs = answer(predictor.signature(), {"text": [test[0].split("\t")[0]]}, 1)
    label = next(rows(outputs))["label"]
    assert label in {row.split("\t")[1] for row in test}


@pytest.mark.slow
def test_the_demo_takes_a_users_own_text(corpus, tmp_path, call, few_steps):
    output = tmp_path / "demo"
    call("demo --steps 2", corpus=corpus, output=output)
    _, *rows = (output / "labelled" / "test.tsv").read_text().splitlines()
    labels = {row.split("\t")[1] for row in rows}
    assert labels == {f"part {i} of 4" for i in (1, 2, 3, 4)}
    assert "exists already" in call.refused("demo --steps 2", corpus=corpus, output=output)
