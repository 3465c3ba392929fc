"""What users set on layers after they are made: frozen ones, dtype policies, adapters, and more.

A config of ours makes a layer's sublayers anew, so it has to carry what was set on them.
"""

from collections.abc import Iterator
from typing import Any

import keras

_SWITCH = "rematerialize"  # of our layers, False as they are made


def _all_layers(layer: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The layer at the path "" and those in it by path, parents first; shared ones at each."""
    yield path, layer
    names: set[str] = set()
    for child in layer._layers:
        name = child.name
        while name in names:
            name += "'"
        names.add(name)
        yield from _all_layers(child, f"{path}/{name}")


def state_of(root: Any) -> dict[str, Any]:
    """What was set on a layer and on those in it, by path; empty for one as it was made."""
    state: dict[str, Any] = {}
    for path, layer in _all_layers(root):
        own: dict[str, Any] = {}
        if layer.weights and not layer.trainable:
            own["trainable"] = False
        # An adapter freezes the weight that it is added to, not the layer.
        others = [v.name for v in layer._trainable_variables if v.trainable != layer.trainable]
        if others and layer.built:
            own["others"] = others
        if getattr(layer, "lora_enabled", False):
            own["lora"] = [layer.lora_rank, layer.lora_alpha]
        if layer.weights and layer.dtype_policy != root.dtype_policy:  # such as a quantized one
            own["dtype"] = keras.saving.serialize_keras_object(layer.dtype_policy)
        if getattr(layer, _SWITCH, False):
            own[_SWITCH] = True
        if own:
            state[path] = own
    return state


def restore(root: Any, state: dict[str, Any]) -> None:
    """Sets on built layers what `state_of` found on such layers."""
    if not state:
        return
    layers = list(_all_layers(root))
    for path, layer in layers:
        own = state.get(path, {})
        policy = keras.saving.deserialize_keras_object(own.get("dtype"))
        if policy is not None and policy != layer.dtype_policy:
            layer.dtype_policy = policy  # this quantizes the layer, too
        if "lora" in own and not layer.lora_enabled:
            layer.enable_lora(own["lora"][0], lora_alpha=own["lora"][1])
        if _SWITCH in own:
            setattr(layer, _SWITCH, True)
    for path, layer in layers:  # parents first, as they set it for all in them
        wanted = state.get(path, {}).get("trainable", True)
        if layer.weights and layer.trainable != wanted:
            layer.trainable = wanted
    for path, layer in layers:
        others = state.get(path, {}).get("others", ())
        for variable in layer._trainable_variables:
            variable.trainable = layer.trainable != (variable.name in others)
