"""A label for every word, decided at its first piece: entities (paper, section 5.3), or tags."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.networks.tensorflow.losses import WORDS, Values
from bert_tf.pipelines.examples import tagged_words
from bert_tf.pipelines.examples.bad_rows import refuse
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered, Kind
from bert_tf.tasks.kinds.rows import padded_lists
from bert_tf.tasks.readers import SPACE, EntityReader, TagReader
from bert_tf.tasks.scoring import conlleval
from bert_tf.tasks.scoring.metrics import count_classes, mean_known
from bert_tf.tasks.signatures import DEFAULT, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.windows import map_rows, packed_words, word_rows
from bert_tf.tokenization.words import (
    Words,
    code_points,
    spans,
    valid_utf_8,
    words_between_spaces,
    words_of_raw_text,
)


@dataclass(frozen=True)
class Tagging(EntityReader, Kind):
    """A label for each word, and the entities that these labels describe."""

    model_class = "BertTagger"
    losses = WORDS
    evaluated = "words"
    in_detail: bool = False  # answers have all labels' `words_probabilities` [B, W, C], too

    def signatures(self, task: Task) -> dict[str, Signature]:
        """Raw text by default; `words` takes words between spaces, as evaluation has them."""
        names = {DEFAULT: "text", "words": "words"}
        words = {key: Signature({name: TEXTS}, self.respond) for key, name in names.items()}
        return super().signatures(task) | words

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Label ids of each example's words, int32 [E, W], padded with -1."""
        refuse([*self.label_faults(examples, labels).values()])
        number_of = {label: number for number, label in enumerate(labels)}
        rows = [SPACE.split(text) for text in examples.columns["label"]]
        known = {x: number_of[self.known(x, labels) or x] for row in rows for x in row}
        targets = np.full((len(rows), max(map(len, rows))), -1, np.int32)
        for index, row in enumerate(rows):
            targets[index, : len(row)] = [known[label] for label in row]
        return targets

    def batch(self, strings: Tensors, arrays: list[Any], tokenizer: Any, max_length: int) -> tuple:
        """Windows, with the label and the weight 1 at the first piece of every word."""
        words = words_between_spaces(strings["words"], tokenizer)
        rows = word_rows(words, tf.size(strings["words"]), tokenizer, max_length)
        (targets,) = arrays
        word_targets = tf.boolean_mask(targets, targets >= 0)  # (W,)
        shape = tf.shape(rows.inputs["token_ids"], tf.int64)
        weights = tf.ones_like(word_targets, tf.float32)
        in_rows = [tf.scatter_nd(rows.first_pieces, x, shape) for x in (word_targets, weights)]
        return rows.inputs, *in_rows

    def word_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Tensors:
        """Model inputs as of `model_inputs`, and `first_pieces`; see `packed_words`."""
        texts = strings["words"]
        words = words_between_spaces(texts, tokenizer)
        inputs, first_pieces = packed_words(words, tf.size(texts), tokenizer, max_length)
        return {**inputs, "first_pieces": first_pieces}

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        ((name, texts),) = strings.items()
        split = words_of_raw_text if name == "text" else words_between_spaces
        words = split(texts, answerer.tokenizer)
        rows = word_rows(words, tf.size(texts), answerer.tokenizer, answerer.max_length)
        logits = map_rows(answerer.predict, rows.inputs)
        probabilities = tf.nn.softmax(tf.gather_nd(logits, rows.first_pieces))  # (W, C)
        return self.word_answers(texts, words, probabilities, answerer.labels)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = tf.nn.softmax(outputs)
        names = tf.gather(tf.constant(list(labels)), tf.argmax(probabilities, -1))
        return {"label": names, "probability": tf.reduce_max(probabilities, -1)}

    def word_answers(
        self, texts: tf.Tensor, words: Words, probabilities: tf.Tensor, labels: Sequence[str]
    ) -> Tensors:
        """Answers from the probabilities, float [W, C], of the words of texts, string [B]."""
        text_index = words.text_index
        starts = words.starts
        ends = words.ends
        classes = tf.argmax(probabilities, -1)
        scores = tf.reduce_max(probabilities, -1)
        first_points = code_points(texts, text_index, starts)
        end_points = code_points(texts, text_index, ends)

        def lists(name: str, first: tf.Tensor, last: tf.Tensor, **more: tf.Tensor) -> Tensors:
            span_text_index = tf.gather(text_index, first)
            start = tf.gather(starts, first)
            end = tf.gather(ends, last)
            spanned = {
                "text": valid_utf_8(spans(texts, span_text_index, start, end)),
                "start": tf.gather(first_points, first),
                "end": tf.gather(end_points, last),
                "start_byte": start,
                "end_byte": end,
            }
            return padded_lists(
                name, {**spanned, **more}, span_text_index, tf.size(texts, tf.int64)
            )

        answers: Tensors = {}
        if self.are_entities:
            first, last, entity, words_inside = _entities(text_index, classes, labels)
            types = tf.constant([label.partition("-")[2] for label in labels])
            type_ = tf.gather(types, tf.gather(classes, first))
            score = tf.math.segment_mean(tf.gather(scores, words_inside), entity)
            answers = lists("entities", first, last, type=type_, score=score)
        numbers = tf.range(tf.size(classes))
        names = tf.gather(tf.constant(list(labels)), classes)
        detail = {"probabilities": probabilities} if self.in_detail else {}
        answers |= lists("words", numbers, numbers, label=names, score=scores, **detail)
        return {**answers, "truncated": tf.zeros_like(texts, tf.int32)}

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        return list(conlleval.entity_score_names(labels))

    def scores(self, answered: Answered) -> dict[str, float | None]:
        return dict(entity_scores(answered).scores())

    def mean_loss(self, answered: Answered, loss: Values) -> float:
        """The mean loss of the words of labelled examples; the answers must be `in_detail`."""
        targets = self.targets(answered.examples, answered.labels)
        is_word = targets >= 0
        probabilities = answered.answers["words_probabilities"][is_word].astype(np.float32)
        outputs = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
        return float(np.mean(loss(targets[is_word], outputs)))

    def sentences(self, answered: Answered) -> Iterator["Sentence"]:
        """The sentences of all examples; labels of entities as IOB2; a raw text is one sentence."""
        columns = answered.examples.columns
        answers = answered.answers
        for index, word_labels in enumerate(answers["words_label"]):
            if "words" in columns:
                lines = [line.split(" ") for line in columns["words"][index].split("\n")]
            else:
                words = answers["words_text"][index][: answers["words_count"][index]]
                lines = [[word.decode() for word in words]]
            golds = columns["label"][index].split("\n") if "label" in columns else [""] * len(lines)
            start = 0
            for words, gold in zip(lines, golds, strict=True):
                here = slice(start, start + len(words))
                predicted = [label.decode() for label in word_labels[here]]
                scores = answers["words_score"][index][here].tolist()
                if gold and self.are_entities:
                    predicted = tagged_words.to_iob2(predicted)
                yield Sentence(index, words, gold.split(" ") if gold else None, predicted, scores)
                start += len(words)


@dataclass(frozen=True)
class Tags(TagReader, Tagging):
    """A label for each word, such as its part of speech."""

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        return ["accuracy", "f1", *(f"f1_{label}" for label in labels)]

    def scores(self, answered: Answered) -> dict[str, float | None]:
        """Accuracy of words, F1 of each label, and `f1`, the mean of the labels that occur."""
        gold, predicted = self.compared(answered)
        counts = count_classes(answered.labels, gold, predicted)
        label_scores = {label: x.f1 for label, x in counts.items()}
        mean = {
            "accuracy": float((gold == predicted).mean()),
            "f1": mean_known([*label_scores.values()]),
        }
        return {**mean, **{f"f1_{label}": f1 for label, f1 in label_scores.items()}}

    def compared(self, answered: Answered) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the true and the predicted labels of all words, int [W]."""
        number_of = {label: number for number, label in enumerate(answered.labels)}
        gold, predicted = (
            np.array([number_of[label] for label in side], np.int32)
            for side in labels_of([*self.sentences(answered)])
        )
        return gold, predicted


def _entities(
    text_index: tf.Tensor, classes: tf.Tensor, labels: Sequence[str]
) -> tuple[tf.Tensor, ...]:
    """First and last word [N] of entities, as `chunks` finds them; entity and word of M in one."""
    parts = [label.partition("-") for label in labels]
    types = {type_: number for number, type_ in enumerate(sorted({p[2] for p in parts}))}
    begins = tf.gather(tf.constant([prefix in "BSU" for prefix, _, _ in parts]), classes)
    ends = tf.gather(tf.constant([prefix in "OELSU" for prefix, _, _ in parts]), classes)
    type_ = tf.gather(tf.constant([types[p[2]] for p in parts]), classes)
    inside = tf.gather(tf.constant([prefix != "O" for prefix, _, _ in parts]), classes)
    changes = (type_[1:] != type_[:-1]) | (text_index[1:] != text_index[:-1]) | ends[:-1]
    changes = tf.concat([[True], changes], 0)[: tf.size(classes)]  # a first word follows nothing
    starts = inside & (begins | changes)
    words_inside = tf.where(inside)[:, 0]
    entity = tf.gather(tf.cumsum(tf.cast(starts, tf.int32)) - 1, words_inside)
    return tf.where(starts)[:, 0], tf.math.segment_max(words_inside, entity), entity, words_inside


def labels_of(sentences: Sequence["Sentence"]) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted labels of all words, [W] strings."""
    gold = [label for sentence in sentences for label in sentence.gold or ()]
    predicted = [label for sentence in sentences for label in sentence.predicted]
    return np.array(gold), np.array(predicted)


class Sentence(NamedTuple):
    example: int
    words: list[str]
    gold: list[str] | None  # right labels, if they are known
    predicted: list[str]
    scores: list[float]


def entity_scores(answered: Answered) -> conlleval.EntityScores:
    sentences = answered.task.kind.sentences(answered)
    pairs = [(sentence.gold or [], sentence.predicted) for sentence in sentences]
    return conlleval.score_entities(*zip(*pairs, strict=True))
