"""Checks against TensorFlow's Model Garden that shards are interchangeable with the original's.

    python benchmarks/interchange.py

What `bert-tf shards` writes is read by Model Garden's `BertPretrainDataLoader`, and what its data
script writes is read by `bert_tf.pipelines.shards.pretraining_batches` and trained on by `bert-tf
pretrain`; each value is compared with what `tf.train.Example` says is in the record. The text is
the documentation inside this Python, or the plain text of --corpus.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from model_garden import data_script, loaded_by_peer, peer_python
from shard_processes import prepare, share, tokenizer_folder

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LENGTH, PREDICTIONS = 128, 20


def run(command: list) -> None:
    """Runs a process and shows its output only if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command[:4]))} ... failed:\n{done.stdout}{done.stderr}")


def records(files: list[Path]) -> dict:
    """Feature -> NumPy array [records, values], as `tf.train.Example` reads them, in order."""
    import numpy as np
    import tensorflow as tf

    found: dict[str, list] = {}
    for file in files:
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            for name, feature in tf.train.Example.FromString(record).features.feature.items():
                values = feature.int64_list.value or feature.float_list.value
                found.setdefault(name, []).append(values)
    return {name: np.array(values) for name, values in found.items()}


def check(what: str, expected: dict, found: dict, names: dict[str, str]) -> None:
    """Compares all values; `names` maps features of `expected` to those of `found`."""
    import numpy as np

    for name, values in expected.items():
        np.testing.assert_array_equal(
            found[names.get(name, name)].reshape(values.shape), values, err_msg=f"{what}: {name}"
        )
    instances = len(next(iter(expected.values())))
    print(f"{what}: {instances:,} instances, {len(expected)} features, all equal")


def main() -> None:
    """Writes with one and reads with the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, help="folder of plain text, gzipped or not")
    parser.add_argument("--vocab", type=Path, help="vocab.txt; learned from the corpus if missing")
    parser.add_argument("--megabytes", type=float, default=0.5, help="size of the corpus")
    parser.add_argument(
        "--peer-python",
        type=Path,
        help="Python with Model Garden; by default .venv-model-garden is made",
    )
    options = parser.parse_args()
    python = peer_python(options.peer_python)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        corpus, tokenizer = work / "corpus", work / "tokenizer"
        prepare(str(options.corpus or ""), str(work / "all"))
        share(str(work / "all"), str(corpus), str(options.megabytes))
        tokenizer_folder(str(options.vocab or ""), str(work / "all"), str(tokenizer))
        ours_to_peer(python, corpus, tokenizer, work)
        peer_to_ours(python, corpus, tokenizer, work)


def ours_to_peer(python: Path, corpus: Path, tokenizer: Path, work: Path) -> None:
    """Reads our shards with Model Garden."""
    import numpy as np

    run(
        [sys.executable, "-m", "bert_tf.cli", "shards", "--corpus", corpus, "--tokenizer",
         tokenizer, "--output", work / "ours", "--max_seq_length", LENGTH]
    )  # fmt: skip
    files = sorted((work / "ours").glob("*.tfrecord"))
    loaded = work / "loaded.npz"
    run(
        loaded_by_peer(
            python, files, loaded, max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS
        )
    )
    check(
        "bert-tf shards, read by Model Garden",
        records(files),
        dict(np.load(loaded)),
        {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"},
    )


def peer_to_ours(python: Path, corpus: Path, tokenizer: Path, work: Path) -> None:
    """Reads the peer's shards with our reader and trains on them."""
    import numpy as np

    from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches

    folder = work / "peer"
    folder.mkdir()
    run(
        data_script(
            python,
            sorted(corpus.iterdir()),
            folder / "instances.tfrecord",
            tokenizer / "vocab.txt",
            max_seq_length=LENGTH,
            max_predictions_per_seq=PREDICTIONS,
        )
    )
    batches = pretraining_batches(folder, 64, shuffle=False, repeat=False)
    assert batches is not None  # for the folder has shards
    read: dict[str, list] = {}
    for inputs, labels, weights in batches.as_numpy_iterator():
        for values in (inputs, labels, {"masked_lm_weights": weights["mlm_logits"]}):
            for name in values:
                read.setdefault(name, []).append(values[name])
    check(
        "Model Garden's shards, read by bert-tf",
        records(sorted(folder.iterdir())),
        {name: np.concatenate(values) for name, values in read.items()},
        {
            "input_ids": "token_ids",
            "input_mask": "padding_mask",
            "masked_lm_positions": "mask_positions",
            "masked_lm_ids": "mlm_logits",
            "next_sentence_labels": "nsp_logits",
        },
    )
    run(
        [sys.executable, "-m", "bert_tf.cli", "pretrain", "--shards", folder, "--tokenizer",
         tokenizer, "--size", "tiny", "--steps", 4, "--batch_size", 8, "--output", work / "run"]
    )  # fmt: skip
    print("Model Garden's shards: 4 steps of bert-tf pretrain on them")


if __name__ == "__main__":
    main()
