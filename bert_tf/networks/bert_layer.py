"""The base of every layer: its config, seeds, sublayers and kernels, and changes by users."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import keras

from bert_tf.config import BertConfig
from bert_tf.networks.activations import ACTIVATIONS
from bert_tf.networks.kernels import Kernels

_SWITCH = "rematerialize"  # of our layers, False by default


def child_seed(seed: int | None, name: str) -> int | None:
    """The seed, in [0, 2^31), of the part called `name` of something seeded; None if it is not.

    Equal seeds draw equal values. One from the name, not a counter, stays when parts are added.
    """
    return None if seed is None else zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF


def part(name: str, seed: int | None, dtype: Any) -> dict[str, Any]:
    """Keywords for the layer called `name` of something seeded."""
    return {"seed": child_seed(seed, name), "dtype": dtype, "name": name}


def choose_kernels(training: bool) -> Kernels:
    """The kernels for Keras' backend, the device and the graph in which the caller is."""
    if keras.backend.backend() != "tensorflow":
        return Kernels(training)
    from bert_tf.networks.tensorflow.kernels import needs_plain_kernels

    if needs_plain_kernels(training):
        return Kernels(training)
    if training:
        from bert_tf.networks.tensorflow.training import TrainingKernels

        return TrainingKernels()
    from bert_tf.networks.tensorflow.inference import InferenceKernels

    return InferenceKernels()


class _Changed:
    """`change` of the kernels that `before` chooses."""

    def __init__(self, before: Callable[[bool], Kernels], change: Callable[[Kernels], Kernels]):
        self.before = before
        self.change = change

    def __call__(self, training: bool) -> Kernels:
        return self.change(self.before(training))


@contextmanager
def kernels_of(model: Any, change: Callable[[Kernels], Kernels]) -> Iterator[None]:
    """Functions of a model that are traced within the block compute with changed kernels."""
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "kernels")]
    changes = [_Changed(layer.kernels, change) for layer in layers]
    for layer, changed in zip(layers, changes, strict=True):
        layer.kernels = changed
    try:
        yield
    finally:
        for layer, changed in zip(layers, changes, strict=True):
            # Replicas are traced in turns: a block that began later may not have ended.
            reader = layer
            name = "kernels"
            while (read := getattr(reader, name)) is not changed:
                reader = read
                name = "before"
            setattr(reader, name, changed.before)


class BertLayer(keras.layers.Layer):
    """The base of layers: a `BertConfig`, a seed (see `PretrainedModel`) and Keras' arguments.

    With `zeros`, weights are initialized to zeros: they are read from a file.

    Attributes:
        kernels: function of `training` that makes the kernels to compute with. Set it
            before a function is traced.
    """

    kernels: Callable[[bool], Kernels] = staticmethod(choose_kernels)

    def __init__(
        self, config: BertConfig, seed: int | None = None, zeros: bool = False, **kwargs: Any
    ):
        # Weights are cast where they are used: Keras would cast whole tables.
        super().__init__(autocast=False, **kwargs)
        self.config = config
        self.seed = seed
        self._zeros = zeros
        self._input_widths: dict[str, int] = {}
        self._state_of_config: dict[str, Any] = {}  # for the sublayers, once they are built

    def build(self, input_shape: Any = None) -> None:
        """Makes the weights of the sublayers; their shapes follow from the config."""
        for layer in self._flatten_layers(include_self=False, recursive=False):
            if not layer.built:
                width = self._input_widths.get(layer.name, self.config.hidden_size)
                layer.build((None, None, width))
                if isinstance(layer, keras.layers.LayerNormalization):
                    layer.axis = [-1]  # Keras 3.16 keeps 2, which rows [R, H] do not have
        if not self.trainable:  # setting it again would not reach the sublayers
            for layer in self._layers:
                layer.trainable = False
        restore(self, self._state_of_config)
        self.built = True

    def new_initializer(self, name: str) -> keras.initializers.Initializer:
        """The original's `create_initializer` (modeling.py), for the weight called `name`."""
        if self._zeros:
            return keras.initializers.Zeros()
        return keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range, seed=child_seed(self.seed, name)
        )

    def new_dense(
        self, name: str, units: int, activation: str | None = None, inputs: int | None = None
    ) -> keras.layers.Dense:
        """A dense sublayer; `activation` is a key of `ACTIVATIONS`, `inputs` H by default."""
        self._input_widths[name] = inputs or self.config.hidden_size
        return keras.layers.Dense(
            units,
            activation=None if activation is None else ACTIVATIONS[activation],
            kernel_initializer=self.new_initializer(name),
            dtype=self.dtype_policy,
            name=name,
        )

    def new_table(self, name: str, rows: int) -> keras.layers.Embedding:
        return keras.layers.Embedding(
            rows,
            self.config.hidden_size,
            embeddings_initializer=self.new_initializer(name),
            dtype=self.dtype_policy,
            name=name,
        )

    def new_layer_norm(self, name: str) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(
            epsilon=self.config.layer_norm_eps, dtype=self.dtype_policy, name=name
        )

    def new_dropout(self, name: str, rate: float) -> keras.layers.Dropout:
        return keras.layers.Dropout(
            rate, seed=child_seed(self.seed, name), dtype=self.dtype_policy, name=name
        )

    def get_config(self) -> dict[str, Any]:
        values = {**super().get_config(), "config": self.config.to_dict(), "seed": self.seed}
        return values | ({"layers": state} if (state := state_of(self)) else {})

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        values = {**config, "config": BertConfig.from_dict(config["config"])}
        state = values.pop("layers", {})
        layer = cls(**values)
        layer._state_of_config = state
        return layer


def _all_layers(layer: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The layer, at the path "", and its sublayers by path, parents first."""
    yield path, layer
    names: set[str] = set()
    for child in layer._layers:
        name = child.name
        while name in names:
            name += "'"
        names.add(name)
        yield from _all_layers(child, f"{path}/{name}")


def state_of(root: Any) -> dict[str, Any]:
    """Settings that differ from a new layer's, by path; empty without any.

    Users change `trainable`, dtype policies, adapters and `rematerialize`. Sublayers are made anew
    from a layer's config, so the config has to carry these settings.
    """
    state: dict[str, Any] = {}
    for path, layer in _all_layers(root):
        settings: dict[str, Any] = {}
        if layer.weights and not layer.trainable:
            settings["trainable"] = False
        # An adapter freezes the weight that it is added to, not the layer.
        others = [v.name for v in layer._trainable_variables if v.trainable != layer.trainable]
        if others and layer.built:
            settings["others"] = others
        if getattr(layer, "lora_enabled", False):
            settings["lora"] = [layer.lora_rank, layer.lora_alpha]
        if layer.weights and layer.dtype_policy != root.dtype_policy:  # such as a quantized one
            settings["dtype"] = keras.saving.serialize_keras_object(layer.dtype_policy)
        if getattr(layer, _SWITCH, False):
            settings[_SWITCH] = True
        if settings:
            state[path] = settings
    return state


def restore(root: Any, state: dict[str, Any]) -> None:
    """Applies the settings of `state_of` to built layers."""
    if not state:
        return
    layers = list(_all_layers(root))
    for path, layer in layers:
        settings = state.get(path, {})
        policy = keras.saving.deserialize_keras_object(settings.get("dtype"))
        if policy is not None and policy != layer.dtype_policy:
            layer.dtype_policy = policy  # this quantizes the layer, too
        if "lora" in settings and not layer.lora_enabled:
            layer.enable_lora(settings["lora"][0], lora_alpha=settings["lora"][1])
        if _SWITCH in settings:
            setattr(layer, _SWITCH, True)
    for path, layer in layers:  # parents first, as they set it for all in them
        wanted = state.get(path, {}).get("trainable", True)
        if layer.weights and layer.trainable != wanted:
            layer.trainable = wanted
    for path, layer in layers:
        others = state.get(path, {}).get("others", ())
        for variable in layer._trainable_variables:
            variable.trainable = layer.trainable != (variable.name in others)
