"""Weights of Hugging Face's TensorFlow classes (`TFBert*`), as transformers 4 saves them.

They are in tf_model.h5, in several such files with an index, or in safetensors. Their names are
those of the variables, such as "bert/encoder/layer_._0/output/dense/kernel:0"; safetensors lack the
first part, which leaves a classifier's kernel as "kernel:0".
"""

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.errors import InputError

H5 = "tf_model.h5"
H5_INDEX = f"{H5}.index.json"
SUFFIX = ":0"  # ends every name; no name of PyTorch's classes does
# The part of a name after which it says the same as PyTorch's.
_PARTS = ("embeddings", "encoder", "pooler", "predictions", "seq_relationship", "classifier",
          "qa_outputs")  # fmt: skip
_LAST = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}
# Hugging Face's class -> its head's name, where safetensors do not keep it.
_HEADS = {
    "QuestionAnswering": "qa_outputs",
    "SequenceClassification": "classifier",
    "TokenClassification": "classifier",
    "MultipleChoice": "classifier",
}


def read_h5(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and tensors, in float32, of an HDF5 file. Links out of it are not followed."""
    seen: dict[str, np.ndarray] = {}
    try:
        with h5py.File(path, "r") as file:
            datasets: list[tuple[str, h5py.Dataset]] = []

            def collect(name: str, found: object) -> None:
                if isinstance(found, h5py.Dataset):
                    datasets.append((name, found))

            file.visititems(collect)
            for name, data in datasets:
                if data.dtype.kind != "f":
                    raise InputError(
                        f"{path}: {name} is of type {data.dtype}, not a float: save it in float32."
                    )
                is_stored = not data.external and not data.is_virtual
                if not is_stored or data.id.get_storage_size() != data.nbytes:
                    raise InputError(f"{path}: {name} is not stored whole in the file: save it so.")
                tensor = data[()].astype(np.float32, copy=False)
                # Keras writes a layer's weights for each layer that holds it.
                shared = name.partition("/")[2]
                if shared in seen and np.array_equal(seen[shared], tensor):
                    continue
                seen[shared] = tensor
                yield name, tensor
    except (OSError, RuntimeError, KeyError) as error:
        raise InputError(f"{path} is damaged or cut short ({error}): copy it again.") from None


def stored_name(listed: str) -> str:
    """The name in the file of a tensor that an index lists: without the variable's first part."""
    return listed.partition("/")[2] if listed.endswith(SUFFIX) and "/" in listed else listed


def pytorch_form(name: str, tensor: np.ndarray, config: BertConfig) -> tuple[str, np.ndarray]:
    """The name and the tensor that PyTorch's class has for a variable, whose name ends with ":0".

    Dense kernels are transposed, to [out, in]. A variable of no part of a BERT keeps its name.

    Raises:
        InputError: the name says of which head it is neither by itself nor with the config.
    """
    *parts, last = name.removesuffix(SUFFIX).split("/")
    places = [place for place, part in enumerate(parts) if part in _PARTS]
    if places:
        parts = parts[places[-1] :]
    elif not parts and last in ("kernel", "bias"):
        said = str(config.extra.get("architectures"))
        parts = [head for architecture, head in _HEADS.items() if architecture in said][:1]
        if not parts:
            raise InputError(
                f"{name} may belong to any head: write the class that saved it into config.json, "
                f'such as "architectures": ["BertForSequenceClassification"], not {said}.'
            )
    else:
        return name, tensor
    prefix = ["cls"] if parts[0] in ("predictions", "seq_relationship") else []
    renamed = ".".join([*prefix, *parts, _LAST.get(last, last)]).replace("layer_._", "layer.")
    return renamed, tensor.T if last == "kernel" else tensor
