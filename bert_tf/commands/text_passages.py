"""Passages of texts that are longer than a model reads, at the ends of sentences or words."""

from collections.abc import Iterator, Sequence

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
        _, *places = tokenizer.tokenize_with_offsets([text.encode() for text in some])
        splits = places[0].row_splits.numpy()
        starts, ends = (np.split(x.flat_values.numpy(), splits[1:-1]) for x in places)
        long = [i for i, own in enumerate(starts) if len(own) > size]
        sentences = dict(zip(long, _sentences([some[i] for i in long]), strict=True))
        for i, text in enumerate(some):
            if i in sentences:
                yield _divided(text, starts[i], ends[i], sentences[i], size)
            else:
                yield [(0, len(text))]


def _sentences(texts: Sequence[str]) -> list[np.ndarray]:
    """The characters that the sentences of each text begin with, int64."""
    found = []
    sentences = split_sentences(tf.constant([text.encode() for text in texts], tf.string))
    for text, own in zip(texts, sentences.to_list(), strict=True):
        letters = [len("".join(sentence.decode().split())) for sentence in own]
        places = np.array([i for i, character in enumerate(text) if not character.isspace()])
        found.append(places[np.cumsum([0, *letters[:-1]])])
    return found


def _divided(
    text: str, starts: np.ndarray, ends: np.ndarray, sentences: np.ndarray, size: int
) -> list[tuple[int, int]]:
    encoded = np.frombuffer(text.encode(), np.uint8)
    character = np.cumsum((encoded & 0xC0) != 0x80) - 1  # of each byte
    places = character[starts]  # (P,) of the pieces
    of_characters = np.diff(places, prepend=-1) > 0  # a letter may be several pieces
    of_words = np.append(True, starts[1:] > ends[:-1])
    of_sentences = np.isin(places, sentences) & of_characters
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
