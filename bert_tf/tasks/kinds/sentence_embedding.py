"""Vectors of texts: of an encoder without a head, or trained to be compared by their cosine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.embedding_losses import losses_of_vectors
from bert_tf.networks.tensorflow.losses import Losses
from bert_tf.pipelines.examples.table import Examples, Table
from bert_tf.tasks import encoder_signatures
from bert_tf.tasks.kinds.kind import TOKENS, Answered, Kind, count_pieces, numbers
from bert_tf.tasks.kinds.long_texts import WindowedKind
from bert_tf.tasks.kinds.rows import alone, in_lists
from bert_tf.tasks.readers import PairReader, ScoreReader
from bert_tf.tasks.scoring.metrics import pearson, retrieval_scores, spearman
from bert_tf.tasks.signatures import DEFAULT, LISTS, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_options import EmbeddingOptions
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows

RECORDED = ("similarity", "prompt", "query_prompt", "document_prompt")


class Embedding(Kind):
    """Vectors of each text. There are no labels: nothing to train or to score."""

    model_class = "BertEncoder"
    is_trained = False

    def signatures(self, task: Task) -> dict[str, Signature]:
        return super().signatures(task) | {DEFAULT: encoder_signatures.ENCODER_SIGNATURES["embed"]}

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        return encoder_signatures.embed(strings, answerer)

    def row_answers(
        self, rows: Tensors, answerer: AnswererProtocol, apply: Any = map_rows
    ) -> Tensors:
        return encoder_signatures.vectors(rows, answerer.model, apply)

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        return self._refuse() if "label" in columns else super().read(table, columns)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            "the model is an encoder without a head, which has no scores: train it for a task "
            "first (bert-tf finetune)"
        )

    targets = scores = _refuse


@dataclass(frozen=True)
class SentenceEmbedding(PairReader, WindowedKind):
    """A vector for each text, such that texts of like meaning have a high cosine.

    Learns from pairs ("infonce": the other texts of a batch are wrong answers), from pairs with
    scores ("cosent", "cosine"), or from texts alone ("simcse": two dropouts of a text are a pair).
    """

    pooling: str = "mean"
    normalize: bool = True
    scale: float = 20.0  # of cosines, in the losses
    # What files of sentence-transformers record: how vectors are compared, "cosine" or "dot"; what
    # stands before every text, and before questions and searched texts where that is other text.
    similarity: str = "cosine"
    prompt: str = ""
    query_prompt: str | None = None
    document_prompt: str | None = None

    options = EmbeddingOptions
    model_class = "BertSentenceEncoder"
    evaluated = "compare"

    @property
    def losses(self) -> Losses:
        return losses_of_vectors(self.embedding_loss, self.scale)

    @property
    def is_scored(self) -> bool:
        """Whether models are judged by the scores of pairs, instead of by which texts are pairs."""
        return self.embedding_loss != "infonce"

    def check_scored(self, examples: Examples) -> None:
        """Refuses examples to judge a model by that lack scores."""
        if self.is_scored and "label" not in examples.columns:
            raise InputError(
                f"{examples.path} has no scores of pairs, which vectors learned by "
                f"{self.embedding_loss} are validated with: give --validation a file that has, "
                "and name its columns"
            )

    def settings(self) -> dict[str, Any]:
        recorded = {name: getattr(self, name) for name in RECORDED}
        unusual = {n: x for n, x in recorded.items() if x != getattr(type(self), n)}
        return super().settings() | unusual

    def with_settings(self, settings: Mapping[str, Any]) -> "SentenceEmbedding":
        recorded = {n: settings[n] for n in RECORDED if settings.get(n) is not None}
        return replace(super().with_settings(settings), **recorded)

    def head(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"pooling": self.pooling, "normalize": self.normalize}

    def signatures(self, task: Task) -> dict[str, Signature]:
        signatures = dict.fromkeys((DEFAULT, "embed"), Signature({"text": TEXTS}, self.respond))
        signatures["tokens"] = Signature(TOKENS, self.respond_to_tokens)
        signatures["compare"] = Signature({"text": TEXTS, "text_pair": TEXTS}, self.compare)
        signatures["rerank"] = Signature({"query": TEXTS, "texts": LISTS}, self.rerank)
        for role, prompt in (("query", self.query_prompt), ("document", self.document_prompt)):
            if prompt is not None:
                prompted_kind = replace(self, prompt=prompt)
                signatures[role] = Signature({"text": TEXTS}, prompted_kind.respond)
        return signatures

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Scores, float32 [E]; or numbers of the texts, int32 [E, N], the same for equal ones.

        N is 2, and more with wrong answers.
        """
        if self.losses.needs_labels:
            return pair_scores(examples)
        number_of: dict[str, int] = {}
        columns = examples.columns
        wrong = columns.get("negatives", [()] * len(examples))
        rows = zip(columns["text"], columns["text_pair"], wrong, strict=True)
        texts = [[one, other, *more] for one, other, more in rows]
        numbers = [[number_of.setdefault(x, len(number_of)) for x in row] for row in texts]
        return np.array(numbers, np.int32)

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        columns = {n: v for n, v in examples.columns.items() if n != "label"}
        targets = self.targets(examples, labels)
        if self.embedding_loss == "cosine":  # a cosine is at most 1
            targets = targets / max(1.0, float(np.abs(targets).max()))
        return columns, targets

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """Rows [B, N, T] of both texts, then of wrong answers; in windows [B, N, K, T]."""
        texts = tf.stack([strings["text"], strings["text_pair"]], 1)
        if "negatives" in strings:
            texts = tf.concat([texts, strings["negatives"]], 1)
        ids = tokenizer.tokenize(self._prompted(tf.reshape(texts, [-1]), self.prompt))
        if self.reads_windows:
            return in_lists(self.padded_windows(ids, tokenizer, max_length), texts)
        return in_lists(Packer(tokenizer, max_length)(ids), texts)

    def row_outputs(self, model: Any) -> Callable:
        return lambda rows, training: model(alone(rows), training=training)[:, 0]

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example's longer text, int64 [E]."""
        texts = [
            [self.prompt + text for text in values] if self.prompt else values
            for values in columns.values()
            if isinstance(values[0], str)
        ]
        return 2 + np.max([count_pieces(values, tokenizer) for values in texts], axis=0)

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        texts = self._prompted(strings["text"], self.prompt)
        vectors, truncated = self._vectors(texts[:, tf.newaxis], answerer)
        return {"vector": vectors[:, 0], "truncated": truncated[:, 0]}

    def compare(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        """The similarity of both texts of a pair, and their vectors."""
        texts = tf.stack([strings["text"], strings["text_pair"]], 1)
        vectors, truncated = self._vectors(self._prompted(texts, self.prompt), answerer)
        return {
            **self.compared(vectors[:, 0], vectors[:, 1]),
            "truncated": tf.reduce_max(truncated, -1),
        }

    def compared(self, one: tf.Tensor, other: tf.Tensor) -> Tensors:
        """Vectors [B, W] of both texts of a pair, and their similarity."""
        score = self._similarities(one[:, tf.newaxis], other[:, tf.newaxis])[:, 0]
        return {"score": score, "vector": one, "vector_pair": other}

    def rerank(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        query_prompt, document_prompt = (
            self.prompt if prompt is None else prompt
            for prompt in (self.query_prompt, self.document_prompt)
        )
        query = self._prompted(strings["query"], query_prompt)[:, tf.newaxis]
        texts = self._prompted(strings["texts"], document_prompt)
        vectors, truncated = self._vectors(tf.concat([query, texts], 1), answerer)
        scores = self._similarities(vectors[:, :1], vectors[:, 1:])
        return {"scores": scores, "truncated": truncated[:, 1:]}

    def row_answers(
        self, rows: Tensors, answerer: AnswererProtocol, apply: Any = map_rows
    ) -> Tensors:
        return {"vector": apply(answerer.predict, alone(rows))[:, 0]}

    @staticmethod
    def _prompted(texts: tf.Tensor, prompt: str) -> tf.Tensor:
        return tf.strings.join([prompt, texts]) if prompt else texts

    def _similarities(self, one: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Similarities [B, N] of vectors [B, 1, W] and [B, N, W]."""
        if self.similarity == "dot":
            return tf.reduce_sum(one * others, -1)
        return tf.reduce_sum(tf.nn.l2_normalize(one, -1) * tf.nn.l2_normalize(others, -1), -1)

    def _vectors(self, texts: tf.Tensor, answerer: AnswererProtocol) -> tuple[tf.Tensor, tf.Tensor]:
        """Vectors of texts [B, N], float32 [B, N, W], and the word pieces they lost [B, N]."""
        ids = answerer.tokenizer.tokenize(tf.reshape(texts, [-1]))
        if self.reads_windows:
            rows, text, counts = self.windows(ids, answerer.tokenizer, answerer.max_length)
            row_vectors = map_rows(answerer.predict, alone(rows))[:, 0]
            vectors = self.pooled(row_vectors, text, counts)  # (B * N, W)
            vectors = tf.nn.l2_normalize(vectors, -1) if self.normalize else vectors
            truncated = tf.zeros_like(counts, tf.int32)
        else:
            pack = Packer(answerer.tokenizer, answerer.max_length)
            vectors = map_rows(answerer.predict, alone(pack(ids)))
            truncated = pack.truncated(ids.row_lengths())
        shape = tf.unstack(tf.shape(texts))
        vectors = tf.reshape(vectors, [*shape, answerer.model.output_shape[-1]])
        return vectors, tf.reshape(truncated, shape)

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        retrieval = ["mrr", "recall_at_1", "recall_at_10"]
        return ["spearman", "pearson"] if self.is_scored else retrieval

    def scores(self, answered: Answered) -> dict[str, float | None]:
        """Correlations with the scores of pairs; without scores, how well pairs find each other."""
        if self.is_scored:
            self.check_scored(answered.examples)
            truth = pair_scores(answered.examples)
            cosines = answered.answers["score"].round(6)
            return {score.__name__: score(truth, cosines) for score in (spearman, pearson)}
        first, second = (answered.answers[name] for name in ("vector", "vector_pair"))
        texts, right = (answered.examples.columns[name] for name in ("text", "text_pair"))
        return retrieval_scores(first, second, texts, right, self.similarity == "cosine")


def pair_scores(examples: Examples) -> np.ndarray:
    """The scores of pairs in the column of labels, float32 [E]."""
    return numbers(examples, ScoreReader)
