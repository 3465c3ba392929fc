"""One small run through every command, made once and looked at by many tests."""

import pydoc_data.topics
import random
import re
from pathlib import Path

import pytest

from bert_tf.cli.main import main

WORDS = {
    "sea": ("ship", "sailed", "deep", "water", "waves", "harbour", "wind"),
    "farm": ("cow", "grass", "barn", "farmer", "golden", "wheat"),
}


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def write_tsv(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    rows = ["text\tlabel"]
    for _ in range(count):
        label = draw.choice(sorted(WORDS))
        rows.append(" ".join(draw.choices(WORDS[label], k=8)) + f"\t{label}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="session")
def corpus(root) -> Path:
    """Forty topics of Python's own language reference: a document each, a sentence a line."""
    documents = []
    for topic in sorted(pydoc_data.topics.topics)[:40]:
        text = " ".join(pydoc_data.topics.topics[topic].split())
        documents.append("\n".join(re.split(r"(?<=[.!?]) (?=[A-Z])", text)))
    path = root / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(root, corpus) -> Path:
    run("vocab", "--corpus", corpus, "--output", root / "vocab", "--size", 600)
    return root / "vocab"


@pytest.fixture(scope="session")
def shards(root, corpus, tokenizer) -> Path:
    run(
        "shards", "--corpus", corpus, "--tokenizer", tokenizer, "--output", root / "shards",
        "--max-seq-length", 32, "--held-out-share", 0.2, "--num-shards", 2,
    )  # fmt: skip
    return root / "shards"


@pytest.fixture(scope="session")
def small_config(root, tokenizer) -> Path:
    from bert_tf import BertConfig

    entries = len((tokenizer / "vocab.txt").read_text(encoding="utf-8").splitlines())
    path = root / "config.json"
    BertConfig(
        vocab_size=entries, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    ).to_json(path)  # fmt: skip
    return path


@pytest.fixture(scope="session")
def pretrained(root, shards, small_config) -> Path:
    run(
        "pretrain", "--shards", shards, "--size", small_config, "--output", root / "pretrained",
        "--steps", 20, "--batch-size", 8, "--log-every", 5, "--evaluate-every", 10,
        "--evaluation-batches", 2, "--learning-rate", 1e-3,
    )  # fmt: skip
    return root / "pretrained"


@pytest.fixture(scope="session")
def labelled(root) -> Path:
    write_tsv(root / "train.tsv", 96, seed=1)
    write_tsv(root / "test.tsv", 24, seed=2)
    return root


@pytest.fixture(scope="session")
def finetuned(root, labelled, pretrained) -> Path:
    run(
        "finetune", "--model", pretrained / "last", "--train", labelled / "train.tsv",
        "--output", root / "finetuned", "--epochs", 4, "--batch-size", 8, "--log-every", 4,
        "--learning-rate", 5e-3, "--max-length", 16,
    )  # fmt: skip
    return root / "finetuned"


@pytest.fixture(scope="session")
def exported(root, finetuned) -> Path:
    run("export", "--model", finetuned / "best", "--name", "where", "--output", root / "served")
    return root / "served" / "where"
