"""Strings as rows of tokens, for engines that stand behind our tokenizer."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.serving.row_models import IS_BLANK
from bert_tf.tasks.kinds.rows import TEXT_ROLES
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS

ROWS = {"token_ids", "segment_ids", "padding_mask", IS_BLANK}
_MOST_WORDS = 1 << 16  # remembered, in some 20 MB
_LONGEST = 32  # of them, in bytes

Ids = list[int]


class TokenRows:
    """Makes the inputs of `row_function` from strings; safe to call from several threads.

    The ids of a word between blanks depend on no other word, so words that were met before need no
    TensorFlow, whose threads hold up those of the engine: 2 ms of 12 for a short text in int8.

    Args:
        tokenizer: a `BertTokenizer`.
        max_length: the most tokens of a row.
        prompt: text put before each input text.
    """

    def __init__(self, tokenizer: Any, max_length: int, prompt: str = "") -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._prompt = prompt.encode()
        # An added token may hold blanks.
        self._is_by_word = all(t.content in SPECIAL_TOKENS for t in tokenizer.added_tokens)
        self._known: dict[bytes, Ids] = {}

    def __call__(self, strings: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs for arrays of bytes [B], or [B] and [B, n] of contexts and their choices.

        Returns int32 [R, T] of rows, `truncated`, int32 [B], and of choices `is_blank`, bool
        [B, n]. Raises tf.errors.InvalidArgumentError for other than one list for each context.
        """
        if "choices" not in strings:
            return self._packed([self._ids(strings[x]) for x in TEXT_ROLES if x in strings])
        contexts, choices = strings["context"], strings["choices"]
        if len(contexts) != len(choices) or (len(choices) and not choices.size):
            message = f"give a list of one choice or more for each context, not {choices.shape}"
            raise tf.errors.InvalidArgumentError(None, None, message)
        number = choices.shape[1]
        first = [ids for ids in self._ids(contexts) for _ in range(number)]
        rows = self._packed([first, self._ids(choices.ravel())])
        truncated = rows["truncated"].reshape(choices.shape).max(-1, initial=0)
        return {**rows, IS_BLANK: choices == b"", "truncated": truncated}

    def _ids(self, strings: np.ndarray) -> list[Ids]:
        """The pieces of texts, [B]."""
        texts = [self._prompt + text for text in strings]
        if not self._is_by_word:
            return self._tokenized(texts)
        rows = [text.split(b" ") for text in texts]
        words = {word for row in rows for word in row}
        known = self._known
        ids = {word: known[word] for word in words if word in known}
        if new := [*words - ids.keys()]:
            found = dict(zip(new, self._tokenized(new), strict=True))
            kept = {word: pieces for word, pieces in found.items() if len(word) <= _LONGEST}
            if len(known) + len(kept) > _MOST_WORDS:  # another thread may still read them
                known = self._known = {}
            known |= itertools.islice(kept.items(), _MOST_WORDS)
            ids |= found
        return [[piece for word in row for piece in ids[word]] for row in rows]

    def _tokenized(self, texts: Sequence[bytes]) -> list[Ids]:
        return self._tokenizer.tokenize(tf.constant(texts, tf.string, [len(texts)])).to_list()

    def _packed(self, segments: Sequence[list[Ids]]) -> dict[str, np.ndarray]:
        """Rows of one or two segments as `Packer` makes them, the longest cut first."""
        cls, sep = [self._tokenizer.cls_token_id], [self._tokenizer.sep_token_id]
        room = self._max_length - len(segments) - 1
        rows = []
        truncated = []
        for parts in zip(*segments, strict=True):
            fits = [min(len(parts[0]), room)]
            if len(parts) > 1:  # `Packer.fitting_lengths`
                fits = [min(len(parts[0]), max(room - len(parts[1]), (room + 1) // 2))]
                fits.append(min(len(parts[1]), room - fits[0]))
            ends = [part[:length] + sep for part, length in zip(parts, fits, strict=True)]
            rows.append([cls + ends[0], *ends[1:]])
            truncated.append(sum(map(len, parts)) - sum(fits))
        width = max((sum(map(len, row)) for row in rows), default=len(segments) + 1)
        token_ids = np.full((len(rows), width), self._tokenizer.pad_token_id, np.int32)
        segment_ids, padding_mask = np.zeros((2, len(rows), width), np.int32)
        for number, (first, *second) in enumerate(rows):
            row = sum(second, first)
            token_ids[number, : len(row)] = row
            segment_ids[number, len(first) : len(row)] = 1
            padding_mask[number, : len(row)] = 1
        return {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
            "truncated": np.array(truncated, np.int32),
        }
