"""Heads on the encoder: the pooler, and the output layers of pre-training and of tasks."""

from typing import Any, Self

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.networks.bert_layer import BertLayer


@keras.saving.register_keras_serializable(package="bert_tf")
class Pooler(BertLayer):
    """tanh(x W + b) of a token's vector (`BertModel` in the original's modeling.py).

    In a DistilBERT relu(x W + b), as before its classifiers (`pre_classifier` in Hugging Face).

    Takes [B, T, H] and the padding mask, by which the config's `architecture` finds the token; or
    its vectors, [B, H].
    """

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        activation = "relu" if config.is_distilbert else "tanh"
        self.dense = self.new_dense("dense", config.hidden_size, activation)

    def call(self, sequence_output: Any, padding_mask: Any = None, training: bool = False) -> Any:
        x = sequence_output
        if x.ndim == 3:
            x = self.config.architecture.summary(x, padding_mask)  # (B, H)
        return self.kernels(training).dense(x, self.dense)

    def compute_output_spec(
        self, sequence_output: Any, padding_mask: Any = None, training: bool = False
    ) -> Any:
        batch, *_, width = sequence_output.shape
        return keras.KerasTensor((batch, width), dtype=self.compute_dtype)


def mean_over_tokens(states: Any, padding_mask: Any) -> Any:
    """The mean [B, W] of states [B, T, W] over the tokens of each row."""
    weights = ops.expand_dims(ops.cast(ops.not_equal(padding_mask, 0), states.dtype), 2)
    count = ops.maximum(ops.sum(weights, axis=1), 1)  # an empty row has no token
    return ops.sum(states * weights, axis=1) / count


def take_tokens(states: Any, positions: Any) -> Any:
    """Vectors [B * P, H] at int positions [B, P], or the nearest in [0, T), of [B, T, H]."""
    batch, length, width = ops.shape(states)
    # Row b of the batch starts at b * T in the flattened tensor, and ends before the next.
    starts = ops.cast(ops.arange(batch) * length, positions.dtype)
    rows = ops.reshape(ops.clip(positions, 0, length - 1) + starts[:, None], (-1,))  # (B * P,)
    return ops.take(ops.reshape(states, (batch * length, width)), rows, axis=0)


@keras.saving.register_keras_serializable(package="bert_tf")
class MaskedLanguageModelHead(BertLayer):
    """Logits of every vocabulary entry at the masked positions, float32 [B, P, V].

    Dense, activation, LayerNorm, and a product with the encoder's word embeddings plus a bias per
    entry (paper, section 3.1; `get_masked_lm_output` in the original's run_pretraining.py).

    Takes states [B, T, H] and the positions of the masked tokens, int [B, P]. Unused slots may hold
    any number, such as 0 or -1: see `take_tokens`.
    """

    def __init__(
        self,
        config: BertConfig,
        word_embeddings: keras.layers.Embedding,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(config, seed, **kwargs)
        self.word_embeddings = word_embeddings
        self.dense = self.new_dense("dense", config.hidden_size, config.hidden_act)
        self.layer_norm = self.new_layer_norm("layer_norm")

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        size = self.config.vocab_size
        self.bias = self.add_weight(name="bias", shape=(size,), initializer="zeros")

    def call(self, sequence_output: Any, mask_positions: Any, training: bool = False) -> Any:
        # Gathers first: of 512 positions about 80 need the product with the vocabulary.
        x = self.layer_norm(self.dense(take_tokens(sequence_output, mask_positions)))  # (B * P, H)
        x = ops.reshape(x, (*ops.shape(mask_positions), x.shape[-1]))  # (B, P, H)
        return self.kernels(training).word_logits(x, self.word_embeddings, self.bias)

    def compute_output_spec(
        self, sequence_output: Any, mask_positions: Any, training: bool = False
    ) -> Any:
        # JAX cannot tell from an unknown T.
        return keras.KerasTensor((*mask_positions.shape, self.config.vocab_size), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        table = keras.saving.serialize_keras_object(self.word_embeddings)
        return {**super().get_config(), "word_embeddings": table}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        table = keras.saving.deserialize_keras_object(config["word_embeddings"])
        return super().from_config({**config, "word_embeddings": table})


@keras.saving.register_keras_serializable(package="bert_tf")
class ClassificationHead(BertLayer):
    """Dropout, then one dense layer (`create_model` in the original's run_classifier.py).

    Returns logits, float32 [..., C], of vectors [..., H], such as the pooled output. Without
    dropout and with two classes, also the next sentence head of pre-training (paper, section 3.1,
    task 2; `get_next_sentence_output` in the original's run_pretraining.py).

    There are `num_classes` C; without `dropout`, its rate is the config's `head_dropout`.
    """

    def __init__(
        self,
        config: BertConfig,
        num_classes: int,
        dropout: float | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(config, seed, **kwargs)
        self.num_classes = num_classes
        self.supports_masking = True  # each vector is transformed alone
        rate = config.head_dropout if dropout is None else dropout
        self.dropout = self.new_dropout("dropout", rate)
        self.dense = self.new_dense("dense", num_classes)

    def build(self, states_shape: Any = None) -> None:
        if states_shape is not None:
            self._input_widths["dense"] = states_shape[-1]
        super().build(states_shape)

    def call(self, states: Any, training: bool = False) -> Any:
        return ops.cast(self.dense(self.dropout(states, training=training)), "float32")

    def get_config(self) -> dict[str, Any]:
        values = {"num_classes": self.num_classes, "dropout": self.dropout.rate}
        return super().get_config() | values
