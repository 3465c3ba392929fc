"""A model with an adapter as PEFT computes it. It runs in a Python that has it.

    python peft_peer.py CLASS DIRECTORY ADAPTER IDS.npy OUT.npz

CLASS is the model's, of transformers; the ids are of texts without padding.
"""

import sys

import numpy as np
import peft
import torch
import transformers


def main(name, directory, adapter, ids, out):
    classes = {} if name == "AutoModel" else {"num_labels": 3}
    base = getattr(transformers, name).from_pretrained(directory, **classes)
    model = peft.PeftModel.from_pretrained(base, adapter).eval()
    with torch.no_grad():
        np.savez(out, outputs=model(torch.from_numpy(np.load(ids)))[0].numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
