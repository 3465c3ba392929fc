import errno
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from cases import for_each, refused
from s3_server import Faults, put

from bert_tf.errors import InputError
from bert_tf.files import mirror, storage
from bert_tf.files.storage import find_objects, open_folder, sha256


@pytest.fixture(params=["disk", "memory://bucket/folder"])
def folder(request, tmp_path):
    location = request.param if "://" in request.param else tmp_path / "~" / request.param
    folder = open_folder(location)
    yield folder
    folder.clear()


def test_files_by_their_names_are_there_whole_or_not_at_all(folder, tmp_path):
    assert folder.sizes() == {} and folder.all_names() == []
    assert folder.size("a") is None and folder.read("a") is None
    folder.remove(["a"])
    folder.clear()
    folder.write("b", b"old")
    folder.write("b", b"whole")
    with (folder / "deep").new_file("a") as path:
        path.write_bytes(b"file")
    assert folder.sizes() == {"b": 5}
    assert folder.all_names() == ["b", "deep/a"]
    assert (folder.size("b"), folder.size("deep"), folder.read("deep/a")) == (5, None, b"file")
    folder.download(["b", "deep/a"], tmp_path / "copy")
    assert (tmp_path / "copy" / "deep" / "a").read_bytes() == b"file"
    assert sha256(f"{folder}/b") == sha256(tmp_path / "copy" / "b")
    folder.remove(["b"])
    assert folder.all_names() == ["deep/a"]
    folder.clear()
    assert folder.all_names() == []
    assert folder.local is None or not folder.local.exists()
    folder.write("a", b"old")
    with pytest.raises(KeyError), folder.new_file("a") as path:
        path.write_bytes(b"ha")
        raise KeyError
    assert folder.read("a") == b"old" and folder.all_names() == ["a"]


def test_links_on_a_disk_are_files(tmp_path):
    (tmp_path / "target").write_bytes(b"content")
    folder = open_folder(tmp_path / "folder")
    folder.write("a", b"a")
    (folder.local / "link").symlink_to(tmp_path / "target")
    (folder.local / "lost").symlink_to(tmp_path / "nowhere")
    assert folder.sizes()["link"] == 7
    assert folder.all_names() == ["a", "link", "lost"]
    folder.clear()
    assert (tmp_path / "target").read_bytes() == b"content"


def test_objects_of_a_store_whose_names_begin_with_a_slash():
    folder = open_folder("memory://bucket/texts")
    for name in ("a.txt", "b.tsv", ".hidden"):
        folder.write(name, b"x")
    for pattern in ("memory://bucket/texts/*.txt", "memory://bucket/texts/a.txt"):
        assert [*find_objects(pattern)] == ["memory://bucket/texts/a.txt"]
    assert [*find_objects("memory://bucket/texts")] == [f"{folder}/a.txt", f"{folder}/b.tsv"]
    folder.clear()


URL = "s3://bucket/key"


def objects():
    return {name.removeprefix("bucket/") for name in storage._file_system("s3").find("bucket")}


def test_a_whole_bucket_is_no_output(s3):
    put("others/data")
    before = objects()
    folder = storage.open_folder(s3)
    changes = [folder.clear, lambda: folder.remove(["x"]), lambda: folder.write("x", b"")]
    for change in (*changes, mirror.mirrored(f"{s3}/").__enter__):
        refused(r"s3://bucket: is a whole bucket: name a folder", change)
    assert objects() == before


def test_nothing_in_a_key_is_a_pattern(s3):
    others = {"exp1/a", "exp2/a", "run1/important.bin", "exp1.txt"}
    put(*others, "exp?/a", "exp?/a[1].txt", "exp?/a1.txt", "exp?/b*")
    folder = storage.open_folder(f"{s3}/exp?")
    folder.remove(["a[1].txt"])
    assert sorted(folder.all_names()) == ["a", "a1.txt", "b*"]
    folder.clear()
    storage.open_folder(f"{s3}/run[1]").clear()
    assert others <= objects() and not folder.all_names()


def test_folders_of_a_console_and_hidden_or_empty_or_patterned_names_are_read(s3, tmp_path):
    put("console/", "console/deep/", "console/deep/a", "console/.hidden/b")
    folder = storage.open_folder(f"{s3}/console")
    assert folder.all_names() == [".hidden/b", "deep/a"]
    assert folder.sizes() == {}
    put("text/a[1].txt", "text/a1.txt")
    for pattern, found in {
        "console": "console/deep/a",
        "console/.hidden": "console/.hidden/b",
        "console/.hidden/*": "console/.hidden/b",
        "text/a[1].txt": "text/a[1].txt",
        "text/a?.txt": "text/a1.txt",
    }.items():
        assert [*storage.find_objects(f"{s3}/{pattern}")] == [f"{s3}/{found}"]
    with mirror.mirrored(f"{s3}/console"):
        copy = mirror.local_path(f"{s3}/console")
        assert (copy / "deep" / "a").is_file()


def test_stores_without_conditional_writes_have_one_writer_too(s3, monkeypatch):
    """Some refuse the condition, some report in words of their own that it does not hold."""
    files = storage._file_system("s3")
    pipe_file = files.pipe_file

    def without(key, content, mode="overwrite"):
        if mode == "create":
            raise OSError(errno.ENOSYS, "NotImplemented")
        pipe_file(key, content)

    monkeypatch.setattr(files, "pipe_file", without)
    folder = storage.open_folder(f"{s3}/plain")
    for content in (b"first", b"second"):
        folder.create("name", content)
        assert folder.read("name") == b"first"
    Faults.faults[:] = ["denied"] * 3
    monkeypatch.undo()
    refused("plain/other: no permission", folder.create, "other", b"")
    Faults.faults.clear()


@for_each(
    "error message",
    (PermissionError("Denied"), r"^s3://bucket/key: no permission \(Denied\): check"),
    (OSError("no such library\n" * 100), r"the store failed .*no such library.{,300}$"),
    (FileNotFoundError("key"), "no such bucket or key: check the name"),
    (type("NoCredentialsError", (Exception,), {})("none"), "no credentials"),
)
def test_errors_of_a_store_are_one_line_that_names_the_key(error, message):
    with pytest.raises((InputError, OSError), match=message), storage.remote_errors(URL):
        raise error


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


def test_a_missing_package_is_named(monkeypatch):
    import fsspec

    def missing(*arguments, **named):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    storage._file_system.cache_clear()
    refused(r"s3://: .*pip install 'fsspec>=2026\.1' 's3fs>=2026\.1'", storage.find_objects, URL)
    storage._file_system.cache_clear()
