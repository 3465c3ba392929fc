"""An encoder whose vectors of texts are trained to be compared: pooled and normalized."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.layers.heads import summary, take_tokens
from bert_tf.models.encoders import encoder_for
from bert_tf.models.pretrained_model import Encoder, PretrainedModel
from bert_tf.models.task_models import FoldChoices
from bert_tf.primitives.places import last_places

POOLINGS = ("mean", "cls", "max", "last")


@keras.saving.register_keras_serializable(package="bert_tf")
class BertSentenceEncoder(PretrainedModel):
    """A vector for each text (Reimers and Gurevych 2019, "Sentence-BERT").

    Inputs: the encoder's, but [B, N, T]: N texts that are compared. Output: float32 [B, N, W].

    Args:
        encoder: a `BertEncoder` or another encoder, or a `BertConfig` for a new one.
        pooling: how tokens become a text's vector: "mean" or "max" over its tokens, the vector of
            [CLS] ("cls"; in a left-to-right model of the last token), or of the "last" token.
        normalize: whether vectors have length 1.
        seed, dtype, kwargs: see `PretrainedModel`.

    Raises:
        InputError: the pooling is unknown.
    """

    arguments = ("encoder", "pooling", "normalize")

    def __init__(
        self,
        encoder: Encoder | BertConfig,
        pooling: str = "mean",
        normalize: bool = True,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        if pooling not in POOLINGS:
            raise InputError(f"pooling is {pooling!r}: give one of {', '.join(POOLINGS)}")
        encoder, dtype = encoder_for(encoder, seed, dtype)
        fold = FoldChoices(name="fold")
        inputs = self.symbolic_inputs(shape=(None, None))
        rows = {name: fold(x) for name, x in inputs.items()}  # (B * N, T)
        states = encoder(rows, reads="tokens")["sequence_output"]  # (B * N, T, W)
        pool = _SentencePooling(pooling, normalize, encoder.summary_direction, name="pooling")
        outputs = pool(states, rows["padding_mask"], inputs["token_ids"])
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)
        self.encoder = encoder
        self.pooling = pooling
        self.normalize = normalize

    def embed(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The `vector` of each text, a list of W numbers."""
        return self._answers("embed", x, batch_size)


class _SentencePooling(keras.layers.Layer):
    """Vectors of texts from those of their tokens; arguments as of `BertSentenceEncoder`.

    Call arguments:
        states: [B * N, T, W].
        padding_mask: int [B * N, T], 0 at padding.
        like: [B, N, T], for the shape of the output.

    Returns:
        float32 [B, N, W], whatever the compute dtype.
    """

    def __init__(self, pooling: str, normalize: bool, direction: str = "both", **kwargs: Any):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.pooling = pooling
        self.normalize = normalize
        self.direction = direction

    def call(self, states: Any, padding_mask: Any, like: Any) -> Any:
        is_token = ops.not_equal(padding_mask, 0)[:, :, None]
        if self.pooling == "mean":
            weights = ops.cast(is_token, states.dtype)
            count = ops.maximum(ops.sum(weights, axis=1), 1)  # an empty row has no token
            x = ops.sum(states * weights, axis=1) / count
        elif self.pooling == "max":
            x = ops.max(ops.where(is_token, states, -1e9), axis=1)
        elif self.pooling == "last":
            x = take_tokens(states, last_places(padding_mask)[:, None])
        else:
            x = summary(states, padding_mask, self.direction)
        if self.normalize:  # an epsilon as PyTorch's `normalize` has
            x = x / ops.maximum(ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True)), 1e-12)
        batch, number = ops.shape(like)[:2]
        return ops.reshape(x, (batch, number, states.shape[-1]))

    def compute_output_spec(self, states: Any, padding_mask: Any, like: Any) -> Any:
        return keras.KerasTensor((*like.shape[:2], states.shape[-1]), dtype="float32")
