"""Rows of tokens in graph: checked, paired, in lists."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bert_tf.tasks.signatures import LISTS, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows

TEXT_ROLES = ("text", "text_pair", "words")


def checked_rows(tensors: Tensors, model: Any) -> Tensors:
    """Refuses, in graph, rows of unequal shapes, too long ones, and ids of tokens that none has."""
    longest = model.config.max_position_embeddings
    rows = tf.stack(list(tensors.values()))  # refuses other shapes, where sums would repeat them
    length = tf.shape(rows)[-1]
    message = [f"give 1 to {longest} tokens a row, not", length]
    fits = tf.debugging.Assert((length >= 1) & (length <= longest), message)
    with tf.control_dependencies([fits]):  # or the model might fail first, and say less
        checked = dict(zip(tensors, tf.unstack(rows), strict=True))
    # Some devices would read other ids as vectors of zeros.
    sizes = {"token_ids": model.config.vocab_size, "segment_ids": model.config.type_vocab_size}
    if model.config.is_distilbert:
        del sizes["segment_ids"]  # it reads none
    is_token = checked["padding_mask"] != 0
    checks = []
    for name, size in sizes.items():
        ids = tf.boolean_mask(checked[name], is_token)
        wrong = tf.boolean_mask(ids, (ids < 0) | (ids >= size))
        message = [f"give {name} of 0 to {size - 1}, not", wrong]
        checks.append(tf.debugging.Assert(tf.size(wrong) == 0, message, summarize=1))
    with tf.control_dependencies(checks):
        return {name: tf.identity(values) for name, values in checked.items()}


def paired_rows(
    texts: tf.Tensor, lists: tf.Tensor, tokenizer: Any, max_length: int
) -> tuple[Tensors, tf.Tensor]:
    """Rows [B * n, T] of texts [B] with each of their lists [B, n]; pieces that were cut [B, n]."""
    batch, number = tf.unstack(tf.shape(lists))
    one_list_each = (batch == tf.size(texts)) & ((number > 0) | (batch == 0))
    message = ["give a list of one choice or more for each context, not", tf.shape(lists)]
    # Or the gathering below might fail first.
    with tf.control_dependencies([tf.debugging.Assert(one_list_each, message)]):
        of_entry = tf.repeat(tf.range(batch), number)
    firsts = tokenizer.tokenize(texts)
    ids = tokenizer.tokenize(tf.reshape(lists, [-1]))
    pack = Packer(tokenizer, max_length)
    # What cannot fit is cut before the copies are made: a text may be long, its list, too.
    rows = pack(tf.gather(firsts[:, :max_length], of_entry), ids)
    truncated = pack.truncated(tf.gather(firsts.row_lengths(), of_entry), ids.row_lengths())
    return rows, tf.reshape(truncated, [batch, number])


def with_rerank(
    signatures: dict[str, Signature], task: Task, scores: Callable
) -> dict[str, Signature]:
    """Adds `rerank` for a task of pairs; `scores` turns outputs into scores, float32 [R]."""
    if task.pair is not None:
        respond = functools.partial(_rerank, scores=scores)
        signatures["rerank"] = Signature({"query": TEXTS, "texts": LISTS}, respond)
    return signatures


def _rerank(strings: Tensors, answerer: AnswererProtocol, scores: Callable) -> Tensors:
    """How well each text of a list goes with a query, by a model of pairs: `scores` [B, n]."""
    texts = strings["texts"]
    rows, truncated = paired_rows(strings["query"], texts, answerer.tokenizer, answerer.max_length)
    scores_of_rows = scores(tf.cast(map_rows(answerer.predict, rows), tf.float32))
    return {"scores": tf.reshape(scores_of_rows, tf.shape(texts)), "truncated": truncated}


def alone(rows: Tensors) -> Tensors:
    """Rows [R, T] as lists of one row, [R, 1, T]."""
    return {name: x[:, tf.newaxis] for name, x in rows.items()}


def in_lists(rows: Tensors, lists: tf.Tensor) -> Tensors:
    """The rows [B * n, T] of lists [B, n] as [B, n, T]."""
    shape = tf.shape(lists)
    return {n: tf.reshape(x, tf.concat([shape, tf.shape(x)[1:]], 0)) for n, x in rows.items()}


def padded_lists(prefix: str, values: Tensors, row: tf.Tensor, count: tf.Tensor) -> Tensors:
    """Values [N, ...] as lists of `count` rows, padded, and their number; `row` is ascending."""
    lists = tf.RaggedTensor.from_value_rowids(row, row, nrows=count, validate=False)
    padded = {f"{prefix}_{name}": lists.with_values(x).to_tensor() for name, x in values.items()}
    return {f"{prefix}_count": tf.cast(lists.row_lengths(), tf.int32), **padded}
