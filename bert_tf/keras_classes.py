"""Keras loads `.keras` files with this package's classes after `import bert_tf` alone.

Keras asks its table of registered names for a class. Importing every module here would take
seconds, so the table gets stand-ins, which import a class when a file needs it.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from bert_tf.training.schedule_table import SCHEDULES

HOMES = {
    "bert_tf.networks.encoder": (
        "BertEmbeddings",
        "FeedForward",
        "SelfAttention",
        "TransformerBlock",
    ),
    "bert_tf.networks.heads": (
        "ClassificationHead",
        "MaskedLanguageModelHead",
        "Pooler",
    ),
    "bert_tf.paper.summary": ("SummaryFirst",),
    "bert_tf.paper.lstm": ("LstmBlock", "WordEmbeddings"),
    "bert_tf.models.encoder": ("BertEncoder",),
    "bert_tf.paper.encoders": ("LstmEncoder", "TwoEncoders"),
    "bert_tf.paper.feature_encoder": ("FeatureEncoder", "FrozenLayers", "LayerMix"),
    "bert_tf.paper.language_model": ("BertLanguageModel",),
    "bert_tf.models.language_model": (
        "BertMaskedLanguageModel",
        "BertPreTrainer",
    ),
    "bert_tf.networks.losses": (
        "LabelAccuracy",
        "SpanAccuracy",
        "SpanCrossentropy",
    ),
    "bert_tf.models.task_models": (
        "BertChooser",
        "BertClassifier",
        "BertMultiLabelClassifier",
        "BertRegressor",
        "BertSentenceEncoder",
        "BertSpanClassifier",
        "BertTagger",
    ),
    "bert_tf.text.preprocessor": ("BertPreprocessor",),
    "bert_tf.training.optimizer": ("AdamWeightDecay", "Lamb"),
    "bert_tf.training.schedule": tuple(SCHEDULES.values()),
}
NAMES = {f"bert_tf>{name}": (home, name) for home, names in HOMES.items() for name in names}


class _StandIn:  # hashable, as KerasHub expects of all in the table
    def __init__(self, home: str, name: str):
        self.home, self.name = home, name

    def from_config(self, config: dict[str, Any]) -> Any:
        return getattr(importlib.import_module(self.home), self.name).from_config(config)


def _register(keras: Any) -> None:
    table = keras.saving.get_custom_objects()
    for registered_name, place in NAMES.items():
        table.setdefault(registered_name, _StandIn(*place))


class _KerasFinder:
    """Finds Keras as other importers do; once it is imported, its table gets the stand-ins."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register(module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Registers stand-ins of all classes, now or when Keras is imported."""
    if "keras" in sys.modules:
        _register(sys.modules["keras"])
    else:
        sys.meta_path.insert(0, _KerasFinder())
