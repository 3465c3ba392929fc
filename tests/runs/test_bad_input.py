"""Users' mistakes: one line that names file and cure, exit code 2, nothing left behind.

tests/test_cli.py has those that are found before TensorFlow is imported.
"""

import json
import shlex
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def out(tmp_path) -> Iterator[Path]:
    """A folder that must stay empty."""
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder
    assert left_in(folder) == []


def test_a_corpus_that_is_no_text(tokenizer, tmp_path, out, call):
    path = tmp_path / "text.txt"
    path.write_bytes(b"fine\n" + b"\xff\xfe broken\n" * 20)
    for line, more in (("vocab", {}), ("shards", {"tokenizer": tokenizer})):
        error = call.refused(line, corpus=path, output=out / "made", **more)
        assert str(path) in error and "line 2: invalid UTF-8" in error


def test_vocabularies_that_cannot_be_used(
    tokenizer, corpus, shards, small_config, tmp_path, out, call
):
    folder = tmp_path / "vocab"
    shutil.copytree(tokenizer, folder)
    pieces = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(pieces.replace("[MASK]", "[unused]"))
    line = call.refused("shards", corpus=corpus, tokenizer=folder, output=out / "shards")
    assert "[MASK]" in line and "vocab.txt" in line
    (folder / "vocab.txt").write_text(pieces + "one-more\n")
    data = {"shards": shards, "tokenizer": folder, "size": small_config}
    line = call.refused("pretrain", **data, output=out / "run")
    assert str(shards) in line and "another vocabulary" in line


def test_a_classifier_is_asked_for(pretrained, out, call):
    line = call.refused(
        "export --task classification --name x", model=pretrained / "last", output=out
    )
    assert "classifier" in line


def test_export_names_and_versions(finetuned, exported, call):
    paths = {"model": finetuned / "best", "output": exported.parent}
    assert "'../up'" in call.refused("export --name ../up", **paths)
    assert "free" in call.refused("export --version 1", name=exported.name, **paths)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (".", "holds the input"),
        ("tokenizer", "is the input"),
        ("notes", "holds mine.txt, which this command did not make"),
    ],
)
def test_overwrite_deletes_no_input_and_nothing_of_others(
    output, expected, corpus, tokenizer, tmp_path, monkeypatch, call
):
    (tmp_path / "text").mkdir()
    shutil.copy(corpus, tmp_path / "text" / "a.txt")
    shutil.copytree(tokenizer, tmp_path / "tokenizer")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    before = left_in(tmp_path)
    if output != "tokenizer":
        line = call.refused("vocab --corpus text --overwrite", output=output)
        assert expected in line and output in line
    line = call.refused("shards --corpus text --tokenizer tokenizer --overwrite", output=output)
    assert output in line
    assert left_in(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("한국어 형태소를 분석한다.", "한국어 -> ᄒ ᅡ ᆫ ᄀ ᅮ ᆨ ᄋ ᅥ"),
        ("ภาษาไทยมีสระและวรรณยุกต์ ที่นี่", "ที่นี่ -> ทน"),
        ("ที่นี่" * 9, f"({'ที่นี่' * 4} -> {'ทน' * 4})"),  # cut where it is shown
        ("Tiếng Việt có nhiều dấu", "tiếng -> tieng"),
        ("Der Bär ging für immer nach Köln", "bär -> bar"),
        ("The café is plain English without any accents. " + "So is most of it. " * 20, None),
    ],
    ids=["Korean", "Thai", "Thai without spaces", "Vietnamese", "German", "English"],
)
def test_vocab_proposes_the_switch_that_the_text_needs(text, example, tmp_path, call):
    (tmp_path / "text.txt").write_text((text + "\n") * 3, encoding="utf-8")
    _, said = call("vocab --size 500", corpus=tmp_path / "text.txt", output=tmp_path / "vocab")
    told = " ".join(said.split())
    assert ("--strip_accents false" in told) == bool(example)
    assert not example or example in told
    proposed = said.partition("Next: ")[2].splitlines()[0]
    if text.startswith("Tiếng"):  # the command that is proposed keeps what it said was lost
        _, said = call("", *shlex.split(proposed)[1:])
        assert "fall apart" not in said
        proposed = said.partition("Next: ")[2].splitlines()[0]
    assert (" shards --corpus " in proposed) == (not example or text.startswith("Tiếng"))


def test_vocab_proposes_nfc_for_text_in_nfd(tmp_path, call):
    text = unicodedata.normalize("NFD", "Der Bär ging für immer nach Köln zurück\n")
    (tmp_path / "text.txt").write_text(text * 3, encoding="utf-8")
    paths = {"corpus": tmp_path / "text.txt", "output": tmp_path / "vocab"}
    _, said = call("vocab --size 500 --strip_accents false", **paths)
    assert "Next: bring each file to NFC" in said


def test_vocab_proposes_shards_of_the_text_that_it_has_read(tmp_path, call):
    text = tmp_path / "my text.jsonl"
    text.write_text('{"body": "the sea and the ship"}\n' * 3)
    line = "vocab --text_field body --skip_unreadable --size 100"
    _, said = call(line, corpus=text, output=tmp_path / "vocab")
    proposed = shlex.split(said.splitlines()[-1].partition("Next: ")[2])[1:-1]
    assert proposed[:4] == ["shards", "--corpus", str(text), "--text_field"]
    run("", *proposed, tmp_path / "shards", held_out_share=0)


def test_an_older_output_is_replaced_through_a_link(corpus, tokenizer, tmp_path):
    shutil.copytree(tokenizer, tmp_path / "old")
    (tmp_path / "old" / "vocab.txt").write_text("old")
    (tmp_path / "link").symlink_to("old")
    run("vocab --size 600 --overwrite", corpus=corpus, output=tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "old" / "vocab.txt").read_bytes() == (tokenizer / "vocab.txt").read_bytes()


def test_a_config_of_another_vocabulary_size(shards, small_config, tmp_path, out, call):
    config = json.loads(small_config.read_text()) | {"vocab_size": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = call.refused(
        "pretrain",
        announced="CPU, float32: ",
        shards=shards,
        size=tmp_path / "config.json",
        output=out / "run",
    )
    assert "vocab_size 7" in line
