"""The masked language model's head."""

from typing import Any

import keras
from keras import ops

from bert_tf.layers.activations import ACTIVATIONS
from bert_tf.layers.initialization import truncated_normal


@keras.saving.register_keras_serializable(package="bert_tf")
class MaskedLanguageModelHead(keras.layers.Layer):
    """Scores every vocabulary entry at the masked positions.

    Gathers the masked positions' vectors, then dense, activation, LayerNorm, and a product with
    the word embedding table plus a bias per entry (paper, section 3.1; `get_masked_lm_output` in
    the original's run_pretraining.py).

    Args:
        word_embeddings: the encoder's `keras.layers.Embedding`, V rows of H; shared, not copied.
        hidden_act: a name in `activations.ACTIVATIONS`.
        layer_norm_eps: added to the variance.
        initializer_range: standard deviation of the kernel's truncated normal start.
        seed: of the start; None draws anew each time.

    Call arguments:
        sequence_output: [B, T, H].
        mask_positions: int [B, P], each in [0, T); unused slots may hold 0.

    Returns:
        Logits, float32 [B, P, V] whatever the compute dtype.
    """

    def __init__(
        self,
        word_embeddings: keras.layers.Embedding,
        hidden_act: str = "gelu",
        layer_norm_eps: float = 1e-12,
        initializer_range: float = 0.02,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.word_embeddings = word_embeddings
        self.hidden_act = hidden_act
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        self.seed = seed
        self.vocab_size = word_embeddings.input_dim
        self.hidden_size = word_embeddings.output_dim
        self.dense = keras.layers.Dense(
            self.hidden_size,
            activation=ACTIVATIONS[hidden_act],
            kernel_initializer=truncated_normal(initializer_range, seed, "dense"),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_eps, dtype=self.dtype_policy, name="layer_norm"
        )

    def build(self, sequence_output_shape: Any, mask_positions_shape: Any = None) -> None:
        """Makes the kernel and the biases."""
        if not self.word_embeddings.built:
            self.word_embeddings.build()
        self.dense.build((None, self.hidden_size))
        self.layer_norm.build((None, self.hidden_size))
        self.bias = self.add_weight(name="bias", shape=(self.vocab_size,), initializer="zeros")
        self.built = True

    def call(self, sequence_output: Any, mask_positions: Any) -> Any:
        """Gathers first: of 512 positions about 80 need the product with the vocabulary."""
        batch, length = ops.shape(sequence_output)[:2]
        flat = ops.reshape(sequence_output, (batch * length, self.hidden_size))
        # Row b of the batch starts at b * T in the flattened tensor.
        starts = ops.cast(ops.arange(batch) * length, mask_positions.dtype)
        rows = ops.reshape(mask_positions + starts[:, None], (-1,))  # (B * P,)
        x = self.layer_norm(self.dense(ops.take(flat, rows, axis=0)))  # (B * P, H)
        table = ops.cast(self.word_embeddings.embeddings, x.dtype)  # (V, H)
        logits = ops.matmul(x, ops.transpose(table))  # (B * P, V)
        logits = ops.cast(logits, "float32") + ops.cast(self.bias, "float32")
        positions = ops.shape(mask_positions)[1]
        return ops.reshape(logits, (batch, positions, self.vocab_size))

    def compute_output_spec(self, sequence_output: Any, mask_positions: Any) -> Any:
        """[B, T, H] and [B, P] -> float32 [B, P, V]."""
        shape = (*mask_positions.shape, self.vocab_size)
        return keras.KerasTensor(shape, dtype="float32")

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "word_embeddings": keras.saving.serialize_keras_object(self.word_embeddings),
            "hidden_act": self.hidden_act,
            "layer_norm_eps": self.layer_norm_eps,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MaskedLanguageModelHead":
        """Makes the head, and the table that it shares, from `get_config`."""
        table = keras.saving.deserialize_keras_object(config["word_embeddings"])
        return cls(**{**config, "word_embeddings": table})
