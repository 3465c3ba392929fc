"""The sources of a corpus: files and datasets, cut into units of work."""

import glob
import hashlib
import itertools
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_tf.errors import InputError, pip_install
from bert_tf.files.atomic import StrPath
from bert_tf.files.storage import State, file_state, find_objects, is_remote, open_for_reading
from bert_tf.pipelines.corpus import text_files
from bert_tf.pipelines.corpus.text_files import COMPRESSED, UnreadableFile
from bert_tf.pipelines.data_options import CorpusOptions

Item = TypeVar("Item")
CorpusInputs = StrPath | Iterable[StrPath]

UNIT_BYTES = 32 << 20  # approximate text in a unit of a corpus of up to `MOST_UNITS`
MOST_UNITS = 4096  # then units grow: the number of files in a folder of shards is limited
COMPRESSION = 3  # approximate bytes of text per compressed byte
FEWEST_DOCUMENTS = 4  # two to train on and two to hold out
TFDS = "tfds:"


class Slice(NamedTuple):
    source: str  # path of a file, or "tfds:" and the full name of a dataset and split
    start: int  # byte of a plain file, or example of a dataset, at which a document may begin
    end: int | None  # first byte or example after the slice; None for the end of the source
    size: int  # bytes on disk, or bytes of the examples
    state: State | None = None  # of the whole file
    format: str = "sentences"  # how it is read: as in `corpus_format`, or "tfds"

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of text."""
        is_compressed = self.source.endswith((*COMPRESSED, ".parquet", ".pq"))
        return self.size * (COMPRESSION if is_compressed else 1)


@dataclass
class Corpus:
    units: list[list[Slice]]  # the text in units of about `UNIT_BYTES`, in order
    unreadable: list[str]  # skipped files that could not be read
    options: CorpusOptions
    format: str  # that of the files, "auto" without any
    scale: int = 1  # size of a unit in `UNIT_BYTES`, a power of two

    def sampled(self, text_bytes: int, seed: int) -> "Corpus":
        """Slices with about so much text, drawn throughout the corpus, in its order."""
        slices = list(itertools.chain.from_iterable(self.units))
        drawn = []
        size = 0
        for number in random.Random(seed).sample(range(len(slices)), len(slices)):
            if size >= text_bytes:
                break
            drawn.append(number)
            size += slices[number].text_bytes
        chosen = [slices[number] for number in sorted(drawn)]
        units = in_groups(chosen, self.scale * UNIT_BYTES, attrgetter("text_bytes"))
        return replace(self, units=list(units))

    @property
    def split_sentences(self) -> bool:
        """Whether lines are paragraphs to split into sentences."""
        return self.format != "sentences"

    @property
    def text_bytes(self) -> int:
        return sum(slice_.text_bytes for unit in self.units for slice_ in unit)

    @property
    def sources(self) -> Counter[str]:
        """Bytes on disk of each source."""
        sizes: Counter[str] = Counter()
        for slice_ in itertools.chain.from_iterable(self.units):
            sizes[slice_.source] += slice_.size
        return sizes

    @property
    def files(self) -> list[str]:
        return [source for source in self.sources if not source.startswith(TFDS)]

    @property
    def name(self) -> str:
        """The first source, for messages."""
        return self.units[0][0].source


def unit_hash(slices: Sequence[Slice]) -> str:
    """What identifies the text of a unit: its places, sizes and times of modification."""
    return hashlib.blake2b(json.dumps(slices).encode(), digest_size=8).hexdigest()


def listed(inputs: CorpusInputs) -> list[str]:
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    return [os.fspath(path) for path in paths]


def find_files(inputs: CorpusInputs) -> list[str]:
    """Sorted files, each once, of files, folders (without hidden files) and globs."""
    files_by_path: dict[str, str] = {}
    for path in listed(inputs):
        expanded = Path(path).expanduser()
        files = list[str]()
        fault = "no such file or folder: check the path"
        if is_remote(path):
            fault = "no object there: check the name"
            files = list(find_objects(path))
        elif expanded.is_file():
            files = [str(expanded)]
        elif expanded.is_dir():
            fault = "the folder holds no files: put the text files there"
            files = list(map(str, _files_below(expanded)))
        elif glob.has_magic(path):
            fault = "the pattern matches no file: check it with ls"
            # Not Path.glob, which takes no absolute pattern.
            matches = glob.glob(str(expanded), recursive=True)  # noqa: PTH207
            files = [match for match in sorted(matches) if Path(match).is_file()]
        elif path == "-" or expanded.exists():  # a name that the shell gave, such as /dev/fd/63
            fault = "is no file, and text is read more than once: write it to one first"
        if not files:
            raise InputError(f"{path}: {fault}")
        for file in files:
            files_by_path.setdefault(file if is_remote(file) else os.path.realpath(file), file)
    if not files_by_path:
        raise InputError("no corpus given: name at least one text file, folder or glob")
    return sorted(files_by_path.values())


def _files_below(folder: Path) -> Iterator[Path]:
    """The files below a folder that are not hidden; follows links, to each folder once."""

    def fail(error: OSError) -> None:
        raise UnreadableFile(
            f"{error.filename}: cannot be read ({error.strerror}); fix its permissions or remove it"
        )

    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=fail):
        real = os.path.realpath(parent)
        folders[:] = sorted(name for name in folders if name[0] != "." and real not in seen)
        for name in sorted(files) if real not in seen else ():
            path = Path(parent, name)
            # A link to nothing is an unreadable file; pipes and sockets are no files.
            if name[0] != "." and (path.is_file() or (path.is_symlink() and not path.exists())):
                yield path
        seen.add(real)


def open_corpus(
    inputs: CorpusInputs,
    options: CorpusOptions | None = None,
    judge: Callable[[list[Slice], CorpusOptions], str] = lambda files, options: "sentences",
) -> Corpus:
    """Finds the sources of a corpus and cuts them into units, almost without reading.

    `judge` returns the format of files whose names tell none.

    Large plain files are cut where documents begin, Parquet files between row groups, datasets
    between examples. Small files share a unit. Compressed files and single documents stay whole.
    """
    options = options or CorpusOptions()
    names = listed(inputs)
    datasets = [name for name in names if name.startswith(TFDS)]
    paths = [name for name in names if not name.startswith(TFDS)]
    files = find_files(paths) if paths or not datasets else []
    # Workers may run in other folders.
    files = [file if is_remote(file) else str(Path(file).absolute()) for file in files]
    formats = {_named_format(file, options) for file in files}
    unreadable: list[str] = []

    @contextmanager
    def skipped_if_unreadable(file: str) -> Iterator[None]:
        try:
            yield
        except UnreadableFile:
            if not options.skip_unreadable:
                raise
            unreadable.append(file)

    whole: list[Slice] = []
    for file in files:
        with skipped_if_unreadable(file), text_files.read_errors(file):
            state = file_state(file)
            whole.append(Slice(file, 0, None, state[0], state))
    if formats == {"auto"}:
        formats = {judge(whole, options)}
    if len(formats) > 1 or (datasets and formats == {"sentences"}):
        several = sorted({"sentences" if x == "auto" else x for x in formats})
        several += ["tfds"] * bool(datasets)
        raise InputError(
            f"{names[0]} and the other inputs have several formats ({', '.join(several)}): "
            "give one format per run, or name the format of all with --corpus_format"
        )
    format = next(iter(formats), "auto")
    is_judged = format == "text" and options.corpus_format == "auto"
    needs_documents = getattr(options, "instances", None) == "sentence_pairs"
    if is_judged and needs_documents and len(whole) + len(datasets) < FEWEST_DOCUMENTS:
        format = "sections"
    whole = [slice_._replace(format=format) for slice_ in whole]
    text_bytes = sum(slice_.text_bytes for slice_ in whole)
    scale = 1
    while text_bytes > scale * UNIT_BYTES * MOST_UNITS:
        scale *= 2
    slices: list[Slice] = []
    for slice_ in whole:
        with skipped_if_unreadable(slice_.source):
            slices += _cut(slice_, scale * UNIT_BYTES)
    for name in datasets:
        slices += _dataset_slices(name, options)
    if not slices:
        raise InputError(f"{names[0]}: no file is readable: check the permissions")
    units = list(in_groups(slices, scale * UNIT_BYTES, attrgetter("text_bytes")))
    return Corpus(units, unreadable, options, format, scale)


def _named_format(file: str, options: CorpusOptions) -> str:
    """The format that the options or a file's name tell; else "auto"."""
    if options.corpus_format != "auto":
        return options.corpus_format
    path = Path(file.lower())
    name = path.stem if path.suffix in COMPRESSED else path.name
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    return "parquet" if name.endswith((".parquet", ".pq")) else "auto"


def parquet_file(path: str) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(f"{path}: Parquet files need pyarrow: {pip_install('parquet')}") from error
    try:
        return parquet.ParquetFile(open_for_reading(path))
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: not a Parquet file, or damaged: copy it again") from error


def _row_groups(whole: Slice, unit_bytes: int) -> list[Slice]:
    with text_files.read_errors(whole.source), parquet_file(whole.source) as file:
        groups = [file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)]
    total = max(1, sum(groups))
    slices = []
    begin = 0
    size = 0
    for group, group_bytes in enumerate(groups):
        size += group_bytes * whole.size // total
        if size >= unit_bytes or group == len(groups) - 1:
            slices.append(whole._replace(start=begin, end=group + 1, size=size))
            begin = group + 1
            size = 0
    return slices or [whole]


def _cut(whole: Slice, unit_bytes: int) -> list[Slice]:
    """Cuts a file where documents begin."""
    size = whole.size
    file = whole.source
    if whole.format == "parquet":
        return _row_groups(whole, unit_bytes // COMPRESSION)
    is_whole = size <= 2 * unit_bytes or whole.format in ("text", "sections")
    if is_whole or text_files.is_compressed(file):
        return [whole]
    bounds = [0]
    offsets = range(unit_bytes, size - unit_bytes // 2, unit_bytes)
    search = partial(text_files.line_start, file, after_blank=whole.format == "sentences")
    if is_remote(file):  # each search takes two requests
        with ThreadPoolExecutor(32) as threads:
            bounds += sorted(set(threads.map(search, offsets)))
    for offset in () if is_remote(file) else offsets:
        if offset > bounds[-1]:  # else its document was searched already
            bounds.append(search(offset))
    if bounds[-1] < size:
        bounds.append(size)
    parts = itertools.pairwise(bounds)
    return [whole._replace(start=a, end=b, size=b - a) for a, b in parts]


def in_groups(
    items: Iterable[Item], most: int, size_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Consecutive items in groups of at most this size together, or of a single larger one."""
    group: list[Item] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if group and size + item_size > most:
            yield group
            group = []
            size = 0
        group.append(item)
        size += item_size
    if group:
        yield group


@contextmanager
def dataset_errors(name: str) -> Iterator[None]:
    """Turns whatever TensorFlow Datasets, its readers and servers raise into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        cure = "check the name in its catalogue, and the split"
        if isinstance(error, OSError):  # those of the downloads, too
            cure = (
                "check the connection and the room on the disk, or copy it to the folder in "
                "TFDS_DATA_DIR, by default ~/tensorflow_datasets, from where it is prepared"
            )
        raise InputError(f"{name}: TensorFlow Datasets cannot load it ({cause}): {cure}") from error


def open_dataset(name: str, data_dir: str | None = None) -> tuple[Any, Any]:
    """The builder of a dataset, and its split; call it within `dataset_errors`."""
    tfds = tensorflow_datasets(name)
    parsed = re.fullmatch(r"([\w./-]+(?::\d[\d.*]*)?)(?::(.+))?", name.removeprefix(TFDS))
    if parsed is None:
        raise ValueError("not of the form NAME/CONFIG:SPLIT")
    full_name, split = parsed.groups()
    builder = tfds.builder(full_name, data_dir=data_dir)
    builder.download_and_prepare()
    return builder, tfds.core.ReadInstruction.from_spec(split or "train")


def _dataset_slices(name: str, options: CorpusOptions) -> list[Slice]:
    with dataset_errors(name):
        builder, split = open_dataset(name, options.tfds_data_dir)
        info = builder.info
        parts = split.to_absolute(info.splits)
    full_name = "/".join(filter(None, (info.name, info.config_name))) + f":{info.version}"
    slices = []
    for part in parts:
        split_info = info.splits[part.splitname]
        begin = part.from_ or 0
        end = split_info.num_examples if part.to is None else part.to
        example_bytes = max(1, (split_info.num_bytes or 0) // max(1, split_info.num_examples))
        step = max(1, UNIT_BYTES // example_bytes)
        for first in range(begin, end, step):
            last = min(first + step, end)
            size = (last - first) * example_bytes
            source = f"{TFDS}{full_name}:{part.splitname}"
            slices.append(Slice(source, first, last, size, format="tfds"))
    return slices


def tensorflow_datasets(name: str) -> Any:
    try:
        import tensorflow_datasets as datasets
    except ImportError as error:
        raise InputError(f"{name}: needs TensorFlow Datasets: {pip_install('tfds')}") from error
    return datasets
