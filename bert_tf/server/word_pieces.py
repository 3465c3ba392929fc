"""Word pieces of texts, for `:tokenize` and for the numbers of tokens in OpenAI's answers."""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.server.batching import Arrays
from bert_tf.server.errors import invalid
from bert_tf.tasks.signatures import TEXTS
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.words import code_points

_MOST_PIECES = 2**18  # of an answer to `:tokenize`: 15 MB of JSON


class WordPieces:
    """A tokenizer, with one graph for texts of any number and length."""

    def __init__(self, tokenizer: BertTokenizer) -> None:
        self._vocabulary = tokenizer.vocabulary

        @tf.function(input_signature=[TEXTS], autograph=False)
        def pieces(texts: tf.Tensor) -> dict[str, tf.Tensor]:
            ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
            rows = ids.value_rowids()
            return {
                "split": ids.row_splits,
                "id": ids.flat_values,
                "start": code_points(texts, rows, starts.flat_values),
                "end": code_points(texts, rows, ends.flat_values),
            }

        @tf.function(input_signature=[TEXTS], autograph=False)
        def counts(texts: tf.Tensor) -> tf.Tensor:
            return tokenizer.tokenize(texts).row_lengths()

        self._pieces, self._counts = pieces, counts

    def pieces(self, inputs: Arrays, deadline: float) -> dict[str, np.ndarray]:
        """Columns of all pieces, and where each text's begin; too many are INVALID_ARGUMENT."""
        texts = inputs["text"]
        if sum(map(len, texts)) > _MOST_PIECES:  # a piece has a byte at least
            count = self.counts(inputs, deadline)["counts"].sum()
            if count > _MOST_PIECES:
                message = f"The texts have {count} word pieces, more than {_MOST_PIECES}"
                raise invalid(f"{message}: send fewer or shorter texts", "answer_bytes")
        columns = self._pieces(tf.constant(texts, tf.string))
        return {name: column.numpy() for name, column in columns.items()}

    def counts(self, inputs: Arrays, deadline: float) -> dict[str, np.ndarray]:
        """The number of pieces of each text, without [CLS] and [SEP], int64 [B]."""
        return {"counts": self._counts(tf.constant(inputs["text"], tf.string)).numpy()}

    def rows(self, columns: Arrays) -> list[dict[str, Any]]:
        split, *lists = (columns[name].tolist() for name in ("split", "id", "start", "end"))
        pieces = [
            {"id": number, "text": self._vocabulary[number], "start": start, "end": end}
            for number, start, end in zip(*lists, strict=True)
        ]
        return [{"pieces": pieces[start:end]} for start, end in itertools.pairwise(split)]
