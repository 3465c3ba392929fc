"""Raw text to token ids: normalization, WordPiece, packing, and learning a vocabulary."""

from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.vocabulary import (
    SPECIAL_TOKENS,
    count_words,
    learn_vocabulary,
    read_vocabulary,
    write_vocabulary,
)

__all__ = [
    "SPECIAL_TOKENS",
    "BertTokenizer",
    "Packer",
    "count_words",
    "learn_vocabulary",
    "read_vocabulary",
    "write_vocabulary",
]
