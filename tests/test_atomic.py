from pathlib import Path

import pytest

from bert_tf.atomic import remove_temporary_files, replace_directory, replace_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with replace_file(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first"
    with replace_file(path) as temporary:
        temporary.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    assert names(path.parent) == ["file.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replace_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_folder_appears_whole_and_replaces_an_older_one(tmp_path):
    path = tmp_path / "folder"
    for content in ("first", "second"):
        with replace_directory(path) as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / content).write_text(content)
        assert [file.name for file in (path / "deep").iterdir()] == [content]
    assert names(tmp_path) == ["folder"]


def test_a_failed_folder_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), replace_directory(tmp_path / "folder") as temporary:
        (temporary / "half").write_text("x")
        raise RuntimeError
    assert names(tmp_path) == []


def test_what_killed_processes_left_is_removed(tmp_path):
    kept = tmp_path / "deep" / "file.txt"
    with replace_file(kept) as file, replace_directory(tmp_path / "folder") as folder:
        file.write_text("half")
        (folder / "part").write_text("half")
        remove_temporary_files(tmp_path)
        assert names(tmp_path) == ["deep"]
        assert names(kept.parent) == []
        file.write_text("whole")
        folder.mkdir()
    remove_temporary_files(tmp_path)
    assert names(tmp_path) == ["deep", "folder"]
    assert kept.read_text() == "whole"
    remove_temporary_files(tmp_path / "nowhere")
