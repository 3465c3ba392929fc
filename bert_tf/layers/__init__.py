"""Keras layers of BERT, written in keras.ops alone so that they run on every Keras backend."""

from bert_tf.layers.classification_head import ClassificationHead, NextSentenceHead
from bert_tf.layers.embeddings import BertEmbeddings
from bert_tf.layers.feed_forward import FeedForward
from bert_tf.layers.masked_language_model_head import MaskedLanguageModelHead
from bert_tf.layers.pooler import Pooler
from bert_tf.layers.self_attention import SelfAttention
from bert_tf.layers.transformer_block import TransformerBlock

__all__ = [
    "BertEmbeddings",
    "ClassificationHead",
    "FeedForward",
    "MaskedLanguageModelHead",
    "NextSentenceHead",
    "Pooler",
    "SelfAttention",
    "TransformerBlock",
]
