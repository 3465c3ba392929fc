"""LoRA adapters in PEFT's format: adapter_model.safetensors and adapter_config.json."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from bert_tf.checkpoints.weight_names import distilbert_name, head_of, named_weights
from bert_tf.checkpoints.weights_files import write_tensors
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json

_PREFIX = "base_model.model."  # of PEFT's wrappers, before Hugging Face's names


def adapter_tensors(model: Any) -> dict[str, np.ndarray]:
    """What was trained beside the frozen weights, by Hugging Face's names: adapters and heads.

    Raises InputError for a model whose layers PEFT cannot find in a Hugging Face model.
    """
    encoder = getattr(model, "encoder", model)
    is_known = encoder.config.attention_direction == "both"
    if not is_known or getattr(model, "dense", None) is not None:
        raise InputError(
            "PEFT adapters are for models of Hugging Face, not for encoders of other directions or "
            "with a dense layer behind the pooling: leave --save_adapter out"
        )
    prefix = "bert." if head_of(type(model)).parts else ""
    unused = tuple(prefix + part for part in model.unused_parts)
    tensors = {}
    for weight in named_weights(model):  # heads and the pooler are trained as a whole
        if getattr(weight.variables[0], "trainable", False) and not weight.name.startswith(unused):
            tensors[weight.name] = weight.to_tensor()
    for number, block in enumerate(encoder.blocks):
        for name in ("query", "value"):
            layer = getattr(block.attention, name)
            for letter, kernel in (("A", layer.lora_kernel_a), ("B", layer.lora_kernel_b)):
                key = f"{prefix}encoder.layer.{number}.attention.self.{name}.lora_{letter}.weight"
                # PyTorch's linear layers have transposed kernels.
                tensors[key] = np.ascontiguousarray(keras.ops.convert_to_numpy(kernel).T)
    if encoder.config.is_distilbert:
        tensors = {distilbert_name(name): tensor for name, tensor in tensors.items()}
    return tensors


def write_adapter(model: Any, folder: Path, base: str) -> None:
    """Writes the adapters and trained heads of a model for PEFT to add to the model `base`."""
    tensors = adapter_tensors(model)
    names = [name.removeprefix("bert.").removeprefix("distilbert.").split(".") for name in tensors]
    layer = getattr(model, "encoder", model).blocks[0].attention.query
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "r": layer.lora_rank,
        "lora_alpha": layer.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({x[-3] for x in names if x[-2].startswith("lora_")}),
        "modules_to_save": sorted({x[0] for x in names if not x[-2].startswith("lora_")}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    named = {_PREFIX + name: tensor for name, tensor in tensors.items()}
    write_tensors(folder / "adapter_model.safetensors", named, {"format": "pt"})
    write_json(folder / "adapter_config.json", config)
