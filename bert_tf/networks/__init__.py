"""Keras layers of BERT, written in keras.ops alone so that they run on every Keras backend."""

from bert_tf.networks.encoder import BertEmbeddings as BertEmbeddings
from bert_tf.networks.encoder import FeedForward as FeedForward
from bert_tf.networks.encoder import SelfAttention as SelfAttention
from bert_tf.networks.encoder import TransformerBlock as TransformerBlock
from bert_tf.networks.heads import ClassificationHead as ClassificationHead
from bert_tf.networks.heads import MaskedLanguageModelHead as MaskedLanguageModelHead
from bert_tf.networks.heads import Pooler as Pooler
