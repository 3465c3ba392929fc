"""The class of models that a kind of tasks names."""

import importlib
from typing import Any

from bert_tf.keras_classes import NAMES


def class_of_kind(kind: Any) -> Any:
    """The class of the models that a kind trains: one here by its name, or a user's own."""
    named = kind.model_class
    if not isinstance(named, str):
        return named
    home, name = NAMES[f"bert_tf>{named}"]
    return getattr(importlib.import_module(home), name)
