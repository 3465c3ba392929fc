import json
from pathlib import Path

import pytest
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.files.atomic import MARK, hold_output, replace_directory, replace_file, write_text
from bert_tf.files.owners import CHECK, EVALUATION, RUN, SEARCH, SEEDS, Mark, owned


def files(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MARK]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def write_best(folder: Path, content: str, *names: str) -> None:
    with replace_directory(folder / "best") as temporary:
        for name in names:
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(content)


@for_each("layout", RUN, SEEDS, SEARCH)
def test_a_folder_with_files_of_others_is_refused_by_their_name(layout, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.json").write_text("theirs")
    refused(r"best: would be replaced, and no run of bert-tf made it", Mark.of, tmp_path, layout)
    assert not (tmp_path / MARK).exists()


def test_empty_folders_that_were_made_before_are_taken(tmp_path):
    (tmp_path / "run" / "logs" / "job").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "scratch")
    Mark.of(tmp_path / "run", RUN)
    (tmp_path / "run" / "logs" / "job" / "out.txt").write_text("theirs")
    refused("logs: would be replaced", Mark.of, tmp_path / "run", RUN)


@for_each("first then", (SEEDS, RUN), (RUN, SEEDS), (SEARCH, RUN))
def test_an_output_of_another_kind_is_refused(first, then, tmp_path):
    Mark.of(tmp_path, first).write()
    refused(f"holds {first.title}, not {then.title}: give another", Mark.of, tmp_path, then)
    Mark.of(tmp_path, first)


def test_own_files_are_replaced_and_others_are_not(tmp_path):
    with hold_output(tmp_path, Mark.of(tmp_path, RUN)):
        write_text(tmp_path / "best" / "model", "1")
    (tmp_path / "best" / "NOTES.md").write_text("theirs")
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "model").write_text("theirs")
    with hold_output(tmp_path, Mark.of(tmp_path, RUN)):
        write_text(tmp_path / "best" / "model", "2")
        refused(r"last/model: would be replaced", write_text, tmp_path / "last" / "model", "2")
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "events").write_text("1")  # TensorFlow writes it
        with replace_file(tmp_path / "logs" / "events") as temporary:
            temporary.write_text("2")
    theirs = {"best/NOTES.md": "theirs", "last/model": "theirs"}
    assert files(tmp_path) == {"best/model": "2", "logs/events": "2", **theirs}


def test_a_folder_with_files_of_others_is_not_replaced(tmp_path):
    with hold_output(tmp_path, Mark.of(tmp_path, SEEDS)):
        write_best(tmp_path, "1", "model", "deep/more")
        write_best(tmp_path, "2", "model")  # without what it was before
        (tmp_path / "best" / "NOTES.md").write_text("theirs")
        refused(r"best/NOTES\.md: would be replaced", write_best, tmp_path, "3", "model")
        assert files(tmp_path) == {"best/model": "2", "best/NOTES.md": "theirs"}
        (tmp_path / "best" / "NOTES.md").unlink()
        write_best(tmp_path, "3", "model")
    assert files(tmp_path) == {"best/model": "3"}


def test_what_is_removed_leaves_files_of_others(tmp_path):
    with hold_output(tmp_path, Mark.of(tmp_path, RUN)):
        for name in ("last/model", "best/1_Pooling/config.json", "best/model"):
            write_text(tmp_path / name, "1")
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "step-1").write_text("1")
    (tmp_path / "best" / "NOTES.md").write_text("theirs")
    for name in ("best", "last", "checkpoints", "none"):
        Mark.find(tmp_path).remove(name)
    assert files(tmp_path) == {"best/NOTES.md": "theirs"}
    assert not (tmp_path / "last").exists() and not (tmp_path / "checkpoints").exists()


@for_each("text", "{", "[]", "{}", json.dumps({"kind": 1, "files": 2}))
def test_a_damaged_mark_is_named(text, tmp_path):
    write_text(tmp_path / MARK, text)
    refused(r"\.bert-tf\.json cannot be read", Mark.of, tmp_path, RUN)


@for_each("layout name", (EVALUATION, "metrics.json"), (CHECK, "report.md"))
def test_reports_replace_their_own(layout, name, tmp_path):
    theirs, new = tmp_path / "theirs", tmp_path / "new"
    write_text(theirs / name, "old")
    with pytest.raises(InputError, match="would be replaced"), owned(theirs, layout):
        pass
    for _ in range(2):
        with owned(new, layout):
            write_text(new / name, "new")
    assert [files(x)[name] for x in (theirs, new)] == ["old", "new"]
    with owned(None, layout):
        write_text(tmp_path / "report.md", "another's business")
