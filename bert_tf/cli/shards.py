"""Turn text into TFRecord shards of pre-training instances.

  bert-tf shards --corpus text/ --tokenizer vocab/ --output shards/

The text: a sentence a line, a blank line between documents; gzipped or not. The shards have the
features of the original's script, and the folder is complete: vocabulary, held-out shards and
manifest.json are in it. --dupe_factor N goes through the text N times, masked anew.
"""

from dataclasses import dataclass

from bert_tf.cli.progress import console, progress, typed
from pipelines.options import PretrainingDataOptions


@dataclass(kw_only=True)
class Options(PretrainingDataOptions):
    """Options of `bert-tf shards`.

    Attributes:
        corpus: text files, folders or globs.
        tokenizer: folder that `bert-tf vocab` wrote, or any BERT model directory.
        output: folder to make.
        overwrite: replace the folder if it is not empty.
    """

    corpus: list[str]
    tokenizer: str
    output: str
    overwrite: bool = False


def run(options: Options) -> None:
    """Runs `bert-tf shards`."""
    with progress("making instances", total=1) as bar:
        from bert_tf.tokenization import BertTokenizer
        from pipelines.shards import ShardsProgress, write_shards

        def show(done: ShardsProgress) -> None:
            bar.update(done.bytes_read, done.total_bytes, note=f"{done.instances} so far")

        manifest = write_shards(
            options.corpus,
            options.output,
            BertTokenizer.from_directory(options.tokenizer),
            options,
            overwrite=options.overwrite,
            progress=show,
        )
    held_out = manifest.instances("held_out")
    console.print(
        f"{manifest.instances()} instances, and {held_out} held out, of {manifest.documents} "
        f"documents: {options.output}\n"
        f"Next: {typed('bert-tf')} pretrain --shards {options.output} --size small "
        "--output runs/pretrained",
        markup=False,
    )
