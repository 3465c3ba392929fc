"""A model that takes raw strings: tokenizer, model and answers in one graph."""

from collections.abc import Callable, Collection, Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.tokenization.tokenizer import BertTokenizer


class RawTextModel(tf.Module):
    """What evaluation runs and what an export saves.

    A signature takes a string tensor [batch] per input, or [batch, n] for lists of strings. Every
    output has the batch first, as batching and REST rows of TensorFlow Serving require.

    Args:
        tokenizer: the tokenizer that `respond` uses.
        model: the fine-tuned model that it uses.
        inputs: names of each signature's strings, such as "text" and "text_pair".
        respond: turns a dict of strings into the outputs of the signature.
        lists: inputs that are lists of strings.

    Attributes:
        method_names: method names of the signatures for another API than predict.
        positions: the model's most tokens of a row.
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        model: keras.Model,
        inputs: Mapping[str, Sequence[str]],
        respond: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]],
        lists: Collection[str] = (),
    ) -> None:
        super().__init__()
        # A SavedModel holds the variables of what it tracks. TensorFlow's own, not the Keras model:
        # Keras would have a server restore copies that no signature reads (keras.Variable's
        # _export_to_saved_model_graph), and every request would fail.
        self.tokenizer = tokenizer
        self._variables = [variable.value for variable in model.variables]
        self._inputs = {name: tuple(names) for name, names in inputs.items()}
        self._respond = respond
        self._lists = frozenset(lists)
        self.method_names: dict[str, str] = {}
        self.positions: int = model.config.max_position_embeddings

    def signatures(self) -> dict[str, Callable[..., dict[str, tf.Tensor]]]:
        """Makes the concrete functions to export, by name."""
        return {name: self.signature(inputs) for name, inputs in self._inputs.items()}

    def signature(self, inputs: Sequence[str]) -> Callable[..., dict[str, tf.Tensor]]:
        """Makes the concrete function of these strings; the default one if none takes them."""
        known = (names for names in self._inputs.values() if sorted(names) == sorted(inputs))
        specs = {
            name: tf.TensorSpec([None, None] if name in self._lists else [None], tf.string, name)
            for name in next(known, self._inputs["serving_default"])
        }

        def answer(**strings: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._respond(strings)

        return tf.function(answer, autograph=False).get_concrete_function(**specs)
