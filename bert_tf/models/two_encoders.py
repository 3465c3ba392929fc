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
    figure 3). Takes the place of a `BertEncoder`, with the same arguments, inputs and outputs, but
    2 H for H and 2 N attention heads for N. The `attention_direction` of the config, which both
    share, is "left_to_right+right_to_left".
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
            part = replace(config, attention_direction=direction)
            arguments = (part, child_seed(seed, direction), dtype, attention_probabilities)
            with keras.name_scope(direction):  # the names of the variables, which tell them apart
                towers.append(BertEncoder(*arguments, name=direction))
        inputs = self.symbolic_inputs()
        outputs = _side_by_side([tower(inputs) for tower in towers])
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)
        self._towers = towers
        self.attention_probabilities = attention_probabilities

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, reads: str = "all"
    ) -> Any:
        return _side_by_side(
            [tower(inputs, training=training, reads=reads) for tower in self._towers]
        )

    def towers(self) -> list[BertEncoder]:
        return list(self._towers)


def _side_by_side(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    def joined(name: str) -> Any:
        axis = 1 if name == "attention_probabilities" else -1  # heads, else vectors
        parts = (each[name] for each in outputs)
        return keras.tree.map_structure(lambda *each: ops.concatenate(each, axis=axis), *parts)

    return {name: joined(name) for name in outputs[0]}
