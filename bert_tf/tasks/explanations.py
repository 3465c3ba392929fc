"""What each word piece adds to a classifier's answer: integrated gradients, in graph."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.kernels import is_replaced
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.kinds.rows import padded_lists
from bert_tf.tasks.signatures import DEFAULT, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows

# The path is divided into parts, twice as many each time, with the nodes of Gauss and Legendre in
# each, until the sum of every text's pieces is as exact as this, relative or absolute.
_NODES = 8
_MOST_PARTS = 16
_RELATIVE_ERROR = 0.005
_ABSOLUTE_ERROR = 1e-4


def explanation(task: Task) -> Signature | None:
    """The signature `explain`, which `export --explanations` adds; None for a task without."""
    kind = task.kind
    is_classifier = isinstance(kind, LongTextKind) and kind.losses.has_probabilities
    if not is_classifier or kind.reads_windows:
        return None
    respond = functools.partial(_explain, kind=kind)
    return Signature(kind.signatures(task)[DEFAULT].inputs, respond)


def _explain(strings: Tensors, answerer: AnswererProtocol, kind: LongTextKind) -> Tensors:
    """The most probable label of each text or pair, and what each of its T tokens adds to it.

    Of several labels, the same for each of the P labels that the text gets.

    Integrated gradients (Sundararajan, Taly and Yan 2017) of the label's logit by the vectors of
    the word pieces, on the straight path from a text all of whose pieces are [MASK]; [CLS], [SEP],
    positions and segments stay. What they give the pieces adds up to the difference of both logits.

    Args:
        strings: texts, [B] each.
        answerer: the model, whose outputs are logits [B, C].
        kind: answers `labels` and `probabilities` from the logits, the most probable first; of
            several labels `predicted_label`, too.

    Returns:
        `label`, string [B]; `probability`, `logit` and `masked_logit` (of its [MASK]s), float32
        [B]; `pieces_count`, int32 [B]; `pieces_text`, string [B, T]; `pieces_attribution`, float32
        [B, T], 0 for [CLS], [SEP] and padding; `truncated`, int32 [B], the word pieces removed. Of
        several labels also `predicted_count`, int32 [B], and as of the most probable label
        `predicted_label`, `predicted_probability`, `predicted_logit` and `predicted_masked_logit`
        [B, P], and `predicted_attribution` [B, P, T].
    """
    tokenizer = answerer.tokenizer
    ids = kind.pieces(strings, tokenizer)
    pack = Packer(tokenizer, answerer.max_length)
    inputs = pack(*ids)
    outputs = map_rows(lambda rows: tf.cast(answerer.predict(rows), tf.float32), inputs)
    answered = kind.answers(outputs, answerer.labels)
    labels = answered["labels"]  # (B, C)
    probabilities = answered["probabilities"]
    is_predicted = tf.zeros_like(labels, tf.bool)
    if "predicted_label" in answered:
        predicted = answered["predicted_label"][:, tf.newaxis]
        is_predicted = tf.reduce_any(labels[:, :, tf.newaxis] == predicted, -1)
    is_first = tf.range(tf.shape(labels)[1]) == 0
    explained = tf.where(is_predicted | is_first)  # (N, 2): row, rank of the label
    row = explained[:, 0]
    label = tf.gather_nd(labels, explained)
    number = tf.argmax(tf.cast(label[:, tf.newaxis] == list(answerer.labels), tf.int32), -1)
    chosen = {name: tf.gather(x, row) for name, x in inputs.items()}
    logit = tf.gather(tf.gather(outputs, row), number, batch_dims=1)
    attribution, masked = map_rows(
        lambda rows: _attributions(rows, answerer), {**chosen, "label": number, "logit": logit}
    )
    explanations = {
        "label": label,
        "probability": tf.gather_nd(probabilities, explained),
        "logit": logit,
        "masked_logit": masked,
        "attribution": attribution,
    }
    first = {name: tf.boolean_mask(x, explained[:, 1] == 0) for name, x in explanations.items()}
    texts = tf.gather(tf.constant(tokenizer.vocabulary), inputs["token_ids"])
    mask = inputs["padding_mask"]
    answers = {
        "pieces_count": tf.reduce_sum(mask, -1),
        "pieces_text": tf.where(mask != 0, texts, ""),
        "pieces_attribution": first.pop("attribution"),
        **first,
        "truncated": pack.truncated(*(segment.row_lengths() for segment in ids)),
    }
    if "predicted_label" not in answered:
        return answers
    is_listed = tf.gather_nd(is_predicted, explained)
    listed = {name: tf.boolean_mask(x, is_listed) for name, x in explanations.items()}
    count = tf.shape(labels, tf.int64)[0]
    return answers | padded_lists("predicted", listed, tf.boolean_mask(row, is_listed), count)


def _attributions(rows: Tensors, answerer: AnswererProtocol) -> tuple[tf.Tensor, ...]:
    """Attributions [r, T] of a `label` [r], and its logits of texts of [MASK]s [r]."""
    rows = dict(rows)
    labels = rows.pop("label")
    logit = rows.pop("logit")
    mask = rows["padding_mask"]
    # The n tokens; a row without any has its first position computed: see `TokenPlaces`.
    where = tf.where((mask != 0) | (tf.range(tf.shape(mask)[1]) == 0))
    start = tf.zeros([tf.shape(where)[0], 1])
    masked = _logits_after(start, rows, answerer, labels)
    rise = logit - masked
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    points, widths = (tf.constant(x / 2, tf.float32) for x in (nodes + 1, weights))

    state = [tf.constant(0), start[:, 0]]

    def integral(number: tf.Tensor) -> tf.Tensor:
        """What each token adds, float32 [n], by the nodes of `number` parts of the path."""

        def add(node: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            part = node // _NODES
            point = node % _NODES
            share = (tf.cast(part, tf.float32) + points[point]) / tf.cast(number, tf.float32)
            shares = start + share
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(shares)
                logits = _logits_after(shares, rows, answerer, labels)
            return node + 1, total + widths[point] * tape.gradient(logits, shares)[:, 0]

        ends = number * _NODES
        _, total = tf.while_loop(lambda node, _: node < ends, add, state, parallel_iterations=1)
        return total / tf.cast(number, tf.float32)

    def is_rough(number: tf.Tensor, attributions: tf.Tensor) -> tf.Tensor:
        error = tf.abs(tf.math.segment_sum(attributions, where[:, 0]) - rise)
        allowed = tf.maximum(_RELATIVE_ERROR * tf.abs(rise), _ABSOLUTE_ERROR)
        return (number == 0) | (number < _MOST_PARTS) & tf.reduce_any(error > allowed)

    def refined(number: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        number = tf.maximum(1, 2 * number)
        return number, integral(number)

    _, attributions = tf.while_loop(is_rough, refined, state, parallel_iterations=1)
    return tf.scatter_nd(where, attributions, tf.shape(mask, tf.int64)), masked


def _logits_after(
    shares: tf.Tensor, rows: Tensors, answerer: AnswererProtocol, labels: tf.Tensor
) -> tf.Tensor:
    """The labels' logits [r] after shares [n, 1] of the path from [MASK] to each token's vector."""
    vocabulary = answerer.tokenizer.vocabulary
    fixed = [vocabulary.index(name) for name in ("[CLS]", "[SEP]", "[PAD]")]

    def change(table: Any, ids: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
        if table.name != "word_embeddings":
            return vectors
        mask_id = tf.constant([vocabulary.index("[MASK]")])
        # Not the layer where it can be avoided: in half precision Keras would cast all its rows.
        mask = table(mask_id) if is_replaced(table) else tf.gather(table.embeddings.value, mask_id)
        path = vectors - tf.cast(mask, vectors.dtype)
        is_fixed = tf.reduce_any(ids[:, tf.newaxis] == fixed, -1, keepdims=True)
        return vectors - (1.0 - shares) * tf.where(is_fixed, 0.0, path)

    with kernels_of(answerer.model, lambda kernels: kernels.changing_rows(change)):
        outputs = tf.cast(answerer.predict(rows), tf.float32)
    return tf.gather(outputs, labels, batch_dims=1)
