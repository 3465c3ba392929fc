"""Encoders in place of BERT's: two side by side, or LSTMs."""

from dataclasses import replace
from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.models.encoder import BertEncoder, Encoder
from bert_tf.networks.bert_layer import child_seed, part
from bert_tf.paper.lstm import LstmBlock, WordEmbeddings


@keras.saving.register_keras_serializable(package="bert_tf")
class TwoEncoders(Encoder):
    """A left-to-right and a right-to-left `BertEncoder`, their outputs concatenated.

    The shallow bidirectionality of ELMo, in Transformers (Devlin et al. 2018, section 5.1 and
    figure 3). Takes the place of a `BertEncoder`, with the same arguments, inputs and outputs, but
    2 H for H and 2 N attention heads for N. Its `attention_direction` is
    "left_to_right+right_to_left".
    """

    arguments = ("config", "attention_probabilities")
    optional_inputs = BertEncoder.optional_inputs
    stored_head = BertEncoder.stored_head

    def __init__(
        self,
        config: BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        attention_probabilities: bool = False,
        zeros: bool = False,
        **kwargs: Any,
    ):
        towers = []
        for direction in config.architecture.towers:
            tower = replace(config, attention_direction=direction)
            own_seed = child_seed(seed, direction)
            with keras.name_scope(direction):  # the names of the variables, which tell them apart
                towers.append(
                    BertEncoder(
                        tower, own_seed, dtype, attention_probabilities, zeros, name=direction
                    )
                )
        inputs = self.symbolic_inputs()
        outputs = _side_by_side([tower(inputs) for tower in towers])
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)
        self._towers = towers
        self.attention_probabilities = attention_probabilities

    def call(
        self,
        inputs: Any,
        training: bool | None = None,
        mask: Any = None,
        padding: str = "states",
        only: str | None = None,
    ) -> Any:
        options = {"training": training, "padding": padding, "only": only}
        return _side_by_side([tower(inputs, **options) for tower in self._towers])

    def towers(self) -> list[BertEncoder]:
        return list(self._towers)


def _side_by_side(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    def joined(name: str) -> Any:
        axis = 1 if name == "attention_probabilities" else -1  # heads, else vectors
        parts = (output[name] for output in outputs)
        return keras.tree.map_structure(lambda *x: ops.concatenate(x, axis=axis), *parts)

    return {name: joined(name) for name in outputs[0]}


@keras.saving.register_keras_serializable(package="bert_tf")
class LstmEncoder(Encoder):
    """LSTMs from left to right and from right to left, their outputs side by side.

    The third system of the paper's figure 3 (Peters et al. 2018, section 3), on word pieces in
    place of characters. Neither direction reads the states of the other. Takes the place of a
    `BertEncoder` with outputs twice as wide: `hidden_size` is the width of the embeddings and of
    each LSTM. It has the same arguments and inputs, of which `segment_ids` change nothing.

    Outputs: a dict.
        sequence_output: [B, T, 2 H], the last hidden state: what the forward LSTM has read up to a
            token, itself included, and what the backward one has read from the end to there.
        pooled_output: [B, 2 H], the forward LSTM's at the last token, the backward one's at [CLS].
        hidden_states: a list of L + 1 tensors [B, T, 2 H], the embeddings, twice, first.
    """

    arguments = ("config",)
    stored_head = BertEncoder.stored_head

    def __init__(
        self,
        config: BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        zeros: bool = False,
        **kwargs: Any,
    ):
        embeddings = WordEmbeddings(config, zeros=zeros, **part("embeddings", seed, dtype))
        blocks = [
            LstmBlock(config, residual=i > 0, **part(f"layer_{i}", seed, dtype))
            for i in range(config.num_hidden_layers)
        ]

        inputs = self.symbolic_inputs()
        x = embeddings(inputs["token_ids"], inputs["segment_ids"])  # (B, T, H)
        hidden_states = [ops.concatenate([x, x], axis=-1)]  # (B, T, 2 H), as are the next
        for block in blocks:
            hidden_states.append(block(hidden_states[-1], inputs["padding_mask"]))
        before, after = ops.split(hidden_states[-1], 2, axis=-1)  # (B, T, H)
        outputs = {
            "sequence_output": hidden_states[-1],
            # At padding an LSTM repeats what it gave last.
            "pooled_output": ops.concatenate([before[:, -1], after[:, 0]], axis=-1),
            "hidden_states": hidden_states,
        }
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)
        self.embeddings = embeddings
        self.blocks = blocks
