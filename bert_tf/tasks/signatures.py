"""Signatures of a SavedModel: tokenizer, model and answers in one graph, which takes raw strings.

Each kind declares its own in `Kind.signatures`; `encoder_signatures` has the ones all share.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.tensorflow.inference import CopiedWeights
from bert_tf.networks.tensorflow.int8 import Int8

DEFAULT = "serving_default"
TEXTS = tf.TensorSpec([None], tf.string)
LISTS = tf.TensorSpec([None, None], tf.string)

# The APIs of TensorFlow Serving that ask a signature.
PREDICT = tf.saved_model.PREDICT_METHOD_NAME
CLASSIFY = tf.saved_model.CLASSIFY_METHOD_NAME
REGRESS = tf.saved_model.REGRESS_METHOD_NAME

Tensors = dict[str, tf.Tensor]


class AnswererProtocol(Protocol):
    """What signatures compute with; `bert_tf.text.answerer` has it."""

    @property
    def model(self) -> Any: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def labels(self) -> Sequence[str]: ...  # in the order of the outputs

    @property
    def max_length(self) -> int: ...

    @property
    def plan(self) -> Any: ...  # of products in int8; None for none

    def predict(self, rows: Any) -> Any:
        """The model's outputs for rows of tokens, in graph."""


# Called with the name of a step of long work, how many of its parts are done, and of how many.
Step = Callable[[str, int, int], object]


def no_step(name: str, done: int, total: int) -> None:
    """Shows no step."""


@dataclass(frozen=True)
class Signature:
    """A function that a model is asked by, in an export and in evaluation."""

    inputs: Mapping[str, tf.TensorSpec]  # the batch first
    # From inputs by name and an answerer to outputs by name, in graph. The batch is the first
    # dimension of every output, as TensorFlow Serving requires.
    respond: Callable[[Tensors, Any], Tensors]
    method_name: str = PREDICT  # the API of TensorFlow Serving that asks it
    is_packed: bool = True  # or answers in less memory, more slowly: `CopiedWeights.unpacked`

    def trace(self, answerer: AnswererProtocol, kernels: CopiedWeights | None = None) -> Any:
        """The concrete function, by an answerer's model, or by copies of its weights."""
        specs = {n: tf.TensorSpec(x.shape, x.dtype, n) for n, x in self.inputs.items()}

        def answer(**inputs: tf.Tensor) -> Tensors:
            return self.respond(inputs, answerer)

        function = tf.function(answer, autograph=False)
        if kernels is None:
            return function.get_concrete_function(**specs)
        copies = kernels if self.is_packed else kernels.unpacked()
        with kernels_of(answerer.model, lambda _: copies):
            return function.get_concrete_function(**specs)


def for_tf_examples(
    signature: Signature, method_name: str, outputs: Mapping[str, str]
) -> Signature:
    """A signature that takes tf.Examples; `outputs` maps the API's names to `signature`'s."""
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in signature.inputs}

    def respond(tensors: Tensors, answerer: Any) -> Tensors:
        answers = signature.respond(tf.io.parse_example(tensors["inputs"], features), answerer)
        return {name: answers[output] for name, output in outputs.items()}

    return Signature({"inputs": TEXTS}, respond, method_name)


class RawTextModel(tf.Module):
    """What evaluation runs and what an export saves."""

    def __init__(self, answerer: AnswererProtocol, signatures: Mapping[str, Signature]) -> None:
        super().__init__()
        # A SavedModel holds the variables of what it tracks. TensorFlow's own, not the Keras model:
        # Keras would have a server restore copies that no signature reads (keras.Variable's
        # _export_to_saved_model_graph), and every request would fail.
        self.tokenizer = answerer.tokenizer
        self._variables: list[tf.Variable] = []
        self._untracked = lambda: (answerer, signatures)
        self.positions: int = answerer.model.config.max_position_embeddings
        apis = {name: signature.method_name for name, signature in signatures.items()}
        self.method_names = {name: api for name, api in apis.items() if api != PREDICT}

    def signatures(
        self, names: Iterable[str] | None = None, *, step: Step = no_step
    ) -> dict[str, Any]:
        """Makes the concrete functions to export, by name; None for all."""
        answerer, signatures = self._untracked()
        asked = list(names or signatures)
        functions = {}
        kernels = Int8(answerer.plan) if answerer.plan else CopiedWeights()
        for number, name in enumerate(asked):
            step("tracing the signatures", number, len(asked))
            functions[name] = signatures[name].trace(answerer, kernels)
        captured = {id(x) for function in functions.values() for x in function.captured_inputs}
        watched = {x.ref(): x for function in functions.values() for x in function.variables}
        self._variables = [x for x in watched.values() if id(x.handle) in captured]
        return functions

    def signature(self, name: str = DEFAULT) -> Any:
        """Makes one concrete function; raises InputError for an unknown name."""
        answerer, signatures = self._untracked()
        signature = find_signature(signatures, name)
        kernels = Int8(answerer.plan) if answerer.plan else None
        function = signature.trace(answerer, kernels)
        function.kernels = kernels  # a function does not keep its variables
        return function


def find_signature(signatures: Mapping[str, Any], name: str) -> Any:
    """The signature of this name; raises InputError if there is none."""
    if name not in signatures:
        known = ", ".join(sorted(signatures))
        raise InputError(f"the model has no signature {name!r}: give one of {known}")
    return signatures[name]
