"""Folders on disks and in object stores: the same files by the same names."""

import pytest

from bert_tf.files.storage import find_objects, open_folder, sha256


@pytest.fixture(params=["disk", "memory://bucket/folder"])
def folder(request, tmp_path):
    location = request.param if "://" in request.param else tmp_path / "~" / request.param
    folder = open_folder(location)
    yield folder
    folder.clear()


def test_a_missing_folder_is_empty(folder):
    assert folder.sizes() == {} and folder.all_names() == []
    assert folder.size("a") is None and folder.read("a") is None
    folder.remove(["a"])
    folder.clear()


def test_files_by_their_names(folder, tmp_path):
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


def test_a_file_that_fails_half_way_is_not_there(folder):
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
