"""A model that takes raw strings: tokenizer, model and answers in one graph."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.tokenization.tokenizer import BertTokenizer


class RawTextModel(tf.Module):
    """What evaluation runs and what an export saves.

    The signature takes a string tensor [batch] per input. Every output has the batch first, as
    batching and REST rows of TensorFlow Serving require.

    Args:
        tokenizer: the tokenizer that `features` uses.
        model: the fine-tuned model.
        inputs: names of the strings, such as "text" and "text_pair".
        features: turns a dict of strings into model inputs.
        answers: turns model outputs into the outputs of the signature.
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        model: keras.Model,
        inputs: Sequence[str],
        features: Callable[[dict[str, tf.Tensor]], Any],
        answers: Callable[[Any], dict[str, tf.Tensor]],
    ) -> None:
        super().__init__()
        # A SavedModel holds the variables of what it tracks.
        self.tokenizer = tokenizer
        self.model = model
        self.inputs = tuple(inputs)
        self._features = features
        self._answers = answers

    def signature(self) -> Callable[..., dict[str, tf.Tensor]]:
        """Makes the concrete function behind `serving_default`."""
        specs = {name: tf.TensorSpec([None], tf.string, name=name) for name in self.inputs}

        def answer(**strings: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._answers(self.model(self._features(strings), training=False))

        return tf.function(answer, autograph=False).get_concrete_function(**specs)
