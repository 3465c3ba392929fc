"""BERT in Keras 3 and TensorFlow, from raw text to a served SavedModel.

The public names load on first use, so that `import bert_tf` (and `bert-tf --help`) stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bert_tf.version import __version__

if TYPE_CHECKING:
    from bert_tf.checkpoints.model_directory import load_model as load_model
    from bert_tf.config import BertConfig as BertConfig
    from bert_tf.models.encoder import BertEncoder as BertEncoder
    from bert_tf.tokenization.tokenizer import BertTokenizer as BertTokenizer

_HOMES = {
    "BertConfig": "bert_tf.config",
    "BertEncoder": "bert_tf.models.encoder",
    "BertTokenizer": "bert_tf.tokenization.tokenizer",
    "load_model": "bert_tf.checkpoints.model_directory",
}
__all__ = ["BertConfig", "BertEncoder", "BertTokenizer", "__version__", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
