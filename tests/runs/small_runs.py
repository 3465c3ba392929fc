"""One small run through every command, made once and looked at by many tests."""

import pydoc_data.topics
import random
import re
from pathlib import Path

import pytest
from command_line import CommandLine, run
from tiny import tiny_config

WORDS = {
    "sea": ("ship", "sailed", "deep", "water", "waves", "harbour", "wind"),
    "farm": ("cow", "grass", "barn", "farmer", "golden", "wheat"),
}


def write_tsv(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    rows = ["text\tlabel"]
    for _ in range(count):
        label = draw.choice(sorted(WORDS))
        rows.append(" ".join(draw.choices(WORDS[label], k=8)) + f"\t{label}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def finetuning(folder: Path, **options):
    """Options of a run on the encoder, train.tsv and validation.tsv of a folder, but for others."""
    from bert_tf.commands.finetune import Options

    paths = {"model": "encoder", "train": "train.tsv", "validation": "validation.tsv"}
    usual = {name: folder / path for name, path in (paths | {"output": "run"}).items()}
    usual |= {"batch_size": 8, "learning_rate": 1e-2, "max_length": 8, "strategy": "one"}
    values = (usual | options).items()
    return Options(**{name: str(x) if isinstance(x, Path) else x for name, x in values})


@pytest.fixture(scope="session")
def corpus(made_once) -> Path:
    """Forty topics of Python's own language reference: a document each, a sentence a line."""
    documents = []
    for topic in sorted(pydoc_data.topics.topics)[:40]:
        text = " ".join(pydoc_data.topics.topics[topic].split())
        documents.append("\n".join(re.split(r"(?<=[.!?]) (?=[A-Z])", text)))
    text = "\n\n".join(documents) + "\n"
    return made_once("corpus.txt", lambda path: path.write_text(text, encoding="utf-8"))


@pytest.fixture(scope="session")
def tokenizer(made_once, corpus) -> Path:
    return made_once("vocab", lambda path: run("vocab --size 600", corpus=corpus, output=path))


@pytest.fixture(scope="session")
def made_shards(made_once, corpus, tokenizer):
    """`made_shards(name, options)`: shards of the corpus, a fifth of which is held out."""
    line = "shards --held-out-share 0.2 --num-shards 2"
    data = {"corpus": corpus, "tokenizer": tokenizer}
    return lambda name, options: made_once(
        name, lambda path: run(f"{line} {options}", **data, output=path)
    )


@pytest.fixture(scope="session")
def shards(made_shards) -> Path:
    return made_shards("shards", "--max-seq-length 32")


@pytest.fixture(scope="session")
def dynamic_shards(made_shards) -> Path:
    return made_shards("dynamic_shards", "--max-seq-length 32 --masking dynamic")


@pytest.fixture(scope="session")
def shards_of_two_lengths(made_shards) -> Path:
    return made_shards("shards_of_two_lengths", "--max-seq-length 16 32")


@pytest.fixture(scope="session")
def small_config(made_once, tokenizer) -> Path:
    entries = len((tokenizer / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = tiny_config(entries, "1x16x2", max_position_embeddings=32)
    return made_once("config.json", config.to_json)


@pytest.fixture(scope="session")
def pretrained(made_once, shards, small_config) -> Path:
    line = (
        "pretrain --steps 20 --batch-size 8 --log-every 5 --evaluate-every 10 "
        "--evaluation-batches 2 --learning-rate 0.001"
    )
    return made_once("pretrained", lambda x: run(line, shards=shards, size=small_config, output=x))


@pytest.fixture(scope="session")
def labelled(made_once) -> Path:
    def write(folder: Path) -> None:
        folder.mkdir()
        write_tsv(folder / "train.tsv", 96, seed=1)
        write_tsv(folder / "test.tsv", 24, seed=2)

    return made_once("labelled", write)


@pytest.fixture(scope="session")
def finetuned(made_once, labelled, pretrained) -> Path:
    line = "finetune --epochs 4 --batch-size 8 --log-every 4 --learning-rate 0.005 --max-length 16"
    data = {"model": pretrained / "last", "train": labelled / "train.tsv"}
    return made_once("finetuned", lambda path: run(line, **data, output=path))


@pytest.fixture(scope="session")
def exported(made_once, finetuned) -> Path:
    return made_once(
        "where",
        lambda path: run("export", model=finetuned / "best", name=path.name, output=path.parent),
    )


@pytest.fixture
def call(capsys) -> CommandLine:
    return CommandLine(capsys)
