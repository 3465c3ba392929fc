"""`bert_tf.make_shards`."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_tf.api.data import documents_as_file
from bert_tf.api.keywords import PathName, keywords
from bert_tf.api.progress import progress
from bert_tf.api.result import Result, Table
from bert_tf.api.vocabulary import Documents
from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, option
from bert_tf.outputs import check_output_folder
from pipelines.options import PretrainingDataOptions

if TYPE_CHECKING:
    from pipelines.shards.manifest import Manifest


@dataclass(kw_only=True)
class ShardsOptions(PretrainingDataOptions):
    """Options of `bert-tf shards`."""

    corpus: list[str] = option(path=True)
    """text files, folders, globs, or names of TensorFlow Datasets (tfds:NAME/CONFIG)."""
    tokenizer: str = option(path=True)
    """folder that `bert-tf vocab` wrote, or any BERT model directory."""
    output: str
    """folder to make."""
    max_seq_length: list[int] = option(  # type: ignore[assignment]
        factory=lambda: [128], at_least=5, at_most=2**16
    )
    """tokens per instance, [CLS] and both [SEP] included; several lengths are made in one pass over
    the corpus, each in a folder of its own in the output."""
    overwrite: bool = False
    """replace an older folder of shards."""
    runner: Literal["local", "beam"] = "local"
    """local, or beam for Apache Beam (pip install 'bert-tf[beam]')."""
    beam_options: str | None = None
    """Beam's own options in one string, "--runner=FlinkRunner ..."; by default its DirectRunner,
    with a process per core."""

    def __post_init__(self) -> None:
        CheckedOptions.__post_init__(self)
        if not self.max_seq_length:
            raise InputError("--max_seq_length is empty: give at least one length")
        if self.beam_options is not None and self.runner != "beam":
            raise InputError("--beam_options has no effect without --runner beam: add it")
        self.of_lengths = [
            PretrainingDataOptions(**(self.of_data() | {"max_seq_length": length}))
            for length in self.max_seq_length
        ]


@dataclass(kw_only=True)
class _Keywords(Documents, ShardsOptions):  # type: ignore[misc]
    tokenizer: PathName = option(path=True)  # type: ignore[assignment]


@dataclass(kw_only=True, repr=False, eq=False)
class ShardsResult(Result):
    """The outcome of `make_shards`.

    Attributes:
        folders: the folder of each length, the shortest first; the output itself if there is one.
        manifests: what manifest.json says in each.
    """

    folders: list[Path]
    manifests: "list[Manifest]"

    def lines(self) -> list[str]:
        lines = []
        found = {name: n for name, n in self.manifests[0].irregularities.items() if n}
        if found:
            listed = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in found.items())
            lines.append(f"Found in the text: {listed}")
        for manifest in self.manifests:
            lines += lost_text(manifest)
        made = self.manifests[0].data_options
        kind = "rows of instances" if made.instances_per_row > 1 else "instances"
        for folder, manifest in zip(self.folders, self.manifests, strict=True):
            lines.append(
                f"{manifest.instances()} training and {manifest.instances('held_out')} held-out "
                f"{kind} from {manifest.documents} documents, {_megabytes(manifest):.1f} MB: "
                f"{folder}"
            )
        if made.held_out_share and not self.manifests[0].instances("held_out"):
            lines.append(
                "Nothing was held out for evaluation, because the corpus has fewer than four "
                "different documents: put blank lines between chapters, or add files"
            )
        return lines

    def tables(self) -> Iterable[Table]:
        columns = ["folder", "tokens", "training", "held out", "documents", "MB"]
        rows = [
            [
                folder,
                manifest.data_options.max_seq_length,
                manifest.instances(),
                manifest.instances("held_out"),
                manifest.documents,
                f"{_megabytes(manifest):.1f}",
            ]
            for folder, manifest in zip(self.folders, self.manifests, strict=True)
        ]
        return [Table("Instances", columns, rows)]


def _megabytes(manifest: "Manifest") -> float:
    return sum(shard.bytes for shards in manifest.shards.values() for shard in shards) / 1e6


# The original's pairs drop 10% of Wikipedia's tokens at a length of 128, and 20% at 64.
_MUCH_DROPPED = 0.2
_NEARLY_ALL = 0.9


def lost_text(manifest: "Manifest") -> Iterator[str]:
    """What truncation dropped, with the options that help if it is much or labels are one-sided."""
    made, counted = manifest.data_options, manifest.statistics["train"]
    length, dropped = made.max_seq_length, counted["dropped_token_share"]
    cures = "--instances full_sentences"
    if not made.cut_long_sentences:
        cures = f"--cut_long_sentences true, or {cures}"
    if dropped > _MUCH_DROPPED:
        if made.corpus_format in ("auto", "sentences"):
            cures += ", or, if lines are paragraphs, --corpus_format text"
        yield (
            f"Warning: {dropped:.0%} of the tokens were dropped, because sentences are long for "
            f"--max_seq_length {length}: give {cures}"
        )
    elif dropped:
        yield f"Dropped by truncation to {length} tokens: {dropped:.1%} of the text"
    if (random_next := counted.get("is_random_next", 0.0)) > _NEARLY_ALL:
        yield (
            f"Warning: {random_next:.0%} of the next sentences are random, because nearly all "
            "documents are a single sentence, or sentences are longer than an instance: give "
            f"{cures}"
        )


def run(options: ShardsOptions, *, shown: bool = True) -> ShardsResult:
    check_output_folder(options.output, [*options.corpus, options.tokenizer])
    with progress("making instances", total=1, shown=shown) as bar:
        from bert_tf.tokenization import BertTokenizer
        from pipelines.shards.writing import ShardsProgress, write_shards_of_lengths

        runner = None
        if options.runner == "beam":
            # Its default runner's workers log every start and end.
            logging.getLogger().setLevel(logging.ERROR)
            from pipelines.shards.beam import BeamRunner

            runner = BeamRunner(options.beam_options)

        def show(done: ShardsProgress) -> None:
            bar.update(done.bytes_read, done.total_bytes, note=f"{done.instances} so far")

        manifests = write_shards_of_lengths(
            options.corpus,
            options.output,
            BertTokenizer.from_directory(options.tokenizer),
            options.of_lengths,
            overwrite=options.overwrite,
            progress=show,
            runner=runner,
        )
    folders = [Path(options.output)]
    if len(manifests) > 1:
        folders = [folders[0] / str(m.options["max_seq_length"]) for m in manifests]
    return ShardsResult(folders=folders, manifests=manifests, notices=bar.notices)


@keywords(_Keywords)
def make_shards(options: ShardsOptions, *, shown: bool, documents: Any = None) -> ShardsResult:
    """Makes TFRecord shards of pre-training instances from text, as `bert-tf shards` does.

    The same call continues a stopped run.

    ```python
    bert_tf.make_shards(
        documents=texts, tokenizer="vocab", output="shards", masking="dynamic"
    ).folders
    ```

    Returns:
        The folders, for `pretrain`, and what they hold.

    Raises:
        InputError: the text or the options cannot be used; the message says why.
    """
    from pipelines.shards.manifest import UNFINISHED

    with documents_as_file(options, documents, UNFINISHED) as files:
        return run(files, shown=shown)
