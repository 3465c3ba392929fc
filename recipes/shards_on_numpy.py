"""Reads the shards of `bert-tf shards --masking static` without TensorFlow.

Windows of shards are read whole and their records shuffled, in an order that is a function of the
seed and the epoch. Batches run across windows and epochs, so every batch is full.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

WINDOW = 4  # shards whose records are shuffled together
_FLOATS = "masked_lm_weights"  # the other features are integers


def batches(folder: str, size: int, *, seed: int | None = 0, start: int = 0) -> Iterator[Any]:
    """Batches without end, after the first `start`; without a seed in the order of the files.

    A batch is (inputs, labels, weights): int32 [B, L] and [B, P], labels int32 [B, P] and [B], and
    float32 weights of the labels, 0 for empty slots.
    """
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    options, shards = manifest["options"], manifest["shards"]["train"]
    if options["masking"] != "static" or options.get("instances_per_row", 1) > 1:
        raise SystemExit(f"{folder}: make shards with --masking static and one instance per row")
    of_pairs = np.full(size, options["instances"] == "sentence_pairs", np.float32)
    first_epoch, passed = divmod(start * size, sum(shard["instances"] for shard in shards))
    rest = None  # records that do not fill a batch
    for epoch in itertools.count(first_epoch):
        draw = np.random.default_rng([seed or 0, epoch])
        order = np.arange(len(shards)) if seed is None else draw.permutation(len(shards))
        for begin in range(0, len(order), WINDOW):
            window = [shards[n] for n in order[begin : begin + WINDOW]]
            count = sum(shard["instances"] for shard in window)
            rows = np.arange(count) if seed is None else draw.permutation(count)
            if passed >= count:
                passed -= count
                continue
            read = [_read_shard(Path(folder, shard["file"]), shard["sha256"]) for shard in window]
            records = {n: np.concatenate([x[n] for x in read])[rows[passed:]] for n in read[0]}
            if rest:
                records = {n: np.concatenate([rest[n], x]) for n, x in records.items()}
            full = len(records[_FLOATS]) // size * size
            for first in range(0, full, size):
                x = {name: values[first : first + size] for name, values in records.items()}
                inputs = {"token_ids": x["input_ids"], "segment_ids": x["segment_ids"]}
                inputs["padding_mask"] = x["input_mask"]
                inputs["mask_positions"] = x["masked_lm_positions"]
                is_random = x["next_sentence_labels"][:, 0]
                labels = {"mlm_logits": x["masked_lm_ids"], "nsp_logits": is_random}
                yield inputs, labels, {"mlm_logits": x[_FLOATS], "nsp_logits": of_pairs}
            rest, passed = {name: values[full:] for name, values in records.items()}, 0


def _read_shard(path: Path, sha256: str) -> dict[str, np.ndarray]:
    """The features of a TFRecord file of `tf.train.Example`s, [records, values], by name."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:  # and so are the checksums of all records
        raise SystemExit(f"{path}: checksum mismatch: copy the shards again")
    lists: dict[str, list[bytes]] = {}
    at = count = 0
    while at < len(content):  # a record: its length, 8 bytes, a checksum, 4, data, a checksum, 4
        size = int.from_bytes(content[at : at + 8], "little")
        (features,) = _fields(content[at + 12 : at + 12 + size])
        for entry in _fields(features):
            name, feature = _fields(entry)
            ((values,),) = map(_fields, _fields(feature))
            lists.setdefault(name.decode(), []).append(values)
        at, count = at + 16 + size, count + 1
    joined = {name: b"".join(values) for name, values in lists.items()}
    integers = {name: _integers(values) for name, values in joined.items() if name != _FLOATS}
    floats = {_FLOATS: np.frombuffer(joined[_FLOATS], "<f4")}
    return {name: values.reshape(count, -1) for name, values in (integers | floats).items()}


def _fields(message: bytes) -> Iterator[bytes]:
    """The contents of a message's fields, each after a byte for its number, and its length."""
    at = 0
    while at < len(message):
        size = shift = 0
        while message[at := at + 1] > 127:
            size |= (message[at] & 127) << shift
            shift += 7
        size |= message[at] << shift
        yield message[at + 1 : at + 1 + size]
        at += 1 + size


def _integers(packed: bytes) -> np.ndarray:
    """Integers of 7 bits a byte, the lowest first; the last byte of each lacks the eighth bit."""
    data = np.frombuffer(packed, np.uint8).astype(np.int32)
    ends = np.flatnonzero(data < 128)
    starts = np.append(0, ends[:-1] + 1)
    shifts = 7 * (np.arange(len(data)) - np.repeat(starts, ends - starts + 1))
    return np.add.reduceat((data & 127) << shifts, starts, dtype=np.int32)
