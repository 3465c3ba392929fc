"""Words of a domain in the vocabulary of a pre-trained model."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.tokenization import BertTokenizer

_LONGEST = 100  # characters: Hugging Face's tokenizers make a longer word [UNK], pieces or not


def pieces_per_word(counts: Mapping[str, int], tokenizer: BertTokenizer) -> float:
    """The mean over all words of a text, by the counts of `count_words`."""
    occurrences = np.fromiter(counts.values(), np.int64, len(counts))
    return float(np.average(_piece_counts([*counts], tokenizer), weights=occurrences))


def costly_words(
    counts: Mapping[str, int], tokenizer: BertTokenizer, number: int, min_frequency: int = 1
) -> list[str]:
    """The `number` words that save most pieces as one piece each, those that save most first.

    A word saves a piece fewer than it has, at each occurrence. Words without a letter or digit
    (lines of a table) are left out, as are those of over 100 characters, and those that hold an
    added token, which is matched before words are.

    Args:
        counts: occurrences of each word, from `count_words` with the tokenizer's switches.
        tokenizer: the tokenizer of the model to extend.
        number: maximum number of words.
        min_frequency: minimum number of occurrences.
    """
    tokens = [token.content.lower() for token in tokenizer.added_tokens]
    words = [
        word
        for word, count in counts.items()
        if count >= min_frequency
        and len(word) <= _LONGEST
        and any(map(str.isalnum, word))
        and not any(token in word.lower() for token in tokens)
    ]
    pieces = _piece_counts(words, tokenizer).tolist()
    saved = {w: counts[w] * (n - 1) for w, n in zip(words, pieces, strict=True) if n > 1}
    return sorted(saved, key=lambda word: (-saved[word], word))[:number]


def add_words(model: StoredModel, tokenizer: BertTokenizer, words: Sequence[str]) -> BertTokenizer:
    """Adds words to a model's vocabulary: on its [unusedN] pieces, the others behind all pieces.

    Their embeddings are the mean of those of their pieces by `tokenizer`, the model's own. Unused
    pieces that are recorded as added tokens stay. Returns the model's new tokenizer.
    """
    pieces = tokenizer.vocabulary
    taken = {token.content for token in tokenizer.added_tokens}
    unused = [
        number
        for number, piece in enumerate(pieces)
        if re.fullmatch(r"\[unused\d+\]", piece) and piece not in taken
    ]
    ids = [*unused, *range(len(pieces), len(pieces) + len(words))][: len(words)]
    for number, word in zip(ids, words, strict=True):
        pieces[number : number + 1] = [word]  # appended behind the last piece
    model.set_pieces(ids, tokenizer.tokenize(words).to_list())
    model.tokenizer = tokenizer.with_vocabulary(pieces)
    return model.tokenizer


def _piece_counts(words: Sequence[str], tokenizer: BertTokenizer) -> np.ndarray:
    """Pieces of each word: int64 [words]."""
    return tokenizer.tokenize(words).row_lengths().numpy()
