r"""Make TFRecord shards of pre-training instances from text.

  bert-tf shards --corpus text/ --tokenizer vocab/ --output shards/
  bert-tf shards --corpus articles.jsonl.zst --tokenizer vocab/ --output shards/ --masking dynamic
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

from bert_tf.api.progress import console, typed
from bert_tf.api.shards import ShardsOptions as Options
from bert_tf.api.shards import make_shards

COMMON = (
    "corpus", "tokenizer", "output", "max_seq_length", "corpus_format", "masking", "dupe_factor",
    "held_out_share", "workers", "overwrite",
)  # fmt: skip


def run(options: Options) -> None:
    result = make_shards.of(options)
    console.print(str(result))
    if result.manifests:
        shards = result.folders[0]
        more = f" --long_shards {result.folders[-1]}" if len(result.folders) == 2 else ""
        then = f"pretrain --shards {shards}{more} --size small --output runs/pretrained"
        console.print(f"Inspect them: {typed('bert-tf')} inspect --shards {shards}")
        console.print(f"Next: {typed('bert-tf')} {then}")
