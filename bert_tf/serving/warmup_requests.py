"""Warm-up requests, which TensorFlow Serving replays while it loads a version.

`assets.extra/tf_serving_warmup_requests` is a TFRecord of `PredictionLog` messages; one that fails
makes the load fail.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.types_pb2 import DT_BFLOAT16, DT_HALF, DT_INT32
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.errors import InputError
from bert_tf.serving.saved_model import LoadedModel
from bert_tf.tasks.signatures import CLASSIFY, DEFAULT, REGRESS, Step, no_step
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer

WARMUP_FILE = "tf_serving_warmup_requests"

# An example of each input that is a text, or a list of texts.
_TEXTS: dict[str, str | list[str]] = {
    "text": "The ship left the harbour at dawn.",
    "text_pair": "It was at sea before noon.",
    "context": "The ship left the harbour at dawn. It was at sea before noon.",
    "question": "When did the ship leave?",
    "choices": ["The crew set the sails.", "The cow ate the grass."],
    "query": "When did the ship leave?",
    "texts": ["The ship left at dawn.", "The cow ate the grass."],
    "words": "Ada Lovelace sailed from London to Lisbon .",
}
# An example of the input "text" of signatures that have an output.
_TEXTS_OF = {
    "masks_count": "The ship left the [MASK] at dawn.",
    "words_count": "Ada Lovelace sailed from London to Lisbon.",
}


# Words of further texts: oneDNN makes a primitive for each number of tokens that it has not seen,
# which takes an int8 export 10 to 30 ms. Requests of other lengths then meet most of the rest.
_FURTHER = (4, 12, 16, 24, 32, 48, 64, 96)

# A sentence's every word piece becomes a row of the model, and a text is explained by some hundred
# passes: long ones would warm up for minutes.
_LONGEST_SLOW = 16


@dataclass(frozen=True)
class Request:
    signature_name: str
    method_name: str
    size: str  # such as "short", "long" or "batch"
    inputs: Mapping[str, np.ndarray]  # [B, ...], strings as bytes in arrays of objects


def example_texts(inputs: Iterable[str], outputs: Iterable[str]) -> dict[str, str | list[str]]:
    """An example of each input of a signature that takes strings, by its names."""
    texts = {name: _TEXTS.get(name, _TEXTS["text"]) for name in inputs}
    own = next((text for name, text in _TEXTS_OF.items() if name in outputs), None)
    return texts | {"text": own} if own and "text" in texts else texts


def requests(
    signatures: Mapping[str, SignatureDef], tokenizer: BertTokenizer, positions: int
) -> Iterator[Request]:
    """Yields a short request, a long one of `positions` words, and a batch for every signature.

    For the default one, which is asked most, also texts of further lengths.
    """
    for name, signature in sorted(signatures.items()):
        takes_examples = signature.method_name in (CLASSIFY, REGRESS)
        asked = signatures[DEFAULT] if takes_examples else signature
        texts = example_texts(asked.inputs, asked.outputs)
        is_slow = "sentence" in texts or "pieces_attribution" in signature.outputs
        longest = _LONGEST_SLOW if is_slow else positions
        batch = [texts, lengthened(texts, 0), texts, texts]
        sizes = {"short": [texts], "long": [lengthened(texts, longest)], "batch": batch}
        if name == DEFAULT and "sentence" not in texts:
            further = (words for words in _FURTHER if words < positions)
            sizes |= {f"{words} words": [lengthened(texts, words)] for words in further}
        for size, rows in sizes.items():
            if takes_examples:
                inputs = batch_of([{"inputs": _serialized(row)} for row in rows])
            elif any(info.dtype == DT_INT32 for info in signature.inputs.values()):
                inputs = _ids(rows, signature, tokenizer, positions)
            else:
                inputs = batch_of(rows)
            yield Request(name, signature.method_name, size, inputs)


def lengthened(text: Any, words: int) -> Any:
    """Text, or texts in lists or by name, with words repeated or cut to a number of words."""
    if isinstance(text, dict):
        return {name: lengthened(value, words) for name, value in text.items()}
    if isinstance(text, list):
        return [lengthened(part, words) for part in text]
    return " ".join(itertools.islice(itertools.cycle(text.split()), words))


def batch_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Strings by name, or lists of as many strings, as bytes in arrays of objects."""
    encode = np.frompyfunc(lambda text: text.encode() if isinstance(text, str) else text, 1, 1)
    return {name: encode(np.array([row[name] for row in rows], object)) for name in rows[0]}


def _serialized(texts: Mapping[str, str]) -> bytes:
    example = tf.train.Example()
    for name, text in texts.items():
        example.features.feature[name].bytes_list.value.append(text.encode())
    return example.SerializeToString()


def _ids(
    rows: list[Any], signature: SignatureDef, tokenizer: BertTokenizer, positions: int
) -> dict[str, np.ndarray]:
    """Token ids of an example text, in rows as long as the examples are."""
    words = max(len(str(text).split()) for row in rows for text in row.values())
    text = lengthened(_TEXTS["text"], words)
    packed = Packer(tokenizer, positions)(tokenizer.tokenize([text for _ in rows]))
    arrays = {}
    for name, info in signature.inputs.items():
        values = packed[name].numpy()
        is_list = len(info.tensor_shape.dim) == 3  # a row for each choice
        arrays[name] = np.stack([values, values], axis=1) if is_list else values
    return arrays


def check_requests(model: LoadedModel, requests: Sequence[Request], step: Step = no_step) -> None:
    """Runs requests as a server will; raises InputError for one that fails, or cannot be served."""
    for number, request in enumerate(requests):
        step("running the warm-up requests", number, len(requests))
        signature = f"the signature {request.signature_name!r}"
        try:
            outputs = model.run(request.signature_name, request.inputs)
        except (tf.errors.OpError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{signature} fails its {request.size} warm-up request ({reason}): servers would "
                "refuse to load the model; correct the signature"
            ) from error
        (rows,) = {len(values) for values in request.inputs.values()}
        for name, value in outputs.items():
            info = model.signatures[request.signature_name].outputs[name]
            if value.ndim == 0 or len(value) != rows:
                raise InputError(
                    f"{signature} returns {name!r} of shape {list(value.shape)} for a batch of "
                    f"{rows}: make the batch the first dimension of every output"
                )
            if info.dtype in (DT_HALF, DT_BFLOAT16):
                raise InputError(
                    f"{signature} returns {name!r} in half precision, which REST cannot write: "
                    "cast it to float32"
                )


def prediction_log(model_name: str, request: Request) -> bytes:
    """A serialized PredictionLog of tensorflow_serving/apis, which TensorFlow lacks."""
    spec = _field(1, model_name.encode()) + _field(3, request.signature_name.encode())
    if request.method_name in (CLASSIFY, REGRESS):
        examples = b"".join(_field(1, example) for example in request.inputs["inputs"])
        asked = _field(1, spec) + _field(2, _field(1, examples))
        return _field(2 if request.method_name == CLASSIFY else 3, _field(1, asked))
    inputs = b""
    for name, values in request.inputs.items():
        dtype = tf.string if values.dtype == object else tf.int32
        tensor = tf.make_tensor_proto(values, dtype=dtype).SerializeToString()
        inputs += _field(2, _field(1, name.encode()) + _field(2, tensor))
    return _field(6, _field(1, _field(1, spec) + inputs))


def _field(number: int, content: bytes) -> bytes:
    """A field of protobuf's wire format whose value is a message, a string or bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
