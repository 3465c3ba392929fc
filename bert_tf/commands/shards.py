r"""Make TFRecord shards of pre-training instances from text.

  bert-tf shards --corpus text/ --tokenizer vocab/ --output shards/ --masking dynamic
  bert-tf shards --corpus articles.jsonl.zst --tokenizer vocab/ --output shards/ --max_seq_length 64
  bert-tf shards --corpus tfds:wikipedia/20230601.en --tokenizer vocab/ --output shards/ \
    --max_seq_length 128 512

Reads text with a sentence per line and a blank line between documents, plain text in paragraphs
(--corpus_format text), JSONL, Parquet, or a dataset of TensorFlow Datasets; files may be compressed
with gzip, zstd, xz or bzip2, and lie in buckets (s3://, gs://), as may the output. Two sequence
lengths make two folders in one pass. The same command resumes a stopped run; the folder is complete
when it holds manifest.json.

  bert-tf shards ... --workers 8          8 processes of this machine
  bert-tf shards ... --dask tcp://HOST:8786
  bert-tf shards ... --units 3/16         one of 16 independent jobs; then once: ... --finish

The output holds shards, held-out shards, the vocabulary and manifest.json. Choose --masking dynamic
for new work; static writes the features of the original's script.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bert_tf.commands.command import Command
from bert_tf.commands.data_in_memory import DocumentOptions, documents_as_file
from bert_tf.commands.progress import command_line, console, duration, progress
from bert_tf.commands.result import Result, Table
from bert_tf.commands.vocab import faults
from bert_tf.errors import InputError
from bert_tf.files.mirror import joined
from bert_tf.files.outputs import check_output_folder
from bert_tf.files.storage import is_remote
from bert_tf.options import CheckedOptions, PathName, option
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.startup import available_cores

if TYPE_CHECKING:
    from bert_tf.pipelines.shards.manifest import Manifest
    from bert_tf.pipelines.shards.run import Estimate, Runner


@dataclass(kw_only=True)
class Options(DocumentOptions, PretrainingDataOptions):
    """Options of `bert-tf shards`."""

    corpus: list[PathName] = option(factory=list, path=True, required=True)
    """text files, folders, globs, URLs (s3://BUCKET/KEY), or names of TensorFlow Datasets
    (tfds:NAME/CONFIG)."""
    tokenizer: PathName = option(path=True, model=True)
    """folder that `bert-tf vocab` wrote, or any BERT model directory; or the URL of one."""
    output: PathName
    """folder to make, or a URL."""
    max_seq_length: list[int] = option(  # type: ignore[assignment]
        factory=lambda: [128], at_least=5, at_most=2**16
    )
    """tokens per instance, [CLS] and both [SEP] included; several lengths are made in one pass over
    the corpus, each in a folder of its own in the output."""
    overwrite: bool = False
    """replace an older folder of shards; it is removed when the new run begins."""
    workers: int = option(1, at_least=1, at_most=1024)
    """number of processes on this machine."""
    threads: int | None = option(None, at_least=1, at_most=1024)
    """threads per process; by default the cores divided by --workers, and 1 with --dask."""
    dask: str | None = None
    """address of a dask.distributed scheduler, tcp://HOST:PORT, whose workers make the shards."""
    units: str | None = None
    """do one job's share of the work, such as 3/16 for the third of sixteen independent jobs, in
    any order; --finish then completes the folder."""
    finish: bool = False
    """complete the folder after all jobs with --units: check their files and write the manifest."""
    dry_run: bool = False
    """estimate the time and the size of the shards from some of the text; write nothing."""
    retries: int = option(2, at_least=0, at_most=100)
    """number of times to retry a failed unit of work, with --workers or --dask."""
    runner: Literal["local", "beam"] = "local"
    """local, or beam for Apache Beam."""
    beam_options: str | None = None
    """Beam's own options in one string, "--runner=DataflowRunner ..."; by default its FnApiRunner,
    with a process per core."""

    def __post_init__(self) -> None:
        CheckedOptions.__post_init__(self)
        if not self.max_seq_length:
            raise InputError("--max_seq_length is empty: give at least one length")
        if self.beam_options is not None and self.runner != "beam":
            raise InputError("--beam_options has no effect without --runner beam: add it")
        several = {
            "--workers": self.workers > 1,
            "--dask": self.dask is not None,
            "--runner beam": self.runner == "beam",
            "--finish": self.finish,
        }
        chosen = [name for name, is_chosen in several.items() if is_chosen]
        if len(chosen) > 1:
            raise InputError(f"{chosen[0]} cannot be combined with {chosen[1]}: give one of them")
        if self.finish and self.units is not None:
            raise InputError("--finish cannot be combined with --units: give it when all are made")
        settings = self.data_settings()
        self.by_length = [
            PretrainingDataOptions(**settings | {"max_seq_length": length})
            for length in self.max_seq_length
        ]


@dataclass(kw_only=True, repr=False, eq=False)
class ShardsResult(Result):
    """The outcome of `make_shards`.

    Attributes:
        folders: the folder or URL of each length, the shortest first; of one length the output.
        manifests: the content of manifest.json in each; none for a share of the units or a dry run.
        estimate: the time and the size, for a dry run.
    """

    folders: "list[Path | str]"
    manifests: "list[Manifest]" = field(default_factory=list)
    estimate: "Estimate | None" = None

    def lines(self) -> list[str]:
        if self.estimate is not None:
            text, units, seconds, size = self.estimate
            return [
                f"{text / 1e9:.3g} GB of text in {units} units make about {size / 1e9:.3g} GB of "
                f"shards, in {duration(seconds / 60)} in one process of this machine; "
                f"{self.folders[0]} is not written"
            ]
        if not self.manifests:
            return [f"The units are made in {self.folders[0]}; when all are, give --finish"]
        lines = faults(self.manifests[0].irregularities)
        for manifest in self.manifests:
            lines += lost_text(manifest)
        options = self.manifests[0].data_options
        kind = "rows of instances" if options.instances_per_row > 1 else "instances"
        for folder, manifest in zip(self.folders, self.manifests, strict=True):
            lines.append(
                f"{manifest.instances()} training and {manifest.instances('held_out')} held-out "
                f"{kind} from {manifest.documents} documents, {_megabytes(manifest):.1f} MB: "
                f"{folder}"
            )
        if options.held_out_share and not self.manifests[0].instances("held_out"):
            has_lines = options.corpus_format == "sentences"
            cure = "put blank lines between chapters, or " if has_lines else ""
            lines.append(
                "Nothing was held out for evaluation, because the corpus has fewer than four "
                f"documents that begin differently: {cure}add files. Until then, pretrain writes "
                "last/ and no best/"
            )
        return lines

    def tables(self) -> Iterable[Table]:
        columns = ["folder", "tokens", "training", "held out", "documents", "MB"]
        rows = []
        for folder, manifest in zip(self.folders, self.manifests, strict=False):
            counts = manifest.instances(), manifest.instances("held_out"), manifest.documents
            size = f"{_megabytes(manifest):.1f}"
            rows.append([folder, manifest.data_options.max_seq_length, *counts, size])
        if rows:
            yield Table("Instances", columns, rows)


def _megabytes(manifest: "Manifest") -> float:
    return sum(shard.bytes for shards in manifest.shards.values() for shard in shards) / 1e6


# The original's pairs drop 10% of Wikipedia's tokens at a length of 128, and 20% at 64.
_MUCH_DROPPED = 0.2
_NEARLY_ALL = 0.9


def lost_text(manifest: "Manifest") -> Iterator[str]:
    """The text that is lost to [UNK] or truncation, and one-sided labels, with what helps."""
    options = manifest.data_options
    counted = manifest.statistics["train"]
    length = options.max_seq_length
    dropped = counted["dropped_token_share"]
    if manifest.unknown_tokens:
        yield manifest.unknown_tokens
    cures = "--instances full_sentences"
    if not options.cut_long_sentences:
        cures = f"--cut_long_sentences true, or {cures}"
    if dropped > _MUCH_DROPPED:
        if options.corpus_format in ("auto", "sentences"):
            cures += ", or, if lines are paragraphs, --corpus_format text"
        yield (
            f"Warning: {dropped:.0%} of the tokens were dropped, because sentences are long for "
            f"--max_seq_length {length}: give {cures}"
        )
    elif dropped:
        yield (
            f"{dropped:.1%} of the tokens are in no instance: what is longer than {length} tokens "
            f"is cut, as in the original. To keep them, give {cures}"
        )
    if (random_next := counted.get("is_random_next", 0.0)) > _NEARLY_ALL:
        yield (
            f"Warning: {random_next:.0%} of the next sentences are random, because nearly all "
            "documents are a single sentence, or sentences are longer than an instance: give "
            f"{cures}"
        )


def run(options: Options) -> ShardsResult:
    """Makes TFRecord shards of pre-training instances from text, as `bert-tf shards` does.

    The same call continues a stopped run.

    ```python
    bert_tf.make_shards(documents=texts, tokenizer="vocab", output="shards", masking="dynamic")
    ```

    Returns:
        The folders, for `pretrain`, and what they hold.
    """
    from bert_tf.pipelines.shards.manifest import JOURNAL

    folders = [joined(options.output)]
    if not is_remote(options.output):
        check_output_folder(options.output, [*options.corpus, options.tokenizer])
    with (
        documents_as_file(options, JOURNAL) as options,
        progress("making instances", total=1, shown=options.shown) as bar,
    ):
        from bert_tf.pipelines.shards.run import (
            ShardsProgress,
            UnitShare,
            estimate_shards,
            write_shards,
        )
        from bert_tf.tokenization import BertTokenizer

        tokenizer = BertTokenizer.from_directory(options.tokenizer)
        if options.dry_run:
            estimate = estimate_shards(
                options.corpus, tokenizer, options.by_length, threads=_threads(options)
            )
            return ShardsResult(folders=folders, estimate=estimate, notices=bar.notices)

        def show(done: ShardsProgress) -> None:
            bar.update(done.bytes_read, done.total_bytes, note=f"{done.instances} so far")

        share = None if options.units is None else UnitShare.parse(options.units)
        manifests = write_shards(
            options.corpus,
            options.output,
            tokenizer,
            *options.by_length,
            overwrite=options.overwrite,
            progress=show,
            runner=_runner(options),
            share=share,
            finish=options.finish,
            threads=_threads(options),
            notice=bar.print,
        )
    if len(manifests) > 1:
        lengths = [str(manifest.options["max_seq_length"]) for manifest in manifests]
        folders = [joined(options.output, length) for length in lengths]
    return ShardsResult(folders=folders, manifests=manifests, notices=bar.notices)


def _runner(options: Options) -> "Runner | None":
    """What makes the units; None for this process."""
    if options.runner == "beam":
        # Its default runner's workers log every start and end.
        logging.getLogger().setLevel(logging.ERROR)
        from bert_tf.pipelines.shards.workers import BeamRunner

        return BeamRunner(options.beam_options)
    if options.dask is None and options.workers == 1:
        return None
    from bert_tf.pipelines.shards.workers import ExecutorRunner, dask_workers, process_pool

    dask = options.dask
    pool = process_pool(options.workers) if dask is None else dask_workers(dask)
    return ExecutorRunner(pool, options.retries)


def _threads(options: Options) -> int | None:
    if options.threads is not None:
        return options.threads
    if options.dask is not None:
        return 1  # the scheduler runs a unit on each thread of a worker
    return max(1, available_cores() // options.workers) if options.workers > 1 else None


def show(result: ShardsResult, options: Options) -> None:
    console.print(str(result))
    if result.manifests:
        shards, *longer = result.folders
        more = ["--long_shards", longer[0]] if len(longer) == 1 else []
        following = command_line(
            *("pretrain", "--shards", shards, *more, "--size", "small", "--steps", 10_000),
            *("--output", "runs/pretrained"),
        )
        console.print(f"Inspect them: {command_line('inspect', '--shards', shards)}")
        console.print(f"Next: {following}")


COMMAND = Command(
    name="shards",
    help=__doc__,
    options=Options,
    run=run,
    show=show,
    common="corpus tokenizer output max_seq_length corpus_format masking dupe_factor "
    "held_out_share workers overwrite",
)
make_shards = COMMAND.function("make_shards")
