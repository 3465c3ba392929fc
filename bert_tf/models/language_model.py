"""The models of pre-training: an encoder with an output layer for words."""

from typing import Any

import keras
from keras import ops

from bert_tf.checkpoints.weight_names import Head
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder, EncoderWithHead, encoder_for
from bert_tf.networks import ClassificationHead, MaskedLanguageModelHead
from bert_tf.networks.bert_layer import part
from bert_tf.networks.heads import take_tokens
from bert_tf.networks.losses import classes_loss

_MASKED_WORDS = {"cls.predictions.": "masked_language_model"}
_PRETRAINER_OUTPUTS = ("mlm_logits", "nsp_logits")


class _TiedModel(EncoderWithHead):
    """A model whose head for words shares the encoder's table."""

    def _run_through_graph(
        self, inputs: Any, operation_fn: Any = lambda operation: operation, **options: Any
    ) -> Any:
        """Keras', which `clone_model` calls: the clone of the head shares the clone's table."""

        def tied(operation: Any) -> Any:
            found = operation_fn(operation)
            if isinstance(found, MaskedLanguageModelHead) and found is not operation:
                found._layers.remove(found.word_embeddings)  # that of its config
                found.word_embeddings = operation_fn(self.encoder).embeddings.word_embeddings
            return found

        return super()._run_through_graph(inputs, operation_fn=tied, **options)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertPreTrainer(_TiedModel):
    """An encoder with the two heads of pre-training (paper, section 3.1).

    Arguments: as of `BertMaskedLanguageModel`, without `head`.

    Inputs: the encoder's, and
        mask_positions: int [B, P], positions of the masked tokens in [0, T). Give unused slots
            weight 0 in the loss; a position outside [0, T) reads the nearest token.
        first_positions: with `position_ids`, int [B, S], positions of each instance's [CLS].

    Outputs: a dict of logits, float32 whatever the compute dtype.
        mlm_logits: [B, P, V], of the tokens at `mask_positions`.
        nsp_logits: [B, 2], class 0 if the second sentence follows the first, 1 if it is random;
            [B, S, 2] for rows of several instances.
    """

    optional_inputs = (*BertEncoder.optional_inputs, "first_positions")
    stored_head = Head(
        "BertForPreTraining", _MASKED_WORDS | {"cls.seq_relationship.": "next_sentence.dense"}
    )
    new_loss = staticmethod(lambda: {name: classes_loss() for name in _PRETRAINER_OUTPUTS})
    output_kind = dict.fromkeys(_PRETRAINER_OUTPUTS, "words")  # packed rows pad sentences, too
    learning_rate = 1e-4

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        encoder, dtype = encoder_for(encoder, seed, dtype)
        if encoder.config.is_distilbert:
            raise InputError(
                "a DistilBERT predicts no next sentences: train its masked words in Python, "
                "with bert_tf.BertMaskedLanguageModel and fit, or pre-train a BERT"
            )
        masked_language_model = words_head(encoder, seed, dtype)
        next_sentence = ClassificationHead(
            encoder.config, 2, dropout=0.0, **part("next_sentence", seed, dtype)
        )

        inputs = self.symbolic_inputs("mask_positions")
        outputs = _logits(encoder, masked_language_model, next_sentence, inputs)
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)

        self.encoder = encoder
        self.masked_language_model = masked_language_model
        self.next_sentence = next_sentence

    def answering_model(self) -> "BertMaskedLanguageModel":
        return BertMaskedLanguageModel(self.encoder, self.seed, head=self.masked_language_model)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if "position_ids" not in inputs:
            return super().call(inputs, training=training, mask=mask)
        heads = (self.masked_language_model, self.next_sentence)
        return _logits(self.encoder, *heads, inputs, training=training)


def _logits(
    encoder: Any, words: Any, next_sentence: Any, inputs: Any, **options: Any
) -> dict[str, Any]:
    """Logits by name, of rows or, with `position_ids`, of rows of several instances."""
    read = {name: inputs[name] for name in (*encoder.input, "position_ids") if name in inputs}
    if "position_ids" not in inputs:
        encoded = encoder(read, padding="zeros", **options)
        next_logits = next_sentence(encoded["pooled_output"], **options)  # (B, 2)
    else:
        encoded = encoder(read, **options)
        positions = inputs["first_positions"]
        firsts = take_tokens(encoded["sequence_output"], positions)  # (B * S, H)
        next_logits = next_sentence(encoder.pooler.dense(firsts), **options)
        next_logits = ops.reshape(next_logits, (*ops.shape(positions), 2))
    word_logits = words(encoded["sequence_output"], inputs["mask_positions"])  # (B, P, V)
    return {"mlm_logits": word_logits, "nsp_logits": next_logits}


@keras.saving.register_keras_serializable(package="bert_tf")
class BertMaskedLanguageModel(_TiedModel):
    """An encoder with the head of the masked language model (paper, section 3.1).

    A `BertPreTrainer` without next sentence prediction; it opens the directories of both.

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        head: output layer, such as a `BertPreTrainer`'s; None for a new one.
        seed, dtype, kwargs: see `PretrainedModel`.

    Inputs: the encoder's, and
        mask_positions: int [B, P], positions in [0, T) of the tokens to predict.

    Output: logits, float32 [B, P, V] whatever the compute dtype.
    """

    stored_head = Head("BertForMaskedLM", _MASKED_WORDS, reads_pooler=False)
    new_loss = staticmethod(classes_loss)
    output_kind = "words"
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
        encoded = encoder({name: inputs[name] for name in encoder.input}, padding="zeros")
        logits = head(encoded["sequence_output"], inputs["mask_positions"])  # (B, P, V)
        super().__init__(encoder.config, inputs, logits, seed, dtype, **kwargs)

        self.encoder = encoder
        self.masked_language_model = head

    def fill(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The most probable words for each [MASK] of the texts, with their probabilities."""
        return self._answers("fill", x, batch_size)


def words_head(
    encoder: BertEncoder, seed: int | None, dtype: Any, name: str = "masked_language_model"
) -> MaskedLanguageModelHead:
    """The output layer over an encoder's vocabulary."""
    table = encoder.embeddings.word_embeddings
    return MaskedLanguageModelHead(encoder.config, table, **part(name, seed, dtype))
