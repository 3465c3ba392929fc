"""Raw text to token ids: normalization, WordPiece, packing, and learning a vocabulary."""

from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer

__all__ = ["BertTokenizer", "Packer"]
