import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.shards import manifest, pretraining_batches, record_blocks, units
from bert_tf.pipelines.shards.run import write_shards


class NumberTokenizer:
    """Reads text as numbers, each its own token id: tests choose the ids they look for."""

    pad_token_id, unk_token_id, cls_token_id, sep_token_id, mask_token_id = range(5)
    vocabulary_hash = "0123456789abcdef"
    settings = {"do_lower_case": True}  # noqa: RUF012

    def __init__(self, vocabulary_size: int = 100_000):
        self.vocabulary_size = vocabulary_size
        # Words of one to three tokens: no number that ends in 0 continues a word.
        self.is_continuation = np.arange(vocabulary_size) % 10 % 3 != 0

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words = tf.strings.split(texts)
        return tf.ragged.map_flat_values(tf.strings.to_number, words, out_type=tf.int32)

    def save(self, directory: Path) -> None:
        (directory / "tokenizer_config.json").write_text(json.dumps(self.settings))


@pytest.fixture(scope="module")
def small_blocks():
    """Blocks of 8 records and windows of 4 blocks, so that small data has many."""
    with pytest.MonkeyPatch.context() as patch:
        for where in (record_blocks, manifest, units):
            patch.setattr(where, "BLOCK_RECORDS", 8)
        patch.setattr(pretraining_batches, "WINDOW_BLOCKS", 4)
        yield


@pytest.fixture(scope="session", autouse=True)
def graphs_are_kept():
    """Tests with equal settings trace the graph that makes instances once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_tf.pipelines.instances.record_batches._MOST_TRACED", 100)
        yield


@pytest.fixture(autouse=True)
def errors_are_lines(monkeypatch):
    """Every InputError of these tests is one line."""

    def one_line(error, *arguments):
        Exception.__init__(error, *arguments)
        assert "\n" not in str(error)

    monkeypatch.setattr(InputError, "__init__", one_line, raising=False)


@pytest.fixture(scope="session")
def number_tokenizer():
    return NumberTokenizer()


@pytest.fixture(scope="session")
def number_corpus():
    """Makes text of `documents` documents, `sentences` each; every token occurs once."""

    def make(documents: int, sentences: int = 12, length: int = 9, first: int = 10) -> str:
        numbers = iter(range(first, first + documents * sentences * length))
        return "\n\n".join(
            "\n".join(" ".join(str(next(numbers)) for _ in range(length)) for _ in range(sentences))
            for _ in range(documents)
        )

    return make


@pytest.fixture(scope="module")
def number_shards(made_once, number_corpus, number_tokenizer, small_blocks):
    """Folders of shards, by options, that tests must not change."""

    def make(**options):
        settings = {"max_seq_length": 32, "num_shards": 3, "held_out_share": 0.1, **options}

        def write(folder):
            folder.mkdir()
            (folder / "corpus.txt").write_text(number_corpus(60))
            made = PretrainingDataOptions(**settings)
            write_shards(folder / "corpus.txt", folder / "shards", number_tokenizer, made)

        name = "-".join(map(str, ("numbers", *options.values())))
        return made_once(name, write) / "shards"

    return make


@pytest.fixture(scope="module")
def static(number_shards):
    return number_shards(masking="static")


@pytest.fixture(scope="module")
def dynamic(number_shards):
    return number_shards(masking="dynamic")


@pytest.fixture
def batches(number_tokenizer):
    """`pretraining_batches` with the tokenizer of the shards."""
    return partial(pretraining_batches.pretraining_batches, tokenizer=number_tokenizer)


@pytest.fixture(scope="module", params=["static", "dynamic"])
def made(request):
    return request.getfixturevalue(request.param)
