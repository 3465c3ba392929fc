"""Two encoders side by side, each of which sees one side of the text."""

from dataclasses import replace
from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers.bert_layer import child_seed
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.pretrained_model import Encoder


@keras.saving.register_keras_serializable(package="bert_tf")
class TwoEncoders(Encoder):
    """A left-to-right and a right-to-left `BertEncoder`, their outputs concatenated.

    The shallow bidirectionality of ELMo, in Transformers (Devlin et al. 2018, section 5.1 and
    figure 3). Takes the place of a `BertEncoder` with outputs twice as wide.

    Args:
        config: hyper-parameters of both, with `attention_direction`
            "left_to_right+right_to_left".
        seed: random seed for weight initialization and dropout; None for no fixed seed.
        dtype: Keras dtype policy; None for the global one.
        attention_probabilities: whether to output them.
        kwargs: Keras' own, such as `name`.

    Inputs, call arguments and outputs: those of `BertEncoder`, with 2 H for H, and 2 N attention
    heads for N.
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
        towers = []
        for direction in config.directions:
            with keras.name_scope(direction):  # the names of the variables, which tell them apart
                towers.append(
                    BertEncoder(
                        replace(config, attention_direction=direction),
                        child_seed(seed, direction),
                        dtype,
                        attention_probabilities,
                        name=direction,
                    )
                )
        inputs = self.symbolic_inputs()
        outputs = _side_by_side([tower(inputs) for tower in towers])
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)
        self._towers = towers
        self.attention_probabilities = attention_probabilities

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, reads: str = "all"
    ) -> Any:
        """Computes the outputs."""
        return _side_by_side(
            [tower(inputs, training=training, reads=reads) for tower in self._towers]
        )

    def towers(self) -> list[BertEncoder]:
        """Both encoders."""
        return list(self._towers)

    def attend(self, inputs: dict[str, Any]) -> list[Any]:
        """See `BertEncoder.attend`."""
        return _heads(*(tower.attend(inputs) for tower in self._towers))

    @property
    def rematerialize(self) -> bool:
        """See `BertEncoder.rematerialize`."""
        return all(tower.rematerialize for tower in self._towers)

    @rematerialize.setter
    def rematerialize(self, rematerialize: bool) -> None:
        for tower in self._towers:
            tower.rematerialize = rematerialize

    def freeze_layers(self, number: int) -> None:
        """Freezes the embeddings and the first blocks of both; see `BertEncoder.freeze_layers`."""
        for tower in self._towers:
            tower.freeze_layers(number)


def _side_by_side(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """The outputs of both encoders as those of one."""

    def joined(name: str, *values: Any) -> Any:
        if name == "attention_probabilities":
            return _heads(*values)
        if name == "hidden_states":
            return [ops.concatenate(states, axis=-1) for states in zip(*values, strict=True)]
        return ops.concatenate(values, axis=-1)

    return {name: joined(name, *(each[name] for each in outputs)) for name in outputs[0]}


def _heads(*probabilities: list[Any]) -> list[Any]:
    """Attention probabilities [B, N, T, T] of each block, the heads of both encoders in a row."""
    return [ops.concatenate(heads, axis=1) for heads in zip(*probabilities, strict=True)]
