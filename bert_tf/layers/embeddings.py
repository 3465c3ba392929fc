"""Word, position and segment embeddings."""

from typing import Any

import keras
from keras import ops

from bert_tf.layers.initialization import child_seed, truncated_normal


@keras.saving.register_keras_serializable(package="bert_tf")
class BertEmbeddings(keras.layers.Layer):
    """Sum of word, position and segment embeddings, then LayerNorm and dropout.

    Section 3 of the paper, figure 2; `embedding_postprocessor` in the original's modeling.py.

    Args:
        vocab_size: rows of the word table.
        hidden_size: H, columns of every table.
        max_position_embeddings: rows of the position table, the longest input.
        type_vocab_size: rows of the segment table.
        layer_norm_eps: added to the variance.
        dropout: share of the output's units dropped in training.
        initializer_range: standard deviation of the tables' truncated normal start.
        seed: of the start and of dropout; None draws anew each time.

    Call arguments:
        token_ids: int [B, T].
        segment_ids: int [B, T], or None for all 0.

    Returns:
        [B, T, H] in the layer's compute dtype.

    Raises:
        ValueError: if T is above `max_position_embeddings`.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        layer_norm_eps: float = 1e-12,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.layer_norm_eps = layer_norm_eps
        self.dropout_rate = dropout
        self.initializer_range = initializer_range
        self.seed = seed

        def table(rows: int, name: str) -> keras.layers.Embedding:
            start = truncated_normal(initializer_range, seed, name)
            return keras.layers.Embedding(
                rows,
                hidden_size,
                embeddings_initializer=start,
                dtype=self.dtype_policy,
                name=name,
            )

        self.word_embeddings = table(vocab_size, "word_embeddings")
        self.position_embeddings = table(max_position_embeddings, "position_embeddings")
        self.segment_embeddings = table(type_vocab_size, "segment_embeddings")
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_eps, dtype=self.dtype_policy, name="layer_norm"
        )
        self.dropout = keras.layers.Dropout(
            dropout, seed=child_seed(seed, "dropout"), dtype=self.dtype_policy, name="dropout"
        )

    def build(self, token_ids_shape: Any, segment_ids_shape: Any = None) -> None:
        """Makes the tables."""
        for table in (self.word_embeddings, self.position_embeddings, self.segment_embeddings):
            table.build(token_ids_shape)
        self.layer_norm.build((*token_ids_shape, self.hidden_size))
        self.dropout.build((*token_ids_shape, self.hidden_size))
        self.built = True

    def call(self, token_ids: Any, segment_ids: Any = None, training: bool = False) -> Any:
        """Looks up, adds, normalizes."""
        length = ops.shape(token_ids)[1]  # a number if it is known already, else a tensor
        if isinstance(length, int) and length > self.max_position_embeddings:
            raise ValueError(
                f"The inputs are {length} tokens long, the model takes "
                f"{self.max_position_embeddings} (max_position_embeddings): shorten them."
            )
        words = self.word_embeddings(token_ids)  # (B, T, H)
        # Rows 0 to T of the table stand for positions 0 to T: a slice, not a lookup.
        positions = ops.cast(self.position_embeddings.embeddings[:length], words.dtype)  # (T, H)
        segment_table = ops.cast(self.segment_embeddings.embeddings, words.dtype)
        if segment_ids is None:
            segments = segment_table[0]  # (H,)
        else:
            # A product with one-hot rows, as in the original: the gradient of a lookup in so
            # small a table would add thousands of rows into two.
            one_hot = ops.one_hot(segment_ids, self.type_vocab_size, dtype=words.dtype)
            segments = ops.matmul(one_hot, segment_table)  # (B, T, H)
        return self.dropout(self.layer_norm(words + segments + positions), training=training)

    def compute_output_shape(self, token_ids_shape: Any, segment_ids_shape: Any = None) -> Any:
        """[B, T] -> [B, T, H]."""
        return (*token_ids_shape, self.hidden_size)

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "max_position_embeddings": self.max_position_embeddings,
            "type_vocab_size": self.type_vocab_size,
            "layer_norm_eps": self.layer_norm_eps,
            "dropout": self.dropout_rate,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }
