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
        batch = texts[first : first + _AT_ONCE]
        _, *columns = tokenizer.tokenize_with_offsets([text.encode() for text in batch])
        splits = columns[0].row_splits.numpy()
        starts, ends = (np.split(x.flat_values.numpy(), splits[1:-1]) for x in columns)
        long = [i for i, pieces in enumerate(starts) if len(pieces) > size]
        sentences = dict(zip(long, _sentences([batch[i] for i in long]), strict=True))
        for i, text in enumerate(batch):
            if i in sentences:
                yield _divided(text, starts[i], ends[i], sentences[i], size)
            else:
                yield [(0, len(text))]


def _sentences(texts: Sequence[str]) -> list[np.ndarray]:
    """The characters that the sentences of each text begin with, int64."""
    beginnings = []
    sentences = split_sentences(tf.constant([text.encode() for text in texts], tf.string))
    for text, split in zip(texts, sentences.to_list(), strict=True):
        letters = [len("".join(sentence.decode().split())) for sentence in split]
        indices = np.array([i for i, character in enumerate(text) if not character.isspace()])
        beginnings.append(indices[np.cumsum([0, *letters[:-1]])])
    return beginnings


def _divided(
    text: str, starts: np.ndarray, ends: np.ndarray, sentences: np.ndarray, size: int
) -> list[tuple[int, int]]:
    encoded = np.frombuffer(text.encode(), np.uint8)
    character = np.cumsum((encoded & 0xC0) != 0x80) - 1  # of each byte
    begins = character[starts]  # (P,) of the pieces
    at_character = np.diff(begins, prepend=-1) > 0  # a letter may be several pieces
    at_word = np.append(True, starts[1:] > ends[:-1])
    at_sentence = np.isin(begins, sentences) & at_character
    # Pieces that may begin a passage, the best first.
    breaks = [np.flatnonzero(candidates) for candidates in (at_sentence, at_word, at_character)]
    spans: list[tuple[int, int]] = []
    piece = 0
    while piece < len(begins):
        following = limit = piece + size
        if limit < len(begins):
            for candidates in breaks:
                fitting = candidates[(candidates > piece) & (candidates <= limit)]
                if len(fitting):
                    following = fitting[-1]
                    break
        end = len(text) if following >= len(begins) else int(begins[following])
        spans.append((int(begins[piece]) if spans else 0, end))
        piece = following
    return spans
