"""The BERT encoder."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.layers import BertEmbeddings, Pooler, TransformerBlock
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.pretrained_model import PretrainedModel, freeze


@keras.saving.register_keras_serializable(package="bert_tf")
class BertEncoder(PretrainedModel):
    """The Transformer encoder of Devlin et al. 2018 (`BertModel` in the original's modeling.py).

    Args:
        config: hyper-parameters.
        seed: random seed for weight initialization and dropout; None for no fixed seed.
        dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
        attention_probabilities: whether to output them; without, they are not kept.
        kwargs: Keras' own, such as `name`.

    Inputs: a dict of int [B, T] tensors, T at most `config.max_position_embeddings`.
        token_ids: ids of the vocabulary.
        segment_ids: 0 for the first sentence, 1 for the second.
        padding_mask: 1 at tokens, 0 at padding.
        position_ids: optional; for rows of several instances (`pipelines.instances.rows`), the
            place of each token in its instance. `padding_mask` then holds the number of the
            instance, from 1 on, and a token sees its own instance alone. Gives `sequence_output`
            and `hidden_states`.

    Outputs: a dict.
        sequence_output: [B, T, H], the last hidden state.
        pooled_output: [B, H], of [CLS], or of the last token in a left-to-right model.
        hidden_states: a list of L + 1 tensors [B, T, H], the embeddings' output first.
        attention_probabilities: on request, a list of L tensors [B, N, T, T]: how much each
            token (third axis) attends to each other token (last axis), before dropout.

    Attributes:
        fused: a function of the inputs and `training` that computes the outputs in place of the
            layers (`bert_tf.fused`); None for the layers. Set before a function is traced. With
            `rematerialize` training uses the layers.

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

    arguments = ("config", "attention_probabilities")

    def __init__(
        self,
        config: BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        attention_probabilities: bool = False,
        **kwargs: Any,
    ):
        if len(config.directions) > 1:
            raise InputError(
                f"attention_direction {config.attention_direction} is of two encoders: use "
                "bert_tf.models.two_encoders.TwoEncoders"
            )
        # Layers.
        embeddings = BertEmbeddings(
            config, child_seed(seed, "embeddings"), dtype=dtype, name="embeddings"
        )
        blocks = [
            TransformerBlock(config, child_seed(seed, name), dtype=dtype, name=name)
            for name in (f"layer_{i}" for i in range(config.num_hidden_layers))
        ]
        pooler = Pooler(config, child_seed(seed, "pooler"), dtype=dtype, name="pooler")

        # Wiring.
        inputs = self.symbolic_inputs()
        x = embeddings(inputs["token_ids"], inputs["segment_ids"])  # (B, T, H)
        hidden_states = [x]
        probabilities = []
        for block in blocks:
            x = block(x, inputs["padding_mask"], return_probabilities=attention_probabilities)
            if attention_probabilities:
                x, of_block = x
                probabilities.append(of_block)  # (B, N, T, T)
            hidden_states.append(x)  # (B, T, H)
        outputs = {
            "sequence_output": x,
            "pooled_output": pooler(x, inputs["padding_mask"]),  # (B, H)
            "hidden_states": hidden_states,
        }
        if attention_probabilities:
            outputs["attention_probabilities"] = probabilities
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)

        self.fused: Any = None
        self.attention_probabilities = attention_probabilities
        self.embeddings = embeddings
        self.blocks = blocks
        self.pooler = pooler

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Computes the outputs."""
        if "position_ids" in inputs:
            return self._of_rows(inputs, training)
        fused = self.fused
        if fused is not None and (not training or (fused.trains and not self.rematerialize)):
            return fused(inputs, training=bool(training))
        return super().call(inputs, training=training, mask=mask)

    def _of_rows(self, inputs: dict[str, Any], training: bool | None) -> dict[str, Any]:
        instances = inputs["padding_mask"]  # (B, T)
        own = ops.equal(instances[:, :, None], instances[:, None, :])
        mask = ops.logical_and(own, ops.not_equal(instances, 0)[:, None, :])  # (B, T, T)
        x = self.embeddings(
            inputs["token_ids"], inputs["segment_ids"], inputs["position_ids"], training=training
        )
        hidden_states = [x]  # (B, T, H), as are the next
        for block in self.blocks:
            hidden_states.append(block(hidden_states[-1], mask, training=training))
        return {"sequence_output": hidden_states[-1], "hidden_states": hidden_states}

    def attend(self, inputs: dict[str, Any]) -> list[Any]:
        """Computes `attention_probabilities`, whether or not they are among the outputs."""
        if self.fused is not None:
            return self.fused.attend(inputs)
        x = self.embeddings(inputs["token_ids"], inputs["segment_ids"], training=False)
        probabilities = []
        for block in self.blocks:
            x, of_block = block(
                x, inputs["padding_mask"], training=False, return_probabilities=True
            )
            probabilities.append(of_block)
        return probabilities

    def towers(self) -> list["BertEncoder"]:
        """The encoder itself; see `TwoEncoders`."""
        return [self]

    @property
    def rematerialize(self) -> bool:
        """Whether training recomputes each block's activations instead of keeping them.

        See `TransformerBlock`. Set it before the training step is traced.
        """
        return all(block.rematerialize for block in self.blocks)

    @rematerialize.setter
    def rematerialize(self, rematerialize: bool) -> None:
        for block in self.blocks:
            block.rematerialize = rematerialize

    @property
    def flash(self) -> bool | None:
        """How the attention layers compute; see `SelfAttention`.

        Example: `encoder.flash = True` before the training step is traced.
        """
        return self.blocks[0].attention.flash

    @flash.setter
    def flash(self, flash: bool | None) -> None:
        for block in self.blocks:
            block.attention.flash = flash

    def freeze_layers(self, number: int) -> None:
        """Freezes the embeddings and the first blocks.

        Call it before the model gets its `Trainer`. The output layer of the masked language model
        shares the word embeddings, which are then frozen there, too.

        Args:
            number: number of blocks; 0 for the embeddings alone.

        Raises:
            InputError: there are fewer blocks, or `number` is negative.
        """
        freeze(self, number)
