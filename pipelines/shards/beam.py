"""Shards by Apache Beam: the units of a corpus spread over processes or machines.

A unit is made by the same graph, from the same seeds, as in a local run, and entered in the same
journal, so the instances are the same, and either kind of run continues the other.
"""

import contextlib
import os
import pickle
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.errors import InputError
from bert_tf.startup import import_tensorflow, keep_freed_memory

# A worker imports this file before anything can quiet TensorFlow: what imports that is imported
# within the functions.
if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer
    from pipelines.shards.groups import ShardsJob, ShardsProgress

_SECONDS_BETWEEN_LOOKS = 1.0


class BeamRunner:
    """Has Apache Beam write the units of a job.

    The output folder and the corpus must be seen by every worker under the same path.

    Args:
        options: Beam's own options as one string, "--runner=FlinkRunner --parallelism=64"; by
            default the DirectRunner with a process for every core.

    Raises:
        InputError: Apache Beam is not installed.
    """

    def __init__(self, options: str | None = None):
        try:
            import apache_beam
        except ImportError as error:
            raise InputError(
                "--runner beam needs Apache Beam; pip install 'bert-tf[beam]'"
            ) from error
        self._beam = apache_beam
        if options is None:
            options = (
                "--runner=DirectRunner --direct_running_mode=multi_processing "
                f"--direct_num_workers={os.cpu_count() or 1}"
            )
        self._options = ["--default_sdk_harness_log_level=ERROR", *shlex.split(options)]

    def __call__(
        self,
        job: "ShardsJob",
        tokenizer: "BertTokenizer",
        progress: Callable[["ShardsProgress"], None],
    ) -> None:
        """Writes what is not finished of a job; returns when it is all in the journal."""
        from apache_beam.options.pipeline_options import PipelineOptions

        from pipelines.shards.groups import JOURNAL, complete_units, finished_groups

        beam = self._beam

        vocabulary = job.folder / JOURNAL / "tokenizer"
        tokenizer.save(vocabulary)
        complete = complete_units(finished_groups(job))
        units = [unit for unit in range(len(job.corpus.units)) if unit not in complete]
        pipeline = beam.Pipeline(options=PipelineOptions(self._options))
        _ = (
            pipeline
            | "units" >> beam.Create(units)
            | "spread" >> beam.Reshuffle()
            | "write shards" >> beam.Map(_write_unit, pickle.dumps(job), vocabulary)
        )
        try:
            with _watched(job, progress):
                pipeline.run().wait_until_finish()
        except Exception as error:  # runners wrap what a worker raised, each in its own way
            if match := re.search(r"InputError: (.*)", str(error)):
                raise InputError(match[1]) from None
            raise


def _write_unit(unit: int, job: bytes, vocabulary: Path) -> None:
    """Runs in a worker; `job` is a pickled `ShardsJob`, so that it is not read too early."""
    keep_freed_memory()
    import_tensorflow()
    from bert_tf.tokenization import BertTokenizer
    from pipelines.shards.groups import write_units

    write_units(pickle.loads(job), BertTokenizer.from_directory(vocabulary), units=[unit])


@contextlib.contextmanager
def _watched(job: "ShardsJob", progress: Callable[["ShardsProgress"], None]) -> Iterator[None]:
    """Tells of progress from what is in the journal, while the pipeline runs."""
    from pipelines.shards.groups import ShardsProgress, finished_groups

    total = job.corpus.size
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            groups = finished_groups(job)
            done: dict[int, int] = {}
            for group in groups:
                done[group.unit] = max(done.get(group.unit, 0), group.bytes_read)
            made = sum(group.instances for group in groups)
            progress(ShardsProgress(sum(done.values()), total, made))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
