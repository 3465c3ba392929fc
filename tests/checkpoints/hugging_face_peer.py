"""What Hugging Face computes with a model directory. It runs in a Python with torch, transformers.

    python hugging_face_peer.py DIRECTORY INPUTS.npz OUT.npz

The class is the one that config.json names, and the inputs have the names of its arguments, labels
among them. Written are hidden states, logits, loss and the gradient of every weight, without
dropout, under "gradient.<name of the tensor>".
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(directory, inputs_path, out):
    inputs = {name: torch.from_numpy(value) for name, value in np.load(inputs_path).items()}
    (architecture,) = json.loads(Path(directory, "config.json").read_text())["architectures"]
    model, report = getattr(transformers, architecture).from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report  # every weight found, and none too many
    model.eval()  # no dropout
    outputs = model(**inputs, output_hidden_states=True)
    outputs.loss.backward()
    arrays = {
        "hidden_states": torch.stack(outputs.hidden_states),
        **{name: outputs[name] for name in outputs if name.endswith("logits")},
        "loss": outputs.loss,
        **{f"gradient.{name}": weight.grad for name, weight in model.named_parameters()},
    }
    np.savez(out, **{name: array.detach().numpy() for name, array in arrays.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
