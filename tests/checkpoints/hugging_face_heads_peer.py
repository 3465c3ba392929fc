"""What Hugging Face's class for a task computes. It runs in a Python with torch, transformers.

    python hugging_face_heads_peer.py DIRECTORY CLASS INPUTS.npz OUT.npz

The inputs have the names of Hugging Face's arguments, targets among them; out come logits, loss
and the gradient of every weight, without dropout, under "gradient.<name of the tensor>".
"""

import sys

import numpy as np
import torch
import transformers


def main(directory, name, inputs_path, out):
    """Computes and saves."""
    inputs = {key: torch.from_numpy(value) for key, value in np.load(inputs_path).items()}
    model, report = getattr(transformers, name).from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report  # every weight found, and none too many
    outputs = model.eval()(**inputs)  # no dropout
    outputs.loss.backward()
    logits = [outputs[key] for key in outputs if key.endswith("logits")]
    arrays = {
        "logits": logits[0] if len(logits) == 1 else torch.stack(logits, -1),
        "loss": outputs.loss,
        **{f"gradient.{name}": weight.grad for name, weight in model.named_parameters()},
    }
    np.savez(out, **{name: array.detach().numpy() for name, array in arrays.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
