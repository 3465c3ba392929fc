"""The signatures that every model has: vectors of a text, and what its tokens attend to."""

from typing import Any

import tensorflow as tf

from bert_tf.checkpoints.weight_names import head_of
from bert_tf.networks.heads import mean_over_tokens
from bert_tf.tasks.signatures import TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows
from bert_tf.tokenization.words import code_points

LONGEST_ATTENTION = 128  # tokens: the output grows with their square, for BERT-base to 9 MB a text


def embed(strings: Tensors, answerer: AnswererProtocol) -> Tensors:
    """`vectors` of texts, and `truncated`, int32 [B], the number of word pieces removed."""
    ids = answerer.tokenizer.tokenize(strings["text"])
    pack = Packer(answerer.tokenizer, answerer.max_length)
    return {**vectors(pack(ids), answerer.model), "truncated": pack.truncated(ids.row_lengths())}


def vectors(inputs: Tensors, model: Any, apply: Any = map_rows) -> Tensors:
    """Vectors of rows of tokens, int32 [B, T], by an encoder or a model on top of one.

    float32 [B, H] each: `mean` over the tokens; `cls`, of [CLS], or of the token that has seen all
    others; `pooled` if the pooler is trained: of an encoder, or if the head reads it.
    """
    encoder = getattr(model, "encoder", model)
    has_pooler = head_of(type(model)).reads_pooler

    def row_vectors(part: Tensors) -> Tensors:
        outputs = encoder(part, training=False, padding="zeros")
        states = tf.cast(outputs["sequence_output"], tf.float32)  # (r, T, H)
        pooled = {
            "mean": mean_over_tokens(states, part["padding_mask"]),
            "cls": encoder.config.architecture.summary(states, part["padding_mask"]),
        }
        if has_pooler:
            pooled["pooled"] = tf.cast(outputs["pooled_output"], tf.float32)
        return pooled

    return apply(row_vectors, inputs)


def attention(strings: Tensors, answerer: AnswererProtocol) -> Tensors:
    """Word pieces of texts, and how much each attends to each other.

    For T tokens with [CLS] and [SEP], at most `max_length` and `LONGEST_ATTENTION`: `pieces_id`,
    int32, and `pieces_text` [B, T]; their spans in code points and bytes, int64 [B, T], empty at
    both ends for [CLS] and [SEP]; `probabilities`, float32 [B, L, N, T, T]: layer, head, the token
    that attends (a row sums to 1), the token attended to; 0 for padding.
    """
    texts = strings["text"]
    tokenizer = answerer.tokenizer
    encoder = getattr(answerer.model, "encoder", answerer.model)
    encoder = getattr(encoder, "encoder", encoder)  # below the features of another
    ids, *spans = tokenizer.tokenize_with_offsets(texts)
    length = min(answerer.max_length, LONGEST_ATTENTION)
    pack = Packer(tokenizer, length)
    inputs = pack(ids)
    starts, ends = (span[:, : length - 2] for span in spans)
    first = tf.zeros_like(starts.row_lengths())[:, tf.newaxis]  # (B, 1)
    last = tf.maximum(tf.reduce_max(ends, axis=1), 0)[:, tf.newaxis]  # none: the least integer
    lists = {}
    for name, offsets in (("start", starts), ("end", ends)):
        offsets = tf.concat([first, offsets, last], 1)
        points = code_points(texts, offsets.value_rowids(), offsets.flat_values)
        lists[f"pieces_{name}"] = offsets.with_flat_values(points).to_tensor()
        lists[f"pieces_{name}_byte"] = offsets.to_tensor()
    is_token = inputs["padding_mask"] != 0
    vocabulary = tf.constant(tokenizer.vocabulary)

    def row_attention(part: Tensors) -> tf.Tensor:
        name = "attention_probabilities"
        layers = encoder(part, training=False, padding="zeros", only=name)[name]
        probabilities = tf.stack(layers, axis=1)  # (r, L, N, T, T)
        mask = tf.cast(part["padding_mask"] != 0, tf.float32)
        attends = mask[:, tf.newaxis, tf.newaxis, :, tf.newaxis]
        return tf.cast(probabilities, tf.float32) * attends

    return {
        "pieces_count": tf.reduce_sum(inputs["padding_mask"], -1),
        "pieces_id": inputs["token_ids"],
        "pieces_text": tf.where(is_token, tf.gather(vocabulary, inputs["token_ids"]), ""),
        **lists,
        "probabilities": map_rows(row_attention, inputs),
        "truncated": pack.truncated(ids.row_lengths()),
    }


ENCODER_SIGNATURES = {
    "embed": Signature({"text": TEXTS}, embed),
    "attention": Signature({"text": TEXTS}, attention, is_packed=False),  # people look at it
}


def all_signatures(task: Task) -> dict[str, Signature]:
    """All signatures of an export: those that every model has, and the kind's own."""
    return {**ENCODER_SIGNATURES, **task.kind.signatures(task)}
