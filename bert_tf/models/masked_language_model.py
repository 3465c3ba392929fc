"""The masked language model alone: an encoder with the words' output layer."""

from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.layers import MaskedLanguageModelHead
from bert_tf.layers.bert_layer import part
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.encoders import encoder_for
from bert_tf.models.losses import classes_loss, classes_metrics
from bert_tf.models.pretrained_model import PretrainedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertMaskedLanguageModel(PretrainedModel):
    """An encoder with the head of the masked language model (paper, section 3.1).

    A `BertPreTrainer` without next sentence prediction; it opens the directories of both.

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        head: output layer over the encoder's vocabulary, such as a `BertPreTrainer`'s; None for a
            new one.
        seed, dtype, kwargs: see `PretrainedModel`.

    Inputs: the encoder's, and
        mask_positions: int [B, P], positions in [0, T) of the tokens to predict.

    Output: logits, float32 [B, P, V] whatever the compute dtype.
    """

    arguments = ("encoder",)
    new_loss = staticmethod(classes_loss)
    new_metrics = staticmethod(classes_metrics)
    learning_rate = 1e-4

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        head: MaskedLanguageModelHead | None = None,
        **kwargs: Any,
    ):
        encoder, dtype = encoder_for(encoder, seed, dtype)
        head = head or words_head(encoder, seed, dtype)

        inputs = self.symbolic_inputs("mask_positions")
        encoded = encoder({name: inputs[name] for name in encoder.input}, reads="tokens")
        logits = head(encoded["sequence_output"], inputs["mask_positions"])  # (B, P, V)
        super().__init__(encoder.config, inputs, logits, seed, dtype, **kwargs)

        self.encoder = encoder
        self.masked_language_model = head

    def fill(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The most probable words for each [MASK] of the texts, with their probabilities.

        Args:
            x: texts.
            batch_size: texts at a time.
        """
        return self._answers("fill", x, batch_size)


def words_head(
    encoder: BertEncoder, seed: int | None, dtype: Any, name: str = "masked_language_model"
) -> MaskedLanguageModelHead:
    """The output layer over an encoder's vocabulary; arguments as of `BertMaskedLanguageModel`."""
    table = encoder.embeddings.word_embeddings
    return MaskedLanguageModelHead(encoder.config, table, **part(name, seed, dtype))
