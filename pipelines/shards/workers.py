"""Makes units in other processes: `work` is the function that any executor, or Beam, calls.

A worker imports this file before anything can quiet TensorFlow: functions import what needs it.
"""

import errno
import functools
import logging
import multiprocessing
import os
import pickle
import re
import shlex
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from concurrent.futures.process import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from bert_tf.errors import InputError, pip_install
from bert_tf.startup import available_cores, import_tensorflow, limit_threads
from bert_tf.version import __version__

if TYPE_CHECKING:
    from distributed import Client

    from bert_tf.pipelines.corpus.documents import DocumentPlan
    from bert_tf.pipelines.shards.units import Report, ShardsJob, Unit
    from bert_tf.tokenization import BertTokenizer

Task = tuple[str, int | None, bytes]
_ANSWER_SECONDS = 20  # of a scheduler
_LOOK_SECONDS = 5  # between looks at a cluster
_WORKER_SECONDS = 30  # that a cluster may have no workers, which may be started again
# Beam's runner by default, named, because DirectRunner tries to download another one first.
_BEAM_HERE = (
    "--runner=FnApiRunner --direct_running_mode=multi_processing "
    f"--direct_num_workers={available_cores()}"
)
# Errors of the system for which trying again is of no use.
_LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


def task(job: "ShardsJob", unit: "Unit") -> Task:
    """The argument of `work`: small, and pickled within, because unpickling imports TensorFlow."""
    return __version__, job.threads, pickle.dumps((job, unit))


def work(task: Task) -> int:
    """Makes a unit; returns the number of its new instances."""
    version, threads, pickled = task
    if version != __version__:
        raise InputError(
            f"a worker has bert-tf {__version__}, but the run has {version}: install the same "
            "version on all machines"
        )
    import_tensorflow()
    limit_threads(threads)
    from bert_tf.pipelines.shards.units import write_units

    job, unit = pickle.loads(pickled)
    counts: list[int] = []
    shared = _shared(job.folder, job.plan_hash)
    write_units(job, [unit], *shared, lambda unit, read, instances: counts.append(instances))
    return sum(counts)


@functools.lru_cache(maxsize=1)
def _shared(folder: str, plan_hash: str) -> "tuple[BertTokenizer, DocumentPlan]":
    from bert_tf.files.storage import open_folder
    from bert_tf.pipelines.shards.folder import stored_tokenizer
    from bert_tf.pipelines.shards.journal import Journal

    journal = Journal(open_folder(folder), [])
    documents = journal.documents
    if documents is None:
        raise InputError(
            f"{folder}: a worker finds no journal there: all machines must see the output under "
            "the same path"
        )
    return stored_tokenizer(journal.tokenizer), documents


class ExecutorRunner:
    """Makes the units of a job with executors of `concurrent.futures`; tries failed ones again.

    `executor` opens an executor; again if it broke, because one of its processes died.
    """

    def __init__(self, executor: Callable[[], AbstractContextManager[Executor]], retries: int = 2):
        self._executor = executor
        self._retries = retries

    def __call__(self, job: "ShardsJob", units: "Sequence[Unit]", report: "Report") -> None:
        waiting = {unit.number: unit for unit in units}
        failures: Counter[int] = Counter()
        while waiting:
            before = len(waiting)
            try:
                with self._executor() as executor:
                    self._run(executor, job, waiting, failures, report)
            except BrokenExecutor as error:
                failures[-1] = failures[-1] + 1 if len(waiting) == before else 0
                if failures[-1] > self._retries:
                    raise InputError(
                        "worker processes die again and again: give fewer --workers if memory is "
                        "short; a script must begin its work under if __name__ == '__main__'"
                    ) from error

    def _run(
        self,
        executor: Executor,
        job: "ShardsJob",
        waiting: "dict[int, Unit]",
        failures: Counter[int],
        report: "Report",
    ) -> None:
        futures = {executor.submit(work, task(job, unit)): unit for unit in waiting.values()}
        try:
            while futures:
                done = wait(futures, _LOOK_SECONDS, FIRST_COMPLETED).done
                lost = any(future.cancelled() for future in done)
                if isinstance(executor, _DaskExecutor) and (lost or not done):
                    executor.check()
                for future in done:
                    unit = futures.pop(future)
                    try:
                        instances = future.result()
                    except (BrokenExecutor, InputError):
                        raise
                    except ImportError as error:
                        raise InputError(
                            f"a worker cannot import bert-tf ({error}): install it on all machines"
                        ) from error
                    except Exception as error:
                        failures[unit.number] += 1
                        is_lasting = getattr(error, "errno", None) in _LASTING
                        if is_lasting or failures[unit.number] > self._retries:
                            raise
                        futures[executor.submit(work, task(job, unit))] = unit
                    else:
                        del waiting[unit.number]
                        report(unit.number, unit.size, instances)
        finally:
            for future in futures:
                future.cancel()


class _DaskExecutor(Executor):
    """Runs tasks on the workers of a dask.distributed cluster, which may go."""

    def __init__(self, client: "Client", address: str):
        self._client = client
        self._address = address
        self._executor = client.get_executor(pure=False)
        self._seen = time.monotonic()  # when there were workers

    def submit(self, *task: Any, **named: Any) -> Future:
        return self._executor.submit(*task, **named)

    def check(self) -> None:
        """Raises InputError if the scheduler has gone, or all workers have for a while."""
        cause = "the scheduler has gone: start it and its workers"
        if self._client.status == "running":
            if self._client.scheduler_info()["workers"]:
                self._seen = time.monotonic()
            if time.monotonic() - self._seen < _WORKER_SECONDS:
                return
            cause = "all workers have gone: start dask worker"
        raise InputError(
            f"--dask {self._address}: {cause}, and give the same command again to resume"
        )


def process_pool(workers: int) -> Callable[[], ProcessPoolExecutor]:
    """Opens pools of processes on this machine."""
    context = multiprocessing.get_context("forkserver")
    return functools.partial(ProcessPoolExecutor, workers, context, _follow_parent)


def _follow_parent() -> None:
    """Ends this process with its parent, and by Ctrl-C without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def dask_workers(address: str) -> Callable[[], AbstractContextManager[Executor]]:
    """Opens executors of the dask.distributed cluster whose scheduler has this address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(f"--dask needs dask.distributed: {pip_install('dask')}") from error

    # It logs a trace for what is raised.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)

    @contextmanager
    def open_executor() -> Iterator[Executor]:
        try:
            client = Client(address, timeout=_ANSWER_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"--dask {address}: no scheduler answers ({error}): start dask scheduler and dask "
                "worker, or correct the address"
            ) from error
        with client:
            if not client.scheduler_info()["workers"]:
                cause = "the scheduler has no workers: start dask worker"
                raise InputError(f"--dask {address}: {cause}")
            yield _DaskExecutor(client, address)

    return open_executor


class BeamRunner:
    """Makes the units of a job with Apache Beam, for Dataflow; `options` are Beam's own.

    Every worker must see the output and the corpus under the same paths.
    """

    def __init__(self, options: str | None = None):
        try:
            import apache_beam  # noqa: F401
        except ImportError as error:
            raise InputError(f"--runner beam needs Apache Beam: {pip_install('beam')}") from error
        try:
            arguments = shlex.split(_BEAM_HERE if options is None else options)
        except ValueError as error:
            raise InputError(f"--beam_options {options}: {error}: check the quotes") from error
        self._options = ["--default_sdk_harness_log_level=ERROR", *arguments]

    def __call__(self, job: "ShardsJob", units: "Sequence[Unit]", report: "Report") -> None:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        pipeline = beam.Pipeline(options=PipelineOptions(self._options))
        _ = (
            pipeline
            | "units" >> beam.Create([task(job, unit) for unit in units])
            | "spread" >> beam.Reshuffle()
            | "write shards" >> beam.Map(work)
        )
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:  # each runner wraps the workers' errors in its own way
            if match := re.search(r"InputError: (.*)", str(error)):
                raise InputError(match[1]) from None
            raise
