"""A label for every word, decided at its first piece: entities (paper, section 5.3), or tags."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import WORDS
from bert_tf.pipelines.examples import tagged_words
from bert_tf.pipelines.examples.table import Examples, Table
from bert_tf.tasks.kinds.kind import Answered, Kind
from bert_tf.tasks.kinds.rows import padded_lists
from bert_tf.tasks.scoring import conlleval
from bert_tf.tasks.scoring.metrics import Counts, mean_known
from bert_tf.tasks.signatures import DEFAULT, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.windows import map_rows, word_rows
from bert_tf.tokenization.words import (
    Words,
    code_points,
    spans,
    valid_utf_8,
    words_between_spaces,
    words_of_raw_text,
)

_SPACE = re.compile("[ \n]")  # between two words or labels of an example


@dataclass(frozen=True)
class Tagging(Kind):
    """A label for each word, and the entities that these labels describe."""

    model_class = "BertTagger"
    losses = WORDS
    evaluated = "words"
    are_entities: ClassVar[bool] = True  # whether labels are those of entities, or any tags
    documents: bool = False  # an example is a document of a column file, instead of a sentence
    in_detail: bool = False  # answers have all labels' `words_probabilities` [B, W, C], too

    def signatures(self, task: Task) -> dict[str, Signature]:
        """Raw text by default; `words` takes words between spaces, as evaluation has them."""
        names = {DEFAULT: "text", "words": "words"}
        words = {key: Signature({name: TEXTS}, self.respond) for key, name in names.items()}
        return super().signatures(task) | words

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        """Reads words and labels; without labels also raw text, as column "text"."""
        return tagged_words.read_words(
            table, columns, entities=self.are_entities, documents=self.documents
        )

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        """The task's labels, or O and both labels of every type in the training examples."""
        labels = {label for text in examples.columns["label"] for label in _SPACE.split(text)}
        types = sorted({label[2:] for label in labels - {"O"}})
        if not types:
            raise InputError(f"{examples.path}: every label is O; give examples with entities")
        return list(task.labels) or ["O", *(f"{p}-{type_}" for type_ in types for p in "BI")]

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Label ids of each example's words, int32 [E, W], padded with -1."""
        number_of = {label: number for number, label in enumerate(labels)}
        rows = [_SPACE.split(text) for text in examples.columns["label"]]
        targets = np.full((len(rows), max(map(len, rows))), -1, np.int32)
        for index, row in enumerate(rows):
            for column, label in enumerate(row):
                number = number_of.get(label)
                if number is None and self.are_entities:  # a model may know IOB1 or IO only
                    number = number_of.get(f"I{label[1:]}")
                if number is None:
                    word = _SPACE.split(examples.columns["words"][index])[column]
                    raise InputError(
                        f"{examples.location(index)}: the word {word!r} has the label {label!r}, "
                        f"which is not one of the model's ({', '.join(labels)}); correct or "
                        "remove it"
                    )
                targets[index, column] = number
        return targets

    def batch(self, strings: Tensors, arrays: list[Any], tokenizer: Any, max_length: int) -> tuple:
        """Windows, with the label and the weight 1 at the first piece of every word."""
        words = words_between_spaces(strings["words"], tokenizer)
        rows = word_rows(words, tf.size(strings["words"]), tokenizer, max_length)
        (targets,) = arrays
        of_words = tf.boolean_mask(targets, targets >= 0)  # (W,)
        shape = tf.shape(rows.inputs["token_ids"], tf.int64)
        weights = tf.ones_like(of_words, tf.float32)
        in_rows = [tf.scatter_nd(rows.first_pieces, x, shape) for x in (of_words, weights)]
        return rows.inputs, *in_rows

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
        text, starts, ends = words.text, words.starts, words.ends
        classes = tf.argmax(probabilities, -1)
        scores = tf.reduce_max(probabilities, -1)
        first_points, end_points = code_points(texts, text, starts), code_points(texts, text, ends)

        def lists(name: str, first: tf.Tensor, last: tf.Tensor, **more: tf.Tensor) -> Tensors:
            of_text = tf.gather(text, first)
            start, end = tf.gather(starts, first), tf.gather(ends, last)
            spanned = {
                "text": valid_utf_8(spans(texts, of_text, start, end)),
                "start": tf.gather(first_points, first),
                "end": tf.gather(end_points, last),
                "start_byte": start,
                "end_byte": end,
            }
            return padded_lists(name, {**spanned, **more}, of_text, tf.size(texts, tf.int64))

        answers: Tensors = {}
        if self.are_entities:
            first, last, entity, of_words = _entities(text, classes, labels)
            types = tf.constant([label.partition("-")[2] for label in labels])
            type_ = tf.gather(types, tf.gather(classes, first))
            score = tf.math.segment_mean(tf.gather(scores, of_words), entity)
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

    def sentences(self, answered: Answered) -> Iterator["Sentence"]:
        """The sentences of all examples; labels of entities as IOB2; a raw text is one sentence."""
        columns, answers = answered.examples.columns, answered.answers
        for index, of_words in enumerate(answers["words_label"]):
            if "words" in columns:
                lines = [line.split(" ") for line in columns["words"][index].split("\n")]
            else:
                words = answers["words_text"][index][: answers["words_count"][index]]
                lines = [[word.decode() for word in words]]
            golds = columns["label"][index].split("\n") if "label" in columns else [""] * len(lines)
            start = 0
            for words, gold in zip(lines, golds, strict=True):
                here = slice(start, start + len(words))
                predicted = [label.decode() for label in of_words[here]]
                scores = answers["words_score"][index][here].tolist()
                if gold and self.are_entities:
                    predicted = tagged_words.to_iob2(predicted)
                yield Sentence(index, words, gold.split(" ") if gold else None, predicted, scores)
                start += len(words)


@dataclass(frozen=True)
class Tags(Tagging):
    """A label for each word, such as its part of speech."""

    are_entities = False

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        texts = examples.columns["label"]
        labels = sorted({label for text in texts for label in _SPACE.split(text)})
        if len(labels) < 2:
            raise InputError(f"{examples.path}: every label is {labels[0]}; give two or more")
        return list(task.labels) or labels

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        return ["accuracy", "f1", *(f"f1_{label}" for label in labels)]

    def scores(self, answered: Answered) -> dict[str, float | None]:
        """Accuracy of words, F1 of each label, and `f1`, the mean of the labels that occur."""
        gold, predicted = labels_of([*self.sentences(answered)])
        sides: list[Counter[str]] = [*map(Counter, (gold, predicted, gold[gold == predicted]))]
        label_scores = {
            label: Counts(*(side[label] for side in sides)).f1 for label in answered.labels
        }
        mean = {
            "accuracy": float((gold == predicted).mean()),
            "f1": mean_known([*label_scores.values()]),
        }
        return {**mean, **{f"f1_{label}": f1 for label, f1 in label_scores.items()}}


def _entities(text: tf.Tensor, classes: tf.Tensor, labels: Sequence[str]) -> tuple[tf.Tensor, ...]:
    """First and last word [N] of entities, as `chunks` finds them; entity and word of M in one."""
    parts = [label.partition("-") for label in labels]
    types = {type_: number for number, type_ in enumerate(sorted({p[2] for p in parts}))}
    begins = tf.gather(tf.constant([prefix in "BSU" for prefix, _, _ in parts]), classes)
    ends = tf.gather(tf.constant([prefix in "OELSU" for prefix, _, _ in parts]), classes)
    type_ = tf.gather(tf.constant([types[p[2]] for p in parts]), classes)
    inside = tf.gather(tf.constant([prefix != "O" for prefix, _, _ in parts]), classes)
    changes = (type_[1:] != type_[:-1]) | (text[1:] != text[:-1]) | ends[:-1]
    changes = tf.concat([[True], changes], 0)[: tf.size(classes)]  # a first word follows nothing
    starts = inside & (begins | changes)
    of_words = tf.where(inside)[:, 0]
    entity = tf.gather(tf.cumsum(tf.cast(starts, tf.int32)) - 1, of_words)
    return tf.where(starts)[:, 0], tf.math.segment_max(of_words, entity), entity, of_words


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
