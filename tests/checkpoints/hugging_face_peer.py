"""What Hugging Face computes with a model directory. It runs in a Python with torch, transformers.

    python hugging_face_peer.py DIRECTORY INPUTS.npz float32 OUT.npz

The inputs are those of our model and its labels; out come hidden states, logits, loss and the
gradient of every weight, without dropout, under "gradient.<name of the tensor>".
"""

import sys

import numpy as np
import torch
from transformers import BertForPreTraining


def main(directory, inputs_path, dtype, out):
    """Computes and saves."""
    inputs = {name: torch.from_numpy(value) for name, value in np.load(inputs_path).items()}
    model, report = BertForPreTraining.from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report  # every weight found, and none too many
    model = model.to(getattr(torch, dtype)).eval()  # no dropout
    positions, weights = inputs["mask_positions"], inputs["mlm_weights"]
    labels = torch.full_like(inputs["token_ids"], -100)  # no label
    for row in range(len(labels)):
        used = positions[row][weights[row] > 0]
        labels[row, used] = inputs["mlm_labels"][row][weights[row] > 0]
    outputs = model(
        input_ids=inputs["token_ids"],
        token_type_ids=inputs["segment_ids"],
        attention_mask=inputs["padding_mask"],
        labels=labels,
        next_sentence_label=inputs["nsp_labels"],
        output_hidden_states=True,
    )
    outputs.loss.backward()
    rows = torch.arange(len(positions))[:, None]
    arrays = {
        "hidden_states": torch.stack(outputs.hidden_states),
        "mlm_logits": outputs.prediction_logits[rows, positions],
        "nsp_logits": outputs.seq_relationship_logits,
        "loss": outputs.loss,
        **{f"gradient.{name}": weight.grad for name, weight in model.named_parameters()},
    }
    np.savez(out, **{name: array.detach().numpy() for name, array in arrays.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
