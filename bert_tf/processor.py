"""What this machine's processor is, and what is measured on it; needs no TensorFlow."""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_tf.files.atomic import write_json
from bert_tf.files.cache import cache_folder

_CPU = Path("/proc/cpuinfo")
_FLAGS = r"\b(?:avx2|avx512_bf16|avx512_vnni|avx_vnni|amx_bf16|amx_int8|bf16)\b"


def processor_flags() -> list[str]:
    """The processor's instructions for half precision and int8."""
    text = _CPU.read_text() if _CPU.exists() else ""
    return sorted(set(re.findall(_FLAGS, text)))


def processor() -> str:
    """What decides how fast products are: the processor, TensorFlow and its switches."""
    text = _CPU.read_text() if _CPU.exists() else ""
    # Virtual machines of one name may have different processors, and hide some instructions.
    names = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
    fields = dict(re.findall(r"^(\w[^\t:]*?)\s*:\s*(.+)$", text, re.MULTILINE))
    parts = [*(fields[name] for name in names if name in fields), *processor_flags()]
    version = ""
    for name in ("tf-nightly", "tensorflow-cpu", "tensorflow"):  # the last one counts
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
    switches = (os.environ.get(x, "") for x in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA"))
    return " ".join([*parts, version, *switches]).strip()


def best_seconds(
    works: Mapping[str, Callable[[], object]], seconds: float = 0.0, rounds: int = 2
) -> dict[str, float]:
    """The shortest time of each work, in `rounds` or as many as `seconds` allow.

    The works take turns, as a machine's speed may change; each is called once before, to warm up.
    """
    until = time.perf_counter() + seconds
    for work in works.values():
        work()
    best = dict.fromkeys(works, math.inf)
    while rounds > 0 or time.perf_counter() < until:
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begun)
        rounds -= 1
    return best


def fastest(
    file: str,
    key: str,
    candidates: Sequence[str],
    measure: Callable[[], dict[str, float]],
    *,
    usual: str,
    gain: float = 1.0,
    keep: bool = True,
) -> tuple[str, dict[str, float]]:
    """The fastest of some candidates, and the times of all that could be measured.

    Args:
        file: name of a JSON file in the user's cache folder, which has the times by key. What it
            lacks is measured, and written if all candidates were measured.
        key: machine and work that the times belong to.
        candidates: names of the candidates.
        measure: returns times by candidate, without those that cannot be measured.
        usual: the candidate to take unless another is `gain` times as fast.
        gain: a number of at least 1.
        keep: whether to write the file; otherwise only this process remembers the times.
    """
    if (file, key) not in _TIMES:
        _TIMES[file, key] = _known_or_measured(file, key, candidates, measure, keep)
    times = _TIMES[file, key]
    best = min(times, key=lambda name: times[name], default=usual)
    is_faster = usual not in times or times[usual] >= gain * times[best]
    return (best if is_faster else usual), times


_TIMES: dict[tuple[str, str], dict[str, float]] = {}  # that this process has asked for


def _known_or_measured(
    file: str, key: str, names: Sequence[str], measure: Callable[[], dict[str, float]], keep: bool
) -> dict[str, float]:
    path = None
    with contextlib.suppress(RuntimeError):  # no home
        path = cache_folder() / file
    known = _read_object(path).get(key)
    if isinstance(known, dict) and all(
        isinstance(known.get(name), float) and 0 < known[name] < math.inf for name in names
    ):
        return {name: known[name] for name in names}
    times = measure()
    if keep and path is not None and times.keys() >= {*names}:
        with contextlib.suppress(OSError):  # a cache that cannot be written
            write_json(path, {**_read_object(path), key: times})
    return times


def _read_object(path: Path | None) -> dict[str, Any]:
    values = None
    with contextlib.suppress(OSError, ValueError, RecursionError):  # no file, no JSON
        values = json.loads(path.read_text(encoding="utf-8")) if path else None
    return values if isinstance(values, dict) else {}
