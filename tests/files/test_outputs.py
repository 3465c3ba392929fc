import os

import pytest
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.files.outputs import check_output_file, check_output_folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory: an input folder with a file, links, an old output."""
    (tmp_path / "text" / "deep").mkdir(parents=True)
    (tmp_path / "text" / "a.txt").write_text("a")
    (tmp_path / "old" / "128").mkdir(parents=True)
    (tmp_path / "old" / "made.txt").write_text("x")
    (tmp_path / "old" / "128" / "made.bin").write_text("x")
    (tmp_path / "link_to_text").symlink_to("text")
    (tmp_path / "link_to_old").symlink_to("old")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OURS = ("made.txt", "*/made.bin")


@for_each(
    "output expected",
    ("text", "is the input text"),
    ("text/", "is the input text"),
    ("link_to_text", "is the input text"),
    ("text/deep/new", "lies in the input text"),
    ("link_to_text/new", "lies in the input text"),
    ("../", "holds the input text"),
    (".", "holds the input text"),
    ("text/a.txt", "is a file, not a folder"),
    ("text/a.txt/new", "a.txt is a file"),
    ("loop", "form a loop"),
    ("loop/new", "form a loop"),
    ("", "is empty"),
    ("long" * 100, "File name too long"),
    (os.fsdecode(b"caf\xe9"), "is not UTF-8"),
)
def test_an_output_never_is_holds_or_lies_in_an_input(here, output, expected):
    for overwrite in (False, True):
        refused(expected, check_output_folder, output, ["text"], ours=OURS, overwrite=overwrite)
    with pytest.raises(InputError):
        check_output_folder(output, ["text"])


def test_overwrite_replaces_only_what_the_same_command_made(here):
    refused(r"not empty.*--overwrite", check_output_folder, "old", ours=OURS)
    for name in ("old", "link_to_old"):
        assert check_output_folder(name, ours=OURS, overwrite=True) == here / "old"
    (here / "old" / "128" / "made.txt").write_text("mine")
    for overwrite in (False, True):
        cause = r"old: holds 128/made\.txt, which"
        line = refused(cause, check_output_folder, "old", ours=OURS, overwrite=overwrite)
        assert "--overwrite" not in line
    assert check_output_folder("old") == here / "old"  # files are added to it
    (here / "empty").mkdir()
    assert check_output_folder("empty", ours=OURS) == here / "empty"
    assert check_output_folder(".", ["s3://bucket/text", None, "-"]) == here  # in a bucket


def test_the_working_directory_is_not_replaced(here):
    os.chdir("old")
    for output in (".", "128/..", ".."):
        refused("working directory", check_output_folder, output, ours=OURS, overwrite=True)
    assert check_output_folder(".") == here / "old"


def test_output_files(here):
    assert check_output_file("new/a.tsv", ["text/a.txt"]) == here / "new" / "a.tsv"
    assert check_output_file("dangling") == here / "nowhere"
    causes = {"text/a.txt": "is the input", "text": "is a folder", "loop": "loop"}
    for output, expected in {**causes, "text/a.txt/b": "a.txt is a file"}.items():
        refused(expected, check_output_file, output, ["text/a.txt"])
    refused("lies in the input", check_output_file, "text/b.tsv", ["text"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(here):
    (here / "text").chmod(0o500)
    refused("no permission to write", check_output_folder, "text/new")


def test_a_run_may_read_the_examples_that_it_keeps(tmp_path):
    kept = tmp_path / "run" / "data" / "train.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    assert check_output_folder(tmp_path / "run", [str(kept)]) == tmp_path / "run"
    for other in (kept.parent, tmp_path / "run" / "train.jsonl"):
        refused("holds the input", check_output_folder, tmp_path / "run", [str(other)])
