"""The model card of a version: what is known of the model, and how to ask it."""

import json
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo

from bert_tf.serving.warmup_requests import example_texts

CARD_FILE = "README.md"


def model_card(name: str, facts: Mapping[str, str], signatures: Mapping[str, SignatureDef]) -> str:
    """The card in Markdown; `facts` are subject -> text, in the order to print."""
    rows = [f"| {subject} | {_cell(text)} |" for subject, text in facts.items()]
    texts = example_texts(signatures["serving_default"])
    body = json.dumps({"inputs": {key: [text] for key, text in texts.items()}})
    table = []
    for signature_name, signature in sorted(signatures.items()):
        api = signature.method_name.rpartition("/")[2]
        inputs, outputs = map(_tensors, (signature.inputs, signature.outputs))
        table.append(f"| `{signature_name}` | {api} | {inputs} | {outputs} |")
    return f"""\
# {name}

A SavedModel that takes raw strings, made by bert-tf.

| | |
|---|---|
{chr(10).join([*rows, "| licence | not stated: add it before you pass the model on |"])}

## Example request

    curl -d '{body}' \\
        http://localhost:8501/v1/models/{name}:predict

## Signatures

B is the batch; `?` differs from request to request. Lists are padded: `NAME_count` says how many
of `NAME_...` are real. A signature other than `serving_default` is asked for with
`"signature_name"` in the request.

| signature | API | inputs | outputs |
|---|---|---|---|
{chr(10).join(table)}
"""


def _tensors(tensors: Mapping[str, TensorInfo]) -> str:
    described = []
    for name, info in sorted(tensors.items()):
        sizes = ["?" if dim.size < 0 else str(dim.size) for dim in info.tensor_shape.dim]
        shape = ", ".join(["B", *sizes[1:]])
        described.append(f"`{name}` {tf.as_dtype(info.dtype).name} [{shape}]")
    return ", ".join(described)


def _cell(text: str) -> str:
    """Text for a table: a bar would end the cell, a line the row."""
    return " ".join(text.replace("|", "\\|").split())
