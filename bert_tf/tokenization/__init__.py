"""Raw text to token ids: normalization, WordPiece, packing, and learning a vocabulary."""

from bert_tf.tokenization.added_tokens import AddedToken as AddedToken
from bert_tf.tokenization.packing import Packer as Packer
from bert_tf.tokenization.tokenizer import BertTokenizer as BertTokenizer
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS as SPECIAL_TOKENS
from bert_tf.tokenization.vocabulary import count_words as count_words
from bert_tf.tokenization.vocabulary import learn_vocabulary as learn_vocabulary
from bert_tf.tokenization.vocabulary import read_vocabulary as read_vocabulary
