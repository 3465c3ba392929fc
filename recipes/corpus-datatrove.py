"""Web text to documents for `bert-tf shards`, with datatrove: quality, near-duplicates, a report.

    pip install datatrove "tokenizers<1" spacy orjson regex tldextract nltk
    python recipes/corpus-datatrove.py --input crawl/ --output clean/ --language de --workers 8
    bert-tf shards --corpus clean/text/ --tokenizer vocab/ --output shards/ --masking dynamic

The input holds JSON lines with the field `text` (`*.jsonl`, or `*.jsonl.gz`), such as datatrove's
readers of WARC files and extractors of text write. Each step writes what it drops to
OUTPUT/dropped, and the report counts it and shows samples: read them, and change the limits below
for your language, before you train on what is left.
"""

import argparse
import gzip
import json
import random
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig

STEPS = ("repetition", "quality", "duplicates")


def clean(source: str, output: Path, language: str, tasks: int, workers: int) -> None:
    """Filters documents, then removes all but one of those that are nearly the same."""
    work, dropped = output / "work", output / "dropped"
    settings = MinhashConfig(hash_config=HashConfig(hash_fc="sha1"))

    def run(name: str, steps: list, tasks: int) -> None:
        logs = str(work / "logs" / name)
        LocalPipelineExecutor(steps, tasks=tasks, workers=workers, logging_dir=logs).run()

    kept = str(work / "kept")
    run(
        "filters",
        [
            JsonlReader(source),
            GopherRepetitionFilter(
                language=language, exclusion_writer=JsonlWriter(str(dropped / "repetition"))
            ),
            GopherQualityFilter(
                language=language,
                min_stop_words=0,  # its stop words are English
                exclusion_writer=JsonlWriter(str(dropped / "quality")),
            ),
            JsonlWriter(kept),
        ],
        tasks,
    )
    if not documents(work / "kept"):
        return  # the report says why
    signatures, buckets, clusters = (str(work / name) for name in ("signatures", "buckets", "ids"))
    run(
        "signatures",
        [JsonlReader(kept), MinhashDedupSignature(signatures, settings, language)],
        tasks,
    )
    run(
        "buckets", [MinhashDedupBuckets(signatures, buckets, config=settings)], settings.num_buckets
    )
    run("clusters", [MinhashDedupCluster(buckets, clusters, config=settings)], 1)
    run(
        "duplicates",
        [
            JsonlReader(kept),
            MinhashDedupFilter(clusters, exclusion_writer=JsonlWriter(str(dropped / "duplicates"))),
            JsonlWriter(str(output / "text")),
        ],
        tasks,
    )


def documents(folder: Path) -> list[dict]:
    """The documents that a step wrote."""
    found = []
    for path in sorted(folder.rglob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found += map(json.loads, file)
    return found


def report(output: Path, samples: int) -> str:
    """What each step dropped, with samples, as Markdown."""
    lines = ["# What was dropped", ""]
    for step in STEPS:
        found = documents(output / "dropped" / step)
        lines += [f"## {step}: {len(found)} documents", ""]
        for document in random.Random(1).sample(found, min(samples, len(found))):
            reason = document["metadata"].get("filter_reason", "nearly the same as another")
            lines.append(f"- {reason}: {document['text'][:200]!r}")
        lines.append("")
    lines.append(f"{len(documents(output / 'text'))} documents are left.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--language", default="en", help="two letters, for words and stop words")
    parser.add_argument("--tasks", type=int, default=16, help="parts of the input")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--samples", type=int, default=5, help="samples per step in the report")
    given = parser.parse_args()
    clean(given.input, given.output, given.language, given.tasks, given.workers)
    (given.output / "report.md").write_text(report(given.output, given.samples), encoding="utf-8")


if __name__ == "__main__":
    main()
