"""Process settings made before TensorFlow starts, for commands and worker processes."""

import contextlib
import ctypes
import functools
import importlib.machinery
import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Half the time of importing TensorFlow and Keras goes to packages that neither requires, for
# abilities that no command uses: galleries of pictures, scikit-learn's and JAX's interfaces.
_UNUSED = frozenset({"IPython", "PIL", "jax", "matplotlib", "pandas", "scipy", "sklearn"})

_YNN_FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"

_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS and Windows do not
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def available_cores() -> int:
    """Number of cores that this process may use, by its affinity and its cgroups' CPU limits."""
    return max(1, min([_cores(), *(math.ceil(limit) for limit in _cgroup_limits())]))


def _cgroup_limits(root: Path = _CGROUPS, listed: Path = _OWN_CGROUPS) -> Iterator[float]:
    """CPU limits, in cores, of this process's cgroups (version 1 or 2) and those around them."""
    with contextlib.suppress(OSError, ValueError):
        for line in listed.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / "cpu" if controllers else root
            inner = top / path.lstrip("/")  # in a container it may be the host's path
            for folder in (inner, *inner.parents):
                if not folder.is_relative_to(top):
                    break
                yield from _cgroup_limit(folder)


def _cgroup_limit(folder: Path) -> Iterator[float]:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            read = " ".join((folder / name).read_text(encoding="utf-8") for name in names)
            quota, period = map(int, read.split())  # "max" is no limit, and so is -1
            if quota > 0:
                yield quota / period


def has_accelerator() -> bool:
    """Whether TensorFlow, where it is imported, sees a GPU or a TPU."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU"))


def keep_freed_memory() -> None:
    """Keeps the memory of freed tensors in the process for the next step (glibc).

    By default glibc returns blocks of over 128 kB to the system at once, and every training step on
    a CPU takes them again, page by page (benchmarks/training_step.py). With an accelerator, whose
    memory holds the tensors of a step, this does nothing. TensorFlow undoes it with the first
    generator of the process: see `keep_freed_memory_for_good`.
    """
    if has_accelerator():
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another libc: it has no mallopt
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(mmap_threshold, 32 << 20)  # the most that glibc takes
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 << 20)


def pack_weights() -> None:
    """Has oneDNN arrange the weights of products for the processor once, not in every call.

    For processes that answer, whose weights never change. It has to be called before TensorFlow is
    imported; a value of the user's stays.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")


def keep_freed_memory_for_good() -> None:
    """`keep_freed_memory` for the rest of the process; runs an op, so set threads before.

    The first generator data set of a process sets the threshold back to 128 kB, in TensorFlow's
    `ApplyPython311MemoryPatch`: this makes one first.
    """
    if not has_accelerator():
        _make_generator()
        keep_freed_memory()


@functools.cache
def _make_generator() -> None:
    import tensorflow as tf

    nothing = tf.TensorSpec([], tf.int32)
    iter(tf.data.Dataset.from_generator(lambda: iter(()), output_signature=nothing))


@functools.cache
def avoid_ynn_fusions() -> None:
    """Has XLA compile no reduction into a YNN fusion; call it before this process first uses XLA.

    In TensorFlow 2.21 two threads that are the first to run such a fusion can end the process
    (docs/status.md). XLA reads XLA_FLAGS once: the flag is added to the user's own for that moment
    alone, as other versions of XLA, such as JAX's in this process or a child, may not know it.
    """
    import tensorflow as tf

    given = os.environ.get("XLA_FLAGS")
    flags = given or ""
    if not tf.__version__.startswith("2.21.") or _YNN_FUSIONS in flags:
        return
    if flags and not flags.lstrip().startswith("-"):  # XLA takes it for a file of flags
        with contextlib.suppress(OSError):
            flags = Path(flags).read_text(encoding="utf-8")
    os.environ["XLA_FLAGS"] = f"{flags} {_YNN_FUSIONS}="
    try:
        with tf.init_scope():
            tf.function(lambda: tf.zeros([]), jit_compile=True, autograph=False)()
    finally:
        del os.environ["XLA_FLAGS"]
        if given is not None:
            os.environ["XLA_FLAGS"] = given


def limit_threads(threads: int | None) -> None:
    """Sets TensorFlow's threads, None for one per core; does nothing once it has run an op."""
    import tensorflow as tf

    # TensorFlow knows the affinity, and no container's limit.
    if threads is None and (available := available_cores()) < _cores():
        threads = available
    if threads is not None:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)


def return_freed_memory() -> None:
    """Returns freed memory to the system: 100 MB after loading BERT-base in bfloat16."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def forget_pages(file: Path) -> None:
    """Returns the memory of a file that is mapped to be read; Linux reads again what is needed."""
    dont_need = 4  # Linux's mman.h
    name = str(file.resolve())
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL("libc.so.6").madvise
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            addresses, permissions, *_, path = line.split(maxsplit=5)
            if path == name and permissions == "r--s":  # nothing in it was written
                start, end = (int(address, 16) for address in addresses.split("-"))
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), dont_need)


_shares_cores = False


def shares_cores() -> bool:
    """Whether `share_cores` took effect, so that halves of a batch are best computed apart."""
    return _shares_cores


def share_cores() -> None:
    """Assigns each half of a training batch its share of a CPU's cores (see `Trainer`).

    By default all cores work on one operation, and the first to finish wait for the others. Two
    halves that do not wait for each other keep all cores busy. This does nothing with an
    accelerator, once TensorFlow has run an op, or if the user has set its threads.
    """
    import tensorflow as tf

    threads = tf.config.threading
    if has_accelerator() or threads.get_intra_op_parallelism_threads():
        return
    cores = available_cores()
    global _shares_cores
    with contextlib.suppress(RuntimeError):  # TensorFlow has run an op
        # Two threads come on top, each in charge of a half.
        threads.set_intra_op_parallelism_threads(max((cores + 1) // 2, cores - 2))
        _shares_cores = True


def prepare_training() -> None:
    """Keeps freed memory and shares the cores, if TensorFlow is Keras' backend."""
    import keras

    if keras.backend.backend() == "tensorflow":
        share_cores()
        keep_freed_memory_for_good()


def has_tf_text() -> bool:
    """Whether TF Text is installed; it has no wheels for Windows and Python 3.14."""
    return importlib.util.find_spec("tensorflow_text") is not None


def _tf_text_folder() -> Path:
    spec = importlib.util.find_spec("tensorflow_text")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@functools.cache
def text_operations() -> tuple[Any, Any]:
    """Modules with TF Text's `fast_bert_normalize` and `fast_wordpiece_tokenize_with_offsets`.

    Registers the two operations without importing TF Text, whose others take 100 MB of memory.
    """
    import tensorflow as tf

    # Under the paths that TF Text itself gives: TensorFlow registers each once.
    ops = _tf_text_folder() / "python" / "ops"
    normalizer, wordpiece = (
        tf.load_op_library(str(ops / f"_{name}.so"))
        for name in ("fast_bert_normalizer", "fast_wordpiece_tokenizer")
    )
    return normalizer, wordpiece


def wordpiece_builder() -> Any:
    """TF Text's module that builds the model of `fast_wordpiece_tokenize_with_offsets`."""
    name = "tensorflow_text.core.pybinds.pywrap_fast_wordpiece_tokenizer_model_builder"
    if name not in sys.modules:
        folder = _tf_text_folder() / "core" / "pybinds"
        spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module  # for TF Text, if it is imported later
    return sys.modules[name]


def is_tensorflow_loaded() -> bool:
    """Whether this process has imported TensorFlow."""
    return "tensorflow" in sys.modules


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Hides what TensorFlow writes while it is loaded; keeps the user's settings."""
    if is_tensorflow_loaded():
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # They write to standard error before they read any log level.
    try:
        standard_error = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


@contextlib.contextmanager
def _without_unused_packages() -> Iterator[None]:
    """Hides the packages of `_UNUSED` from imports, as if none were installed."""
    hidden: dict[str, Any] = dict.fromkeys(_UNUSED - sys.modules.keys())
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def import_tensorflow(*, for_a_command: bool = False) -> None:
    """Imports TensorFlow without its start-up chatter; for a command, in half the time.

    Packages hidden for a command can be imported afterwards, but Keras does not use them.
    """
    # The commands export SavedModels and train under tf.distribute: TensorFlow it is.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    quickly = _without_unused_packages() if for_a_command else contextlib.nullcontext()
    with without_chatter(), quickly:
        import tensorflow  # noqa: F401
