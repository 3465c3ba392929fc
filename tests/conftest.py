"""Shared by all tests: quiet TensorFlow, one core per worker, files that are made once."""

import fcntl
import functools
import gc
import inspect
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import hypothesis
import pytest
from packaging.version import Version
from peer_programs import why_missing

from bert_tf.startup import has_tf_text

pytest_plugins = ["exported_models", "small_runs"]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests train and answer in one process. Given, it is not measured either.
os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "0")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Several workers: each keeps to one core, or they would wait for each other.
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1" if name != "TF_NUM_INTEROP_THREADS" else "2")
# Tracing makes many objects that live: collecting them as often as by default takes a seventh of
# the time of a short run.
gc.set_threshold(100_000, 50, 100)
# A job in the background starts with Ctrl-C ignored, and the runs under test would respect that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine takes longer for an example than hypothesis allows by default.
hypothesis.settings.register_profile("any_machine", deadline=None)
hypothesis.settings.load_profile("any_machine")

_GROWTH = 500_000  # kB of memory between two collections
_OF_RUNS = ("commands", "docs", "migration", "models", "paper", "runs", "tasks/kinds", "training")


def _is_of_runs(request: pytest.FixtureRequest) -> bool:
    """Whether a module tests whole runs, and leaves the parts to other tests."""
    path = Path(request.path).relative_to(Path(__file__).parent)
    return any(path.is_relative_to(name) for name in _OF_RUNS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests, which have a timeout of their own, run first.

    Else the other workers wait for them at the end.
    """
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@functools.cache
def _why_no_keras_hub() -> str | None:
    """Why tests of KerasHub are skipped: only for a Keras newer than KerasHub may it not import."""
    import keras

    if Version(keras.__version__).release < (3, 16):
        return None
    try:
        import keras_nlp  # noqa: F401
    except ImportError:
        return f"keras-hub does not import with Keras {keras.__version__}"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("peer"):
        if reason := why_missing(*marker.args):
            pytest.skip(reason)
    if item.get_closest_marker("tf_text") and not has_tf_text():
        pytest.skip("TF Text is not installed")
    if item.get_closest_marker("keras_hub") and (reason := _why_no_keras_hub()):
        pytest.skip(reason)


def pytest_collection_finish() -> None:
    """What was imported stays: later collections look at the rest alone, in a tenth of the time."""
    gc.collect()
    gc.freeze()


_peak = 0


def pytest_runtest_logfinish() -> None:
    """Graphs and models hold each other: what tests leave is collected as memory grows.

    Else a module of many runs takes 150 MB more with each.
    """
    global _peak
    if (peak := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > _peak + _GROWTH:
        _peak = peak
        gc.collect()


@pytest.fixture(scope="module", params=[pytest.param("tf_text", marks=pytest.mark.tf_text), "core"])
def tokenizer_ops(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module's tests with both kinds of operations that tokenizers are made of."""
    with pytest.MonkeyPatch.context() as patch:
        is_there = request.param == "tf_text"
        patch.setattr("bert_tf.tokenization.operations.has_tf_text", lambda: is_there)
        yield request.param


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder or file once for all workers of pytest-xdist.

    `made_once(name, make)` calls `make(path)` in the first worker that asks; the others wait for
    it. Nothing may change the path afterwards: copy it first.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    root = root / "made_once"
    root.mkdir(exist_ok=True)

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        path, done = root / name, root / f".{name}.done"
        with (root / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(path)
                done.touch()
        return path

    return make_once


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    from s3_server import bucket

    with bucket() as url:
        yield url


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("needs ../shared (development data and golden outputs)")
    return folder


@pytest.fixture
def tensorflow_datasets() -> Callable[[list[dict]], AbstractContextManager[list[str]]]:
    """`tensorflow_datasets(records)`: within it every dataset and split has these records.

    Gives the names of the splits that were asked for.
    """
    tfds = pytest.importorskip("tensorflow_datasets")

    @contextmanager
    def mocked(records: list[dict]) -> Iterator[list[str]]:
        import tensorflow as tf

        asked: list[str] = []

        def as_dataset(builder, split, **_):
            asked.append(split.split_name)
            signature = builder.info.features.get_tensor_spec()
            return tf.data.Dataset.from_generator(lambda: iter(records), output_signature=signature)

        with tfds.testing.mock_data(as_dataset_fn=as_dataset):
            yield asked

    return mocked


@pytest.fixture(scope="module", autouse=True)
def graphs_as_traced(request):
    """In tests of whole runs TensorFlow does not optimize graphs, which takes a fifth of the time.

    Nor do `preloaded` processes. What graphs compute is tested elsewhere, optimized.
    """
    if not _is_of_runs(request):
        yield
        return
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@contextmanager
def _exports_with(is_kept: Callable[[str], bool]) -> Iterator[None]:
    """Within it exports have these signatures alone."""
    from bert_tf.tasks.signatures import RawTextModel

    init = inspect.unwrap(RawTextModel.__init__)

    @functools.wraps(init)
    def with_some(self, answerer, signatures):
        init(self, answerer, {name: x for name, x in signatures.items() if is_kept(name)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RawTextModel, "__init__", with_some)
        yield


@pytest.fixture(scope="module", autouse=True)
def exports_of_what_is_asked(request):
    """In tests of whole runs exports lack what no run asks: half of an export's time.

    These signatures are the same for every kind; tests/tasks has them.
    """
    if not _is_of_runs(request):
        yield
        return
    with _exports_with(lambda name: name not in ("attention", "embed", "explain", "tokens")):
        yield


@pytest.fixture(scope="session")
def exports_of() -> Callable[..., AbstractContextManager[None]]:
    """`exports_of(*names)`: within it exports have these signatures alone.

    Each takes a second to trace, and more to save and to load.
    """
    return lambda *names: _exports_with(names.__contains__)


@pytest.fixture(scope="session", autouse=True)
def what_tests_do_without(tmp_path_factory):
    """Leaves out what takes time or differs between machines; fixtures below bring some back."""
    with pytest.MonkeyPatch.context() as patch:
        # Pre-training guesses words of a --watch_text alone: a quarter of the time of a short run.
        patch.setattr("bert_tf.commands.pretraining_run.hide_words", lambda sample, tokenizer: {})
        # The lines of a run depend on its steps alone, however slow the machine is.
        patch.setattr("bert_tf.training.logs._SECONDS_BETWEEN_LINES", float("inf"))
        # What is measured while tests keep the machine busy is not remembered for its user.
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # Flushing a file to the disk takes 10 ms. Nor do `preloaded` processes.
        patch.setattr(os, "fsync", lambda descriptor: None)
        # Warm-up requests take a second for every signature of every export.
        patch.setattr("bert_tf.serving.export.check_requests", lambda *_: None)
        yield


@pytest.fixture
def words_are_hidden(monkeypatch):
    """Evaluations of pre-training guess hidden words of the held-out text."""
    from bert_tf.commands.masked_words import hide_words

    monkeypatch.setattr("bert_tf.commands.pretraining_run.hide_words", hide_words)


@pytest.fixture
def warm_up_is_checked(monkeypatch):
    """Exports run their warm-up requests, as they do for users."""
    from bert_tf.serving.warmup_requests import check_requests

    monkeypatch.setattr("bert_tf.serving.export.check_requests", check_requests)
