"""Estimates the time and the space of a run from a few megabytes of its text."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipelines.corpus.documents import DocumentBatch, UnitReader
from pipelines.corpus.formats import empty_corpus, input_errors
from pipelines.corpus.sources import CorpusInputs
from pipelines.data_options import PretrainingDataOptions
from pipelines.instances.records import record_batches
from pipelines.shards.manifest import FRAME_BYTES
from pipelines.shards.writing import corpus_of, plan_of

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer

_SAMPLED_BYTES = 16 << 20


class Estimate(NamedTuple):
    text_bytes: int  # of the corpus; an estimate if it is compressed
    units: int
    seconds: float  # of one process
    shard_bytes: int


def estimate_shards(
    inputs: CorpusInputs,
    tokenizer: "BertTokenizer",
    options: Sequence[PretrainingDataOptions],
    *,
    threads: int | None = None,
) -> Estimate:
    """Makes instances of some text from the middle of the corpus, and writes nothing."""
    corpus, first = corpus_of(inputs, tokenizer, options[0]), options[0]
    # Donors are drawn from all of the text, which takes no part in the time of a unit.
    plan = plan_of(corpus, first)
    sizes: list[int] = []

    def batches() -> Iterator[DocumentBatch]:
        middle = len(corpus.units) // 2
        for unit in [*range(middle, len(corpus.units)), *range(middle)]:
            for batch in UnitReader(
                unit,
                corpus.units[unit],
                first,
                plan,
                buffer_bytes=first.buffer_bytes,
                group_bytes=_SAMPLED_BYTES,
            ):
                sizes.append(sum(map(len, batch.lines[~batch.is_donor])))
                yield batch
                if sum(sizes) >= _SAMPLED_BYTES:
                    return

    began, traced, made = time.monotonic(), 0.0, 0
    with input_errors():
        records = record_batches(
            batches(), tokenizer, options, corpus.split_sentences, threads=threads
        )
        for number, batch in enumerate(records):
            if number == 0:  # which traced the graph
                traced = time.monotonic() - began
            for each in batch.lengths:
                made += sum(map(len, each.records)) + FRAME_BYTES * len(each.records)
    if not sum(sizes):
        raise empty_corpus(corpus.name)
    rest = len(sizes) - 1 or 1
    seconds = time.monotonic() - began - (traced if len(sizes) > 1 else 0.0)
    speed = sum(sizes[-rest:]) / seconds
    return Estimate(
        corpus.text_bytes,
        len(corpus.units),
        corpus.text_bytes / speed,
        round(made / sum(sizes) * corpus.text_bytes),
    )
