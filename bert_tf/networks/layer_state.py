"""Settings that users change on layers: `trainable`, dtype policies, adapters and more.

Sublayers are made anew from a layer's config, so the config has to carry these settings.
"""

from collections.abc import Iterator
from typing import Any

import keras

_SWITCH = "rematerialize"  # of our layers, False by default


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
    """Settings that differ from a new layer's, by path; empty without any."""
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
