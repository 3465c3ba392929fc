r"""Fine-tunes a classifier on JAX: on one GPU, on several, or on a TPU, without TensorFlow.

    KERAS_BACKEND=jax python recipes/finetune_on_jax.py --model runs/jax/last --train train.tsv \
      --dev dev.tsv --text sentence --label label --output runs/sst2 --batch_size 32

The files are tab-separated with a line of names. --text names one column, or two of a pair. A
stopped run continues from its last checkpoint: give the same command again. `last/` of the run is a
model directory.
"""

import csv
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tokenizers import BertWordPieceTokenizer  # pip install "tokenizers<1"
from training_on_jax import distribute, parser, train

from bert_tf import BertClassifier, WarmupLinearDecay, save_model

VOCABULARY = ("vocab.txt", "tokenizer_config.json")


def read(path: str, text: list[str], label: str) -> tuple[list[Any], list[str]]:
    """Texts, or pairs of them, and labels."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    missing = [name for name in (*text, label) if not rows or name not in rows[0]]
    if missing:
        raise SystemExit(f"{path}: no column {missing[0]!r}: give --text and --label")
    columns = [[row[name] for row in rows] for name in text]
    texts = columns[0] if len(text) == 1 else list(zip(*columns, strict=True))
    return texts, [row[label] for row in rows]


def encode(texts: list[Any], directory: str, length: int) -> dict[str, np.ndarray]:
    """The model's inputs, int32 [rows, length]."""
    settings = json.loads(Path(directory, VOCABULARY[1]).read_text())
    tokenizer = BertWordPieceTokenizer(
        str(Path(directory, VOCABULARY[0])),
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    rows = tokenizer.encode_batch(texts)
    names = {"token_ids": "ids", "segment_ids": "type_ids", "padding_mask": "attention_mask"}
    return {
        name: np.array([getattr(row, theirs) for row in rows], np.int32)
        for name, theirs in names.items()
    }


def batches(inputs: Any, labels: np.ndarray, size: int, seed: int, start: int) -> Iterator[Any]:
    """Full batches without end, after the first `start`, in a new random order each epoch."""
    epoch, passed = divmod(start * size, len(labels))
    rows = np.array([], int)
    for number in itertools.count(epoch):
        rows = np.append(rows, np.random.default_rng([seed, number]).permutation(len(labels)))
        rows, passed = rows[passed:], 0
        while len(rows) >= size:
            batch, rows = rows[:size], rows[size:]
            weights = {"loss": np.ones(size, np.float32)}
            yield {name: x[batch] for name, x in inputs.items()}, {"loss": labels[batch]}, weights


def main() -> None:
    """Trains, and prints the accuracy on the development set at each checkpoint."""
    options = parser(__doc__)
    options.set_defaults(batch_size=32, learning_rate=3e-5)
    options.add_argument("--model", required=True, help="model directory to start from")
    options.add_argument("--train", required=True, help="tab-separated file")
    options.add_argument("--dev", required=True, help="tab-separated file")
    options.add_argument("--text", nargs="+", default=["sentence"], help="one column or two")
    options.add_argument("--label", default="label", help="column of the labels")
    options.add_argument("--epochs", type=float, default=3.0)
    options.add_argument("--max_length", type=int, default=128, help="tokens of a row")
    given = options.parse_args()
    distribute(given)
    texts, names = read(given.train, given.text, given.label)
    classes = sorted(set(names))
    model = BertClassifier.from_directory(
        given.model, labels=classes, allow_new_head=True, seed=given.seed
    )
    number = {name: n for n, name in enumerate(classes)}
    inputs = encode(texts, given.model, given.max_length)
    labels = np.array([number[name] for name in names], np.int32)
    dev_texts, dev_names = read(given.dev, given.text, given.label)
    dev = encode(dev_texts, given.model, given.max_length)
    right = np.array([number.get(name, -1) for name in dev_names])

    @jax.jit
    def classify(trainable: Any, others: Any, inputs: Any) -> Any:
        return model.stateless_call(trainable, others, inputs, training=False)[0].argmax(-1)

    steps = max(1, round(given.epochs * len(labels) / given.batch_size))
    rate = WarmupLinearDecay(given.learning_rate, steps // 10, steps)

    def after(start: int) -> Iterator[Any]:
        return batches(inputs, labels, given.batch_size, given.seed, start)

    last = Path(given.output, "last")
    for step in train(model, rate, after, given):
        values = [
            [v.value for v in part]
            for part in (model.trainable_variables, model.non_trainable_variables)
        ]
        size = given.batch_size
        found = [
            np.asarray(classify(*values, {name: x[n : n + size] for name, x in dev.items()}))
            for n in range(0, len(right), size)
        ]
        print(f"step {step} accuracy {np.mean(np.concatenate(found) == right):.4f}", flush=True)
        save_model(model, last)
        for name in VOCABULARY:
            shutil.copy(Path(given.model, name), last)


if __name__ == "__main__":
    main()
