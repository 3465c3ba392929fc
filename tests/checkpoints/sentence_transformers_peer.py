"""Vectors as sentence-transformers computes them. It runs in a Python that has it.

    python sentence_transformers_peer.py DIRECTORY TEXTS.json SAVED OUT.npz

SAVED is a folder to which it saves what it read. The golden vectors are of all-MiniLM-L6-v2.
"""

import json
import sys
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer


def main(directory, texts, saved, out):
    model = SentenceTransformer(directory, device="cpu")
    vectors = model.encode(json.loads(Path(texts).read_text()), batch_size=4)
    np.savez(out, vectors=vectors)
    model.save(saved)


if __name__ == "__main__":
    main(*sys.argv[1:])
