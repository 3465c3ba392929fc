"""What this machine's processor is, and what was measured on it; needs no TensorFlow."""

import contextlib
import json
import os
import re
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
    found = [*(fields[name] for name in names if name in fields), *processor_flags()]
    version = ""
    for name in ("tf-nightly", "tensorflow-cpu", "tensorflow"):  # the last one counts
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
    switches = (os.environ.get(x, "") for x in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA"))
    return " ".join([*found, version, *switches]).strip()


class Remembered:
    """Measurements of this machine, in a JSON file of the user's cache folder."""

    def __init__(self, name: str) -> None:
        self._file: Path | None = None
        with contextlib.suppress(RuntimeError):  # no home
            self._file = cache_folder() / name

    def _all(self) -> dict[str, Any]:
        found = None
        with contextlib.suppress(OSError, ValueError, RecursionError):  # no file, no JSON
            found = json.loads(self._file.read_text(encoding="utf-8")) if self._file else None
        return found if isinstance(found, dict) else {}

    def numbers(self, key: str, names: tuple[str, ...]) -> dict[str, float] | None:
        """Positive numbers by name; None unless all are known."""
        found = self._all().get(key)
        if isinstance(found, dict) and all(
            isinstance(found.get(name), float) and 0 < found[name] < float("inf") for name in names
        ):
            return {name: found[name] for name in names}
        return None

    def remember(self, key: str, numbers: dict[str, float]) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a cache that cannot be written
                write_json(self._file, {**self._all(), key: numbers})
