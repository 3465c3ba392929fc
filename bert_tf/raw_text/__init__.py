"""Keras models that take raw text: `fit`, `predict`, `classify`, `save` and `export` on strings."""
