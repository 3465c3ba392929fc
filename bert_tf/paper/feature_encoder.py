"""Between an encoder and a task's head: chosen hidden states (section 5.3), and BiLSTMs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.chosen_layers import check_layers, choose_layers
from bert_tf.models.encoder import BertEncoder, Encoder
from bert_tf.networks.bert_layer import child_seed
from bert_tf.networks.heads import mean_over_tokens
from bert_tf.paper.lstm import new_lstm

MIX = ["mix"]  # of `feature_layers`: all layers, with weights that are learned
LSTM_UNITS = 384  # in each direction, on a frozen encoder: the paper's BiLSTM is 768 wide


@keras.saving.register_keras_serializable(package="bert_tf")
class FeatureEncoder(Encoder):
    """A `BertEncoder`, and what stands between it and a task's head.

    The models of tasks take it in place of a `BertEncoder`: its outputs have the same names.

    Args:
        encoder: the `BertEncoder`.
        chosen: layers to read of the encoder, which is frozen, without dropout (paper, section
            5.3): as of `choose_layers`, or `MIX` for a mix of all layers that is learned. None to
            train the encoder and read its last layer (paper, table 5: "+ BiLSTM").
        lstm_layers: number of bidirectional LSTM layers on top: 768 wide on a frozen encoder, as
            wide as the hidden states on one that is trained.

    Inputs: the encoder's. Outputs: a dict.
        sequence_output: [B, T, W], the last LSTM's output, or else what the first one would read.
        pooled_output: [B, W], its mean over the tokens.
        hidden_states: a list of what the first LSTM reads and the output of each.
    """

    arguments = ("encoder", "chosen", "lstm_layers")

    def __init__(
        self,
        encoder: BertEncoder,
        chosen: Sequence[str] | None = None,
        lstm_layers: int = 0,
        seed: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        dtype = encoder.dtype_policy if dtype is None else dtype
        chosen = None if chosen is None else list(chosen)
        config = replace(encoder.config, feature_layers=chosen, feature_lstm_layers=lstm_layers)
        features = mix = None
        read = chosen
        if chosen == MIX:
            read = [str(number) for number in range(config.num_hidden_layers + 1)]
            mix = LayerMix(len(read), dtype=dtype, name="mix")
        if read is not None:
            features = FrozenLayers(encoder, read, dtype=dtype, name="features")
        units = lstm_units(config)
        lstms = []
        for name in (f"bilstm_{i}" for i in range(lstm_layers)):
            forward, backward = (
                new_lstm(units, child_seed(seed, f"{name}/{half}"), dtype, half, name="lstm")
                for half in ("forward", "backward")
            )
            both = {"backward_layer": backward, "dtype": dtype, "name": name}
            lstms.append(keras.layers.Bidirectional(forward, **both))

        inputs = self.symbolic_inputs()
        is_token = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        x = features(inputs) if features else encoder(inputs, padding="zeros")["sequence_output"]
        states = [mix(x) if mix else x]  # (B, T, W)
        for layer in lstms:
            states.append(layer(states[-1], mask=is_token))
        outputs = {
            "sequence_output": states[-1],
            "pooled_output": mean_over_tokens(states[-1], inputs["padding_mask"]),
            "hidden_states": states,
        }
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)

        self.encoder = encoder
        self.chosen = chosen
        self.lstm_layers = lstm_layers
        self.features = features
        self.mix = mix
        self.lstms = lstms

    def freeze_layers(self, number: int) -> None:
        if self.features:
            raise InputError("--features_only freezes the whole encoder: leave --freeze_layers out")
        super().freeze_layers(number)

    def towers(self) -> list[Any]:
        return self.encoder.towers()

    def named_layers(self) -> Iterator[tuple[str, list[keras.layers.Layer]]]:
        if self.mix is not None:
            yield "mix", [self.mix]
        for number, lstm in enumerate(self.lstms):
            yield f"lstm.{number}.forward", [lstm.forward_layer]
            yield f"lstm.{number}.backward", [lstm.backward_layer]
        for name, layers in self.encoder.named_layers():
            if not name.startswith("pooler."):
                yield name, layers


@keras.saving.register_keras_serializable(package="bert_tf")
class FrozenLayers(keras.layers.Layer):
    """Chosen layers of a frozen encoder, [B, T, W], zero at padding: no gradient, no dropout.

    `remember`, if it is set before a step is traced, is called with the inputs and the function
    that computes the vectors, in place of that function, to keep them.
    """

    def __init__(self, encoder: BertEncoder, chosen: Sequence[str], **kwargs: Any):
        super().__init__(**kwargs)
        self.width = check_layers(chosen, encoder.config)
        encoder.trainable = False
        self.encoder = encoder
        self.chosen = list(chosen)
        self.remember: Callable[[Any, Callable[[Any], Any]], Any] | None = None

    def call(self, inputs: Any) -> Any:
        return self.remember(inputs, self.compute) if self.remember else self.compute(inputs)

    def compute(self, inputs: Any) -> Any:
        outputs = self.encoder(inputs, training=False, padding="zeros")
        vectors = choose_layers(outputs["hidden_states"], self.chosen)
        vectors *= ops.expand_dims(ops.cast(inputs["padding_mask"], vectors.dtype), -1)
        return ops.stop_gradient(ops.cast(vectors, self.compute_dtype))

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((*inputs["token_ids"].shape, self.width), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": encoder, "chosen": self.chosen}


@keras.saving.register_keras_serializable(package="bert_tf")
class LayerMix(keras.layers.Layer):
    """gamma sum_j softmax(s)_j h_j over N layers (Peters et al. 2018, equation 1).

    Starts as their mean. Takes the layers one after another, [B, T, N * W]; returns [B, T, W].
    """

    def __init__(self, number: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.number = number

    def build(self, input_shape: Any) -> None:
        self.scores = self.add_weight(name="scores", shape=(self.number,), initializer="zeros")
        self.gamma = self.add_weight(name="gamma", shape=(1,), initializer="ones")

    def call(self, states: Any) -> Any:
        weights = ops.softmax(ops.cast(self.scores, "float32")) * ops.cast(self.gamma, "float32")
        weights = ops.cast(weights, states.dtype)
        layers = ops.split(states, self.number, axis=-1)  # (B, T, W) each
        return sum(weights[number] * layer for number, layer in enumerate(layers))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "number": self.number}


WEIGHTS = ((LayerMix, {"scores": "scores", "gamma": "gamma"}),)


def lstm_units(config: BertConfig) -> int:
    """Units in each direction of the LSTMs under a task's head."""
    return LSTM_UNITS if config.feature_layers else math.ceil(config.width / 2)
