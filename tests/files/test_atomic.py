from pathlib import Path

import pytest

from bert_tf.files.atomic import (
    hold_output,
    move_directory,
    replace_directory,
    replace_file,
    temporary_name,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with replace_file(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()
    with replace_file(path) as temporary:
        temporary.write_text("second")
        assert path.read_text() == "first"
    with pytest.raises(RuntimeError), replace_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "second"
    assert names(path.parent) == ["file.txt"]


def test_a_folder_appears_whole_or_not_at_all_and_replaces_an_older_one(tmp_path):
    path = tmp_path / "folder"
    for content in ("first", "second"):
        with replace_directory(path) as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / content).write_text(content)
        assert names(path / "deep") == [content]
    with pytest.raises(RuntimeError), replace_directory(path) as temporary:
        (temporary / "half").write_text("x")
        raise RuntimeError
    assert names(path) == ["deep"] and names(tmp_path) == ["folder"]


def test_only_what_a_killed_holder_of_the_same_output_left_is_removed(tmp_path):
    run, other = tmp_path / "run", tmp_path / "run" / "other"
    (run / ".mine.tmp").mkdir(parents=True)
    (run / ".mine.bert-tf-1.tmp").touch()
    left = []
    for holder in (run, other):
        with hold_output(holder):
            for path in (holder / "file", holder / "deep" / "folder"):
                left.append(temporary_name(path))
                left[-1].mkdir(parents=True)
                (left[-1] / "part").write_text("half")
    left.append(temporary_name(run / "vocab"))  # of a command that holds nothing
    left[-1].touch()
    with hold_output(run):
        assert [path.exists() for path in left] == [False, False, True, True, True]
        assert (run / ".mine.tmp").exists() and (run / ".mine.bert-tf-1.tmp").exists()
        with replace_file(run / "file") as temporary, hold_output(run / "other"):
            temporary.write_text("whole")
    assert (run / "file").read_text() == "whole"
    assert [path.exists() for path in left] == [False, False, False, False, True]
    with hold_output(tmp_path / "nowhere"):
        pass


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("renames", [1, 2])
def test_a_process_killed_while_it_replaces_a_folder_loses_neither(tmp_path, monkeypatch, renames):
    """Killed between the two renames, or before it deletes the older folder."""
    best = tmp_path / "best"
    best.mkdir()
    (best / "model").write_text("old")

    def killed(*arguments, **more):
        raise KilledError

    with hold_output(tmp_path):
        new = temporary_name(best)
        new.mkdir()
        (new / "model").write_text("new")
        with monkeypatch.context() as patch:
            rename = Path.rename
            if renames == 1:
                patch.setattr(
                    Path, "rename", lambda path, to: killed() if path == new else rename(path, to)
                )
            else:
                patch.setattr("shutil.rmtree", killed)
            with pytest.raises(KilledError):
                move_directory(new, best)
    with hold_output(tmp_path):
        assert (best / "model").read_text() == ("old" if renames == 1 else "new")
        assert names(tmp_path) == ["best"]
