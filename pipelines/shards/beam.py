"""Spreads the units of a corpus over processes or machines with Apache Beam.

Graph, seeds and journal are those of a local run: either kind of run continues the other. Every
worker must see the output folder and the corpus under the same paths.
"""

import os
import pickle
import re
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.errors import InputError
from bert_tf.startup import import_tensorflow, keep_freed_memory

# A worker imports this file before anything can quiet TensorFlow: functions import what needs it.
if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer
    from pipelines.shards.writing import ShardsJob, ShardsProgress

_SECONDS_BETWEEN_LOOKS = 1.0


class BeamRunner:
    """Lets Apache Beam, with its own options as one string, write the unfinished units of a job."""

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
        try:
            self._options = ["--default_sdk_harness_log_level=ERROR", *shlex.split(options)]
        except ValueError as error:
            raise InputError(f"--beam_options {options}: {error}: check the quotes") from error

    def __call__(
        self,
        job: "ShardsJob",
        tokenizer: "BertTokenizer",
        progress: Callable[["ShardsProgress"], None],
    ) -> None:
        from apache_beam.options.pipeline_options import PipelineOptions

        from pipelines.shards.journal import JOURNAL

        beam = self._beam
        vocabulary = job.folder / JOURNAL / "tokenizer"
        tokenizer.save(vocabulary)
        pipeline = beam.Pipeline(options=PipelineOptions(self._options))
        _ = (
            pipeline
            | "units" >> beam.Create(job.journal.missing())
            | "spread" >> beam.Reshuffle()
            | "write shards" >> beam.Map(_write_unit, pickle.dumps(job), vocabulary)
        )
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(job, progress, ended), daemon=True)
        watcher.start()
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:  # each runner wraps the workers' errors in its own way
            if match := re.search(r"InputError: (.*)", str(error)):
                raise InputError(match[1]) from None
            raise
        finally:
            ended.set()
            watcher.join()


def _write_unit(unit: int, job: bytes, vocabulary: Path) -> None:
    """Runs in a worker; `job` is pickled, because unpickling imports TensorFlow."""
    keep_freed_memory()
    import_tensorflow()
    from bert_tf.tokenization import BertTokenizer
    from pipelines.shards.writing import write_units

    write_units(pickle.loads(job), BertTokenizer.from_directory(vocabulary), units=[unit])


def _watch(
    job: "ShardsJob", progress: Callable[["ShardsProgress"], None], ended: threading.Event
) -> None:
    """Reports progress from the journal while the pipeline runs."""
    from pipelines.shards.writing import ShardsProgress

    while not ended.wait(_SECONDS_BETWEEN_LOOKS):
        groups = job.journal.groups()
        # In order of the corpus: what remains is each unit's last group.
        done = sum({group.unit: group.bytes_read for group in groups}.values())
        made = sum(group.instances for group in groups)
        progress(ShardsProgress(done, job.corpus.size, made))
