"""Models to model directories; `bert_tf.checkpoints` writes the files."""

import re
from pathlib import Path
from typing import Any

import keras

from bert_tf.checkpoints.model_directory import write_hugging_face
from bert_tf.checkpoints.sentence_files import DENSE_ACTIVATIONS, write_sentence_files
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.weight_names import head_of, layer_weights
from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath


def save_model(
    model: Any,
    directory: StrPath,
    tokenizer: Any = None,
    max_length: int | None = None,
) -> None:
    """Writes a model as a Hugging Face model directory.

    Args:
        model: a `BertEncoder`, or an encoder with a head.
        directory: made if it does not exist; its other files stay.
        tokenizer: the model's tokenizer; its vocab.txt and tokenizer_config.json are written too.
        max_length: most tokens of a text, recorded for vectors of texts; None for all positions.

    Raises:
        InputError: the model was compiled for independent labels, or has a dense layer with an
            activation, that the format cannot record.
    """
    _check_loss(model)
    dense = _dense_files(model.dense) if "dense" in model.arguments else {}
    stored = StoredModel.from_model(model)
    stored.tokenizer = tokenizer
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # One file, however large: an older one must not stay beside several new ones.
    write_hugging_face(stored, directory, "float32", shard_bytes=2**63)
    if "pooling" in model.arguments:
        write_sentence_files(
            directory,
            pooling=model.pooling,
            normalize=model.normalize,
            width=model.config.width,
            max_length=max_length or model.config.max_position_embeddings,
            **dense,
        )


def _dense_files(layer: keras.layers.Dense | None) -> dict[str, Any]:
    """What the files record of a sentence encoder's dense layer."""
    if layer is None:
        return {}
    activation = str(keras.activations.serialize(layer.activation))
    if activation not in DENSE_ACTIVATIONS:
        raise InputError(
            f"The dense layer has the activation {activation}, but a model directory records only "
            f"{' and '.join(DENSE_ACTIVATIONS)}: give it one of these, or keep the model with "
            "model.save('model.keras')."
        )
    tensors = {weight.name: weight.to_tensor() for weight in layer_weights("linear", layer)}
    return {"dense": tensors, "activation": activation}


def _check_loss(model: Any) -> None:
    """Refuses a classifier compiled for independent labels: a stored one computes a softmax."""
    head = head_of(type(model))
    if "labels" not in model.arguments or head.problem_type == "multi_label_classification":
        return
    for loss in map(keras.losses.get, keras.tree.flatten(getattr(model, "loss", None))):
        name = getattr(loss, "__name__", type(loss).__name__)
        if re.fullmatch(r"(?i)binary_?(focal_?)?crossentropy", name):
            raise InputError(
                f"The classifier was compiled with {name}, for labels that are independent of each "
                "other, but a model directory records one label per text: make it a "
                "BertMultiLabelClassifier, or keep it with model.save('model.keras')."
            )
