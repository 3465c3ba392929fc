"""Masked words: how well a pre-trained model predicts the words of a text."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.table import Examples, Table
from bert_tf.tasks.kinds.kind import Answered, Answers, Kind
from bert_tf.tasks.kinds.rows import checked_rows, padded_lists
from bert_tf.tasks.scoring.metrics import MASKED_WORDS
from bert_tf.tasks.signatures import DEFAULT, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.windows import WordRows, map_rows, windows, word_rows
from bert_tf.tokenization.words import Words, code_points

_GUESSES = 5
_MORE_GUESSES = 20
_MASK = "[MASK]"


class MaskedLanguageModel(Kind):
    """Guesses for each [MASK] of a text; scores of plain text, each piece masked in turn.

    Scores are of pieces masked alone (pseudo-log-likelihood; Salazar et al. 2020, "Masked Language
    Model Scoring"), and of 15% of them at once, as in pre-training (`drawn_...`).
    """

    model_class = "BertMaskedLanguageModel"
    is_trained = False
    evaluated = "pseudo_likelihood"

    def signatures(self, task: Task) -> dict[str, Signature]:
        """Five guesses by default, 20 as `top_20`; `pseudo_likelihood` scores plain text."""
        more = functools.partial(self.respond, number=_MORE_GUESSES)
        return super().signatures(task) | {
            DEFAULT: Signature({"text": TEXTS}, self.respond),
            f"top_{_MORE_GUESSES}": Signature({"text": TEXTS}, more),
            "pseudo_likelihood": Signature({"sentence": TEXTS}, self.respond),
        }

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        """Reads texts: "sentence" to score, without blank ones; "text" to guess."""
        if "label" not in columns:
            return table.examples(columns)
        examples = table.examples({"text": columns["text"]})
        texts = examples.columns["text"]
        examples = examples.take([i for i, text in enumerate(texts) if text.strip()])
        if not len(examples):
            raise InputError(f"{examples.path}: every text is blank: give texts with words")
        examples.columns["sentence"] = examples.columns.pop("text")
        return examples

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        return np.zeros(len(examples), np.int32)

    def respond(
        self, strings: Tensors, answerer: AnswererProtocol, number: int = _GUESSES
    ) -> Tensors:
        ((name, texts),) = strings.items()
        is_guess = name == "text"
        answers = (
            guess_masked_words(texts, number, answerer) if is_guess else _scores(texts, answerer)
        )
        return {**answers, "truncated": tf.zeros_like(texts, tf.int32)}

    def respond_to_tokens(self, tensors: Tensors, answerer: AnswererProtocol) -> Tensors:
        """Guesses for each [MASK] of rows of tokens, and its position, `masks_token`."""
        inputs = checked_rows(tensors, answerer.model)
        is_mask = inputs["token_ids"] == answerer.tokenizer.mask_token_id
        positions = tf.where(is_mask & (inputs["padding_mask"] != 0))  # (N, 2)
        lists = _best(inputs, positions, _GUESSES, answerer)
        lists["token"] = tf.cast(positions[:, 1], tf.int32)
        count = tf.shape(inputs["token_ids"], tf.int64)[0]
        return padded_lists("masks", lists, positions[:, 0], count)

    def scores(self, answered: Answered) -> dict[str, float | None]:
        answers = answered.answers
        is_piece, right = guessed_pieces(answers)  # masked one at a time
        logs = answers["pieces_log_probability"][is_piece]
        drawn = [answers[f"drawn_{name}"] for name in ("right", "log_probability", "count")]
        scores: list[float | None] = []
        for correct, log, count in ((right, logs, is_piece), drawn):
            pieces = int(count.sum())
            share, mean = (x.sum(dtype=np.float64) / max(pieces, 1) for x in (correct, log))
            scores += [float(share), math.exp(-mean)] if pieces else [None, None]
        return dict(zip(MASKED_WORDS, scores, strict=True))


def guessed_pieces(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Which entries [B, P] are pieces, not padding, and which of them are guessed right."""
    is_piece = np.arange(answers["pieces_text"].shape[1]) < answers["pieces_count"][:, np.newaxis]
    return is_piece, (answers["pieces_guess"] == answers["pieces_text"]) & is_piece


def _scores(texts: tf.Tensor, answerer: AnswererProtocol) -> Tensors:
    pieces = answerer.tokenizer.tokenize(texts)  # (B, None)
    ids = pieces.flat_values
    text_index = pieces.value_rowids()

    def predict(logs: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(logs, ids, batch_dims=1), tf.argmax(logs, -1, output_type=tf.int32)

    rows = _rows(ids, text_index, tf.size(texts), answerer)
    log, guess = _predict(rows.inputs, rows.pieces, predict, answerer, hide=True, ids=ids)
    vocabulary = tf.constant(answerer.tokenizer.vocabulary)
    lists = {
        "text": tf.gather(vocabulary, ids),
        "log_probability": log,
        "guess": tf.gather(vocabulary, guess),
    }
    drawn, corrupted = _draw(texts, pieces, answerer.tokenizer)
    rows = _rows(corrupted, text_index, tf.size(texts), answerer)
    positions = tf.gather(rows.pieces, drawn)
    truth = tf.gather(ids, drawn)
    log, guess = _predict(rows.inputs, positions, predict, answerer, ids=truth)
    answers = padded_lists("pieces", lists, text_index, tf.size(texts, tf.int64))
    drawn_text_index = tf.gather(text_index, drawn)
    for key, x in {
        "count": tf.ones_like(drawn),
        "right": tf.cast(guess == truth, tf.int32),
        "log_probability": log,
    }.items():
        answers[f"drawn_{key}"] = tf.math.unsorted_segment_sum(x, drawn_text_index, tf.size(texts))
    return answers


def _draw(texts: tf.Tensor, pieces: Any, tokenizer: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws 15% of the pieces as pre-training does, int32 [N]; all pieces, corrupted, int32 [P]."""
    # By the text and the piece's number in it alone, whatever the batch.
    text = tf.strings.as_string(tf.strings.to_hash_bucket_fast(texts, 2**31))
    numbers = tf.ragged.range(pieces.row_lengths()).flat_values
    keys = [tf.gather(text, pieces.value_rowids()), tf.strings.as_string(numbers)]
    number = tf.strings.to_hash_bucket_fast(tf.strings.join(keys, ":"), 1000)
    word = tf.strings.to_hash_bucket_fast(tf.strings.join(keys, "/"), tokenizer.vocabulary_size)
    corrupted = tf.where(number < 135, tf.cast(word, tf.int32), pieces.flat_values)
    corrupted = tf.where(number < 120, tokenizer.mask_token_id, corrupted)
    drawn = tf.cast(tf.where(number < 150)[:, 0], tf.int32)
    return drawn, tf.where(number < 150, corrupted, pieces.flat_values)


def guess_masked_words(texts: tf.Tensor, number: int, answerer: AnswererProtocol) -> Tensors:
    """The most probable words, as many as `number`, for each [MASK] of texts; runs in graph."""
    # The tokenizer reads "[MASK]" as any text: a [MASK] stands between two parts of the text.
    between = tf.strings.split(texts, _MASK)  # (B, None)
    tokenizer = answerer.tokenizer
    tokens = tokenizer.tokenize(between.flat_values).with_row_splits_dtype(tf.int64)
    last = tf.expand_dims(between.row_limits() - 1, -1)
    after = tf.ones_like(between.value_rowids())  # masks behind each part
    after = tf.tensor_scatter_nd_update(after, last, tf.zeros_like(between.row_limits()))
    masks = tf.fill([tf.reduce_sum(after)], tokenizer.mask_token_id)
    joined = tf.concat([tokens, tf.RaggedTensor.from_row_lengths(masks, after)], axis=1)
    ids = joined.flat_values
    text_index = tf.gather(between.value_rowids(), joined.value_rowids())
    rows = _rows(ids, text_index, tf.size(texts), answerer)
    masks_at = tf.where(ids == tokenizer.mask_token_id)[:, 0]
    mask_text_index = tf.gather(text_index, masks_at)
    lists = _best(rows.inputs, tf.gather(rows.pieces, masks_at), number, answerer)

    # A [MASK] begins behind the parts and masks before it.
    lengths = between.with_flat_values(tf.strings.length(between.flat_values) + len(_MASK))
    ends = tf.cast(tf.cumsum(lengths.to_tensor(), axis=1), tf.int64)
    ends = tf.RaggedTensor.from_tensor(ends, between.row_lengths() - 1)
    for name, offsets in {"start": ends - len(_MASK), "end": ends}.items():
        lists[f"{name}_byte"] = offsets.flat_values
        lists[name] = code_points(texts, mask_text_index, offsets.flat_values)
    return padded_lists("masks", lists, mask_text_index, tf.size(texts, tf.int64))


def _best(
    inputs: Tensors, positions: tf.Tensor, number: int, answerer: AnswererProtocol
) -> Tensors:
    """The most probable words at N positions, string [N, number], and their probabilities."""
    number = min(number, answerer.tokenizer.vocabulary_size)
    probabilities, words = _predict(
        inputs, positions, lambda logs: tuple(tf.math.top_k(tf.exp(logs), number)), answerer
    )
    vocabulary = tf.constant(answerer.tokenizer.vocabulary)
    return {"words": tf.gather(vocabulary, words), "probabilities": probabilities}


def _rows(
    ids: tf.Tensor, text_index: tf.Tensor, texts: tf.Tensor, answerer: AnswererProtocol
) -> WordRows:
    """Windows over P pieces, int32 [P], of the texts at `text_index`, int64 [P]."""
    alone = tf.RaggedTensor.from_uniform_row_length(ids, 1)
    nowhere = tf.zeros_like(text_index)
    return word_rows(
        Words(text_index, alone, nowhere, nowhere), texts, answerer.tokenizer, answerer.max_length
    )


def _predict(
    inputs: Tensors,
    positions: tf.Tensor,
    function: Any,
    answerer: AnswererProtocol,
    *,
    hide: bool = False,
    **more: tf.Tensor,
) -> Any:
    """Applies `function` to log-probabilities [n, V] and to parts of `more`, [N] each.

    The N tokens stand at `positions` (row and column, int64 [N, 2], ascending) of the rows
    `inputs`, int32 [R, T] each. With `hide` each token is masked, in a row of its own.
    """
    # One row more: without any position `map_rows` computes one of a row that is not there.
    inputs = {name: tf.pad(values, [[0, 1], [0, 0]]) for name, values in inputs.items()}
    rows, length = tf.unstack(tf.shape(inputs["token_ids"], tf.int64))
    # Positions of a row are read together, while their logits take no more memory than short rows'.
    most = 1 if hide else tf.maximum(length // 8, 1)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(positions[:, 0]), positions[:, 0], rows)
    groups = windows(counts, most, most)
    is_group = groups.starts < groups.ends
    asked = (tf.boolean_mask(x, is_group) for x in (groups.text_index, groups.starts, groups.ends))
    row, starts, ends = asked  # (M,)
    together = tf.ragged.range(starts, ends)  # (M, None), of the N positions

    def arranged(values: tf.Tensor) -> tf.Tensor:
        return together.with_flat_values(values).to_tensor(1)  # (M, P)

    def predict(part: Tensors) -> Any:
        batch = {name: tf.gather(values, part["row"]) for name, values in inputs.items()}
        columns = part["columns"]  # (m, P)
        if hide:
            here = tf.reduce_any(columns[..., tf.newaxis] == tf.range(length), 1)  # (m, T)
            batch["token_ids"] = tf.where(
                here, answerer.tokenizer.mask_token_id, batch["token_ids"]
            )
        batch["mask_positions"] = tf.cast(columns, tf.int32)
        logits = answerer.predict(batch)[..., : answerer.tokenizer.vocabulary_size]  # padded tables
        logits = tf.reshape(logits, [-1, answerer.tokenizer.vocabulary_size])  # (m P, V)
        values = {name: tf.reshape(part[name], [-1]) for name in more}
        results = function(tf.nn.log_softmax(logits), **values)
        shape = tf.shape(columns)
        return tf.nest.map_structure(
            lambda x: tf.reshape(x, tf.concat([shape, tf.shape(x)[1:]], 0)), results
        )

    tensors = {name: arranged(values) for name, values in more.items()}
    tensors |= {"row": row, "columns": arranged(positions[:, 1])}
    results = map_rows(predict, tensors, tf.cast(length, tf.int32))
    return tf.nest.map_structure(
        lambda x: tf.RaggedTensor.from_tensor(x, together.row_lengths()).flat_values, results
    )
