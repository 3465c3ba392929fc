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

from bert_tf.api.shards import ShardsOptions as Options
from bert_tf.api.shards import run as make_shards
from bert_tf.cli.progress import console, typed


def run(options: Options) -> None:
    result = make_shards(options)
    folders = result.folders
    long = f"--long_shards {folders[-1]} " if len(folders) == 2 else ""
    lines = [
        *result.lines(),
        f"Inspect them: {typed('bert-tf')} inspect --shards {folders[0]}",
        f"Next: {typed('bert-tf')} pretrain --shards {folders[0]} {long}--size small "
        "--output runs/pretrained",
    ]
    console.print("\n".join(lines))
