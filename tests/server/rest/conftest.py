"""One small SavedModel with all the types and shapes that the server's protocols know."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel


def _signature(*types: tuple[str, tf.DType, int]):
    """Decorates a function of tensors by name: (name, type, rank)."""
    specs = {name: tf.TensorSpec([None] * rank, dtype, name) for name, dtype, rank in types}

    def decorate(function):
        return tf.function(lambda **inputs: function(**inputs), autograph=False), specs

    return decorate


class Toy(tf.Module):
    """Signatures whose answers a test can foretell."""

    def __init__(self) -> None:
        super().__init__()
        self.three = tf.Variable(3.0)

    def signatures(self) -> dict[str, Callable]:
        features = {"x": tf.io.FixedLenFeature([], tf.float32, 0.0)}
        names = {"name": tf.io.FixedLenFeature([], tf.string, "")}

        @_signature(("x", tf.float32, 1))
        def half_plus_three(x):
            return {"y": x / 2 + self.three}

        @_signature(("text", tf.string, 1))
        def lengths(text):
            return {"length": tf.strings.length(text), "half": tf.strings.substr(text, 0, 1)}

        @_signature(("text", tf.string, 1), ("text_pair", tf.string, 1))
        def pairs(text, text_pair):
            return {"joined": text + text_pair}

        @_signature(
            ("tag", tf.string, 1), ("signal", tf.int32, 2), ("sensor", tf.int32, 3)
        )  # the documentation's example
        def sensors(tag, signal, sensor):
            return {"tag": tag, "signal": signal, "sensor": sensor}

        @_signature(("x", tf.int64, 1))
        def types(x):
            return {
                "int64": x,
                "bool": x > 0,
                "float64": tf.cast(x, tf.float64) / 4,
                "infinite": tf.cast(x, tf.float32) / 0.0,
                "raw_bytes": tf.strings.as_string(x),
                "nested": tf.stack([x, x], 1),
            }

        @_signature(("x", tf.bool, 1))
        def no(x):
            return {"y": tf.logical_not(x)}

        @_signature(("x", tf.float32, 1))
        def total(x):
            return {"y": tf.reduce_sum(x)}

        @_signature(("x", tf.float32, 1))
        def uneven(x):
            return {"y": x, "z": x[:1]}

        @_signature(("inputs", tf.string, 1))
        def classify(inputs):
            x = tf.io.parse_example(inputs, features)["x"]
            name = tf.io.parse_example(inputs, names)["name"]
            return {"classes": tf.stack([name, name + "!"], 1), "scores": tf.stack([x, 1 - x], 1)}

        @_signature(("inputs", tf.string, 1))
        def regress(inputs):
            return {"outputs": tf.io.parse_example(inputs, features)["x"] / 2 + self.three}

        made = {
            "serving_default": half_plus_three,
            "lengths": lengths,
            "pairs": pairs,
            "sensors": sensors,
            "types": types,
            "no": no,
            "total": total,
            "uneven": uneven,
            "classify": classify,
            "regress": regress,
        }
        return {
            name: function.get_concrete_function(**specs)
            for name, (function, specs) in made.items()
        }


def save_toy(folder: Path) -> None:
    """Saves the toy as `folder`, one version of a model."""
    toy = Toy()
    tf.saved_model.save(toy, str(folder), signatures=toy.signatures())
    proto, file = SavedModel(), folder / "saved_model.pb"
    proto.ParseFromString(file.read_bytes())
    for name in ("classify", "regress"):
        method = f"tensorflow/serving/{name}"
        proto.meta_graphs[0].signature_def[name].method_name = method
    file.write_bytes(proto.SerializeToString())


@pytest.fixture(scope="session")
def toy_models(made_once) -> Path:
    """A folder of models: `half_plus_three`, of which version 123 is there."""
    return made_once("toy_models", lambda path: save_toy(path / "half_plus_three" / "123"))
