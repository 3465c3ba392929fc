"""The BERT encoder."""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.pretrained_model import Encoder
from bert_tf.networks import BertEmbeddings, Pooler, TransformerBlock
from bert_tf.networks.bert_layer import part
from bert_tf.networks.context import set_within
from bert_tf.networks.places import Places
from bert_tf.networks.table import of_halves, primitives


class ObservedStates(NamedTuple):
    """What an encoder computed at n places: the embeddings' output, then that of each block."""

    states: list[Any]  # [n, H]; without the last block's if that computed one token of each row
    places: Places


_observed: ContextVar[list[ObservedStates] | None] = ContextVar("observed", default=None)


def observed_states() -> AbstractContextManager[list[ObservedStates]]:
    """Lists what encoders compute within the context, a call each."""
    return set_within(_observed, [])


@keras.saving.register_keras_serializable(package="bert_tf")
class BertEncoder(Encoder):
    """The Transformer encoder of Devlin et al. 2018 (`BertModel` in the original's modeling.py).

    Args:
        config: hyper-parameters.
        seed: random seed for weight initialization and dropout; None for no fixed seed.
        dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
        attention_probabilities: whether to output them; without, they are not kept.

    Inputs: a dict of int [B, T] tensors, T at most `config.max_position_embeddings`.
        token_ids: ids of the vocabulary.
        segment_ids: 0 for the first sentence, 1 for the second.
        padding_mask: 1 at tokens, 0 at padding.
        position_ids: optional; for rows of several instances
            (`bert_tf.pipelines.instances.schemas`), the place of each token in its instance.
            `padding_mask` then holds the number of the instance, from 1 on, and a token sees its
            own instance alone. Gives `sequence_output` and `hidden_states`.

    Outputs: a dict.
        sequence_output: [B, T, H], the last hidden state.
        pooled_output: [B, H], of [CLS], or of the last token in a left-to-right model.
        hidden_states: a list of L + 1 tensors [B, T, H], the embeddings' output first.
        attention_probabilities: on request, a list of L tensors [B, N, T, T]: how much each
            token (third axis) attends to each other token (last axis), before dropout.

    Call arguments:
        reads: the outputs that the caller reads; what it does not read may not be computed.
            "all", the default: all of them, at all places.
            "tokens": all of them, at tokens. With TensorFlow padding gets zeros and takes no time,
            except under XLA, on accelerators in training, and in training on static shapes.
            "all_in_training": "all" in training, else "tokens".
            "attention_probabilities": "all", and these whether or not they are among the outputs.
            "pooled_output": returns it alone. The last block then computes one token of each row.

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
                "bert_tf.models.encoders.TwoEncoders"
            )
        embeddings = BertEmbeddings(config, **part("embeddings", seed, dtype))
        blocks = [
            TransformerBlock(config, **part(f"layer_{i}", seed, dtype))
            for i in range(config.num_hidden_layers)
        ]
        pooler = Pooler(config, **part("pooler", seed, dtype))

        inputs = self.symbolic_inputs()
        outputs = _encode(
            embeddings, blocks, pooler, inputs, return_probabilities=attention_probabilities
        )
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)

        self.attention_probabilities = attention_probabilities
        self.embeddings = embeddings
        self.blocks = blocks
        self.pooler = pooler

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, reads: str = "all"
    ) -> Any:
        inputs = {name: ops.cast(x, "int32") for name, x in inputs.items()}
        return of_halves(lambda part: self._of_rows(part, training, reads), inputs, training)

    def _of_rows(self, inputs: dict[str, Any], training: bool | None, reads: str) -> dict[str, Any]:
        mask = inputs["padding_mask"]
        if is_packed := "position_ids" in inputs:
            own = ops.equal(mask[:, :, None], mask[:, None, :])
            mask = ops.logical_and(own, ops.not_equal(mask, 0)[:, None, :])  # (B, T, T)
        outputs = _encode(
            self.embeddings, self.blocks, self.pooler, inputs,
            places=primitives(training).find_places(mask, self.config.attention_direction, reads),
            training=training,
            return_probabilities=self.attention_probabilities or reads == "attention_probabilities",
            summary_only=reads == "pooled_output",
        )  # fmt: skip
        if is_packed:
            del outputs["pooled_output"]
        return outputs

    @property
    def flash(self) -> bool | None:
        """How the attention layers compute, see `SelfAttention`; set it before a step is traced."""
        return self.blocks[0].attention.flash

    @flash.setter
    def flash(self, flash: bool | None) -> None:
        for block in self.blocks:
            block.attention.flash = flash


def _encode(
    embeddings: BertEmbeddings,
    blocks: list[TransformerBlock],
    pooler: Pooler,
    inputs: dict[str, Any],
    *,
    places: Places | None = None,
    training: bool | None = None,
    return_probabilities: bool = False,
    summary_only: bool = False,
) -> dict[str, Any]:
    """The outputs of a `BertEncoder`; symbolic ones without `places`."""
    where: dict[str, Any] = {"training": training}
    mask = inputs["padding_mask"]
    if places is not None:
        mask, where["places"] = None, places
    names = ("token_ids", "segment_ids", "position_ids")
    x = embeddings(*(inputs[name] for name in names if name in inputs), **where)  # (n, H)
    states: list[Any] = [x]
    if places is not None and (observed := _observed.get()) is not None:
        observed.append(ObservedStates(states, places))
    probabilities: list[Any] = []
    for block in blocks:
        if summary_only and block is blocks[-1]:
            x = block(x, **where, summary_only=True)  # (B, H)
            return {"pooled_output": pooler(x, training=training)}
        found = block(x, mask, **where, return_probabilities=return_probabilities)
        x, *of_block = found if return_probabilities else (found,)
        probabilities += of_block  # (B, N, T, T)
        states.append(x)
    summary = x if places is None else places.summary(x)
    states = states if places is None else [places.spread(x) for x in states]  # (B, T, H)
    outputs = {
        "sequence_output": states[-1],
        "pooled_output": pooler(summary, mask, training=training),  # (B, H)
        "hidden_states": states,
    }
    return outputs | ({"attention_probabilities": probabilities} if return_probabilities else {})
