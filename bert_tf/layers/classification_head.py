"""Heads that classify the pooled output: of a pair's order, or of a task's labels."""

from typing import Any

import keras
from keras import ops

from bert_tf.layers.initialization import child_seed, truncated_normal


@keras.saving.register_keras_serializable(package="bert_tf")
class ClassificationHead(keras.layers.Layer):
    """Dropout, then one dense layer (`create_model` in the original's run_classifier.py).

    Args:
        num_classes: C.
        dropout: share of the input's units dropped in training.
        initializer_range: standard deviation of the kernel's truncated normal start.
        seed: of the start and of dropout; None draws anew each time.

    Call arguments:
        pooled_output: [B, H].

    Returns:
        Logits, float32 [B, C] whatever the compute dtype.
    """

    def __init__(
        self,
        num_classes: int,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.dropout_rate = dropout
        self.initializer_range = initializer_range
        self.seed = seed
        self.dropout = keras.layers.Dropout(
            dropout, seed=child_seed(seed, "dropout"), dtype=self.dtype_policy, name="dropout"
        )
        self.dense = keras.layers.Dense(
            num_classes,
            kernel_initializer=truncated_normal(initializer_range, seed, "dense"),
            dtype=self.dtype_policy,
            name="dense",
        )

    def build(self, pooled_output_shape: Any) -> None:
        """Makes the kernel."""
        self.dense.build(pooled_output_shape)
        self.built = True

    def call(self, pooled_output: Any, training: bool = False) -> Any:
        """Scores the classes."""
        logits = self.dense(self.dropout(pooled_output, training=training))
        return ops.cast(logits, "float32")  # (B, C)

    def compute_output_spec(self, pooled_output: Any, training: bool = False) -> Any:
        """[B, H] -> float32 [B, C]."""
        return keras.KerasTensor((pooled_output.shape[0], self.num_classes), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "dropout": self.dropout_rate,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class NextSentenceHead(ClassificationHead):
    """Tells whether sentence B follows sentence A: class 0 if it does, 1 if it is random.

    Paper, section 3.1, task 2; `get_next_sentence_output` in the original's run_pretraining.py:
    one dense layer without dropout.

    Args:
        initializer_range: standard deviation of the kernel's truncated normal start.
        seed: of the start; None draws anew each time.

    Call arguments:
        pooled_output: [B, H].

    Returns:
        Logits, float32 [B, 2] whatever the compute dtype.
    """

    def __init__(self, initializer_range: float = 0.02, seed: int | None = None, **kwargs: Any):
        super().__init__(2, dropout=0.0, initializer_range=initializer_range, seed=seed, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        config = super().get_config()
        return {key: config[key] for key in config if key not in ("num_classes", "dropout")}
