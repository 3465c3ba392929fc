"""TFRecord files of other programs, such as the original's script, get a manifest when opened."""

import re
from pathlib import Path

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.errors import InputError
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances import schemas
from bert_tf.pipelines.shards.manifest import FILE_NAME, Manifest, corrupt_record
from bert_tf.pipelines.shards.record_blocks import DAMAGED, RecordBlocks, scan

# Names of other programs' TFRecord files, and endings of what others put beside them.
_RECORDS = re.compile(r"^[^.].*(\.tf_?record|(?<!\.data)-\d+-of-\d+$)")
_BESIDE = (".index", ".idx", ".json", ".txt", ".csv", ".md5", ".sha256", ".crc")


def foreign_files(folder: Path) -> list[Path]:
    """The TFRecord files of a folder; InputError if it has none."""
    candidates = (x for x in folder.iterdir() if _RECORDS.search(x.name))
    if paths := sorted(x for x in candidates if x.is_file() and x.suffix not in _BESIDE):
        return paths
    if lengths := sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}")):
        names = ", ".join(lengths)
        raise InputError(f"{folder}: holds folders of shards: name one of them ({names})")
    raise InputError(
        f"{folder}: holds neither {FILE_NAME} nor *.tfrecord files: make shards with bert-tf shards"
    )


def foreign_manifest(folder: Path, *, skip_corrupt: bool) -> tuple[Manifest, dict[str, str]]:
    """The manifest of files of other programs, without checksums; other names of features.

    InputError for files that are compressed or hold other records; for damaged lengths unless
    corrupt records are skipped.
    """
    shards = [scan(path) for path in foreign_files(folder)]
    blocks = RecordBlocks.of_shards(folder, shards)
    _check_files(blocks, skip_corrupt)
    options, names = _options(folder, blocks)
    instances = sum(shard.instances for shard in shards)
    manifest = Manifest(
        options=options.data_settings(),
        vocabulary={"hash": None, "settings": {}},
        corpus=[],
        documents=0,
        sentences=0,
        irregularities={},
        shards={"train": shards},
        statistics={"train": {"instances": instances, "length_mean": options.max_seq_length}},
        bert_tf_version="",
    )
    return manifest, names


def _check_files(blocks: RecordBlocks, skip_corrupt: bool) -> None:
    for file, path in enumerate(blocks.files):
        file_blocks = blocks.of_file(file)
        if not len(file_blocks):
            continue
        with Path(path).open("rb") as opened:
            magic = opened.read(2)
        is_packed = magic in (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda")
        if is_packed and blocks.fault(file_blocks[0], tf.identity, 1) is not None:
            kind = "gzip" if magic == b"\x1f\x8b" else "zlib"
            raise InputError(
                f"{path}: is {kind}-compressed, which prevents reading from any record: "
                "decompress it"
            )
        # A damaged length leads astray: the last block is then unsound, too.
        if not skip_corrupt and blocks.fault(file_blocks[-1], tf.identity) is not None:
            raise corrupt_record(path, *(blocks.first_damaged(file, tf.identity) or (0, DAMAGED)))


def _options(folder: Path, blocks: RecordBlocks) -> tuple[PretrainingDataOptions, dict[str, str]]:
    """Tokens and predictions per instance, and other names of features, by samples of each file."""
    problem = InputError(f"{folder}: the *.tfrecord files are empty: make them again")
    kinds: dict[tuple[int, int, bool], str] = {}  # -> the first file
    seen: set[int] = set()
    for block, file in enumerate(blocks.file.tolist()):
        if file in seen:
            continue
        try:
            (record,) = blocks.read(block, 1).numpy()
            features = tf.train.Example.FromString(record).features.feature
        except (tf.errors.OpError, DecodeError):
            continue
        is_newer = "input_word_ids" in features
        names = schemas.NEWER_NAMES if is_newer else {}
        needed = schemas.masked_features(1, 1)
        missing = [name for name in needed if names.get(name, name) not in features]
        if missing:
            problem = InputError(
                f"{blocks.files[file]}: records have no {', '.join(missing)}: give shards of "
                "pre-training instances, such as those of bert-tf shards"
            )
            continue
        seen.add(file)
        both = (names.get("input_ids", "input_ids"), "masked_lm_ids")
        length, most = (len(features[name].int64_list.value) for name in both)
        kinds.setdefault((length, most, is_newer), blocks.files[file])
    if not kinds:
        raise problem
    if len(kinds) > 1:
        described = ", ".join(
            f"{Path(path).name} has {length} tokens and {most} predictions"
            + " and newer names of features" * newer
            for (length, most, newer), path in kinds.items()
        )
        raise InputError(f"{folder}: instances differ: {described}: give each kind its own folder")
    ((length, most, is_newer),) = kinds
    options = PretrainingDataOptions(max_seq_length=length, max_predictions_per_seq=most)
    return options, schemas.NEWER_NAMES if is_newer else {}
