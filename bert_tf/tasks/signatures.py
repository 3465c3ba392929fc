"""A model that takes raw strings: tokenizer, model and answers in one graph."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.tensorflow.inference import CopiedWeights
from bert_tf.networks.tensorflow.int8 import Int8, ProductPlan
from bert_tf.tokenization.tokenizer import BertTokenizer

DEFAULT = "serving_default"
TEXTS = tf.TensorSpec([None], tf.string)
LISTS = tf.TensorSpec([None, None], tf.string)

# The APIs of TensorFlow Serving that ask a signature.
PREDICT = tf.saved_model.PREDICT_METHOD_NAME
CLASSIFY = tf.saved_model.CLASSIFY_METHOD_NAME
REGRESS = tf.saved_model.REGRESS_METHOD_NAME

Tensors = dict[str, tf.Tensor]


@dataclass(frozen=True, eq=False)
class Parts:
    model: Any
    tokenizer: BertTokenizer
    labels: Sequence[str]  # in the order of the model's outputs
    max_length: int

    def predict(self, rows: Any) -> Any:
        return self.model(rows, training=False)


@dataclass(frozen=True)
class Signature:
    """A function that a model is asked by, in an export and in evaluation."""

    inputs: Mapping[str, tf.TensorSpec]  # the batch first
    # Turns inputs by name into outputs by name, in graph; before `of` it takes `Parts`, too. The
    # batch is the first dimension of every output, as TensorFlow Serving requires.
    respond: Callable[..., Tensors]
    method_name: str = PREDICT  # the API of TensorFlow Serving that asks it

    def of(self, parts: Parts) -> "Signature":
        return replace(self, respond=functools.partial(self.respond, parts=parts))

    def trace(self) -> Any:
        specs = {n: tf.TensorSpec(x.shape, x.dtype, n) for n, x in self.inputs.items()}

        def answer(**inputs: tf.Tensor) -> Tensors:
            return self.respond(inputs)

        return tf.function(answer, autograph=False).get_concrete_function(**specs)


def of_examples(signature: Signature, method_name: str, outputs: Mapping[str, str]) -> Signature:
    """A signature for tf.Examples; `outputs` map those of the API to those of `signature`."""
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in signature.inputs}

    def respond(tensors: Tensors, parts: Parts) -> Tensors:
        answers = signature.respond(tf.io.parse_example(tensors["inputs"], features), parts)
        return {name: answers[own] for name, own in outputs.items()}

    return Signature({"inputs": TEXTS}, respond, method_name)


class RawTextModel(tf.Module):
    """What evaluation runs and what an export saves."""

    def __init__(
        self,
        tokenizer: BertTokenizer,
        model: keras.Model,
        signatures: Mapping[str, Signature],
        plan: ProductPlan | None = None,  # of products in int8
    ) -> None:
        super().__init__()
        # A SavedModel holds the variables of what it tracks. TensorFlow's own, not the Keras model:
        # Keras would have a server restore copies that no signature reads (keras.Variable's
        # _export_to_saved_model_graph), and every request would fail.
        self.tokenizer = tokenizer
        self._variables: list[tf.Variable] = []
        self._signatures = lambda: signatures  # a bare dict would be tracked, too
        self._model = lambda: model
        self._int8 = (lambda: Int8(plan)) if plan else None
        self.positions: int = model.config.max_position_embeddings
        apis = {name: signature.method_name for name, signature in signatures.items()}
        self.method_names = {name: apis[name] for name in apis if apis[name] != PREDICT}

    def signatures(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Makes the concrete functions to export, by name; None for all."""
        every = self._signatures()
        kernels = self._int8() if self._int8 else CopiedWeights()
        with kernels_of(self._model(), lambda _: kernels):
            made = {name: every[name].trace() for name in names or every}
            captured = {id(x) for function in made.values() for x in function.captured_inputs}
            watched = {x.ref(): x for function in made.values() for x in function.variables}
            self._variables = [x for x in watched.values() if id(x.handle) in captured]
        return made

    def signature(self, name: str = DEFAULT) -> Any:
        """Makes one concrete function; raises InputError for an unknown name."""
        signature = find_signature(self._signatures(), name)
        if self._int8 is None:
            return signature.trace()
        kernels = self._int8()
        with kernels_of(self._model(), lambda _: kernels):
            function = signature.trace()
        function.kernels = kernels  # a function does not keep its variables
        return function


def find_signature(signatures: Mapping[str, Any], name: str) -> Any:
    """The signature of this name; raises InputError if there is none."""
    if name not in signatures:
        known = ", ".join(sorted(signatures))
        raise InputError(f"the model has no signature {name!r}: give one of {known}")
    return signatures[name]
