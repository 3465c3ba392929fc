"""Users' mistakes: one line that names file and cure, exit code 2, nothing left behind."""

import json
import shlex
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_tf.cli import main


def refused(capsys, *arguments: object, announced: str = "") -> str:
    """Runs a command that must fail; returns its one line.

    `announced` begins the line that a run shows before it fails, if it gets that far.
    """
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    *before, line = captured.err.strip().splitlines()
    assert len(before) == bool(announced), captured.err
    assert all(shown.startswith(announced) for shown in before)
    assert line.startswith(f"bert-tf {arguments[0]}: error: ")
    return line


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def out(tmp_path) -> Iterator[Path]:
    """A folder that must stay empty."""
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder
    assert left_in(folder) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        (b"", "no text"),
        (b"\n \n\t\n", "no text"),
        (b"fine\n" + b"\xff\xfe broken\n" * 20, "line 2: invalid UTF-8"),
    ],
    ids=["missing", "empty", "blank", "invalid UTF-8"],
)
def test_corpora_that_cannot_be_used(content, expected, tokenizer, tmp_path, out, capsys):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    line = refused(capsys, "vocab", "--corpus", path, "--output", out / "vocab")
    assert str(path) in line and expected in line
    line = refused(
        capsys, "shards", "--corpus", path, "--tokenizer", tokenizer, "--output", out / "shards"
    )
    assert str(path) in line and expected in line


def test_a_corpus_of_one_document(tokenizer, tmp_path, out, capsys):
    path = tmp_path / "one.txt"
    path.write_text("The only document.\nIt has two sentences.\n")
    line = refused(
        capsys, "shards", "--corpus", path, "--tokenizer", tokenizer, "--output", out / "shards"
    )
    assert str(path) in line and "document" in line


def test_a_vocabulary_without_mask(tokenizer, corpus, tmp_path, out, capsys):
    folder = tmp_path / "vocab"
    shutil.copytree(tokenizer, folder)
    pieces = (folder / "vocab.txt").read_text().replace("[MASK]", "[unused]")
    (folder / "vocab.txt").write_text(pieces)
    line = refused(
        capsys, "shards", "--corpus", corpus, "--tokenizer", folder, "--output", out / "shards"
    )
    assert "[MASK]" in line and "vocab.txt" in line


def test_shards_of_another_vocabulary(shards, tokenizer, tmp_path, out, small_config, capsys):
    folder = tmp_path / "vocab"
    shutil.copytree(tokenizer, folder)
    pieces = (folder / "vocab.txt").read_text().splitlines()
    pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    line = refused(
        capsys,
        "pretrain",
        "--shards",
        shards,
        "--tokenizer",
        folder,
        "--size",
        small_config,
        "--output",
        out / "run",
    )
    assert str(shards) in line and "another vocabulary" in line


def test_a_truncated_shard(shards, small_config, tmp_path, out, capsys):
    folder = tmp_path / "shards"
    shutil.copytree(shards, folder)
    shard = sorted(folder.glob("train-*"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    line = refused(
        capsys, "pretrain", "--shards", folder, "--size", small_config, "--output", out / "run"
    )
    assert shard.name in line


@pytest.mark.slow
def test_a_shard_with_a_flipped_byte(shards, small_config, tmp_path, capsys):
    folder = tmp_path / "shards"
    shutil.copytree(shards, folder)
    for shard in folder.glob("train-*"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 0xFF
        shard.write_bytes(bytes(content))
    line = refused(
        capsys,
        "pretrain",
        "--shards",
        folder,
        "--size",
        small_config,
        "--output",
        tmp_path / "run",
        "--steps",
        400,
        "--batch-size",
        8,
        announced="CPU, float32: ",
    )
    assert "train-" in line


def test_a_missing_column(pretrained, labelled, out, capsys):
    line = refused(
        capsys,
        "finetune",
        "--model",
        pretrained / "last",
        "--train",
        labelled / "train.tsv",
        "--text_column",
        "sentence",
        "--output",
        out / "run",
    )
    assert "train.tsv" in line and "'sentence'" in line and "text, label" in line


def test_one_label_only(pretrained, tmp_path, out, capsys):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "a text\tsame\n" * 20)
    line = refused(
        capsys,
        "finetune",
        "--model",
        pretrained / "last",
        "--train",
        path,
        "--output",
        out / "run",
    )
    assert "one label only" in line


def test_an_unknown_label_in_evaluation(finetuned, tmp_path, out, capsys):
    path = tmp_path / "test.tsv"
    path.write_text("text\tlabel\nthe moon\tsky\n")
    line = refused(
        capsys, "evaluate", "--model", finetuned / "best", "--data", path, "--output", out
    )
    assert "'sky'" in line and "farm, sea" in line


@pytest.mark.parametrize("damage", ["missing", "truncated", "no config"])
def test_models_that_cannot_be_used(damage, pretrained, labelled, tmp_path, out, capsys):
    model = tmp_path / "model"
    if damage != "missing":
        shutil.copytree(pretrained / "last", model)
    if damage == "truncated":
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-10])
    if damage == "no config":
        (model / "config.json").unlink()
    line = refused(
        capsys,
        "finetune",
        "--model",
        model,
        "--train",
        labelled / "train.tsv",
        "--output",
        out / "run",
    )
    assert str(model) in line


def test_a_classifier_is_asked_for(pretrained, out, capsys):
    line = refused(
        capsys,
        "export",
        "--model",
        pretrained / "last",
        "--task",
        "classification",
        "--name",
        "x",
        "--output",
        out,
    )
    assert "classifier" in line


def test_export_names_and_versions(finetuned, exported, capsys):
    root = exported.parent
    line = refused(
        capsys, "export", "--model", finetuned / "best", "--name", "../up", "--output", root
    )
    assert "'../up'" in line
    line = refused(
        capsys,
        "export",
        "--model",
        finetuned / "best",
        "--name",
        exported.name,
        "--output",
        root,
        "--version",
        1,
    )
    assert "free" in line


def test_predict_without_a_model_or_a_text(exported, tmp_path, capsys):
    line = refused(capsys, "predict", "--model", tmp_path, "--text", "x")
    assert "neither config.json nor a SavedModel" in line
    line = refused(capsys, "predict", "--model", exported)
    assert "--text" in line


def test_outputs_are_not_overwritten(tokenizer, shards, corpus, capsys):
    before = left_in(tokenizer) + left_in(shards)
    refused(capsys, "vocab", "--corpus", corpus, "--output", tokenizer)
    refused(capsys, "shards", "--corpus", corpus, "--tokenizer", tokenizer, "--output", shards)
    assert left_in(tokenizer) + left_in(shards) == before


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("text", "is the input"),
        (".", "holds the input"),
        ("text/vocab", "lies in the input"),
        ("link", "is the input"),
        ("tokenizer", "is the input"),
        ("notes", "holds mine.txt, which this command did not make"),
        ("text/a.txt", "is a file"),
    ],
)
def test_overwrite_deletes_no_input_and_nothing_of_others(
    output, expected, corpus, tokenizer, tmp_path, monkeypatch, capsys
):
    (tmp_path / "text").mkdir()
    shutil.copy(corpus, tmp_path / "text" / "a.txt")
    shutil.copytree(tokenizer, tmp_path / "tokenizer")
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    before = left_in(tmp_path)
    if output != "tokenizer":
        line = refused(capsys, "vocab", "--corpus", "text", "--output", output, "--overwrite")
        assert expected in line and output in line
    text = "text/*.txt" if output == "text" else "text"
    line = refused(
        capsys,
        "shards",
        "--corpus",
        text,
        "--tokenizer",
        "tokenizer",
        "--output",
        output,
        "--overwrite",
    )
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
        ("Это чёрный чай", "чёрный -> черныи"),
        ("The café is plain English without any accents. " + "So is most of it. " * 20, None),
    ],
    ids=["Korean", "Thai", "Thai without spaces", "Vietnamese", "German", "Russian", "English"],
)
def test_vocab_proposes_the_switch_that_the_text_needs(text, example, tmp_path, capsys):
    (tmp_path / "text.txt").write_text((text + "\n") * 3, encoding="utf-8")
    arguments = ["vocab", "--corpus", str(tmp_path / "text.txt"), "--size", "500"]
    assert main([*arguments, "--output", str(tmp_path / "vocab")]) == 0
    said = capsys.readouterr().err
    told = " ".join(said.split())
    assert ("--strip_accents false" in told) == bool(example)
    assert not example or example in told
    if text.startswith("Tiếng"):  # the command that is proposed keeps what it said was lost
        command = said.partition("Next: ")[2].splitlines()[0]
        assert main(shlex.split(command)[1:]) == 0
        said = capsys.readouterr().err
        assert "fall apart" not in said
    assert (" shards --corpus " in said.partition("Next: ")[2].splitlines()[0]) == (
        not example or text.startswith("Tiếng")
    )


def test_vocab_proposes_nfc_for_text_in_nfd(tmp_path, capsys):
    text = unicodedata.normalize("NFD", "Der Bär ging für immer nach Köln zurück\n")
    (tmp_path / "text.txt").write_text(text * 3, encoding="utf-8")
    arguments = ["vocab", "--corpus", str(tmp_path / "text.txt"), "--size", "500"]
    given = [*arguments, "--strip_accents", "false", "--output", str(tmp_path / "vocab")]
    assert main(given) == 0
    assert "Next: bring each file to NFC" in capsys.readouterr().err


def test_vocab_proposes_shards_of_the_text_that_it_has_read(tmp_path, capsys):
    text = tmp_path / "my text.jsonl"
    text.write_text('{"body": "the sea and the ship"}\n' * 3)
    arguments = [
        "vocab",
        "--corpus",
        text,
        "--text_field",
        "body",
        "--skip_unreadable",
        "--size",
        100,
        "--output",
        tmp_path / "vocab",
    ]
    assert main([str(argument) for argument in arguments]) == 0
    told = capsys.readouterr().err.splitlines()[-1]
    _, _, command = told.partition("Next: ")
    shards = [*shlex.split(command)[1:-1], str(tmp_path / "shards")]
    assert shards[:4] == ["shards", "--corpus", str(text), "--text_field"]
    assert main([*shards, "--held_out_share", "0"]) == 0


def test_an_older_output_is_replaced_through_a_link(corpus, tokenizer, tmp_path):
    shutil.copytree(tokenizer, tmp_path / "old")
    (tmp_path / "old" / "vocab.txt").write_text("old")
    (tmp_path / "link").symlink_to("old")
    arguments = ["vocab", "--corpus", corpus, "--size", 600, "--output", tmp_path / "link"]
    assert main([str(argument) for argument in [*arguments, "--overwrite"]]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "old" / "vocab.txt").read_bytes() == (tokenizer / "vocab.txt").read_bytes()


def test_unknown_options_and_bad_values_exit_with_2(capsys):
    for arguments in (["vocab", "--corpsu", "x"], ["vocab", "--size", "many"], ["nothing"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_batch_that_replicas_cannot_share(shards, small_config, out, capsys):
    line = refused(
        capsys,
        "pretrain",
        "--shards",
        shards,
        "--size",
        small_config,
        "--batch-size",
        0,
        "--output",
        out / "run",
    )
    assert "batch" in line


def test_a_config_of_another_vocabulary_size(shards, small_config, tmp_path, out, capsys):
    config = json.loads(small_config.read_text()) | {"vocab_size": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = refused(
        capsys,
        "pretrain",
        "--shards",
        shards,
        "--size",
        tmp_path / "config.json",
        "--output",
        out / "run",
        announced="CPU, float32: ",
    )
    assert "vocab_size 7" in line
