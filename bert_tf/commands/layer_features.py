"""Features of text: vectors from chosen layers of an encoder (paper, section 5.3), and their files.

docs/features.md has the fields of the files: TFRecord, NumPy's .npy and JSON lines.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import replace_file
from bert_tf.models.chosen_layers import check_layers, choose_layers
from bert_tf.models.encoder import BertEncoder
from bert_tf.networks.heads import mean_over_tokens
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.windows import map_rows, word_rows
from bert_tf.tokenization.words import code_points, spans, words_between_spaces, words_of_raw_text

Per = Literal["token", "word", "text"]
Pooling = Literal["first", "mean", "pooler"]
Strings = Mapping[str, Sequence[str]]  # by input
Write = Callable[[dict[str, Any]], object]

_POOLING: dict[Per, tuple[Pooling, ...]] = {  # the first is the default
    "token": (),
    "word": ("first", "mean"),
    "text": ("mean", "first", "pooler"),
}


@dataclass
class FeatureExtractor:
    """Computes vectors [W] of texts; W is `width`.

    Args:
        encoder, tokenizer: the encoder, with its tokenizer.
        layers: see `choose_layers`; empty for the last one.
        per: "token" for a vector of every token, [CLS] and [SEP] included; "word" or "text".
        pooling: for words the "first" piece, the default, or the "mean" over the pieces; for texts
            the "mean" over the tokens, the default, the "first" ([CLS], or the last token if the
            encoder reads from left to right), or the output of the "pooler".
        max_length: maximum tokens of a row, [CLS] and [SEP] included; 0 for the encoder's own.
            Longer texts are truncated, but words are read in windows that overlap by half.

    Raises InputError if the encoder lacks a layer or positions, or the pooling is for other units.
    """

    encoder: BertEncoder
    tokenizer: BertTokenizer
    layers: Sequence[str] = ()
    per: Per = "token"
    pooling: Pooling | None = None
    max_length: int = 0

    def __post_init__(self) -> None:
        if self.pooling is not None and self.pooling not in _POOLING[self.per]:
            fits = " and ".join(unit for unit in _POOLING if self.pooling in _POOLING[unit])
            raise InputError(f"--pooling {self.pooling} is for --per {fits}: leave it out")
        if self.pooling == "pooler" and self.layers:
            raise InputError("--pooling pooler reads the last layer alone: leave --layers out")
        self.layers = self.layers or ("last",)
        self.width = check_layers(self.layers, self.encoder.config)
        self.max_length = self.max_length or self.encoder.config.max_position_embeddings
        self.encoder.config.check_fits(length=self.max_length)
        self.pooling = self.pooling or next(iter(_POOLING[self.per]), None)

    def __call__(self, strings: Strings, batch_size: int) -> Iterator[dict[str, Any]]:
        """Yields a record for each text, in order.

        `strings` are "text", and "text_pair" for pairs; or "words", words between spaces. Records
        are "text" (and "pair"), and for texts "vector", float32 [W]; else "tokens" or "words" (U
        strings), "vectors", float32 [U, W], and for words their places in the text "starts" and
        "ends", int64 [U], in code points. "cut" says whether the text was cut.
        """
        if "text_pair" in strings:
            if self.per == "word":
                raise InputError(
                    "--per word is for single texts: give --per token, or leave --pair_column out"
                )
            self.encoder.config.check_fits(length=self.max_length, pairs=True)
        compute = self._of_words if self.per == "word" else self._of_texts
        specs = {name: tf.TensorSpec([None], tf.string) for name in strings}
        traced = tf.function(compute, autograph=False).get_concrete_function(specs)
        for start in range(0, len(next(iter(strings.values()))), batch_size):
            batch = {name: values[start : start + batch_size] for name, values in strings.items()}
            tensors = {name: tf.constant(list(x), tf.string) for name, x in batch.items()}
            yield from _records(batch, {name: x.numpy() for name, x in traced(tensors).items()})

    def _vectors(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        states = self.encoder(inputs, training=False, padding="zeros")["hidden_states"]
        if self.pooling == "first" and self.per == "text":
            summary = self.encoder.config.architecture.summary
            mask = inputs["padding_mask"]
            states = [summary(x, mask)[:, tf.newaxis] for x in states]
        return tf.cast(choose_layers(states, self.layers), tf.float32)

    def _of_texts(self, strings: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        names = ("text", "words", "text_pair")
        ids = [self.tokenizer.tokenize(strings[name]) for name in names if name in strings]
        pack = Packer(self.tokenizer, self.max_length)
        inputs = pack(*ids)
        mask = inputs["padding_mask"]  # (B, T)
        cut = {"cut": pack.truncated(*(pieces.row_lengths() for pieces in ids)) > 0}
        if self.pooling == "pooler":
            pooled = self.encoder(inputs, training=False, only="pooled_output")["pooled_output"]
            return {"vector": tf.cast(pooled, tf.float32), **cut}
        vectors = self._vectors(inputs)  # (B, T, W)
        if self.pooling == "first":
            return {"vector": vectors[:, 0], **cut}
        if self.pooling == "mean":
            return {"vector": mean_over_tokens(vectors, mask), **cut}
        is_token = mask == 1
        pieces = tf.gather(tf.constant(self.tokenizer.vocabulary), inputs["token_ids"])
        return {
            "tokens": tf.boolean_mask(pieces, is_token),
            "vectors": tf.boolean_mask(vectors, is_token),
            "counts": tf.reduce_sum(mask, -1),  # (B,)
            **cut,
        }

    def _of_words(self, strings: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        ((name, texts),) = strings.items()
        split = words_between_spaces if name == "words" else words_of_raw_text
        words = split(texts, self.tokenizer)
        rows = word_rows(words, tf.size(texts), self.tokenizer, self.max_length)
        vectors = map_rows(self._vectors, rows.inputs)  # (R, T, W)
        if self.pooling == "first":
            word_vectors = tf.gather_nd(vectors, rows.first_pieces)
        else:
            piece_vectors = tf.gather_nd(vectors, rows.pieces)  # (P, W)
            word_vectors = tf.math.segment_mean(piece_vectors, words.pieces.value_rowids())
        return {
            "words": spans(texts, words.text_index, words.starts, words.ends),
            "starts": code_points(texts, words.text_index, words.starts),
            "ends": code_points(texts, words.text_index, words.ends),
            "vectors": word_vectors,
            "counts": tf.math.unsorted_segment_sum(
                tf.ones_like(words.text_index), words.text_index, tf.size(texts)
            ),
            "cut": tf.zeros_like(texts, tf.bool),
        }


def _records(batch: Strings, units: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """The records of a batch, from the units of all texts one after another."""
    cut = units.pop("cut")
    counts = units.pop("counts", None)
    parts: Mapping[str, Any] = units
    if counts is not None:
        ends = np.cumsum(counts)[:-1]
        parts = {name: np.split(values, ends) for name, values in units.items()}
    keys = {"words": "text", "text": "text", "text_pair": "pair"}
    for number in range(len(cut)):
        texts = {keys[name]: values[number] for name, values in batch.items()}
        record = {name: values[number] for name, values in parts.items()}
        for name in {"tokens", "words"} & record.keys():
            record[name] = [unit.decode("utf-8", "replace") for unit in record[name]]
        yield {**texts, **record, "cut": bool(cut[number])}


def written_files(path: Path, per: Per) -> list[Path]:
    """The files that `feature_file` writes; InputError if the name does not tell the format."""
    if path.suffix not in _FORMATS:
        raise InputError(f"{path}: unknown format: name a file {', '.join(_FORMATS)}")
    several = path.suffix == ".npy" and per != "text"
    return [path, Path(f"{path}.jsonl")] if several else [path]


def how_to_read(path: str | Path) -> str:
    """Python that opens the file."""
    return _FORMATS[Path(path).suffix][1].format(path)


def feature_file(path: Path, width: int) -> AbstractContextManager[Write]:
    """Yields a function that writes a record of `FeatureExtractor`; the file appears at the end.

    A .npy file holds the vectors, of this `width`, of all records one after another. Where a text
    has several, a second file, <path>.jsonl, holds the other fields of each record.
    """
    return _FORMATS[path.suffix][0](path, width)


@contextmanager
def _json_lines(path: Path, width: int) -> Iterator[Write]:
    """Numbers have six decimals, as in the original's extract_features.py."""

    def plain(value: np.ndarray) -> list[Any]:
        return (value.astype(np.float64) if value.dtype.kind == "f" else value).round(6).tolist()

    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        encode = json.JSONEncoder(ensure_ascii=False, default=plain).encode
        yield lambda record: file.write(encode(record) + "\n")


@contextmanager
def _tfrecord(path: Path, width: int) -> Iterator[Write]:
    def feature(value: Any) -> tf.train.Feature:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=value.ravel()))
        if isinstance(value, np.ndarray):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        texts = [value] if isinstance(value, str) else value
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))

    def example(record: dict[str, Any]) -> bytes:
        features = {name: feature(value) for name, value in record.items()}
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        yield lambda record: writer.write(example(record))


@contextmanager
def _npy(path: Path, width: int) -> Iterator[Write]:
    rows = 0

    def write_header() -> None:
        # NumPy leaves room in it for the first axis to grow.
        file.seek(0)
        description = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, description)

    with ExitStack() as stack:
        # The vectors appear last: where they are, the other file is.
        file = stack.enter_context(stack.enter_context(replace_file(path)).open("wb"))
        write_others: Write | None = None
        write_header()

        def write(record: dict[str, Any]) -> None:
            nonlocal rows, write_others
            others = dict(record)
            vectors = others.pop("vectors" if "vectors" in others else "vector")
            rows += len(np.atleast_2d(vectors)) if vectors.size else 0
            file.write(vectors.astype("<f4").tobytes())
            if "vectors" in record:
                if write_others is None:
                    lines = _json_lines(Path(f"{path}.jsonl"), width)
                    write_others = stack.enter_context(lines)
                write_others(others)

        yield write
        write_header()


# Extension -> what writes it, and Python that opens it.
_FORMATS: dict[str, tuple[Callable[[Path, int], AbstractContextManager[Write]], str]] = {
    ".npy": (_npy, 'np.load("{}", mmap_mode="r")'),
    ".jsonl": (_json_lines, '[json.loads(line) for line in open("{}")]'),
    ".tfrecord": (_tfrecord, 'tf.data.TFRecordDataset("{}")'),
}
