"""Passages of texts that are longer than a model reads, at the ends of sentences or words."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.pipelines.corpus.sentence_splitting import split_sentences
from bert_tf.tokenization.tokenizer import BertTokenizer

_AT_ONCE = 256  # texts


def passages(
    texts: Sequence[str], tokenizer: BertTokenizer, size: int
) -> Iterator[list[tuple[int, int]]]:
    """Yields, for each text, where its passages of at most `size` pieces start and end.

    The places are in characters. A passage is as many whole sentences as fit; a longer sentence is
    divided between words, and a longer word between characters. A text that fits is one passage.
    """
    for first in range(0, len(texts), _AT_ONCE):
        some = texts[first : first + _AT_ONCE]
        ids, starts, ends = tokenizer.tokenize_with_offsets([text.encode() for text in some])
        for i, count in enumerate(ids.row_lengths().numpy()):
            is_long = count > size
            yield _divided(some[i], starts[i], ends[i], size) if is_long else [(0, len(some[i]))]


def _divided(text: str, starts: Any, ends: Any, size: int) -> list[tuple[int, int]]:
    encoded = np.frombuffer(text.encode(), np.uint8)
    character = np.cumsum((encoded & 0xC0) != 0x80) - 1  # of each byte
    places = character[starts]  # (P,) of the pieces
    of_characters = np.diff(places, prepend=-1) > 0  # a letter may be several pieces
    of_words = np.append(True, starts[1:] > ends[:-1])
    of_sentences = np.isin(places, _sentence_starts(text)) & of_characters
    # Pieces that may begin a passage, the best first.
    breaks = [np.flatnonzero(each) for each in (of_sentences, of_words, of_characters)]
    found: list[tuple[int, int]] = []
    piece = 0
    while piece < len(places):
        following = limit = piece + size
        if limit < len(places):
            for each in breaks:
                fitting = each[(each > piece) & (each <= limit)]
                if len(fitting):
                    following = fitting[-1]
                    break
        end = len(text) if following >= len(places) else int(places[following])
        found.append((int(places[piece]) if found else 0, end))
        piece = following
    return found


def _sentence_starts(text: str) -> np.ndarray:
    """The first characters of the text's sentences, int64."""
    (sentences,) = split_sentences(tf.constant([text.encode()])).to_list()
    letters = [len("".join(sentence.decode().split())) for sentence in sentences]
    places = np.array([i for i, character in enumerate(text) if not character.isspace()])
    return places[np.cumsum([0, *letters[:-1]])]
