"""Corpora and shards in object stores: an S3 server and a GCS emulator, with faults."""

import gzip
import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from s3_server import Faults, bucket

from bert_tf.errors import InputError
from bert_tf.files import lease, storage
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.shards import pretraining_batches as reading
from bert_tf.pipelines.shards.folder import open_shards, tokenizer_of_shards
from bert_tf.pipelines.shards.journal import Journal
from bert_tf.pipelines.shards.manifest import Manifest, verify
from bert_tf.pipelines.shards.pretraining_batches import BlockCache, pretraining_batches
from bert_tf.pipelines.shards.writing import UnitShare, write_shards, write_shards_of_lengths
from bert_tf.tokenization import BertTokenizer

WORDS = "the of and to in a is that for it as was with be by on not he i this are or his from at"
OPTIONS = PretrainingDataOptions(max_seq_length=32, num_shards=2, held_out_share=0.1)


@pytest.fixture(scope="module", autouse=True)
def small_units():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 10_000)
        patch.setattr("bert_tf.pipelines.corpus.documents.GROUP_BYTES", 6_000)
        yield


@pytest.fixture(scope="module")
def s3():
    with bucket() as url:
        yield url


@pytest.fixture(scope="module")
def texts():
    words = WORDS.split()
    return {
        f"{file}.txt": "\n\n".join(
            "\n".join(
                " ".join(words[(file + document * sentence + i) % len(words)] for i in range(9))
                for sentence in range(12)
            )
            for document in range(20)
        ).encode()
        for file in range(3)
    }


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()])


@pytest.fixture(scope="module")
def corpus(s3, texts):
    for name, content in texts.items():
        storage.open_folder(f"{s3}/text").write(name, content)
    return f"{s3}/text"


@pytest.fixture(scope="module")
def local(tmp_path_factory, texts, tokenizer):
    """Shards of the same text in files."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "text").mkdir()
    for name, content in texts.items():
        (folder / "text" / name).write_bytes(content)
    write_shards(folder / "text", folder / "out", tokenizer, OPTIONS)
    return folder / "out"


def assert_same(url, folder):
    remote = storage.open_folder(url)
    names = {path.name for path in folder.iterdir()}
    assert set(remote.sizes()) == names
    for name in names:
        assert remote.read(name) == (folder / name).read_bytes(), name


@pytest.mark.slow
def test_shards_in_a_bucket_have_the_same_bytes(s3, corpus, tokenizer, local):
    out = f"{s3}/shards"
    manifest = write_shards(corpus, out, tokenizer, OPTIONS)
    assert_same(out, local)
    assert verify(out) == Manifest.load(out) == manifest
    assert tokenizer_of_shards(out).vocabulary_hash == tokenizer.vocabulary_hash
    with pytest.raises(InputError, match=r"s3://bucket/shards: is not empty"):
        write_shards(corpus, out, tokenizer, OPTIONS)
    write_shards(f"{corpus}/*.txt", out, tokenizer, OPTIONS, overwrite=True)
    assert_same(out, local)


@pytest.mark.slow
def test_faults_of_the_store_change_nothing(s3, corpus, tokenizer, local):
    Faults.faults[:] = ["", "503", "slow", "", "503", "", "cut"] * 5
    write_shards(corpus, f"{s3}/faults", tokenizer, OPTIONS)
    assert not Faults.faults
    assert_same(f"{s3}/faults", local)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest.json", "tokenizer_config.json"])
def test_a_request_denied_at_the_end_loses_nothing(s3, corpus, tokenizer, local, monkeypatch, name):
    out = f"{s3}/denied-{name}"
    files = storage._file_system("s3")
    write = files.pipe_file

    def deny(key, content):
        if key.endswith(name):
            raise PermissionError("Access Denied")
        write(key, content)

    with monkeypatch.context() as patch, pytest.raises(InputError, match="no permission"):
        patch.setattr(files, "pipe_file", deny)
        write_shards(corpus, out, tokenizer, OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.pipelines.shards.units._OpenGroup", None)  # makes none again
        write_shards(corpus, out, tokenizer, OPTIONS)
    assert_same(out, local)


@pytest.mark.slow
def test_a_bucket_without_the_right_to_delete_gets_shards(
    s3, corpus, tokenizer, local, monkeypatch, caplog
):
    def deny(key):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(storage._file_system("s3"), "rm_file", deny)
    for _ in range(2):
        write_shards(corpus, f"{s3}/nodelete", tokenizer, OPTIONS)
    assert caplog.text.count("what is no longer needed stays there") == 2
    assert_same(f"{s3}/nodelete", local)


@pytest.mark.slow
def test_a_key_that_a_list_lacks_is_looked_for(s3, corpus, tokenizer, local, monkeypatch):
    out = f"{s3}/late"
    write_shards_of_lengths(corpus, out, tokenizer, [OPTIONS], share=UnitShare(1, 1))
    sizes = storage.Folder.sizes
    lists = []

    def late(self):
        found = sizes(self)
        if names := [name for name in found if name.startswith("train-")]:
            lists.append(found.pop(names[0]))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(storage.Folder, "sizes", late)
        write_shards(corpus, out, tokenizer, OPTIONS, finish=True)
    assert lists
    assert_same(out, local)


@pytest.mark.slow
def test_jobs_that_share_a_bucket(s3, corpus, tokenizer, local):
    out = f"{s3}/jobs"
    for number in (2, 1):
        share = UnitShare(number, 2)
        write_shards_of_lengths(corpus, out, tokenizer, [OPTIONS], share=share)
        with pytest.raises(InputError, match="not finished there"):
            open_shards(out)
        if number == 2:
            with pytest.raises(InputError, match="units of the corpus are missing"):
                write_shards(corpus, out, tokenizer, OPTIONS, finish=True)
    write_shards(corpus, out, tokenizer, OPTIONS, finish=True)
    assert_same(out, local)


@pytest.mark.slow
def test_of_two_runs_that_begin_in_a_bucket_at_once_one_writes(s3, corpus, tokenizer, monkeypatch):
    """They have other seeds: shards of one and a manifest of the other would be no folder."""
    monkeypatch.setattr(lease, "_BEAT_SECONDS", 0.2)
    both, begun = threading.Barrier(2), Journal.begun

    def begin(*arguments, **named):
        both.wait()
        return begun(*arguments, **named)

    monkeypatch.setattr(Journal, "begun", begin)

    def write(seed):
        try:
            return write_shards(corpus, f"{s3}/two", tokenizer, replace(OPTIONS, seed=seed))
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor() as threads:
        manifest, refusal = sorted(
            threads.map(write, [1, 2]), key=lambda made: isinstance(made, str)
        )
    assert "two/.journal: another process is writing there" in refusal
    assert verify(f"{s3}/two") == manifest
    assert not storage.open_folder(f"{s3}/two/.journal").all_names()


@pytest.mark.slow
def test_training_reads_through_a_cache_of_bounded_size(
    s3, corpus, tokenizer, local, tmp_path, monkeypatch
):
    out = f"{s3}/read"
    write_shards(corpus, out, tokenizer, OPTIONS)
    monkeypatch.setenv("BERT_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERT_TF_CACHE_GB", "0.00005")

    def batches(folder):
        found = pretraining_batches(folder, 4, seed=3, repeat=False)
        return [inputs["token_ids"] for inputs, _, _ in found.as_numpy_iterator()]

    for _ in range(2):
        for one, other in zip(batches(out), batches(local), strict=True):
            np.testing.assert_array_equal(one, other)
    assert list((tmp_path / "cache" / "blocks").glob("*.block"))


def a_record(size):
    return struct.pack("<Q", size - 16) + b"x" * (size - 8)


@pytest.fixture
def fetched(monkeypatch):
    """The places of the blocks that caches did not have."""
    fetched = []

    def fetch_ranges(urls, starts, ends):
        fetched.extend(starts)
        return [a_record(end - start) for start, end in zip(starts, ends, strict=True)]

    monkeypatch.setattr("bert_tf.pipelines.shards.pretraining_batches.fetch_ranges", fetch_ranges)
    return fetched


def fetch_from(cache, *places):
    """Paths of blocks of 100 bytes."""
    offsets = np.array(places)
    paths = cache.fetch(
        ["s3://a"] * len(places), ["hash"] * len(places), offsets, offsets * 0 + 100
    )
    time.sleep(0.01)  # times of use differ
    return paths


def held(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_blocks_stay_while_they_are_read_whoever_clears_the_cache(tmp_path, fetched):
    """Two windows are read at once, and another source, or process, has a window of its own."""
    folder = tmp_path / "blocks"
    cache, other = BlockCache(folder, 1000), BlockCache(folder, 1000)
    windows = [fetch_from(cache, *range(0, 8)), fetch_from(cache, *range(8, 16))]
    fetch_from(other, *range(16, 24))
    assert held(folder) <= 1000
    for path in (path for window in windows for path in window):
        assert Path(path).stat().st_size == 100
    for place in range(8):
        fetch_from(cache, place)
    assert not any(Path(path).exists() for window in windows for path in window)


@pytest.mark.parametrize(
    "content",
    [a_record(60), a_record(100)[1:] + b"x", b""],
    ids=["another record", "within a record", "past the end"],
)
def test_blocks_of_a_shard_that_was_replaced_are_not_kept(tmp_path, fetched, monkeypatch, content):
    cache = BlockCache(tmp_path / "blocks", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(reading, "fetch_ranges", lambda urls, starts, ends: [content])
        with pytest.raises(InputError, match="s3://a: bytes 3 to 103 are not the records"):
            fetch_from(cache, 3)
    (path,) = fetch_from(cache, 3)  # of the shard as it was
    (kept,) = (tmp_path / "blocks").iterdir()
    kept.write_bytes(b"")  # as a power failure may leave it
    (path,) = fetch_from(cache, 3)
    assert Path(path).stat().st_size == kept.stat().st_size == 100
    assert fetched == [3, 3]


def test_what_a_killed_reader_left_is_removed_whatever_the_clock_says(tmp_path, fetched):
    folder = tmp_path / "blocks"
    cache = BlockCache(folder, 1000)
    (path,) = fetch_from(cache, 0)
    (reading,) = tmp_path.glob(".bert-tf-reading-*")
    os.utime(reading, (0, 0))  # as if the clock had jumped from 1970 to today
    left = tmp_path / ".bert-tf-reading-left"
    (left / "load").mkdir(parents=True)
    BlockCache(folder, 1000)
    assert Path(path).exists() and not left.exists()
    cache._reading.close()  # as when its process is killed
    BlockCache(folder, 1000)
    assert not Path(path).exists()


def test_what_others_have_added_counts(tmp_path, fetched):
    """Two processes, neither of which has added more than the bound."""
    folder = tmp_path / "blocks"
    one, other = BlockCache(folder, 1000), BlockCache(folder, 1000)
    fetch_from(one, *range(0, 6))
    fetch_from(other, *range(6, 12))
    assert 0 < held(folder) <= 1000


def test_sources_share_the_bound_of_a_cache(tmp_path, fetched):
    folder = tmp_path / "blocks"
    caches = [BlockCache(folder, 1000) for _ in range(3)]
    for place in range(9):
        for number, cache in enumerate(caches):
            fetch_from(cache, 100 * number + place)
    assert held(folder) <= 1000 + 3 * 100  # each may add a tenth before it looks again


def test_a_cache_keeps_what_was_used_last(tmp_path, fetched):
    cache = BlockCache(tmp_path, 1000)
    fetch = partial(fetch_from, cache)
    for place in range(9):
        (path,) = fetch(place)
        assert Path(path).stat().st_size == 100
    fetch(0)
    assert fetched == list(range(9))
    fetch(10, 11)  # 1,100 bytes: the oldest ones go
    fetch(0)
    assert fetched == [*range(9), 10, 11]
    fetch(1)
    assert fetched[-1] == 1
    assert held(tmp_path) <= 1000
    assert BlockCache(tmp_path, 1000)._bytes == cache._bytes


@pytest.mark.slow
@pytest.mark.parametrize("path", ["big.txt", "big.txt.gz", "big.parquet"])
def test_large_objects_are_cut_and_read_as_files(s3, texts, tmp_path, path):
    from bert_tf.pipelines.corpus.documents import UnitReader, plan_documents
    from bert_tf.pipelines.corpus.sources import open_corpus

    content = b"\n\n".join(texts.values())
    if path.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    if path.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"text": [text.decode() for text in texts.values()] * 9})
        pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / path, row_group_size=3)
    else:
        (tmp_path / path).write_bytes(content)
    storage.open_folder(f"{s3}/large").write(path, (tmp_path / path).read_bytes())
    found = []
    for given in (str(tmp_path / path), f"{s3}/large/{path}"):
        corpus = open_corpus(given)
        plan = plan_documents(corpus)
        found.append(
            [
                batch.lines.tolist()
                for number, unit in enumerate(corpus.units)
                for batch in UnitReader(
                    number, unit, corpus.options, plan, buffer_bytes=5000, group_bytes=10**6
                )
            ]
        )
    assert found[0] == found[1]
    assert len(corpus.units) > 1 or path.endswith(".gz")


@pytest.mark.slow
def test_mistakes_are_named(s3, corpus, tokenizer, tmp_path, monkeypatch):
    for given, message in {
        "s3://nowhere/text": r"s3://nowhere/text: no such bucket or key",
        f"{s3}/nothing": r"nothing: no object there|no such bucket or key",
        "abc://x/y": r"abc://: no such protocol",
    }.items():
        with pytest.raises(InputError, match=message):
            write_shards(given, tmp_path / "out", tokenizer, OPTIONS)
    with pytest.raises(InputError, match=r"s3://nowhere.*: no such bucket"):
        write_shards(corpus, "s3://nowhere/out", tokenizer, OPTIONS)
    with pytest.raises(InputError, match="is a whole bucket"):
        write_shards(corpus, s3, tokenizer, OPTIONS)
    with pytest.raises(InputError, match="holds the input"):
        write_shards(corpus, corpus, tokenizer, OPTIONS)
    with pytest.raises(InputError, match="text/out lies in the input"):
        write_shards(corpus, f"{corpus}/out", tokenizer, OPTIONS)
    storage.open_folder(f"{s3}/mine/deep").write("notes.txt", b"keep")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"mine: holds deep/notes\.txt"):
            write_shards(corpus, f"{s3}/mine", tokenizer, OPTIONS, overwrite=overwrite)
    assert storage.open_folder(f"{s3}/mine/deep").read("notes.txt") == b"keep"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage._file_system.cache_clear()
    storage._file_system("s3").clear_instance_cache()
    storage._file_system.cache_clear()
    with pytest.raises(InputError, match=r"s3://bucket/text: no credentials"):
        write_shards(corpus, tmp_path / "out", tokenizer, OPTIONS)
    storage._file_system.cache_clear()


def test_a_missing_permission_is_named_with_the_key():
    with (
        pytest.raises(InputError, match=r"s3://bucket/key: no permission \(Access Denied\)"),
        storage.remote_errors("s3://bucket/key"),
    ):
        raise PermissionError("Access Denied")


def test_an_error_with_one_of_many_keys_is_raised(monkeypatch, tmp_path):
    def refuse(key, *others):
        if key.endswith("last"):
            raise PermissionError(key)

    @contextmanager
    def store(url):
        yield SimpleNamespace(rm_file=refuse, get_file=refuse), url

    monkeypatch.setattr(storage, "_store", store)
    folder = storage.Folder("s3://b/a")
    for call in (folder.remove, partial(folder.download, target=tmp_path)):
        with pytest.raises(PermissionError, match="a/last"):
            call(["first", "last"])


def test_a_long_message_of_a_store_is_cut():
    with (
        pytest.raises(OSError, match="no such library") as raised,
        storage.remote_errors("hdfs://a"),
    ):
        raise OSError("no such library\n" * 100)
    assert len(str(raised.value)) < 400


def test_a_missing_package_is_named(monkeypatch):
    import fsspec

    def missing(*arguments, **named):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    storage._file_system.cache_clear()
    with pytest.raises(InputError, match=r"s3://: .*pip install 'fsspec>=2026\.1' 's3fs>=2026\.1'"):
        storage.find_objects("s3://bucket/key")
    storage._file_system.cache_clear()


@pytest.mark.slow
def test_shards_in_a_bucket_of_google(texts, tokenizer, local, monkeypatch):
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("localhost", port, in_memory=True, default_bucket="bucket")
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
    try:
        for name, content in texts.items():
            storage.open_folder("gs://bucket/text").write(name, content)
        write_shards("gs://bucket/text", "gs://bucket/shards", tokenizer, OPTIONS)
        assert_same("gs://bucket/shards", local)
        with pytest.raises(InputError, match=r"gs://nowhere.*: no such bucket"):
            write_shards("gs://nowhere/text", "gs://bucket/out", tokenizer, OPTIONS)
    finally:
        server.stop()
        storage._file_system.cache_clear()
