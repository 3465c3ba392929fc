"""Hard negatives as sentence-transformers mines them. It runs in a Python that has it.

    python hard_negatives_peer.py DIRECTORY PAIRS.json OUT.npz

The pairs are lists of two texts; the output has rows of both texts and their negatives.
"""

import json
import sys
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives


def main(directory, pairs, out):
    questions, answers = zip(*json.loads(Path(pairs).read_text()), strict=True)
    mined = mine_hard_negatives(
        Dataset.from_dict({"text": questions, "text_pair": answers}),
        SentenceTransformer(directory, device="cpu"),
        relative_margin=0.05,
        num_negatives=2,
        range_max=len(set(answers)),
        output_format="n-tuple",
    )
    np.savez(out, mined=[list(row.values()) for row in mined])


if __name__ == "__main__":
    main(*sys.argv[1:])
