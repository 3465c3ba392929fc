"""Masked words: how well a pre-trained model predicts the words of a text."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.models.masked_language_model import BertMaskedLanguageModel
from bert_tf.tasks.dataset import Dataset
from bert_tf.tasks.kind import Answers, Kind, none_cut, write_table
from bert_tf.tasks.report import Report, worst
from bert_tf.tokenization.word_windows import map_rows, word_rows
from bert_tf.tokenization.words import Words
from pipelines.examples.labelled_text import Examples, format_of, read_examples

_GUESSES = 5
_MASK = "[MASK]"


class MaskedLanguageModel(Kind):
    """Guesses for each [MASK] of a text; scores of plain text, each piece masked in turn.

    The answers to `text` are lists, padded: `masks_count` [B], and for each [MASK] the most
    probable `masks_words` [B, M, 5] and their `masks_probabilities`.

    The answers to `sentence` are `pieces_count` [B], and for each piece of the text, masked alone
    in a copy of it, `pieces_text`, its `pieces_log_probability`, and the model's `pieces_guess`
    [B, P] (pseudo-log-likelihood; Salazar et al. 2020, "Masked Language Model Scoring"). Beside
    them is what pre-training measures, with 15% of the pieces drawn at once: the number of these
    `drawn_count`, how many the model guesses right, `drawn_right`, and the sum of their
    log-probabilities `drawn_log_probability` [B].

    Texts of any length are read in windows: each piece in the one that shows most of its context.
    """

    model_class = BertMaskedLanguageModel
    is_trained = False

    def inputs(self, dataset: Dataset) -> list[str]:
        """Plain text to score."""
        return ["sentence"]

    def signatures(self, dataset: Dataset) -> dict[str, list[str]]:
        """Guesses by default; scores of plain text have a signature of their own."""
        return {"serving_default": ["text"], "pseudo_likelihood": ["sentence"]}

    def read(self, dataset: Dataset, path: str | Path, *, labelled: bool = True) -> Examples:
        """Reads texts: "sentence" to score, without blank ones; "text" to guess."""
        format = dataset.format or format_of(path) or "lines"
        examples = read_examples(path, {"text": dataset.text}, format=format, header=dataset.header)
        if labelled:
            texts = examples.columns["text"]
            examples = examples.take(i for i, text in enumerate(texts) if text.strip())
            examples.columns["sentence"] = examples.columns.pop("text")
        return examples

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """The texts are their own labels."""
        return np.zeros(len(examples), np.int32)

    def cut(
        self, columns: Mapping[str, Sequence[Any]], tokenizer: Any, max_length: int
    ) -> tuple[int, str]:
        """None is cut."""
        return none_cut(self.lengths(columns, tokenizer), max_length)

    def respond(
        self, strings: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """Guesses, or scores."""
        ((name, texts),) = strings.items()
        if name == "text":
            return _guesses(texts, model, tokenizer, max_length)
        return _scores(texts, model, tokenizer, max_length)

    def score_names(self, dataset: Dataset, labels: Sequence[str]) -> list[str]:
        """With each piece masked in turn, and with 15% drawn at once as in pre-training."""
        return ["accuracy", "pseudo_perplexity", "masked_lm_accuracy", "masked_lm_perplexity"]

    def scores(
        self, dataset: Dataset, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> dict[str, float | None]:
        """Over all pieces; None where there are none."""
        is_piece = _is_piece(answers)
        right = (answers["pieces_guess"] == answers["pieces_text"]) & is_piece
        logs = answers["pieces_log_probability"][is_piece]
        drawn = [answers[f"drawn_{name}"] for name in ("right", "log_probability", "count")]
        found: list[float | None] = []
        for correct, log, count in ((right, logs, is_piece), drawn):
            pieces = int(count.sum())
            share, mean = (x.sum(dtype=np.float64) / max(pieces, 1) for x in (correct, log))
            found += [float(share), math.exp(-mean)] if pieces else [None, None]
        return dict(zip(self.score_names(dataset, labels), found, strict=True))

    def remarks(
        self, dataset: Dataset, scores: Mapping[str, float | None], labels: Sequence[str]
    ) -> list[str]:
        """Which perplexity is which."""
        return [
            "accuracy and pseudo_perplexity mask one word piece at a time; masked_lm_accuracy and "
            "masked_lm_perplexity, that of the paper's table 6, 15% at once as in pre-training"
        ]

    def report(
        self, dataset: Dataset, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Report:
        """The wrong guesses that were least expected."""
        row, column = np.nonzero(_is_piece(answers))
        piece, guess, probability = (
            answers[f"pieces_{name}"][row, column] for name in ("text", "guess", "log_probability")
        )
        shown: dict[str, Sequence[Any]] = {
            "text": [examples.columns["sentence"][index] for index in row],
            "piece": [text.decode() for text in piece],
            "guess": [text.decode() for text in guess],
            "log probability": probability.tolist(),
        }
        return [
            worst(
                "Wrong guesses for the pieces with the lowest probability",
                lambda index: examples.place(row[index]),
                -probability,
                piece != guess,
                shown,
            )
        ]

    def write_predictions(
        self, folder: Path, dataset: Dataset, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes predictions.tsv: each text's number of pieces, right guesses, log-likelihood."""
        is_piece = _is_piece(answers)
        right = (answers["pieces_guess"] == answers["pieces_text"]) & is_piece
        total = np.where(is_piece, answers["pieces_log_probability"], 0).sum(-1, dtype=np.float64)
        columns: list[tuple[str, Sequence[object]]] = [
            ("text", examples.columns["sentence"]),
            ("pieces", list(answers["pieces_count"])),
            ("right", list(right.sum(-1))),
            ("pseudo_log_likelihood", [f"{value:.6f}" for value in total]),
        ]
        write_table(folder / "predictions.tsv", dataset, examples, columns)


def _is_piece(answers: Answers) -> np.ndarray:
    """Which places [B, P] are no padding."""
    return np.arange(answers["pieces_text"].shape[1]) < answers["pieces_count"][:, np.newaxis]


def _scores(texts: tf.Tensor, model: Any, tokenizer: Any, max_length: int) -> dict[str, tf.Tensor]:
    pieces = tokenizer.tokenize(texts)  # (B, None)
    ids = pieces.flat_values

    def of_rows(logs: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        own = tf.gather(logs, ids, batch_dims=1)
        guess = tf.cast(tf.argmax(logs, -1), tf.float32)  # exact: vocabularies are below 2^24
        return tf.stack([own, guess], -1)

    found = _predict(ids, pieces.value_rowids(), tf.size(texts), tf.range(tf.size(ids)), of_rows, 2,
                     model, tokenizer, max_length)  # fmt: skip
    vocabulary = tf.constant(tokenizer.vocabulary)
    lists = {
        "text": tf.gather(vocabulary, ids),
        "log_probability": found[:, 0],
        "guess": tf.gather(vocabulary, tf.cast(found[:, 1], tf.int32)),
    }
    drawn, corrupted = _draw(texts, pieces, tokenizer)
    at_once = _predict(ids, pieces.value_rowids(), tf.size(texts), drawn, of_rows, 2,
                       model, tokenizer, max_length, corrupted)  # fmt: skip
    text = tf.gather(pieces.value_rowids(), drawn)
    right = tf.cast(at_once[:, 1], tf.int32) == tf.gather(ids, drawn)
    of_texts = {
        "count": tf.ones_like(drawn),
        "right": tf.cast(right, tf.int32),
        "log_probability": at_once[:, 0],
    }
    return {
        **{
            f"drawn_{key}": tf.math.unsorted_segment_sum(x, text, tf.size(texts))
            for key, x in of_texts.items()
        },
        "pieces_count": tf.cast(pieces.row_lengths(), tf.int32),
        **{f"pieces_{key}": pieces.with_flat_values(x).to_tensor() for key, x in lists.items()},
    }


def _draw(texts: tf.Tensor, pieces: Any, tokenizer: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws 15% of the pieces as pre-training does: 80% are masked, 10% replaced, 10% kept.

    The draw is a function of text and place, whatever the batch.

    Returns:
        The pieces drawn, int32 [N]; all pieces with what stands in their place, int32 [P].
    """
    text = tf.strings.as_string(tf.strings.to_hash_bucket_fast(texts, 2**31))
    places = tf.ragged.range(pieces.row_lengths()).flat_values
    keys = [tf.gather(text, pieces.value_rowids()), tf.strings.as_string(places)]
    number = tf.strings.to_hash_bucket_fast(tf.strings.join(keys, ":"), 1000)
    word = tf.strings.to_hash_bucket_fast(tf.strings.join(keys, "/"), tokenizer.vocabulary_size)
    corrupted = tf.where(number < 135, tf.cast(word, tf.int32), pieces.flat_values)
    corrupted = tf.where(number < 120, tokenizer.mask_token_id, corrupted)
    drawn = tf.cast(tf.where(number < 150)[:, 0], tf.int32)
    return drawn, tf.where(number < 150, corrupted, pieces.flat_values)


def _guesses(texts: tf.Tensor, model: Any, tokenizer: Any, max_length: int) -> dict[str, tf.Tensor]:
    # The tokenizer reads "[MASK]" as any text: a [MASK] stands between two parts.
    parts = tf.strings.split(texts, _MASK)  # (B, None)
    tokens = tokenizer.tokenize(parts.flat_values).with_row_splits_dtype(tf.int64)
    after = tf.tensor_scatter_nd_update(
        tf.ones_like(parts.value_rowids()),
        tf.expand_dims(parts.row_limits() - 1, -1),
        tf.zeros_like(parts.row_limits()),
    )  # masks behind each part
    masks = tf.fill([tf.reduce_sum(after)], tokenizer.mask_token_id)
    joined = tf.concat([tokens, tf.RaggedTensor.from_row_lengths(masks, after)], axis=1)
    ids = joined.flat_values
    text = tf.gather(parts.value_rowids(), joined.value_rowids())
    places = tf.where(ids == tokenizer.mask_token_id)[:, 0]

    def of_rows(logs: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        best = tf.math.top_k(tf.exp(logs), _GUESSES)
        return tf.concat([best.values, tf.cast(best.indices, tf.float32)], -1)

    found = _predict(ids, text, tf.size(texts), tf.cast(places, tf.int32), of_rows, 2 * _GUESSES,
                     model, tokenizer, max_length)  # fmt: skip
    words = tf.gather(tf.constant(tokenizer.vocabulary), tf.cast(found[:, _GUESSES:], tf.int32))
    rows = tf.RaggedTensor.from_value_rowids(
        places, tf.gather(text, places), nrows=tf.size(texts, tf.int64)
    )
    return {
        "masks_count": tf.cast(rows.row_lengths(), tf.int32),
        "masks_words": rows.with_flat_values(words).to_tensor(),
        "masks_probabilities": rows.with_flat_values(found[:, :_GUESSES]).to_tensor(),
    }


def _predict(
    ids: tf.Tensor, text: tf.Tensor, texts: tf.Tensor, places: tf.Tensor, of_rows: Any, width: int,
    model: Any, tokenizer: Any, max_length: int, shown: tf.Tensor | None = None,
) -> tf.Tensor:  # fmt: skip
    """What `of_rows` makes of the predictions at some pieces.

    Args:
        ids: P pieces of all texts, int32 [P].
        text: text of each piece, int64 [P].
        texts: number of texts, int32 [].
        places: the pieces to predict, int32 [N].
        of_rows: log-probabilities [r, V] and true pieces [r] -> float32 [r, width].
        width: see above.
        model: a `BertMaskedLanguageModel`.
        tokenizer: its tokenizer.
        max_length: maximum tokens of a row.
        shown: pieces that the model reads in place of `ids`, int32 [P]; None for `ids` with the
            one to predict masked.

    Returns:
        float32 [N, width].
    """
    alone = tf.RaggedTensor.from_uniform_row_length(ids if shown is None else shown, 1)
    nowhere = tf.zeros_like(text)
    rows = word_rows(Words(text, alone, nowhere, nowhere), texts, tokenizer, max_length)

    def predict(part: dict[str, tf.Tensor]) -> tf.Tensor:
        row, column = tf.unstack(part["where"], axis=1)
        inputs = {name: tf.gather(values, row) for name, values in rows.inputs.items()}
        if shown is None:
            length = tf.shape(inputs["token_ids"])[1]
            here = tf.one_hot(column, length, on_value=True, off_value=False)
            inputs["token_ids"] = tf.where(here, tokenizer.mask_token_id, inputs["token_ids"])
        inputs["mask_positions"] = tf.cast(column, tf.int32)[:, tf.newaxis]
        logits = model(inputs, training=False)[:, 0, : len(tokenizer.vocabulary)]  # padded tables
        return of_rows(tf.nn.log_softmax(logits), part["id"])[:, tf.newaxis]

    wanted = {"where": tf.gather(rows.pieces, places), "id": tf.gather(ids, places)}
    return map_rows(predict, wanted, width)[: tf.size(places), 0]
