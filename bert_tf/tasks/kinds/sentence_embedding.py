"""Vectors of texts: of an encoder without a head, or trained to be compared by their cosine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.sentence_files import read_sentence_files, write_prompts
from bert_tf.errors import InputError
from bert_tf.extensions import added
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.pretrained_model import Encoder
from bert_tf.models.task_models import BertSentenceEncoder
from bert_tf.networks.tensorflow.losses import Values
from bert_tf.pipelines.examples.table import Examples, MissingColumnError
from bert_tf.tasks import encoder_signatures
from bert_tf.tasks.kinds import kind
from bert_tf.tasks.kinds.kind import Answered, Kind
from bert_tf.tasks.kinds.long_texts import WindowedKind
from bert_tf.tasks.reports.report import Report, worst
from bert_tf.tasks.scoring.metrics import pearson, retrieval_scores, spearman
from bert_tf.tasks.signatures import DEFAULT, LISTS, TEXTS, Signature, Tensors
from bert_tf.tasks.task import Layout, Task
from bert_tf.tasks.task_options import EmbeddingOptions
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows

if TYPE_CHECKING:
    from bert_tf.models.answerer import Answerer

_OF_FILES = ("similarity", "prompt", "query_prompt", "document_prompt")


class Embedding(Kind):
    """Vectors of each text. There are no labels: nothing to train or to score."""

    model_class = BertEncoder
    opens = (Encoder, *added("models"))
    is_trained = False

    def signatures(self, task: Task) -> dict[str, Signature]:
        return {DEFAULT: encoder_signatures.ENCODER_SIGNATURES["embed"]}

    def respond(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        return encoder_signatures.embed(strings, answerer)

    def respond_to_tokens(self, tensors: Tensors, answerer: "Answerer") -> Tensors:
        return encoder_signatures.vectors(
            kind.checked_rows(tensors, answerer.model), answerer.model
        )

    def read(self, layout: Layout, path: str | Path) -> Examples:
        return self._refuse() if layout.labelled else super().read(layout, path)

    def write_predictions(self, folder: Path, given: Answered) -> None:
        raise InputError("vectors have no official file: leave --submission out")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            "the model is an encoder without a head, which has no scores: train it for a task "
            "first (bert-tf finetune)"
        )

    targets = scores = _refuse


@dataclass(frozen=True)
class SentenceEmbedding(WindowedKind):
    """A vector for each text, such that texts of like meaning have a high cosine.

    Learns from pairs ("infonce": the other texts of a batch are wrong answers), from pairs with
    scores ("cosent", "cosine"), or from texts alone ("simcse": two dropouts of a text are a pair).
    """

    embedding_loss: str = "infonce"
    pooling: str = "mean"
    normalize: bool = True
    scale: float = 20.0  # of cosines, in the losses
    negatives: str | None = None  # column of texts that are wrong answers; "negative*" for several
    # What files of sentence-transformers record: how vectors are compared, "cosine" or "dot"; what
    # stands before every text, and before questions and searched texts where that is other text.
    similarity: str = "cosine"
    prompt: str = ""
    query_prompt: str | None = None
    document_prompt: str | None = None

    options = EmbeddingOptions
    model_class = BertSentenceEncoder
    evaluated = "compare"
    batches_of_like_length = False  # the others of a batch are wrong answers: length tells them
    compares_rows = True
    pair_is_optional = True

    @property
    def needs_labels(self) -> bool:
        return self.embedding_loss in ("cosent", "cosine")

    @property
    def metrics(self) -> Mapping[str, Values]:  # type: ignore[override]
        return {} if self.needs_labels else {"accuracy": in_batch_accuracy}

    @property
    def loss_function(self) -> Values:
        functions = {"cosent": cosent, "cosine": squared_cosine_error}
        return functions.get(self.embedding_loss, in_batch_cross_entropy)(self.scale)

    def check_training(self, options: Any, batch_size: int, validation: Examples) -> None:
        self.check_windows(options)
        for name in ("jit_compile", "class_weights"):
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

    def settings(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in _OF_FILES}
        return super().settings() | {n: x for n, x in own.items() if x != getattr(type(self), n)}

    def with_settings(self, settings: Mapping[str, Any]) -> "SentenceEmbedding":
        given = {n: settings[n] for n in _OF_FILES if settings.get(n) is not None}
        return replace(super().with_settings(settings), **given)

    def recorded(self, directory: str | Path) -> dict[str, Any]:
        return read_sentence_files(directory)

    def write_files(self, directory: str | Path) -> None:
        write_prompts(directory, **{name: getattr(self, name) for name in _OF_FILES})

    def head(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"pooling": self.pooling, "normalize": self.normalize}

    def signatures(self, task: Task) -> dict[str, Signature]:
        own = dict.fromkeys((DEFAULT, "embed"), Signature({"text": TEXTS}, self.respond))
        own["compare"] = Signature({"text": TEXTS, "text_pair": TEXTS}, self.compare)
        own["rerank"] = Signature({"query": TEXTS, "texts": LISTS}, self.rerank)
        for role, prompt in (("query", self.query_prompt), ("document", self.document_prompt)):
            if prompt is not None:
                of_role = replace(self, prompt=prompt)
                own[role] = Signature({"text": TEXTS}, of_role.respond)
        return own

    def read(self, layout: Layout, path: str | Path) -> Examples:
        """Reads pairs; scores, and second texts for "simcse", where the file has them."""
        columns, optional = dict(layout.columns), ["label", "text_pair"]
        if layout.labelled:
            if self.negatives is not None:
                columns["negatives"] = self.negatives
            own = {"infonce": ["text_pair"], "simcse": []}.get(self.embedding_loss, optional)
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
            found.setdefault("text_pair", found["text"])  # its own pair
        if "negatives" in found:
            wrong = [[x] if isinstance(x, str) else x for x in found["negatives"]]
            for index, texts in enumerate(wrong):
                if len(texts) != len(wrong[0]):
                    raise InputError(
                        f"{examples.place(index)}: {len(texts)} wrong answers where "
                        f"{examples.row(0)} has {len(wrong[0])}; give all the same number"
                    )
            found["negatives"] = wrong
        return examples

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Scores, float32 [E]; or numbers of both texts, int32 [E, 2], the same for equal ones."""
        given = examples.columns
        if self.needs_labels:
            return _scores_of(examples)
        number_of: dict[str, int] = {}
        pairs = zip(given["text"], given["text_pair"], strict=True)
        found = [[number_of.setdefault(x, len(number_of)) for x in pair] for pair in pairs]
        return np.array(found, np.int32)

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
            return kind.in_lists(self.padded_windows(ids, tokenizer, max_length), texts)
        return kind.in_lists(Packer(tokenizer, max_length)(ids), texts)

    def trained(self, model: Any) -> Any:
        def vectors(rows: Tensors, training: bool) -> Any:
            return model(kind.alone(rows), training=training)[:, 0]

        return self.of_windows(model, vectors) if self.reads_windows else model

    def lengths(self, columns: Mapping[str, Sequence[Any]], tokenizer: Any) -> np.ndarray:
        """Tokens of each example's longer text, int64 [E]."""
        texts = [
            [self.prompt + text for text in values] if self.prompt else values
            for values in columns.values()
            if isinstance(values[0], str)
        ]
        return 2 + np.max([kind.count_pieces(values, tokenizer) for values in texts], axis=0)

    def respond(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        texts = self._prompted(strings["text"], self.prompt)
        found, truncated = self._vectors(texts[:, tf.newaxis], answerer)
        return {"vector": found[:, 0], "truncated": truncated[:, 0]}

    def compare(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        """The similarity of both texts of a pair, and their vectors."""
        texts = tf.stack([strings["text"], strings["text_pair"]], 1)
        found, truncated = self._vectors(self._prompted(texts, self.prompt), answerer)
        score = self._similarities(found[:, :1], found[:, 1:])[:, 0]
        vectors = {"vector": found[:, 0], "vector_pair": found[:, 1]}
        return {"score": score, **vectors, "truncated": tf.reduce_max(truncated, -1)}

    def rerank(self, strings: Tensors, answerer: "Answerer") -> Tensors:
        of_query, of_texts = (
            self.prompt if own is None else own for own in (self.query_prompt, self.document_prompt)
        )
        query = self._prompted(strings["query"], of_query)
        texts = tf.concat([query[:, tf.newaxis], self._prompted(strings["texts"], of_texts)], 1)
        found, truncated = self._vectors(texts, answerer)
        scores = self._similarities(found[:, :1], found[:, 1:])
        return {"scores": scores, "truncated": truncated[:, 1:]}

    def respond_to_tokens(self, tensors: Tensors, answerer: "Answerer") -> Tensors:
        inputs = kind.checked_rows(tensors, answerer.model)
        return {"vector": map_rows(answerer.predict, kind.alone(inputs))[:, 0]}

    @staticmethod
    def _prompted(texts: tf.Tensor, prompt: str) -> tf.Tensor:
        return tf.strings.join([prompt, texts]) if prompt else texts

    def _similarities(self, one: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Similarities [B, N] of vectors [B, 1, W] and [B, N, W]."""
        if self.similarity == "dot":
            return tf.reduce_sum(one * others, -1)
        return tf.reduce_sum(tf.nn.l2_normalize(one, -1) * tf.nn.l2_normalize(others, -1), -1)

    def _vectors(self, texts: tf.Tensor, answerer: "Answerer") -> tuple[tf.Tensor, tf.Tensor]:
        """Vectors of texts [B, N], float32 [B, N, W], and the word pieces they lost [B, N]."""
        ids = answerer.tokenizer.tokenize(tf.reshape(texts, [-1]))
        if self.reads_windows:
            rows, text, counts = self.windows(ids, answerer.tokenizer, answerer.max_length)
            of_rows = map_rows(answerer.predict, kind.alone(rows))[:, 0]
            found = self.pooled(of_rows, text, counts)  # (B * N, W)
            found = tf.nn.l2_normalize(found, -1) if self.normalize else found
            truncated = tf.zeros_like(counts, tf.int32)
        else:
            pack = Packer(answerer.tokenizer, answerer.max_length)
            found = map_rows(answerer.predict, kind.alone(pack(ids)))
            truncated = pack.truncated(ids.row_lengths())
        shape = tf.unstack(tf.shape(texts))
        found = tf.reshape(found, [*shape, answerer.model.config.width])
        return found, tf.reshape(truncated, shape)

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        is_scored = self.embedding_loss != "infonce"
        return ["spearman", "pearson"] if is_scored else ["mrr", "recall_at_1", "recall_at_10"]

    def scores(self, given: Answered) -> dict[str, float | None]:
        """Correlations with the scores of pairs; without scores, how well pairs find each other."""
        columns = given.examples.columns
        if self.embedding_loss != "infonce":
            self._check_scored(given.examples)
            truth, found = _scores_of(given.examples), given.answers["score"].round(6)
            return {score.__name__: score(truth, found) for score in (spearman, pearson)}
        first, second = (given.answers[name] for name in ("vector", "vector_pair"))
        return retrieval_scores(
            first,
            second,
            columns["text"],
            columns["text_pair"],
            by_cosine=self.similarity == "cosine",
        )

    def report(self, given: Answered) -> Report:
        score = given.answers["score"]
        shown: dict[str, Any] = {**given.examples.columns, "cosine": score}
        if self.embedding_loss == "infonce":
            every = np.ones(len(score), bool)
            title = "Pairs with the lowest cosine"
            return [worst(title, given.examples.place, -score, every, shown)]
        truth = _scores_of(given.examples)
        ranks = [np.argsort(np.argsort(x)) / max(1, len(x) - 1) for x in (truth, score)]
        error = abs(ranks[1] - ranks[0])
        shown["difference"] = error
        title = "Pairs whose rank by cosine is furthest from that by score"
        return [worst(title, given.examples.place, error, error > 0, shown)]

    def write_predictions(self, folder: Path, given: Answered) -> None:
        cosines = [f"{score:.6f}" for score in given.answers["score"]]
        kind.write_table(folder, given, [("predicted", cosines)])


def _scores_of(examples: Examples) -> np.ndarray:
    return kind.numbers(
        examples, "score", "learn from pairs without scores (--embedding_loss infonce)"
    )


# Losses compare all texts of a batch, over all replicas, in outputs float32 [B, N, W].


def in_batch_cross_entropy(scale: float) -> Values:
    """InfoNCE in both directions, float32 [B, 2] (van den Oord et al. 2018): which texts are pairs?

    Labels are int [B, 2], numbers of both texts. Candidates for the first are all second texts and
    all wrong answers; for the second, all first texts. A candidate with the number of the right
    answer, or of an example with the same question, does not count as wrong.
    """

    def loss(labels: Any, vectors: Any) -> Any:
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        return tf.stack([entropy(*each) for each in _both_directions(labels, vectors, scale)], 1)

    return loss


def in_batch_accuracy(labels: Any, vectors: Any) -> Any:
    """1.0 where the right text has the highest cosine, in both directions: [B, 2]."""
    directions = _both_directions(labels, vectors, 1.0)
    hits = [tf.argmax(logits, 1, right.dtype) == right for right, logits in directions]
    return tf.cast(tf.stack(hits, 1), tf.float32)


def cosent(scale: float) -> Values:
    """CoSENT (Su 2022), by scores [B]: the batch's one loss is the value of each pair, [B]."""

    def loss(scores: Any, vectors: Any) -> Any:
        # Cosine and score of each pair in one tensor: replicas exchange it in one step.
        both = _gathered(tf.stack([_cosine(vectors), tf.cast(scores, tf.float32)], 1))
        cosines, every = both[:, 0], both[:, 1]  # (G,)
        differences = scale * (cosines[tf.newaxis, :] - cosines[:, tf.newaxis])  # (G, G)
        # A pair with a higher score should have a higher cosine; here the column's has.
        counted = tf.where(every[:, tf.newaxis] > every[tf.newaxis, :], differences, -1e12)
        terms = tf.concat([[0.0], tf.reshape(counted, [-1])], 0)
        return tf.fill(tf.shape(scores), 1.0) * tf.reduce_logsumexp(terms)

    return loss


def squared_cosine_error(scale: float) -> Values:
    """The squared difference of cosines and scores up to 1, float [B]; `scale` has no meaning."""
    return lambda scores, vectors: tf.square(_cosine(vectors) - tf.cast(scores, tf.float32))


def _cosine(vectors: tf.Tensor) -> tf.Tensor:
    """Cosines [B] of the first two texts of each example."""
    x = tf.nn.l2_normalize(tf.cast(vectors, tf.float32), -1)
    return tf.reduce_sum(x[:, 0] * x[:, 1], -1)


def _both_directions(labels: Any, vectors: Any, scale: float) -> list[tuple[Any, Any]]:
    """Places of the right candidates, [B], and logits of all candidates, [B, G]; twice."""
    x = tf.nn.l2_normalize(tf.cast(vectors, tf.float32), -1)
    every = _gathered(x)  # (G, N, W)
    numbers = _gathered(labels)  # (G, 2)
    wrong = tf.reshape(every[:, 2:], [-1, tf.shape(x)[-1]])  # (G * (N - 2), W)
    count = tf.shape(labels)[0]
    context = tf.distribute.get_replica_context()
    before = _gathered(count[tf.newaxis])[: context.replica_id_in_sync_group if context else 0]
    right = tf.reduce_sum(before) + tf.range(count)
    is_right = tf.one_hot(right, tf.shape(every)[0], on_value=True, off_value=False)
    # Equal texts on either side would be wrong answers that are right.
    same = tf.reduce_any(labels[:, tf.newaxis] == numbers[tf.newaxis], -1) & ~is_right
    found = []
    for own, others, more in ((0, 1, wrong), (1, 0, wrong[:0])):
        logits = tf.matmul(x[:, own], every[:, others], transpose_b=True)
        logits = tf.where(same, tf.fill([], -1e9), scale * logits)
        further = scale * tf.matmul(x[:, own], more, transpose_b=True)
        found.append((right, tf.concat([logits, further], 1)))
    return found


def _gathered(x: tf.Tensor) -> tf.Tensor:
    """The rows of all replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return x
    return context.all_gather(x, 0)
