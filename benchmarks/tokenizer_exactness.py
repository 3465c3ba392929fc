"""Lines on which tokenizers differ from the original BERT tokenizer: ours and its peers.

  python benchmarks/tokenizer_exactness.py

Uses the golden lines in tests/golden/tokenizer (uncased) and their vocabulary.
"""

import functools
import gzip
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_hub
import numpy as np
import peers  # benchmarks/peers.py
import tensorflow as tf
import tensorflow_text
from tokenizers import BertWordPieceTokenizer

from bert_tf import BertTokenizer

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "tokenizer"
VOCABULARY = GOLDEN / "vocab.txt"


def tf_text(tokenizer: type, texts: Sequence[str]) -> list[list[int]]:
    """Ids of one of TF Text's tokenizers."""
    pieces = VOCABULARY.read_text(encoding="utf-8").splitlines()
    if tokenizer is tensorflow_text.FastBertTokenizer:
        ids = tokenizer(pieces, lower_case_nfd_strip_accents=True).tokenize(texts)
    else:
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(pieces, np.arange(len(pieces))), 1
        )
        ids = tokenizer(table, lower_case=True, token_out_type=tf.int64).tokenize(texts)
    return (ids.merge_dims(-2, -1) if ids.ragged_rank > 1 else ids).to_list()


def keras_hub_ids(texts: Sequence[str]) -> list[list[int]]:
    """Ids of KerasHub's BertTokenizer."""
    tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=str(VOCABULARY), lowercase=True)
    return [[int(piece) for piece in row] for row in tokenizer(texts)]


def rust_ids(texts: Sequence[str]) -> list[list[int]]:
    """Ids of the Rust `tokenizers`, which Hugging Face uses."""
    tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    return [row.ids for row in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


# Run in benchmarks/ by the Python of .venv-tokenizers, for each text alone.
PEER_IDS = """
import json, pathlib, sys
from tokenizer import encoder
encode, rows = encoder(sys.argv[1], pathlib.Path(sys.argv[2])), []
for text in json.load(sys.stdin):
    found = encode([text])
    found = found[0] if isinstance(found, list) else found
    ids = found[0] if isinstance(found, tuple) else found.ids
    rows.append([int(i) for i in ids])
print(json.dumps(rows))
"""


def peer_ids(peer: str, texts: Sequence[str]) -> list[list[int]]:
    """Ids of a package of benchmarks/requirements/tokenizers.txt."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        done = subprocess.run(
            [peers.environment("tokenizers"), "-c", PEER_IDS, peer, folder],
            cwd=Path(__file__).parent,
            input=json.dumps(texts),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


def main() -> None:
    """Counts and prints."""
    with gzip.open(GOLDEN / "original.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = [row["text"] for row in rows]
    ascii_ = sum(map(str.isascii, texts))
    contestants: dict[str, Callable[[Sequence[str]], list[list[int]]]] = {
        "bert-tf": lambda texts: BertTokenizer(VOCABULARY).tokenize(texts).to_list(),
        f"tokenizers {__import__('tokenizers').__version__} (Hugging Face)": rust_ids,
        f"KerasHub {keras_hub.__version__}, BertTokenizer": keras_hub_ids,
        f"TF Text {tensorflow_text.__version__}, FastBertTokenizer": lambda texts: tf_text(
            tensorflow_text.FastBertTokenizer, texts
        ),
        f"TF Text {tensorflow_text.__version__}, BertTokenizer": lambda texts: tf_text(
            tensorflow_text.BertTokenizer, texts
        ),
    }
    others = peers.versions(peers.environment("tokenizers"), ("tokenizers", "tokie", "nanotoken"))
    for peer, version in others.items():
        contestants[f"{peer} {version}"] = functools.partial(peer_ids, peer)
    for name, ids in contestants.items():
        found = zip(ids(texts), rows, strict=True)
        differ = [row["text"] for ours, row in found if ours != row["uncased_ids"]]
        plain = sum(map(str.isascii, differ))
        print(f"{name:45} {len(differ):4} of {len(rows)} lines differ, {plain:3} of {ascii_} ASCII")


if __name__ == "__main__":
    main()
