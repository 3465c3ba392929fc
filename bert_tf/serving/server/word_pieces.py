"""Word pieces of texts, by the tokenizer whose files lie beside a version's graph."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization.tokenizer import VOCABULARY_FILE, BertTokenizer
from bert_tf.tokenization.words import code_points

_TEXTS = [tf.TensorSpec([None], tf.string)]


class WordPieces:
    """A tokenizer, with one graph for texts of any number and length."""

    def __init__(self, tokenizer: BertTokenizer) -> None:
        self._vocabulary = tokenizer.vocabulary

        @tf.function(input_signature=_TEXTS, autograph=False)
        def pieces(texts: tf.Tensor) -> tuple[tf.Tensor, ...]:
            ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
            rows = ids.value_rowids()
            places = (code_points(texts, rows, each.flat_values) for each in (starts, ends))
            return ids.row_splits, ids.flat_values, *places

        @tf.function(input_signature=_TEXTS, autograph=False)
        def counts(texts: tf.Tensor) -> tf.Tensor:
            return tokenizer.tokenize(texts).row_lengths()

        self._pieces, self._counts = pieces, counts

    def of(self, texts: Sequence[bytes]) -> list[dict[str, Any]]:
        """The `pieces` of each text, with id, text, and start and end in its code points."""
        splits, *columns = (each.numpy().tolist() for each in self._pieces(_array(texts)))
        pieces = [
            {"id": number, "text": self._vocabulary[number], "start": start, "end": end}
            for number, start, end in zip(*columns, strict=True)
        ]
        starts_ends = itertools.pairwise(splits)
        return [{"pieces": pieces[start:end]} for start, end in starts_ends]

    def count(self, texts: Sequence[bytes]) -> np.ndarray:
        """The number of pieces of each text, without [CLS] and [SEP], int64 [B]."""
        return self._counts(_array(texts)).numpy()


def read_word_pieces(folder: Path) -> WordPieces | None:
    """The tokenizer of a folder; None if it has none that bert-tf reads."""
    if not (folder / VOCABULARY_FILE).is_file():
        return None
    try:
        return WordPieces(BertTokenizer.from_directory(folder))
    except InputError:  # of another's model
        return None


def _array(texts: Sequence[bytes]) -> tf.Tensor:
    return tf.constant(texts, tf.string, [len(texts)])
