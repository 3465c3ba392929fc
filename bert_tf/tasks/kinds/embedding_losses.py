"""Losses of vectors, which compare all texts of a batch, over all replicas.

Each takes outputs float32 [B, N, W], N texts of an example, and gives values of the labels' shape.
"""

from typing import Any

import tensorflow as tf

from bert_tf.training.means import Values


def in_batch_cross_entropy(scale: float) -> Values:
    """InfoNCE in both directions (van den Oord et al. 2018): which text belongs to which?

    Labels are int [B, 2], numbers of both texts. Candidates for the first text are all second
    texts and all further ones, wrong answers; for the second, all first texts. A candidate with
    the number of the right answer, or of an example with the same question, does not count as
    wrong. Values are float32 [B, 2], one for each direction.
    """

    def loss(labels: Any, vectors: Any) -> Any:
        return tf.stack(
            [tf.nn.sparse_softmax_cross_entropy_with_logits(right, logits)
             for right, logits in _both_directions(labels, vectors, scale)], 1,
        )  # fmt: skip

    return loss


def in_batch_accuracy(labels: Any, vectors: Any) -> Any:
    """1.0 where the right text has the highest cosine, in both directions: [B, 2]."""
    return tf.stack(
        [tf.cast(tf.argmax(logits, 1, right.dtype) == right, tf.float32)
         for right, logits in _both_directions(labels, vectors, 1.0)], 1,
    )  # fmt: skip


def cosent(scale: float) -> Values:
    """CoSENT (Su 2022): pairs with a higher score should have a higher cosine.

    Labels are scores, float [B]; the batch has one loss, which is the value of each pair [B].
    """

    def loss(scores: Any, vectors: Any) -> Any:
        # Cosine and score of each pair in one tensor: replicas exchange it in one step.
        both = _gathered(tf.stack([_cosine(vectors), tf.cast(scores, tf.float32)], 1))
        cosines, every = both[:, 0], both[:, 1]  # (G,)
        differences = scale * (cosines[tf.newaxis, :] - cosines[:, tf.newaxis])  # (G, G)
        # Counted where the row's pair has the higher score, and the column's the higher cosine.
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
    right = _first_row(count) + tf.range(count)
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


def _first_row(count: tf.Tensor) -> tf.Tensor:
    """The number of this replica's first row, of `count` rows, among those of all replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tf.constant(0)
    counts = context.all_gather(count[tf.newaxis], 0)
    return tf.reduce_sum(counts[: context.replica_id_in_sync_group])
