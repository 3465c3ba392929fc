"""Writes a corpus as TFRecord shards of pre-training instances, with a manifest, restartable.

Three steps, which one process or many take: a plan is entered in the journal; units, which are
independent, are made in any order; the manifest completes the folder. A killed run continues with
the first group that is missing in its journal, and ends with the bytes of an undisturbed run.
"""

import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.errors import InputError
from bert_tf.files.atomic import TEMPORARY_NAMES, StrPath
from bert_tf.files.outputs import check_content, check_output_folder
from bert_tf.files.storage import Folder, check_apart, check_output_url, is_remote, open_folder
from bert_tf.pipelines.corpus import documents, formats, sources
from bert_tf.pipelines.corpus.sources import Corpus, CorpusInputs
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances.record_batches import InstanceCounts, record_batches, summarize
from bert_tf.pipelines.shards.folder import TOKENIZER_FILES, store_tokenizer
from bert_tf.pipelines.shards.journal import TOKENIZER, Journal
from bert_tf.pipelines.shards.manifest import (
    BLOCKS_NAME,
    FILE_NAME,
    FRAME_BYTES,
    JOURNAL,
    SHARD_NAMES,
    Manifest,
    Shard,
)
from bert_tf.pipelines.shards.units import Report, ShardsJob, Unit, write_units
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.normalizer import decomposed_letters, is_chinese, strips_accents
from bert_tf.version import __version__

# Version of the plan and the journal; a change in how instances are made is a new one, too.
PLAN_FORMAT = 5
_LISTED_UNITS = 20  # in an error
_LISTED_SOURCES = 10_000  # in the manifest, which every reader holds
_SAMPLED_TEXTS = 50  # of 64 kB, for the bytes of a token
_JUDGED_TEXTS = 8
_SAMPLED_BYTES = 16 << 20  # for an estimate

# What is said of the format that was chosen.
_JUDGED = {
    "sentences": "Each line is read as a sentence, and a blank line as the end of a document "
    "(--corpus_format sentences)",
    "text": "Each file is read as a document in paragraphs, because sentences end within lines "
    "(--corpus_format text; if each line is a sentence, give --corpus_format sentences)",
    "sections": "Documents end at two blank lines, as between chapters, because up to three files "
    "are too few documents (--corpus_format sections; if each line is a sentence, give "
    "--corpus_format sentences)",
}

# Files in a folder of shards, of one length or with a subfolder per length.
_IN_FOLDER = (FILE_NAME, BLOCKS_NAME, *TOKENIZER_FILES, *SHARD_NAMES, TEMPORARY_NAMES)
_IN_JOURNAL = (f"{JOURNAL}/*", f"{JOURNAL}/{TOKENIZER}/*")
_FILES = (*_IN_FOLDER, *(f"[0-9]*/{name}" for name in _IN_FOLDER), *_IN_JOURNAL)


class ShardsProgress(NamedTuple):
    bytes_read: int  # of the corpus on disk
    total_bytes: int
    instances: int  # written so far


@dataclass(frozen=True)
class UnitShare:
    """The units of one of several processes that make a corpus together: each `of`th one."""

    number: int  # from 1 on
    of: int

    @classmethod
    def parse(cls, text: str) -> "UnitShare":
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise InputError(
                f"--units is {text}: give the process's number and the number of processes, such "
                "as 1/16 to 16/16"
            )
        return cls(int(number), int(of))


Runner = Callable[[ShardsJob, Sequence[Unit], Report], None]  # makes some units of a job


def write_shards(
    inputs: CorpusInputs,
    output_directory: StrPath,
    tokenizer: BertTokenizer,
    *options: PretrainingDataOptions,
    overwrite: bool = False,
    progress: Callable[[ShardsProgress], None] = lambda progress: None,
    runner: Runner | None = None,
    share: UnitShare | None = None,
    finish: bool = False,
    threads: int | None = None,
    notice: Callable[[str], object] = lambda line: None,
) -> list[Manifest]:
    """Makes pre-training instances of a corpus and writes them as TFRecord shards.

    Args:
        inputs: files, folders, globs and datasets.
        output_directory: folder to make, with a subfolder for each of several lengths.
        tokenizer: tokenizer of the text.
        options: one for each length; they differ in max_seq_length and max_predictions_per_seq.
        overwrite: remove an older folder of shards as soon as the inputs are found to be sound.
            It is known by its manifests: other files there are refused.
        progress: called after each batch of documents or, with a runner, each unit.
        runner: makes the units; by default this process does.
        share: make these units only, and no manifest; other processes make the others.
        finish: make no units: check the files of all, and write the manifests.
        threads: number of threads of a process; by default one per core.
        notice: called with a warning about the options or the vocabulary.

    Returns:
        The manifests, in order of length; none for a share. The same call continues a stopped run.

    Raises:
        InputError: the inputs cannot be used; the folder holds a run with others, or one that is
            still running; units are missing at the end.
        OSError: the disk is full.
    """
    by_length = sorted(options, key=lambda variant: variant.max_seq_length)
    lengths = [variant.max_seq_length for variant in by_length]
    if len(set(lengths)) < len(lengths):
        raise InputError("a max_seq_length is given twice: give each once")
    if share is not None and overwrite:
        raise InputError("--overwrite cannot be combined with --units: remove the folder first")
    corpus = _corpus_of(inputs, tokenizer, by_length[0])
    folder = _output_folder(output_directory, corpus, sources.listed(inputs))
    plan = _plan_of_run(corpus, tokenizer, by_length)
    journal = Journal(folder, lengths)
    if manifests := _made_before(journal, plan):
        return manifests
    _prepare_folder(journal, overwrite=overwrite, is_shared=share is not None, finish=finish)
    job = _job_of(str(folder), by_length, corpus, plan, threads)
    first_sources = [unit[0].source for unit in corpus.units]
    with journal.begun(plan, first_sources, is_shared=share is not None):
        if not finish:
            for line in _notices(corpus, tokenizer, by_length[0]):
                notice(line)
            _make_units(job, corpus, tokenizer, progress, runner, share)
        if share is not None:
            return []
        journal.check(checksums=finish or runner is not None)
        _check_complete(journal, len(corpus.units), finish=finish)
        journal.remove_dead()
        try:
            manifests = _finish(job, corpus, tokenizer, plan)
        except formats.EmptyCorpus:
            folder.clear()  # there is nothing to continue
            raise
    journal.remove()
    return manifests


def _plan_of_run(
    corpus: Corpus, tokenizer: BertTokenizer, by_length: Sequence[PretrainingDataOptions]
) -> dict[str, Any]:
    """Everything that the shards are a function of, as JSON reads it back."""
    vocabulary = {"hash": tokenizer.vocabulary_hash, "size": tokenizer.vocabulary_size}
    plan = {
        "options": [
            variant.data_settings() | {"corpus_format": corpus.format} for variant in by_length
        ],
        "vocabulary": {**vocabulary, "settings": tokenizer.settings},
        "units": [sources.unit_hash(unit) for unit in corpus.units],
        "bert_tf_version": __version__,
        "format": PLAN_FORMAT,
    }
    return json.loads(json.dumps(plan))


def _has_manifests(journal: Journal) -> bool:
    """Whether the run that the journal holds wrote the manifests of all its lengths."""
    if (begun := journal.plan) is None:
        return False
    lengths = [options["max_seq_length"] for options in begun["options"]]
    return all(FILE_NAME in part.sizes() for part in Journal(journal.folder, lengths).folders)


def _made_before(journal: Journal, plan: dict[str, Any]) -> list[Manifest]:
    """The manifests if an earlier run by this plan was killed just before its last step."""
    if journal.plan != plan or not _has_manifests(journal):
        return []
    journal.remove()
    return [Manifest.load(str(part)) for part in journal.folders]


def _prepare_folder(journal: Journal, *, overwrite: bool, is_shared: bool, finish: bool) -> None:
    """Refuses a folder with other files; empties it unless its run is to be continued."""
    folder = journal.folder
    names = folder.all_names()
    has_journal = any(name.startswith(f"{JOURNAL}/") for name in names)
    is_begun = has_journal and not _has_manifests(journal)
    # Where jobs share an empty folder, another may have begun in it since.
    begins_together = is_shared and not names
    _check_content(folder, overwrite=is_begun or overwrite or begins_together)
    if is_begun:
        return
    _check_listed(folder, names)
    if finish:
        raise InputError(f"{folder}: holds no units: make them before --finish")
    if not is_shared:
        folder.clear(names)  # not what came since these were checked


def _job_of(
    folder: str,
    by_length: list[PretrainingDataOptions],
    corpus: Corpus,
    plan: dict[str, Any],
    threads: int | None,
) -> ShardsJob:
    # A unit of a large corpus is a group, however large.
    group_bytes = documents.GROUP_BYTES * corpus.scale
    groups = max(1, round(corpus.text_bytes / group_bytes))
    parts = -(-by_length[0].num_shards // (groups * by_length[0].dupe_factor))
    plan_hash = hashlib.sha256(json.dumps(plan).encode()).hexdigest()
    return ShardsJob(
        folder, by_length, corpus.split_sentences, group_bytes, parts, plan_hash, threads
    )


def _check_complete(journal: Journal, units: int, *, finish: bool) -> None:
    """Refuses to finish while units are missing."""
    missing = journal.missing(range(units))
    if not missing:
        return
    numbers = ", ".join(str(unit + 1) for unit in missing[:_LISTED_UNITS])
    numbers += ", ..." * (len(missing) > _LISTED_UNITS)
    cure = "give the same command again to make them"
    if finish:
        cure = (
            "make them with --units, or with this command without --finish (--units 3/16 makes 3, "
            "19, 35, ...)"
        )
    raise InputError(
        f"{journal.folder}: shards of {len(missing)} of {units} units of the corpus are missing "
        f"({numbers}): {cure}; all workers must see this folder under this path"
    )


def _output_folder(output: StrPath, corpus: Corpus, inputs: list[str]) -> Folder:
    if not is_remote(output):
        return open_folder(check_output_folder(output, corpus.files))
    check_output_url(os.fspath(output))
    folder = open_folder(output)
    check_apart(str(folder), [*corpus.files, *inputs])
    return folder


def _check_content(folder: Folder, *, overwrite: bool) -> None:
    """Refuses a folder that holds other files, or any unless they may be overwritten."""
    if folder.local is not None:
        check_output_folder(folder.local, ours=_FILES, overwrite=overwrite)
    else:
        check_content(folder, _FILES, overwrite=overwrite)


def _check_listed(folder: Folder, names: list[str]) -> None:
    """Refuses files that no manifest beside them lists, whatever their names."""
    listed = {name for name in names if name.startswith(f"{JOURNAL}/")}
    for parent in {name.rpartition("/")[0] for name in names}:
        part = folder / parent if parent else folder
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            shards = json.loads(part.read(FILE_NAME) or b"{}")["shards"]
            files = [shard["file"] for split in shards.values() for shard in split]
            made = [FILE_NAME, BLOCKS_NAME, *TOKENIZER_FILES, *files]
            listed.update(f"{parent}/{file}".lstrip("/") for file in made)
    for name in sorted(set(names) - listed):
        raise InputError(
            f"{folder}: holds {name}, which no manifest of shards lists: name another output "
            "folder, or remove it"
        )


def _corpus_of(
    inputs: CorpusInputs, tokenizer: BertTokenizer, options: PretrainingDataOptions
) -> Corpus:
    """The text to make instances of: all, or about `max_tokens`."""
    corpus = sources.open_corpus(inputs, options, formats.judged_format)
    if options.max_tokens is None:
        return corpus
    texts = list(formats.sample_text(corpus, _SAMPLED_TEXTS))
    tokens = len(tokenizer.tokenize(texts).flat_values)
    bytes_per_token = sum(len(text.encode()) for text in texts) / max(1, tokens)
    return corpus.sampled(round(options.max_tokens * bytes_per_token), options.seed)


def _notices(
    corpus: Corpus, tokenizer: BertTokenizer, options: PretrainingDataOptions
) -> Iterator[str]:
    """The format that was chosen; warnings if a sample does not suit vocabulary or options."""
    if options.corpus_format == "auto" and corpus.format in _JUDGED:
        yield _JUDGED[corpus.format]
    settings = {"tokenize_chinese_chars": True, "strip_accents": None, **tokenizer.settings}
    keeps_accents = not strips_accents(settings["do_lower_case"], settings["strip_accents"])
    finds_words = options.whole_word_masking and settings["tokenize_chinese_chars"]
    if not (keeps_accents or finds_words):
        return
    sample = list(formats.sample_text(corpus, _JUDGED_TEXTS))
    if keeps_accents and (line := decomposed_letters(sample)):
        yield line
    letters = [letter for text in sample for letter in text if letter.isalpha()]
    if finds_words and sum(map(is_chinese, letters)) > len(letters) / 2:
        yield (
            "Warning: --whole_word_masking masks single characters, because the tokenizer makes "
            "each Chinese character a word: put spaces between words, and learn a vocabulary with "
            "--no_tokenize_chinese_chars"
        )


def _plan_of(corpus: Corpus, options: PretrainingDataOptions) -> documents.DocumentPlan:
    share = options.held_out_share
    if options.max_held_out_bytes is not None:
        share = min(share, options.max_held_out_bytes / max(1, corpus.text_bytes))
    for_pairs = options.instances == "sentence_pairs"
    return documents.plan_documents(
        corpus, held_out_share=share, seed=options.seed, for_pairs=for_pairs
    )


def _make_units(
    job: ShardsJob,
    corpus: Corpus,
    tokenizer: BertTokenizer,
    progress: Callable[[ShardsProgress], None],
    runner: Runner | None,
    share: UnitShare | None,
) -> None:
    numbers = range(len(corpus.units))
    if share is not None:
        numbers = numbers[share.number - 1 :: share.of]
    options = job.options[0]
    journal = job.open_journal()
    # Half-written files may have the right size after a power failure.
    instances = journal.check(numbers, checksums=not is_remote(job.folder))
    missing = journal.missing(numbers)
    if options.skip_unreadable:  # other files may be readable now
        journal.forget(missing)
    entries = journal.entries()
    plan = journal.documents
    if plan is None or (share is None and not entries):
        plan = journal.documents = _plan_of(corpus, options)
    units = [Unit(n, corpus.units[n], frozenset(entries[n])) for n in missing]
    total = sum(slice_.size for n in numbers for slice_ in corpus.units[n])
    read = total - sum(unit.size for unit in units)
    read_of_unit: Counter[int] = Counter()

    def report(unit: int, bytes_read: int, new_instances: int) -> None:
        nonlocal read, instances
        read += bytes_read - read_of_unit[unit]
        read_of_unit[unit] = bytes_read
        instances += new_instances
        progress(ShardsProgress(read, total, instances))

    if runner is None:
        write_units(job, units, tokenizer, plan, report)
    elif units:
        store_tokenizer(journal.tokenizer, tokenizer)
        runner(job, units, report)


def _finish(
    job: ShardsJob, corpus: Corpus, tokenizer: BertTokenizer, plan: dict[str, Any]
) -> list[Manifest]:
    """Writes the manifests, one per sequence length."""
    journal = job.open_journal()
    text: Counter[str] = Counter()
    short = [0] * len(job.options)
    shards: list[dict[str, list[Shard]]] = [{} for _ in job.options]
    counts: list[dict[str, InstanceCounts]] = [{} for _ in job.options]
    unreadable = set(corpus.unreadable)
    for group in journal.groups():
        text.update(group.text)
        unreadable.update(group.unreadable)
        for index, totals in enumerate(counts):
            short[index] += group.short_documents[index]
            for split, written in group.shards[index].items():
                shards[index].setdefault(split, []).extend(written)
            for split, counted in group.counts[index].items():
                totals[split] = totals.get(split, 0) + counted
    if not text["documents"]:
        raise formats.empty_corpus(corpus.name)
    manifests = []
    each = zip(job.options, plan["options"], journal.folders, strict=True)
    for index, (options, settings, folder) in enumerate(each):
        if "train" not in shards[index]:
            raise formats.EmptyCorpus(
                f"{corpus.name}: no instances, because the text has no tokens: check that the "
                "vocabulary fits its language"
            )
        manifest = Manifest(
            options=settings,
            vocabulary=plan["vocabulary"],
            corpus=_sources(corpus),
            documents=text["documents"],
            sentences=text["sentences"],
            irregularities={
                "documents_shorter_than_an_instance": short[index],
                "sentences_without_tokens": text["sentences_without_tokens"],
                **{name: text[name] for name in formats.FAULTS},
                **{name: n for name, n in text.items() if name.startswith(formats.WITHOUT)},
                "unreadable_files": len(unreadable),
            },
            shards=shards[index],
            statistics={
                split: summarize(counts[index][split], options.instances == "sentence_pairs")
                for split in shards[index]
            },
            bert_tf_version=__version__,
        )
        store_tokenizer(folder, tokenizer)
        manifest.save(str(folder))
        manifests.append(manifest)
    return manifests


def _sources(corpus: Corpus) -> list[dict[str, Any]]:
    """The files of a corpus, or their folders if it has many, for the manifest."""
    folders = [str(Path(file).absolute().parent) for file in corpus.files]
    common = os.path.commonpath(folders or [""])
    listed: dict[str, Counter[str]] = {}
    for name, size in corpus.sources.items():
        shown = name if name.startswith(sources.TFDS) else os.path.relpath(name, common)
        shown = os.fsencode(shown).decode("utf-8", "backslashreplace")  # names may be any bytes
        listed[shown] = Counter(bytes=size)
    while len(listed) > _LISTED_SOURCES:
        parents: dict[str, Counter[str]] = {}
        for name, counts in listed.items():
            parent = os.path.dirname(name)  # noqa: PTH120
            parents.setdefault(parent, Counter()).update({"files": 1, **counts})
        listed = parents
    return [{"file": name or ".", **counts} for name, counts in listed.items()]


class Estimate(NamedTuple):
    text_bytes: int  # of the corpus; an estimate if it is compressed
    units: int
    seconds: float  # of one process
    shard_bytes: int


def estimate_shards(
    inputs: CorpusInputs,
    tokenizer: BertTokenizer,
    options: Sequence[PretrainingDataOptions],
    *,
    threads: int | None = None,
) -> Estimate:
    """Makes instances of some text from the middle of the corpus, and writes nothing."""
    corpus = _corpus_of(inputs, tokenizer, options[0])
    first = options[0]
    # Donors are drawn from all of the text, which takes no part in the time of a unit.
    plan = _plan_of(corpus, first)
    sizes: list[int] = []

    def batches() -> Iterator[documents.DocumentBatch]:
        middle = len(corpus.units) // 2
        for unit in [*range(middle, len(corpus.units)), *range(middle)]:
            slices = corpus.units[unit]
            for batch in documents.UnitReader(unit, slices, first, plan, _SAMPLED_BYTES):
                sizes.append(sum(map(len, batch.lines[~batch.is_donor])))
                yield batch
                if sum(sizes) >= _SAMPLED_BYTES:
                    return

    began = time.monotonic()
    traced = 0.0
    shard_size = 0
    with formats.input_errors():
        for batch in record_batches(batches(), tokenizer, options, corpus.split_sentences, threads):
            traced = traced or time.monotonic() - began  # of the first batch
            for records in batch.lengths:
                shard_size += sum(map(len, records.records)) + FRAME_BYTES * len(records.records)
    if not sum(sizes):
        raise formats.empty_corpus(corpus.name)
    rest = len(sizes) - 1 or 1
    seconds = time.monotonic() - began - (traced if len(sizes) > 1 else 0.0)
    speed = sum(sizes[-rest:]) / seconds
    text_bytes = corpus.text_bytes
    shard_bytes = round(shard_size / sum(sizes) * text_bytes)
    return Estimate(text_bytes, len(corpus.units), text_bytes / speed, shard_bytes)
