"""What the models of tests/golden are made of, by the peers that write them."""

import tarfile
import tempfile
from pathlib import Path

import numpy as np

# Under Hugging Face's names; Model Garden's and DistilBERT's scripts have others.
SIZES = {
    "vocab_size": 23,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
}
TOKEN_IDS = np.array([[2, 7, 19, 3, 11, 3, 0, 0], [2, 5, 3, 9, 22, 8, 4, 3]], np.int32)
PADDING_MASK = np.array([[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8], np.int32)
SEGMENT_IDS = np.array([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]], np.int32)
MODEL_GARDEN_INPUTS = {
    "input_word_ids": TOKEN_IDS,
    "input_mask": PADDING_MASK,
    "input_type_ids": SEGMENT_IDS,
}


def write_archive(path, make):
    """Packs the folders that `make` writes."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path, "w:xz") as archive:
        make(Path(folder))
        for child in sorted(Path(folder).iterdir()):
            archive.add(child, child.name)
