r"""Make TFRecord shards of pre-training instances from text.

  bert-tf shards --corpus text/ --tokenizer vocab/ --output shards/
  bert-tf shards --corpus articles.jsonl.zst --tokenizer vocab/ --output shards/ --masking dynamic
  bert-tf shards --corpus tfds:wikipedia/20230601.en --tokenizer vocab/ --output shards/ \
    --max_seq_length 128 512

Reads text with a sentence per line and a blank line between documents, plain text in paragraphs
(--corpus_format text), JSONL, or a dataset of TensorFlow Datasets; files may be compressed with
gzip, zstd, xz or bzip2. Two sequence lengths make two folders in one pass. The same command resumes
a stopped run; until it is done, OUTPUT.unfinished holds the work.

The output holds shards, held-out shards, the vocabulary and manifest.json. Choose --masking dynamic
for new work; static writes the features of the original's script.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bert_tf.cli.progress import console, progress, typed
from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, option
from bert_tf.outputs import check_output_folder
from pipelines.options import PretrainingDataOptions

if TYPE_CHECKING:
    from pipelines.shards.manifest import Manifest


@dataclass(kw_only=True)
class Options(PretrainingDataOptions):
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


def run(options: Options) -> None:
    check_output_folder(options.output, [*options.corpus, options.tokenizer])
    with progress("making instances", total=1) as bar:
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
    found = {name: count for name, count in manifests[0].irregularities.items() if count}
    if found:
        listed = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.items())
        console.print(f"Found in the text: {listed}")
    for manifest in manifests:
        for line in _lost_text(manifest):
            console.print(line)
    kind = "rows of instances" if options.instances_per_row > 1 else "instances"
    folders = [Path(options.output)]
    if len(manifests) > 1:
        folders = [folders[0] / str(m.options["max_seq_length"]) for m in manifests]
    for folder, manifest in zip(folders, manifests, strict=True):
        size = sum(shard.bytes for shards in manifest.shards.values() for shard in shards)
        console.print(
            f"{manifest.instances()} training and {manifest.instances('held_out')} held-out "
            f"{kind} from {manifest.documents} documents, {size / 1e6:.1f} MB: {folder}"
        )
    if options.held_out_share and not manifests[0].instances("held_out"):
        console.print(
            "Nothing was held out for evaluation, because the corpus has fewer than four different "
            "documents: put blank lines between chapters, or add files"
        )
    long = f"--long_shards {folders[-1]} " if len(folders) == 2 else ""
    console.print(
        f"Inspect them: {typed('bert-tf')} inspect --shards {folders[0]}\n"
        f"Next: {typed('bert-tf')} pretrain --shards {folders[0]} {long}--size small "
        "--output runs/pretrained"
    )


# The original's pairs drop 10% of Wikipedia's tokens at a length of 128, and 20% at 64.
_MUCH_DROPPED = 0.2
_NEARLY_ALL = 0.9


def _lost_text(manifest: "Manifest") -> Iterator[str]:
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
