"""What an exported model computes: raw strings in, labels and probabilities out."""

from collections.abc import Callable

import keras
import tensorflow as tf

from bert_tf.models.classifier import BertClassifier
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer


class TextClassifier(tf.Module):
    """Tokenizer, classifier and post-processing in one graph.

    The signature `serving_default` takes `text` (string [batch]) and, for a model of pairs,
    `text_pair` (string [batch]). It returns

    - `label`: string [batch], the most probable label;
    - `probability`: float32 [batch], its probability;
    - `labels`: string [batch, classes], every label, the most probable first;
    - `probabilities`: float32 [batch, classes], their probabilities in that order.

    Every output has the batch first, as TensorFlow Serving's batching and its REST rows need.

    Args:
        tokenizer: the tokenizer the model was trained with.
        model: the fine-tuned classifier.
        labels: one name a class, in the order of the model's logits.
        max_length: tokens an example has at most; longer text is cut.
        takes_pairs: whether the model was trained on pairs.
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        model: BertClassifier,
        labels: list[str],
        *,
        max_length: int,
        takes_pairs: bool,
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.model = model
        self.labels = tf.constant(labels)
        self.pack = Packer(tokenizer, max_length)
        self.takes_pairs = takes_pairs

    def _classify(self, text: tf.Tensor, text_pair: tf.Tensor | None) -> dict[str, tf.Tensor]:
        ids = self.tokenizer.tokenize(text)
        pair_ids = None if text_pair is None else self.tokenizer.tokenize(text_pair)
        logits = self.model(self.pack(ids, pair_ids), training=False)  # (B, C)
        probabilities = keras.ops.softmax(logits, axis=-1)
        ordered, classes = tf.math.top_k(probabilities, k=len(self.labels))  # (B, C) both
        labels = tf.gather(self.labels, classes)
        return {
            "label": labels[:, 0],
            "probability": ordered[:, 0],
            "labels": labels,
            "probabilities": ordered,
        }

    def signature(self) -> Callable:
        """The concrete function behind `serving_default`."""
        text = tf.TensorSpec([None], tf.string, name="text")
        if self.takes_pairs:
            text_pair = tf.TensorSpec([None], tf.string, name="text_pair")
            function = tf.function(lambda text, text_pair: self._classify(text, text_pair))
            return function.get_concrete_function(text, text_pair)
        function = tf.function(lambda text: self._classify(text, None))
        return function.get_concrete_function(text)
