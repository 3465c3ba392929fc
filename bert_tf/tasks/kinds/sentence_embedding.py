"""Vectors of texts that are trained to be compared: what means the same has a high cosine."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.errors import InputError
from bert_tf.models.sentence_encoder import BertSentenceEncoder
from bert_tf.serving.signatures import DEFAULT, LISTS, TEXTS, Parts, Signature, Tensors
from bert_tf.tasks.kinds.embedding_losses import (
    cosent,
    in_batch_accuracy,
    in_batch_cross_entropy,
    squared_cosine_error,
)
from bert_tf.tasks.kinds.kind import (
    Answered,
    Kind,
    checked_rows,
    count_pieces,
    write_table,
)
from bert_tf.tasks.reports.report import Report, worst
from bert_tf.tasks.scoring.retrieval import retrieval_scores
from bert_tf.tasks.task import Layout, Task
from bert_tf.tasks.task_options import EmbeddingOptions
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows
from bert_tf.training.means import Values
from pipelines.examples.labelled_text import Examples, MissingColumnError

_RETRIEVAL = ("mrr", "recall_at_1", "recall_at_10")
_OF_SCORED = ("spearman", "pearson")


@dataclass(frozen=True)
class SentenceEmbedding(Kind):
    """A vector for each text, such that texts of like meaning have a high cosine.

    Learns from pairs ("infonce": the other texts of a batch are wrong answers), from pairs with
    scores ("cosent", "cosine"), or from texts alone ("simcse": two dropouts of a text are a pair).
    """

    embedding_loss: str = "infonce"
    pooling: str = "mean"
    normalize: bool = True
    scale: float = 20.0  # of cosines, in the losses
    negatives: str | None = None  # column of texts that are wrong answers; "negative*" for several

    options = EmbeddingOptions
    model_class = BertSentenceEncoder
    evaluated = "compare"
    batches_of_like_length = False  # the others of a batch are wrong answers: length tells them
    compares_rows = True
    pair_is_optional = True

    @property
    def _is_scored(self) -> bool:
        return self.embedding_loss in ("cosent", "cosine")

    @property
    def metrics(self) -> Mapping[str, Values]:  # type: ignore[override]
        return {} if self._is_scored else {"accuracy": in_batch_accuracy}

    def loss(self, *, label_smoothing: float = 0.0) -> Values:
        if label_smoothing:
            raise InputError("--label_smoothing is for tasks with classes: leave it out")
        functions = {"cosent": cosent, "cosine": squared_cosine_error}
        return functions.get(self.embedding_loss, in_batch_cross_entropy)(self.scale)

    def soft_loss(self, temperature: float) -> Values | None:
        return None

    @property
    def needs_labels(self) -> bool:
        return self._is_scored

    def check_training(self, options: Any, batch_size: int, validation: Examples) -> None:
        for name in ("features_only", "bilstm", "jit_compile", "class_weights"):
            if getattr(options, name) not in (None, False, "auto"):
                raise InputError(f"--{name} is not for vectors of texts: leave it out")
        if options.gradient_accumulation_steps > 1:
            raise InputError(
                "the texts of a batch are compared with each other, which micro-batches cannot: "
                "leave --gradient_accumulation_steps out"
            )
        if batch_size == 1 and not self.negatives:
            raise InputError(
                "the other texts of a batch are the wrong answers, and --batch_size 1 has none: "
                "give 2 or more"
            )
        self._check_scored(validation)

    def _check_scored(self, examples: Examples) -> None:
        if self.embedding_loss != "infonce" and "label" not in examples.columns:
            raise InputError(
                f"{examples.path} has no scores of pairs, which vectors learned by "
                f"{self.embedding_loss} are validated with: give --validation a file that has, "
                "and name its columns"
            )

    def recorded(self, directory: str | Path) -> dict[str, Any]:
        return read_sentence_files(directory)

    def head(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"pooling": self.pooling, "normalize": self.normalize}

    def signatures(self, task: Task) -> dict[str, Signature]:
        vectors = Signature({"text": TEXTS}, self.respond)
        return {
            DEFAULT: vectors,
            "embed": vectors,
            "compare": Signature({"text": TEXTS, "text_pair": TEXTS}, self.compare),
            "rerank": Signature({"query": TEXTS, "texts": LISTS}, self.rerank),
        }

    def read(self, layout: Layout, path: str | Path) -> Examples:
        """Reads pairs; scores, and second texts for "simcse", where the file has them.

        Without second texts a text is its own pair.
        """
        columns, optional = dict(layout.columns), ["label", "text_pair"]
        if layout.labelled:
            if self.negatives is not None:
                columns["negatives"] = self.negatives
            needed = {"infonce": ["text_pair"], "simcse": []}
            own = needed.get(self.embedding_loss, optional)
            optional = [role for role in optional if role not in own]
        while True:
            try:
                examples = layout.read(path, columns)
                break
            except MissingColumnError:
                if not optional:
                    raise
                columns.pop(optional.pop(0), None)
        found = examples.columns
        if layout.labelled:
            found.setdefault("text_pair", found["text"])
        if "negatives" in found:
            wrong = [[x] if isinstance(x, str) else x for x in found["negatives"]]
            for index, texts in enumerate(wrong):
                if len(texts) != len(wrong[0]):
                    raise InputError(
                        f"{examples.place(index)}: {len(texts)} wrong answers where line "
                        f"{examples.lines[0]} has {len(wrong[0])}; give all the same number"
                    )
            found["negatives"] = wrong
        return examples

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Scores, float32 [E]; or numbers of both texts, int32 [E, 2], the same for equal ones."""
        given = examples.columns
        if not self._is_scored:
            numbers: dict[str, int] = {}
            return np.array(
                [[numbers.setdefault(text, len(numbers)) for text in pair]
                 for pair in zip(given["text"], given["text_pair"], strict=True)], np.int32,
            )  # fmt: skip
        return self._scores(examples)

    def _scores(self, examples: Examples) -> np.ndarray:
        values = np.full(len(examples), np.nan, np.float32)
        for index, text in enumerate(examples.columns["label"]):
            with contextlib.suppress(ValueError):
                values[index] = float(text)
            if not np.isfinite(values[index]):
                raise InputError(
                    f"{examples.place(index)}: the score {text!r} is not a number; correct the "
                    "line, or learn from pairs without scores (--embedding_loss infonce)"
                )
        return values

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        columns = {n: v for n, v in examples.columns.items() if n != "label"}
        targets = self.targets(examples, labels)
        if self.embedding_loss == "cosine":  # a cosine is at most 1
            targets = targets / max(1.0, float(np.abs(targets).max()))
        return columns, targets

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """Rows of each text, [B, N, T]: both of the pair, then wrong answers."""
        texts = tf.stack([strings["text"], strings["text_pair"]], 1)
        if "negatives" in strings:
            texts = tf.concat([texts, strings["negatives"]], 1)
        return _rows(texts, tokenizer, max_length)[0]

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example's longer text, int64 [E]."""
        texts = [values for values in columns.values() if isinstance(values[0], str)]
        return 2 + np.max([count_pieces(values, tokenizer) for values in texts], axis=0)

    def respond(self, strings: Tensors, parts: Parts) -> Tensors:
        vectors, truncated = _vectors(strings["text"][:, tf.newaxis], parts)
        return {"vector": vectors[:, 0], "truncated": truncated[:, 0]}

    def compare(self, strings: Tensors, parts: Parts) -> Tensors:
        """The cosine of both texts of a pair, and their vectors."""
        vectors, truncated = _vectors(tf.stack([strings["text"], strings["text_pair"]], 1), parts)
        return {
            "score": _cosines(vectors[:, :1], vectors[:, 1:])[:, 0],
            "vector": vectors[:, 0],
            "vector_pair": vectors[:, 1],
            "truncated": tf.reduce_max(truncated, -1),
        }

    def rerank(self, strings: Tensors, parts: Parts) -> Tensors:
        texts = tf.concat([strings["query"][:, tf.newaxis], strings["texts"]], 1)
        vectors, truncated = _vectors(texts, parts)
        return {"scores": _cosines(vectors[:, :1], vectors[:, 1:]), "truncated": truncated[:, 1:]}

    def respond_to_tokens(self, tensors: Tensors, parts: Parts) -> Tensors:
        inputs = checked_rows(tensors, parts.model)
        rows = {name: x[:, tf.newaxis] for name, x in inputs.items()}
        return {"vector": map_rows(parts.predict, rows)[:, 0]}

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        return list(_RETRIEVAL if self.embedding_loss == "infonce" else _OF_SCORED)

    def scores(self, given: Answered) -> dict[str, float | None]:
        """Correlations with the scores of pairs; without scores, how well pairs find each other."""
        from bert_tf.tasks.scoring import metrics

        columns = given.examples.columns
        if self.embedding_loss != "infonce":
            self._check_scored(given.examples)
            truth, found = self._scores(given.examples), given.answers["score"].round(6)
            return {name: getattr(metrics, name)(truth, found) for name in _OF_SCORED}
        first, second = (given.answers[name] for name in ("vector", "vector_pair"))
        return retrieval_scores(first, second, columns["text"], columns["text_pair"])

    def report(self, given: Answered) -> Report:
        score = given.answers["score"]
        shown: dict[str, Any] = {**given.examples.columns, "cosine": score}
        if self.embedding_loss == "infonce":
            every = np.ones(len(score), bool)
            title = "Pairs with the lowest cosine"
            return [worst(title, given.examples.place, -score, every, shown)]
        truth = self._scores(given.examples)
        ranks = [np.argsort(np.argsort(x)) / max(1, len(x) - 1) for x in (truth, score)]
        error = abs(ranks[1] - ranks[0])
        shown["difference"] = error
        title = "Pairs whose rank by cosine is furthest from that by score"
        return [worst(title, given.examples.place, error, error > 0, shown)]

    def write_predictions(self, folder: Path, given: Answered) -> None:
        cosines = [f"{score:.6f}" for score in given.answers["score"]]
        write_table(folder / "predictions.tsv", given, [("predicted", cosines)])


def _rows(texts: tf.Tensor, tokenizer: Any, max_length: int) -> tuple[Tensors, tf.Tensor]:
    """Rows of texts [B, N], [B, N, T] each, and the word pieces they lost, int32 [B, N]."""
    ids = tokenizer.tokenize(tf.reshape(texts, [-1]))
    pack = Packer(tokenizer, max_length)
    shape = tf.shape(texts)
    inputs = {
        name: tf.reshape(x, tf.concat([shape, tf.shape(x)[1:]], 0)) for name, x in pack(ids).items()
    }
    return inputs, tf.reshape(pack.truncated(ids.row_lengths()), shape)


def _vectors(texts: tf.Tensor, parts: Parts) -> tuple[tf.Tensor, tf.Tensor]:
    """Vectors of texts [B, N], float32 [B, N, W], and the word pieces they lost [B, N]."""
    inputs, truncated = _rows(texts, parts.tokenizer, parts.max_length)
    rows = {name: tf.reshape(x, [-1, 1, tf.shape(x)[2]]) for name, x in inputs.items()}
    found = map_rows(parts.predict, rows)  # (B * N, 1, W)
    width = parts.model.config.width
    return tf.reshape(found, [*tf.unstack(tf.shape(texts)), width]), truncated


def _cosines(one: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Cosines [B, N] of vectors [B, 1, W] and [B, N, W]."""
    return tf.reduce_sum(tf.nn.l2_normalize(one, -1) * tf.nn.l2_normalize(others, -1), -1)
