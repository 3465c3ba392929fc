"""The pre-training model: encoder, masked language model and next sentence prediction."""

from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.layers import MaskedLanguageModelHead, NextSentenceHead
from bert_tf.layers.initialization import child_seed
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.pretrained_model import HeadedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertPreTrainer(HeadedModel):
    """An encoder with the two heads of pre-training (paper, section 3.1).

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` to make one of.
        seed: of the heads' start, and of an encoder made here; None draws anew each time.
        dtype: a Keras dtype policy of the heads, and of an encoder made here; None for the
            encoder's, or else the global one.

    Inputs: the encoder's, and
        mask_positions: int [B, P], positions of the masked tokens in [0, T); unused slots may
            hold 0 and are to be given no weight in the loss.

    Outputs: a dict of logits, float32 whatever the compute dtype.
        mlm_logits: [B, P, V], of the tokens at `mask_positions`.
        nsp_logits: [B, 2], class 0 if the second sentence follows the first, 1 if it is random.
    """

    def __init__(
        self,
        encoder: BertEncoder | BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        # Layers.
        if isinstance(encoder, BertConfig):
            seed_of_encoder = child_seed(seed, "encoder")
            encoder = BertEncoder(encoder, seed=seed_of_encoder, dtype=dtype, name="encoder")
        config = encoder.config
        dtype = encoder.dtype_policy if dtype is None else dtype
        masked_language_model = MaskedLanguageModelHead(
            encoder.embeddings.word_embeddings,
            hidden_act=config.hidden_act,
            layer_norm_eps=config.layer_norm_eps,
            initializer_range=config.initializer_range,
            seed=child_seed(seed, "masked_language_model"),
            dtype=dtype,
            name="masked_language_model",
        )
        next_sentence = NextSentenceHead(
            initializer_range=config.initializer_range,
            seed=child_seed(seed, "next_sentence"),
            dtype=dtype,
            name="next_sentence",
        )

        # Wiring.
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask", "mask_positions")
        }
        encoded = encoder({name: inputs[name] for name in encoder.input})
        outputs = {
            "mlm_logits": masked_language_model(
                encoded["sequence_output"], inputs["mask_positions"]
            ),  # (B, P, V)
            "nsp_logits": next_sentence(encoded["pooled_output"]),  # (B, 2)
        }
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

        self.seed = seed
        self.encoder = encoder
        self.masked_language_model = masked_language_model
        self.next_sentence = next_sentence
