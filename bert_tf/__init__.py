"""BERT in Keras 3 and TensorFlow, from raw text to a served SavedModel.

The public names load on first use, so that `import bert_tf` (and `bert-tf --help`) stays quick.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from bert_tf import errors, extensions, keras_classes
from bert_tf.version import __version__

_EXTENSIONS = {  # tables of the lower layers -> what higher ones add to them
    "architectures": (
        "bert_tf.paper.architectures:LeftToRight",
        "bert_tf.paper.architectures:RightToLeft",
        "bert_tf.paper.architectures:SideBySide",
        "bert_tf.paper.architectures:Recurrent",
    ),
    "feature architectures": ("bert_tf.paper.architectures:OnFeatures",),
    "models": (
        "bert_tf.models.encoder:BertEncoder",
        "bert_tf.models.language_model:BertPreTrainer",
        "bert_tf.models.language_model:BertMaskedLanguageModel",
        "bert_tf.models.task_models:BertClassifier",
        "bert_tf.models.task_models:BertMultiLabelClassifier",
        "bert_tf.models.task_models:BertRegressor",
        "bert_tf.models.task_models:BertChooser",
        "bert_tf.models.task_models:BertTagger",
        "bert_tf.models.task_models:BertSpanClassifier",
        "bert_tf.models.task_models:BertSentenceEncoder",
        "bert_tf.paper.language_model:BertLanguageModel",
    ),
    "openers": ("bert_tf.text.opening:open_preset",),
    "parts": ("bert_tf.paper.architectures:PARTS",),
    "layer weights": ("bert_tf.paper.lstm:WEIGHTS", "bert_tf.paper.feature_encoder:WEIGHTS"),
    "finetuning options": ("bert_tf.paper.command_options:FeatureOptions",),
    "pretraining options": ("bert_tf.paper.command_options:ObjectiveOptions",),
}
# Public name -> its module: the stub file that type checkers read is the table.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.M)}
__all__ = ["__version__", *sorted(_HOMES)]


keras_classes.register()
for _table, _entries in _EXTENSIONS.items():
    extensions.add(_table, *_entries)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    startup = importlib.import_module("bert_tf.startup")
    with startup.without_chatter(), errors.needing_tensorflow(f"bert_tf.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
