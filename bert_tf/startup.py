"""Process settings made before TensorFlow starts, for commands and worker processes."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Half the time of importing TensorFlow and Keras goes to packages that neither requires, for
# abilities that no command uses: galleries of pictures, scikit-learn's and JAX's interfaces.
_UNUSED = frozenset({"IPython", "PIL", "jax", "matplotlib", "pandas", "scipy", "sklearn"})


def keep_freed_memory() -> None:
    """Lets glibc keep the memory of freed tensors for the next step.

    By default it returns blocks of over 128 kB to the system at once: every training step on a
    CPU then takes them anew, page by page (benchmarks/training_step.py).
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another libc: it has no mallopt
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(mmap_threshold, 32 << 20)  # the most that glibc takes
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 << 20)


def limit_threads(threads: int | None) -> None:
    """Gives TensorFlow so many threads, None for one per core, unless it has run an op."""
    import tensorflow as tf

    if threads is not None:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)


def return_freed_memory() -> None:
    """Gives the system what loading a model has freed: in bfloat16 100 MB for BERT-base."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


_shares_cores = False


def shares_cores() -> bool:
    """Whether `share_cores` took effect: the halves of a batch are best computed apart."""
    return _shares_cores


def share_cores() -> None:
    """Gives each half of a training batch its share of a CPU's cores (see `Trainer`).

    By default TensorFlow has all cores work on one operation, and at its end the quicker ones wait
    for the others. Two halves that do not wait for each other keep all cores busy. It does nothing
    if there is a GPU, or once TensorFlow has run an op or was told its threads.
    """
    import tensorflow as tf

    threads = tf.config.threading
    if tf.config.list_physical_devices("GPU") or threads.get_intra_op_parallelism_threads():
        return
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    global _shares_cores
    with contextlib.suppress(RuntimeError):  # TensorFlow has run an op
        # Two threads come on top, each in charge of a half.
        threads.set_intra_op_parallelism_threads(max((cores + 1) // 2, cores - 2))
        _shares_cores = True


def prepare_training() -> None:
    """Both of the above, if TensorFlow is Keras' backend."""
    import keras

    if keras.backend.backend() == "tensorflow":
        keep_freed_memory()
        share_cores()


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Hides what TensorFlow writes while it is loaded; what the user set stays set."""
    if "tensorflow_text" in sys.modules:
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
    """Lets imports of `_UNUSED` fail, as if none were installed."""
    hidden: dict[str, Any] = dict.fromkeys(_UNUSED - sys.modules.keys())
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def import_tensorflow(*, for_a_command: bool = False) -> None:
    """Imports TensorFlow without its start-up chatter; for a command, in half the time.

    What is hidden then can be imported afterwards, but Keras goes on without it.
    """
    # The commands export SavedModels and train under tf.distribute: TensorFlow it is.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    quickly = _without_unused_packages() if for_a_command else contextlib.nullcontext()
    with without_chatter(), quickly:
        import tensorflow  # noqa: F401
        import tensorflow_text  # noqa: F401
