"""Asks a SavedModel through TensorFlow's C API alone, as servers in other languages do.

A script without TensorFlow's Python: `python c_api.py LIBRARIES SAVED_MODEL < requests > answers`.
A request, in JSON, is {"inputs": [tensor...], "outputs": [tensor names]}; a tensor has its "name",
"dtype" (the number of TensorFlow's enum), "shape" and "values": each string in base64, values of
other dtypes in base64 of all their bytes. An answer is the list of its output tensors.
"""

import base64
import ctypes
import json
import math
import sys
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

STRING = 7
STRING_SIZE = 24  # bytes of a TF_TString in a tensor
TEXT_OPS = ("_fast_bert_normalizer.so", "_fast_wordpiece_tokenizer.so")


class Output(ctypes.Structure):
    """TF_Output: an operation and the number of one of its outputs."""

    _fields_ = (("operation", c_void_p), ("index", c_int))


def library(folder: Path) -> ctypes.CDLL:
    tf = ctypes.CDLL(str(folder / "tensorflow" / "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
    pointers = (
        "TF_NewStatus TF_NewSessionOptions TF_NewGraph TF_LoadSessionFromSavedModel TF_LoadLibrary "
        "TF_GraphOperationByName TF_AllocateTensor TF_TensorData TF_StringGetDataPointer"
    )
    for name in pointers.split():
        getattr(tf, name).restype = c_void_p
    tf.TF_Message.restype = c_char_p
    tf.TF_StringGetSize.restype = tf.TF_TensorByteSize.restype = c_size_t
    tf.TF_Dim.restype = c_int64
    tf.TF_AllocateTensor.argtypes = [c_int, c_void_p, c_int, c_size_t]
    tf.TF_StringCopy.argtypes = [c_void_p, c_char_p, c_size_t]
    return tf


class Model:
    def __init__(self, libraries: Path, directory: str) -> None:
        self.tf = library(libraries)
        self.status = c_void_p(self.tf.TF_NewStatus())
        for name in TEXT_OPS:
            path = libraries / "tensorflow_text" / "python" / "ops" / name
            if path.exists():  # exports of TensorFlow's own operations do without
                self.tf.TF_LoadLibrary(str(path).encode(), self.status)
                self.check()
        self.graph = c_void_p(self.tf.TF_NewGraph())
        options = c_void_p(self.tf.TF_NewSessionOptions())
        which = directory.encode(), (c_char_p * 1)(b"serve"), 1, self.graph
        load = self.tf.TF_LoadSessionFromSavedModel
        self.session = c_void_p(load(options, None, *which, None, self.status))
        self.check()

    def check(self) -> None:
        if self.tf.TF_GetCode(self.status):
            sys.exit(self.tf.TF_Message(self.status).decode())

    def output(self, name: str) -> Output:
        operation, _, index = name.partition(":")
        pointer = self.tf.TF_GraphOperationByName(self.graph, operation.encode())
        return Output(pointer, int(index)) if pointer else sys.exit(f"no operation {operation}")

    def tensor(self, fed: dict) -> c_void_p:
        dtype, shape, values = fed["dtype"], fed["shape"], fed["values"]
        content = b"" if dtype == STRING else base64.b64decode(values)
        size = STRING_SIZE * math.prod(shape) if dtype == STRING else len(content)
        sizes = (c_int64 * len(shape))(*shape)
        made = c_void_p(self.tf.TF_AllocateTensor(dtype, sizes, len(shape), size))
        data = self.tf.TF_TensorData(made)
        ctypes.memmove(data, content, len(content))
        for number, value in enumerate(values if dtype == STRING else []):
            text = base64.b64decode(value)
            string = c_void_p(data + STRING_SIZE * number)
            self.tf.TF_StringInit(string)
            self.tf.TF_StringCopy(string, text, len(text))
        return made

    def values(self, tensor: c_void_p) -> dict:
        shape = [self.tf.TF_Dim(tensor, axis) for axis in range(self.tf.TF_NumDims(tensor))]
        data, dtype = self.tf.TF_TensorData(tensor), self.tf.TF_TensorType(tensor)
        if dtype == STRING:
            places = [c_void_p(data + STRING_SIZE * n) for n in range(math.prod(shape))]
            texts = [
                ctypes.string_at(self.tf.TF_StringGetDataPointer(p), self.tf.TF_StringGetSize(p))
                for p in places
            ]
            coded = [base64.b64encode(text).decode() for text in texts]
        else:
            content = ctypes.string_at(data, self.tf.TF_TensorByteSize(tensor))
            coded = base64.b64encode(content).decode()
        return {"shape": shape, "values": coded}

    def run(self, request: dict) -> list[dict]:
        fed, wanted = request["inputs"], request["outputs"]
        inputs = (Output * len(fed))(*(self.output(tensor["name"]) for tensor in fed))
        tensors = (c_void_p * len(fed))(*(self.tensor(tensor).value for tensor in fed))
        outputs = (Output * len(wanted))(*map(self.output, wanted))
        results = (c_void_p * len(wanted))()
        asked = inputs, tensors, len(fed), outputs, results, len(wanted)
        self.tf.TF_SessionRun(self.session, None, *asked, None, 0, None, self.status)
        self.check()
        return [self.values(c_void_p(result)) for result in results]


if __name__ == "__main__":
    model = Model(Path(sys.argv[1]), sys.argv[2])
    answers = [model.run(request) for request in json.load(sys.stdin)]
    assert not any(name.partition(".")[0] == "tensorflow" for name in sys.modules)
    json.dump(answers, sys.stdout)
