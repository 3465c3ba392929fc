"""The BERT encoder."""

from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.layers import BertEmbeddings, Pooler, TransformerBlock
from bert_tf.layers.initialization import child_seed
from bert_tf.models.pretrained_model import PretrainedModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertEncoder(PretrainedModel):
    """The Transformer encoder of Devlin et al. 2018 (`BertModel` in the original's modeling.py).

    Args:
        config: the encoder's shape.
        seed: of the weights' start and of dropout; None draws anew each time.
        dtype: a Keras dtype policy such as "mixed_bfloat16"; None for the global one.

    Inputs: a dict of int [B, T] tensors, T at most `config.max_position_embeddings`.
        token_ids: ids of the vocabulary.
        segment_ids: 0 for the first sentence, 1 for the second.
        padding_mask: 1 at tokens, 0 at padding.

    Outputs: a dict.
        sequence_output: [B, T, H], the last hidden state.
        pooled_output: [B, H], of [CLS].
        hidden_states: a list of L + 1 tensors [B, T, H], the embeddings' output first.

    Example::

    ```python
    encoder = BertEncoder(BertConfig.named("tiny", vocab_size=1000))
    outputs = encoder({
        "token_ids": np.array([[2, 17, 45, 3]]),
        "segment_ids": np.array([[0, 0, 0, 0]]),
        "padding_mask": np.array([[1, 1, 1, 1]]),
    })
    outputs["sequence_output"].shape  # (1, 4, 128)
    ```
    """

    def __init__(
        self, config: BertConfig, seed: int | None = None, dtype: Any = None, **kwargs: Any
    ):
        # Layers.
        embeddings = BertEmbeddings(
            config.vocab_size,
            config.hidden_size,
            max_position_embeddings=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            layer_norm_eps=config.layer_norm_eps,
            dropout=config.hidden_dropout_prob,
            initializer_range=config.initializer_range,
            seed=child_seed(seed, "embeddings"),
            dtype=dtype,
            name="embeddings",
        )
        blocks = [
            TransformerBlock(
                config.hidden_size,
                config.num_attention_heads,
                config.intermediate_size,
                hidden_act=config.hidden_act,
                dropout=config.hidden_dropout_prob,
                attention_dropout=config.attention_probs_dropout_prob,
                layer_norm_eps=config.layer_norm_eps,
                initializer_range=config.initializer_range,
                seed=child_seed(seed, f"layer_{i}"),
                dtype=dtype,
                name=f"layer_{i}",
            )
            for i in range(config.num_hidden_layers)
        ]
        pooler = Pooler(
            config.hidden_size,
            initializer_range=config.initializer_range,
            seed=child_seed(seed, "pooler"),
            dtype=dtype,
            name="pooler",
        )

        # Wiring.
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask")
        }
        x = embeddings(inputs["token_ids"], inputs["segment_ids"])  # (B, T, H)
        hidden_states = [x]
        for block in blocks:
            x = block(x, inputs["padding_mask"])  # (B, T, H)
            hidden_states.append(x)
        outputs = {
            "sequence_output": x,
            "pooled_output": pooler(x),  # (B, H)
            "hidden_states": hidden_states,
        }
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

        self.config = config
        self.seed = seed
        self.embeddings = embeddings
        self.blocks = blocks
        self.pooler = pooler

    @property
    def rematerialize(self) -> bool:
        """Whether training computes each block's activations again instead of keeping them.

        See `TransformerBlock`. Set it before the training step is traced.
        """
        return all(block.rematerialize for block in self.blocks)

    @rematerialize.setter
    def rematerialize(self, rematerialize: bool) -> None:
        for block in self.blocks:
            block.rematerialize = rematerialize

    def freeze_layers(self, number: int) -> None:
        """Keeps the embeddings and the first blocks as they are in training.

        Call it before the model gets its `Trainer`. The output layer of the masked language model,
        which shares the word embeddings, keeps them too.

        Args:
            number: how many blocks; 0 for the embeddings alone.

        Raises:
            InputError: there are fewer blocks, or `number` is negative.
        """
        if not 0 <= number <= len(self.blocks):
            raise InputError(
                f"{number} layers cannot be frozen: the encoder has {len(self.blocks)}, give 0 to "
                f"{len(self.blocks)}"
            )
        self.embeddings.trainable = False
        for block in self.blocks[:number]:
            block.trainable = False

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            "config": self.config.to_dict(),
            "seed": self.seed,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "BertEncoder":
        """Makes an encoder with weights of its own from `get_config`."""
        dtype = keras.saving.deserialize_keras_object(config["dtype"])
        return cls(**{**config, "config": BertConfig.from_dict(config["config"]), "dtype": dtype})
