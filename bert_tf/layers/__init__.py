"""Keras layers of BERT, written in keras.ops alone so that they run on every Keras backend."""

from bert_tf.layers.embeddings import BertEmbeddings
from bert_tf.layers.heads import (
    ClassificationHead,
    MaskedLanguageModelHead,
    NextSentenceHead,
    Pooler,
)
from bert_tf.layers.transformer import FeedForward, SelfAttention, TransformerBlock

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
