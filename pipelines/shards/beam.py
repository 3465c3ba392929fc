"""Makes the units of a job with Apache Beam, for Dataflow.

Every worker must see the output and the corpus under the same paths.
"""

import os
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_tf.errors import InputError
from pipelines.shards.workers import task, work

if TYPE_CHECKING:
    from pipelines.shards.units import Report, ShardsJob, Unit

# Named, because DirectRunner tries to download another runner first.
_HERE = (
    "--runner=FnApiRunner --direct_running_mode=multi_processing "
    f"--direct_num_workers={os.cpu_count() or 1}"
)


class BeamRunner:
    """Lets Apache Beam, with its own options as one string, make units."""

    def __init__(self, options: str | None = None):
        try:
            import apache_beam
        except ImportError as error:
            raise InputError(
                "--runner beam needs Apache Beam; pip install 'bert-tf[beam]'"
            ) from error
        self._beam = apache_beam
        try:
            given = shlex.split(_HERE if options is None else options)
        except ValueError as error:
            raise InputError(f"--beam_options {options}: {error}: check the quotes") from error
        self._options = ["--default_sdk_harness_log_level=ERROR", *given]

    def __call__(self, job: "ShardsJob", units: "Sequence[Unit]", report: "Report") -> None:
        from apache_beam.options.pipeline_options import PipelineOptions

        beam = self._beam
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
