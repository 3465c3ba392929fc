"""The precision that the devices of a run compute fastest."""

import contextlib
import functools
import json
import math
import os
import re
from pathlib import Path
from typing import TypeGuard

import tensorflow as tf

from bert_tf.atomic import write_json
from bert_tf.training.peak import product_rates

_CPU = Path("/proc/cpuinfo")
_SECONDS = 0.25
# bfloat16 must be faster by this factor: it rounds more, and a measurement has noise.
_MARGIN = 1.1


def fast_precision(strategy: tf.distribute.Strategy) -> tuple[str, str]:
    """The Keras dtype policy that is fastest on the devices of a strategy, and why.

    mixed_bfloat16 on TPUs, on GPUs from Ampere on, and on processors whose matrix products are
    clearly faster in bfloat16. Those that have it (AVX512-BF16, AMX, Arm's BF16) are measured,
    once: the rates are remembered by processor and version of TensorFlow, in the user's cache
    folder. The reason, such as "products 397 GFLOP/s, float32 203", is empty without measurement.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "mixed_bfloat16", ""
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        is_new = details.get("compute_capability", (0, 0)) >= (8, 0)
        return ("mixed_bfloat16" if is_new else "float32"), ""
    processor = _processor()
    if processor is None:
        return "float32", ""
    rates = _rates(processor)
    fast, slow = "bfloat16", "float32"
    if rates["bfloat16"] < _MARGIN * rates["float32"]:
        fast, slow = slow, fast
    policy = "float32" if fast == "float32" else "mixed_bfloat16"
    return policy, f"products {rates[fast] / 1e9:.0f} GFLOP/s, {slow} {rates[slow] / 1e9:.0f}"


def _processor() -> str | None:
    """What decides the rates: processor and TensorFlow; None without products of bfloat16."""
    text = _CPU.read_text() if _CPU.exists() else ""
    flags = sorted(set(re.findall(r"\b(?:avx512_bf16|amx_bf16|bf16)\b", text)))
    if not flags:
        return None
    # Virtual machines of one name may have different processors, and hide some instructions.
    names = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
    fields = dict(re.findall(r"^(\w[^\t:]*?)\s*:\s*(.+)$", text, re.MULTILINE))
    switch = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "")
    return " ".join(
        [*(fields[name] for name in names if name in fields), *flags, tf.__version__, switch]
    ).strip()


@functools.cache
def _rates(processor: str) -> dict[str, float]:
    """FLOP/s in float32 and bfloat16, measured at the first call on this kind of machine."""
    dtypes = ("float32", "bfloat16")
    file, known = None, {}
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no home, no file, no JSON
        file = _cache_folder() / "product_rates.json"
        known = json.loads(file.read_text(encoding="utf-8"))
    known = known if isinstance(known, dict) else {}
    remembered = known.get(processor)
    if _are_rates(remembered, dtypes):
        return remembered
    found = product_rates(dtypes, _SECONDS)
    if file is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written
            write_json(file, {**known, processor: found})
    return found


def _are_rates(value: object, dtypes: tuple[str, ...]) -> TypeGuard[dict[str, float]]:
    return isinstance(value, dict) and all(
        isinstance(value.get(dtype), float) and 0 < value[dtype] < math.inf for dtype in dtypes
    )


def _cache_folder() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "bert-tf"
