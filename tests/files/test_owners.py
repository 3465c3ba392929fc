"""Owner's marks: what of an output folder is replaced or removed, and what is refused."""

import json
from pathlib import Path

import pytest

from bert_tf.errors import InputError
from bert_tf.files.atomic import MARK, hold_output, replace_directory, replace_file, write_text
from bert_tf.files.owners import CHECK, EVALUATION, INDEX, RUN, SEARCH, SEEDS, Mark, owned
from bert_tf.training.training_options import TrainingOptions, save_config


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MARK
    }


def write_best(folder: Path, content: str, *names: str) -> None:
    with replace_directory(folder / "best") as temporary:
        for name in names:
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(content)


@pytest.mark.parametrize("layout", [RUN, SEEDS, SEARCH])
def test_a_folder_with_files_of_others_is_refused_by_their_name(layout, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.json").write_text("theirs")
    with pytest.raises(InputError, match=r"best: would be replaced, and no run of bert-tf made it"):
        Mark.of(tmp_path, layout)
    assert not (tmp_path / MARK).exists()


def test_empty_folders_that_were_made_before_are_taken(tmp_path):
    (tmp_path / "run" / "logs" / "job").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "scratch")
    Mark.of(tmp_path / "run", RUN)
    (tmp_path / "run" / "logs" / "job" / "out.txt").write_text("theirs")
    with pytest.raises(InputError, match="logs: would be replaced"):
        Mark.of(tmp_path / "run", RUN)


@pytest.mark.parametrize(("first", "then"), [(SEEDS, RUN), (RUN, SEEDS), (SEARCH, RUN)])
def test_an_output_of_another_kind_is_refused(first, then, tmp_path):
    Mark.of(tmp_path, first).write()
    with pytest.raises(InputError, match=f"holds {first.title}, not {then.title}: give another"):
        Mark.of(tmp_path, then)
    Mark.of(tmp_path, first)


def test_own_files_are_replaced_and_others_are_not(tmp_path):
    with hold_output(tmp_path, Mark.of(tmp_path, RUN)):
        write_text(tmp_path / "best" / "model", "1")
    (tmp_path / "best" / "NOTES.md").write_text("theirs")
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "model").write_text("theirs")
    with hold_output(tmp_path, Mark.of(tmp_path, RUN)):
        write_text(tmp_path / "best" / "model", "2")
        with pytest.raises(InputError, match=r"last/model: would be replaced"):
            write_text(tmp_path / "last" / "model", "2")
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "events").write_text("1")  # TensorFlow writes it
        with replace_file(tmp_path / "logs" / "events") as temporary:
            temporary.write_text("2")
    assert files(tmp_path) == {
        "best/model": "2",
        "best/NOTES.md": "theirs",
        "last/model": "theirs",
        "logs/events": "2",
    }


def test_a_folder_with_files_of_others_is_not_replaced(tmp_path):
    with hold_output(tmp_path, Mark.of(tmp_path, SEEDS)):
        write_best(tmp_path, "1", "model", "deep/more")
        write_best(tmp_path, "2", "model")  # without what it was before
        (tmp_path / "best" / "NOTES.md").write_text("theirs")
        with pytest.raises(InputError, match=r"best/NOTES\.md: would be replaced"):
            write_best(tmp_path, "3", "model")
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


def test_outputs_of_earlier_versions_are_known(tmp_path):
    run, search = tmp_path / "run", tmp_path / "search"
    for folder in (run, search):
        for name in ("best/model.safetensors", "best/vocab.txt", "best/NOTES.md"):
            write_text(folder / name, "old")
        save_config(TrainingOptions(output=str(folder)), folder)
    write_text(search / "search.json", "{}")
    with pytest.raises(InputError, match="holds a search, not a run"):
        Mark.of(search, RUN)
    with (
        hold_output(search, Mark.of(search, SEARCH)),
        pytest.raises(InputError, match=r"best/NOTES\.md: would be replaced"),
    ):
        write_best(search, "new", "model.safetensors")
    for content in ("new", "newer"):  # the second time by the mark
        with hold_output(run, Mark.of(run, RUN)):
            write_text(run / "best" / "model.safetensors", content)
            write_text(run / "best" / "other.bin", content)
    assert files(run / "best")["model.safetensors"] == "newer"
    Mark.find(run).remove("best")
    assert files(run / "best") == {"NOTES.md": "old"}
    write_text(tmp_path / "mine" / "config.yaml", "port: 80\n")
    assert Mark.find(tmp_path / "mine") is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"kind": 1, "files": 2})])
def test_a_damaged_mark_is_named(text, tmp_path):
    write_text(tmp_path / MARK, text)
    with pytest.raises(InputError, match=r"\.bert-tf\.json cannot be read"):
        Mark.of(tmp_path, RUN)


@pytest.mark.parametrize(
    ("layout", "old", "name"),
    [
        (EVALUATION, {"report.md": "# Evaluation\n\nx"}, "metrics.json"),
        (CHECK, {"report.md": "# Check of the data\n"}, "cleaned/train.tsv"),
        (INDEX, {"index.json": "{}", "vectors.npy": ""}, "texts.jsonl"),
    ],
)
def test_reports_and_indexes_replace_their_own(layout, old, name, tmp_path):
    theirs, earlier, new = (tmp_path / name for name in ("theirs", "earlier", "new"))
    for folder in (theirs, earlier):
        write_text(folder / name, "old")
    for file, text in old.items():
        write_text(earlier / file, text)
    with pytest.raises(InputError, match="would be replaced"), owned(theirs, layout):
        pass
    for folder in (earlier, new, new):
        with owned(folder, layout):
            write_text(folder / name, "new")
    assert [files(x)[name] for x in (theirs, earlier, new)] == ["old", "new", "new"]
    with owned(None, layout):
        write_text(tmp_path / "report.md", "another's business")
