from pathlib import Path

import pytest
from cases import for_each

from bert_tf.files import atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with atomic.replace_file(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()
    with atomic.replace_file(path) as temporary:
        temporary.write_text("second")
        assert path.read_text() == "first"
    with pytest.raises(RuntimeError), atomic.replace_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "second"
    assert names(path.parent) == ["file.txt"]
    is_full = pytest.raises(OSError, match=r"No space left on device: '.*file\.txt'")
    with is_full, atomic.replace_file(path), Path("/dev/full").open("w") as full:
        full.write("x")


def test_a_folder_appears_whole_or_not_at_all_and_replaces_an_older_one(tmp_path):
    path = tmp_path / "folder"
    for content in ("first", "second"):
        with atomic.replace_directory(path) as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / content).write_text(content)
        assert names(path / "deep") == [content]
    with pytest.raises(RuntimeError), atomic.replace_directory(path) as temporary:
        (temporary / "half").write_text("x")
        raise RuntimeError
    is_full = pytest.raises(OSError, match=r"No space left on device: '.*folder'")
    with is_full, atomic.replace_directory(path), Path("/dev/full").open("w") as full:
        full.write("x")
    assert names(path) == ["deep"] and names(tmp_path) == ["folder"]


def test_only_what_a_killed_holder_of_the_same_output_left_is_removed(tmp_path):
    run, other = tmp_path / "run", tmp_path / "run" / "other"
    (run / ".mine.tmp").mkdir(parents=True)
    (run / ".mine.bert-tf-1.tmp").touch()
    left = []
    for holder in (run, other):
        with atomic.hold_output(holder):
            for path in (holder / "file", holder / "deep" / "folder"):
                left.append(atomic.temporary_name(path))
                left[-1].mkdir(parents=True)
                (left[-1] / "part").write_text("half")
    left.append(atomic.temporary_name(run / "vocab"))  # of a command that holds nothing
    left[-1].touch()
    with atomic.hold_output(run):
        assert [path.exists() for path in left] == [False, False, True, True, True]
        assert (run / ".mine.tmp").exists() and (run / ".mine.bert-tf-1.tmp").exists()
        with atomic.replace_file(run / "file") as temporary, atomic.hold_output(run / "other"):
            temporary.write_text("whole")
    assert (run / "file").read_text() == "whole"
    assert [path.exists() for path in left] == [False, False, False, False, True]
    with atomic.hold_output(tmp_path / "nowhere"):
        pass


class KilledError(BaseException):
    pass


@for_each("renames", 1, 2)
def test_a_process_killed_while_it_replaces_a_folder_loses_neither(tmp_path, monkeypatch, renames):
    """Killed between the two renames, or before it deletes the older folder."""
    best = tmp_path / "best"
    best.mkdir()
    (best / "model").write_text("old")

    def killed(*arguments, **more):
        raise KilledError

    with atomic.hold_output(tmp_path):
        new = atomic.temporary_name(best)
        new.mkdir()
        (new / "model").write_text("new")
        with monkeypatch.context() as patch:
            rename = Path.rename
            if renames == 1:
                renamed = {True: killed, False: rename}
                patch.setattr(Path, "rename", lambda path, to: renamed[path == new](path, to))
            else:
                patch.setattr("shutil.rmtree", killed)
            with pytest.raises(KilledError):
                atomic.move_directory(new, best)
    with atomic.hold_output(tmp_path):
        assert (best / "model").read_text() == ("old" if renames == 1 else "new")
        assert names(tmp_path) == ["best"]
