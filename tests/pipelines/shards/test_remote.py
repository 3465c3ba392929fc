import gzip
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each, refused
from corpus_reading import passages_of
from s3_server import Faults
from shard_files import TEXT_OPTIONS as OPTIONS

from bert_tf.errors import InputError
from bert_tf.files import lease, storage
from bert_tf.pipelines.corpus.sources import open_corpus
from bert_tf.pipelines.shards.folder import open_shards, tokenizer_of_shards
from bert_tf.pipelines.shards.journal import Journal
from bert_tf.pipelines.shards.manifest import Manifest, verify
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.pipelines.shards.run import UnitShare, write_shards

pytestmark = pytest.mark.usefixtures("small_units")


@pytest.fixture(scope="module")
def texts(text):
    return {path.name: path.read_bytes() for path in sorted(text.iterdir())}


@pytest.fixture(scope="module")
def corpus(s3, texts):
    for name, content in texts.items():
        storage.open_folder(f"{s3}/text").write(name, content)
    return f"{s3}/text"


def assert_same(url, folder):
    remote = storage.open_folder(url)
    names = {path.name for path in folder.iterdir()}
    assert set(remote.sizes()) == names
    for name in names:
        assert remote.read(name) == (folder / name).read_bytes(), name


@pytest.mark.slow
def test_shards_in_a_bucket_have_the_same_bytes(s3, corpus, tokenizer, whole_text):
    out = f"{s3}/shards"
    (manifest,) = write_shards(corpus, out, tokenizer, OPTIONS)
    assert_same(out, whole_text)
    assert verify(out) == Manifest.load(out) == manifest
    assert tokenizer_of_shards(out).vocabulary_hash == tokenizer.vocabulary_hash
    refused(r"s3://bucket/shards: is not empty", write_shards, corpus, out, tokenizer, OPTIONS)
    write_shards(f"{corpus}/*.txt", out, tokenizer, OPTIONS, overwrite=True)
    assert_same(out, whole_text)


@pytest.mark.slow
def test_faults_of_the_store_and_no_right_to_delete_change_nothing(
    s3, corpus, tokenizer, whole_text, monkeypatch, caplog
):
    Faults.faults[:] = ["", "503", "slow", "", "503", "", "cut"] * 5
    write_shards(corpus, f"{s3}/faults", tokenizer, OPTIONS)
    assert not Faults.faults
    assert_same(f"{s3}/faults", whole_text)

    def deny(key):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(storage._file_system("s3"), "rm_file", deny)
    for _ in range(2):
        write_shards(corpus, f"{s3}/nodelete", tokenizer, OPTIONS)
    assert caplog.text.count("what is no longer needed stays there") == 2
    assert_same(f"{s3}/nodelete", whole_text)


@pytest.mark.slow
def test_jobs_that_share_a_bucket(s3, corpus, tokenizer, whole_text, monkeypatch):
    out = f"{s3}/jobs"
    for number in (2, 1):
        share = UnitShare(number, 2)
        write_shards(corpus, out, tokenizer, OPTIONS, share=share)
        refused("not finished there", open_shards, out)
        if number == 2:
            with pytest.raises(InputError, match="units of the corpus are missing"):
                write_shards(corpus, out, tokenizer, OPTIONS, finish=True)
    sizes = storage.Folder.sizes

    def late(folder):
        """A list that lacks a shard that is there."""
        listed = sizes(folder)
        listed.pop(next((name for name in listed if name.startswith("train-")), ""), None)
        return listed

    with monkeypatch.context() as patch:
        patch.setattr(storage.Folder, "sizes", late)
        write_shards(corpus, out, tokenizer, OPTIONS, finish=True)
    assert_same(out, whole_text)


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
            return write_shards(corpus, f"{s3}/two", tokenizer, replace(OPTIONS, seed=seed))[0]
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor() as threads:
        manifest, refusal = sorted(threads.map(write, [1, 2]), key=lambda x: isinstance(x, str))
    assert "two/.journal: another process is writing there" in refusal
    assert verify(f"{s3}/two") == manifest
    assert not storage.open_folder(f"{s3}/two/.journal").all_names()


@pytest.mark.slow
def test_training_reads_through_a_bounded_cache(
    s3, corpus, tokenizer, whole_text, tmp_path, monkeypatch
):
    out = f"{s3}/read"
    write_shards(corpus, out, tokenizer, OPTIONS)
    monkeypatch.setenv("BERT_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERT_TF_CACHE_GB", "0.00005")

    def batches(folder):
        found = pretraining_batches(folder, 4, seed=3, repeat=False)
        return [inputs["token_ids"] for inputs, _, _ in found.as_numpy_iterator()]

    for _ in range(2):
        np.testing.assert_equal(batches(out), batches(whole_text))
    assert list((tmp_path / "cache" / "blocks").glob("*.block"))


@pytest.mark.slow
@for_each("path", "big.txt", "big.txt.gz", "big.parquet")
def test_large_objects_are_cut_and_read_as_files(s3, texts, tmp_path, path):
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
    local, remote = (open_corpus(f"{place}/{path}") for place in (tmp_path, f"{s3}/large"))
    places = [[slice_[1:4] for unit in x.units for slice_ in unit] for x in (local, remote)]
    assert places[0] == places[1]
    assert passages_of(local) == passages_of(remote)
    assert len(local.units) > 1 or path.endswith(".gz")


@pytest.mark.slow
def test_mistakes_are_named(s3, corpus, tokenizer, tmp_path, monkeypatch):
    for given, message in {
        "s3://nowhere/text": r"s3://nowhere/text: no such bucket or key",
        f"{s3}/nothing": r"nothing: no object there|no such bucket or key",
        "abc://x/y": r"abc://: no such protocol",
    }.items():
        refused(message, write_shards, given, tmp_path / "out", tokenizer, OPTIONS)
    refused("nowhere.*no such bucket", write_shards, corpus, "s3://nowhere/out", tokenizer, OPTIONS)
    refused("text/out lies in the input", write_shards, corpus, f"{corpus}/out", tokenizer, OPTIONS)
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
    refused("text: no credentials", write_shards, corpus, tmp_path / "out", tokenizer, OPTIONS)
    storage._file_system.cache_clear()


@pytest.mark.slow
def test_shards_in_a_bucket_of_google(texts, tokenizer, whole_text, monkeypatch):
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
        assert_same("gs://bucket/shards", whole_text)
        with pytest.raises(InputError, match=r"gs://nowhere.*: no such bucket"):
            write_shards("gs://nowhere/text", "gs://bucket/out", tokenizer, OPTIONS)
    finally:
        server.stop()
        storage._file_system.cache_clear()
