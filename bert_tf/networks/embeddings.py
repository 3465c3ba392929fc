"""Word, position and segment embeddings."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.networks.bert_layer import BertLayer
from bert_tf.networks.places import Places
from bert_tf.networks.table import primitives, values


@keras.saving.register_keras_serializable(package="bert_tf")
class BertEmbeddings(BertLayer):
    """Sum of word, position and segment embeddings, then LayerNorm and dropout.

    Section 3 of the paper, figure 2; `embedding_postprocessor` in the original's modeling.py.

    All ids are int [B, T]; by default `segment_ids` are 0 and `position_ids` 0 to T - 1. Returns
    [B, T, H] in the compute dtype, or [n, H] of the given `places`; ValueError if T is too large.
    """

    is_of_encoder = True

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.word_embeddings = self.new_table("word_embeddings", config.vocab_size)
        self.position_embeddings = self.new_table(
            "position_embeddings", config.max_position_embeddings
        )
        if config.type_vocab_size:  # a DistilBERT has none
            self.segment_embeddings = self.new_table("segment_embeddings", config.type_vocab_size)
        self.layer_norm = self.new_layer_norm("layer_norm")
        self.dropout = self.new_dropout("dropout", config.hidden_dropout_prob)

    def call(
        self,
        token_ids: Any,
        segment_ids: Any = None,
        position_ids: Any = None,
        training: bool = False,
        places: Places | None = None,
    ) -> Any:
        length = ops.shape(token_ids)[1]  # a number if it is known already, else a tensor
        if isinstance(length, int) and length > self.config.max_position_embeddings:
            raise ValueError(
                f"The inputs are {length} tokens long, the model takes "
                f"{self.config.max_position_embeddings} (max_position_embeddings): shorten them."
            )
        if places is None:
            places = Places(ops.ones_like(token_ids), "both")
            return places.spread(self.call(token_ids, segment_ids, position_ids, training, places))

        def collect(ids: Any) -> Any:  # (n,)
            return places.collect(ops.reshape(ids, (-1,)))

        compute = primitives(training)
        words = compute.rows(self.word_embeddings, collect(token_ids))
        if position_ids is None:  # rows 0 to T of the table: a slice, not a lookup
            others = places.position_rows(values(self.position_embeddings))
        else:
            others = compute.rows(self.position_embeddings, collect(position_ids))
        segment_table = values(self.segment_embeddings) if self.config.type_vocab_size else None
        if segment_table is not None and segment_ids is None:
            others = others + segment_table[0]
        elif segment_table is not None:
            # A product with one-hot rows, as in the original: the gradient of a lookup in so
            # small a table would add thousands of rows into two.
            types, dtype = self.config.type_vocab_size, segment_table.dtype
            one_hot = ops.one_hot(collect(segment_ids), types, dtype=dtype)
            others = others + ops.matmul(one_hot, segment_table)
        return compute.drop(compute.add_and_normalize(words, others, self.layer_norm), self.dropout)

    def compute_output_shape(self, token_ids_shape: Any, **others: Any) -> Any:
        # JAX cannot tell from an unknown T.
        return (*token_ids_shape, self.config.hidden_size)


@keras.saving.register_keras_serializable(package="bert_tf")
class WordEmbeddings(BertLayer):
    """Word embeddings [B, T, H], LayerNorm and dropout: an LSTM knows the order by itself."""

    is_of_encoder = True

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.word_embeddings = self.new_table("word_embeddings", config.vocab_size)
        self.layer_norm = self.new_layer_norm("layer_norm")
        self.dropout = self.new_dropout("dropout", config.hidden_dropout_prob)

    # Before 3.14, Keras refuses an input of a model that no layer takes: `segment_ids`.
    def call(self, token_ids: Any, segment_ids: Any = None, training: bool = False) -> Any:
        return self.dropout(self.layer_norm(self.word_embeddings(token_ids)), training=training)
