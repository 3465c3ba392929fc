"""Losses of sentence embeddings, which compare all texts of a batch, over all replicas.

Outputs are vectors of N texts an example, float32 [B, N, W]; G is the batch of all replicas.
"""

from typing import Any

import tensorflow as tf

from bert_tf.networks.tensorflow.losses import Losses, Values


def in_batch_cross_entropy(scale: float) -> Values:
    """InfoNCE in both directions, float32 [B, N] (van den Oord et al. 2018): which texts are pairs?

    Labels are int [B, N], numbers of the texts. Candidates for the first are all second texts and
    all wrong answers; for the second, all first texts. A candidate with the number of the right
    answer, or of an example with the same question, does not count as wrong.
    """

    def loss(labels: Any, vectors: Any) -> Any:
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        directions = _both_directions(labels, vectors, scale)
        return _per_label(labels, [entropy(right, logits) for right, logits in directions])

    return loss


def in_batch_accuracy(labels: Any, vectors: Any) -> Any:
    """1.0 where the right text has the highest cosine, in both directions: [B, N]."""
    directions = _both_directions(labels, vectors, 1.0)
    hits = [tf.argmax(logits, 1, right.dtype) == right for right, logits in directions]
    return _per_label(labels, [tf.cast(hit, tf.float32) for hit in hits])


def _per_label(labels: Any, directions: list[tf.Tensor]) -> tf.Tensor:
    """Values [B] of both directions as one of each label, [B, N]: wrong answers get the mean.

    The trainer takes the mean over labels, which these leave as it is.
    """
    return tf.stack([*directions, *[tf.add_n(directions) / 2] * (labels.shape[1] - 2)], 1)


def cosent(scale: float) -> Values:
    """CoSENT (Su 2022), by scores [B]: the batch's one loss is the value of each pair, [B]."""

    def loss(scores: Any, vectors: Any) -> Any:
        # Cosine and score of each pair in one tensor: replicas exchange it in one step.
        both = _gathered(tf.stack([_cosine(vectors), tf.cast(scores, tf.float32)], 1))
        cosines = both[:, 0]  # (G,)
        every = both[:, 1]  # (G,)
        differences = scale * (cosines[tf.newaxis, :] - cosines[:, tf.newaxis])  # (G, G)
        # A pair with a higher score should have a higher cosine; here the column's has.
        counted = tf.where(every[:, tf.newaxis] > every[tf.newaxis, :], differences, -1e12)
        terms = tf.concat([[0.0], tf.reshape(counted, [-1])], 0)
        return tf.fill(tf.shape(scores), 1.0) * tf.reduce_logsumexp(terms)

    return loss


def squared_cosine_error(scores: Any, vectors: Any) -> Any:
    """Squared differences of the cosines of pairs and scores up to 1, float [B]."""
    return tf.square(_cosine(vectors) - tf.cast(scores, tf.float32))


def _cosine(vectors: tf.Tensor) -> tf.Tensor:
    """Cosines [B] of the first two texts of each example."""
    x = tf.nn.l2_normalize(tf.cast(vectors, tf.float32), -1)
    return tf.reduce_sum(x[:, 0] * x[:, 1], -1)


def _both_directions(labels: Any, vectors: Any, scale: float) -> list[tuple[Any, Any]]:
    """Indices of the right candidates, [B], and logits of all candidates, [B, G]; twice."""
    x = tf.nn.l2_normalize(tf.cast(vectors, tf.float32), -1)
    every = _gathered(x)  # (G, N, W)
    numbers = _gathered(labels)  # (G, N)
    wrong = tf.reshape(every[:, 2:], [-1, tf.shape(x)[-1]])  # (G * (N - 2), W)
    count = tf.shape(labels)[0]
    context = tf.distribute.get_replica_context()
    before = _gathered(count[tf.newaxis])[: context.replica_id_in_sync_group if context else 0]
    right = tf.reduce_sum(before) + tf.range(count)
    is_right = tf.one_hot(right, tf.shape(every)[0], on_value=True, off_value=False)
    # Equal texts on either side would be wrong answers that are right.
    same = tf.reduce_any(labels[:, tf.newaxis, :2] == numbers[tf.newaxis, :, :2], -1) & ~is_right
    # So would another example's wrong answers, which are often right ones (`--mine_negatives`).
    wrong_numbers = tf.reshape(numbers[:, 2:], [1, 1, -1])
    known = tf.reduce_any(labels[:, :2, tf.newaxis] == wrong_numbers, 1)  # (B, G * (N - 2))
    directions = []
    for one, other, more, masked in ((0, 1, wrong, known), (1, 0, wrong[:0], known[:, :0])):
        logits = tf.matmul(x[:, one], every[:, other], transpose_b=True)
        logits = tf.where(same, tf.fill([], -1e9), scale * logits)
        further = scale * tf.matmul(x[:, one], more, transpose_b=True)
        further = tf.where(masked, tf.fill([], -1e9), further)
        directions.append((right, tf.concat([logits, further], 1)))
    return directions


def _gathered(x: tf.Tensor) -> tf.Tensor:
    """The rows of all replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return x
    return context.all_gather(x, 0)


def losses_of_vectors(name: str, scale: float) -> Losses:
    """The losses of `--embedding_loss`; `scale` is the inverse temperature of cosines."""
    if name == "cosine":
        return Losses(squared_cosine_error, {}, mean_over="batch")
    if name == "cosent":
        return Losses(cosent(scale), {}, mean_over="batch")
    metrics = {"accuracy": in_batch_accuracy}
    return Losses(in_batch_cross_entropy(scale), metrics, mean_over="batch", needs_labels=False)
