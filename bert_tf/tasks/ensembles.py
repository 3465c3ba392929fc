"""The joint answers of several models of one task, by the kind of task."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.answer_spans import average_answers
from bert_tf.tasks.kinds.kind import Answers, Kind, RowKind
from bert_tf.tasks.kinds.multi_label import HALF, MultiLabel
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.kinds.tagging import Tagging
from bert_tf.tasks.scoring.metrics import logits_of
from bert_tf.tokenization.words import Words


@functools.singledispatch
def joint_kind(kind: Kind, kinds: Sequence[Kind]) -> Kind:
    """The kind that answers for models of these kinds: in all detail that `averaged` needs.

    For one kind alone it decides as that kind does; for several, with their mean thresholds.
    """
    return kind


@joint_kind.register
def _joint_label_sets(kind: MultiLabel, kinds: Sequence[MultiLabel]) -> MultiLabel:
    """Thresholds whose logits are the means: `averaged` takes mean logits, too.

    So a label that all models give is given, and one that none gives is not.
    """
    if len(kinds) == 1:
        return kind
    names = sorted({label for member in kinds for label in member.thresholds})
    limits = np.array([[member.thresholds.get(name, HALF) for name in names] for member in kinds])
    means = 1 / (1 + np.exp(-logits_of(limits).mean(axis=0)))
    return replace(kind, thresholds=dict(zip(names, means.tolist(), strict=True)))


@joint_kind.register
def _joint_questions(kind: Span, kinds: Sequence[Span]) -> Span:
    threshold = float(np.mean([member.null_score_diff_threshold for member in kinds]))
    return replace(kind, null_score_diff_threshold=threshold)


@joint_kind.register
def _joint_words(kind: Tagging, kinds: Sequence[Tagging]) -> Tagging:
    return replace(kind, in_detail=True)


@functools.singledispatch
def averaged(
    kind: Kind, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
) -> Answers:
    """The joint answers of models, with the first one's labels; a single one's unchanged."""
    raise InputError("models of this task cannot be averaged: give one of them to evaluate")


@averaged.register
def _averaged_rows(
    kind: RowKind, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
) -> Answers:
    """Answers from the mean of the models' outputs, of classes from their mean probability."""
    outputs = np.stack([kind.to_outputs(member, labels[0]) for member in answers])
    is_class = kind.losses.loss is cross_entropy
    mean = np.log(np.exp(outputs).mean(axis=0)) if is_class else outputs.mean(axis=0)
    return {name: x.numpy() for name, x in kind.answers(tf.constant(mean), labels[0]).items()}


@averaged.register
def _averaged_words(
    kind: Tagging, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
) -> Answers:
    first = answers[0]
    is_word = np.arange(first["words_label"].shape[1]) < first["words_count"][:, np.newaxis]
    probabilities = [
        member["words_probabilities"][is_word][:, [*map(names.index, labels[0])]]
        for member, names in zip(answers, labels, strict=True)
    ]
    spans = (first[f"words_{name}"][is_word] for name in ("start_byte", "end_byte"))
    words = Words(tf.constant(np.nonzero(is_word)[0]), None, *map(tf.constant, spans))
    mean = tf.constant(np.mean(probabilities, axis=0))
    texts = tf.constant(examples.columns["words"])
    joint = kind.word_answers(texts, words, mean, labels[0])
    return {name: values.numpy() for name, values in joint.items()}


@averaged.register
def _averaged_questions(
    kind: Span, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
) -> Answers:
    return average_answers(answers, kind.unanswerable, kind.null_score_diff_threshold)
