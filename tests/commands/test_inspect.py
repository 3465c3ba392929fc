"""`bert-tf inspect`: instances as they stand in the shards, statistics, damage."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from command_line import words

from bert_tf import BertTokenizer
from bert_tf.cli import main
from bert_tf.commands.inspect import displayed_instances
from bert_tf.pipelines.shards.folder import open_shards


@pytest.fixture(scope="module")
def compact(made_once, corpus, tokenizer) -> Path:
    """Shards without masks."""

    def make(path: Path) -> None:
        arguments = words(
            "shards --masking dynamic --max_seq_length 32 --held_out_share 0",
            corpus=corpus,
            tokenizer=tokenizer,
            output=path,
        )
        assert main(arguments) == 0

    return made_once("compact", make)


@pytest.fixture
def foreign(shards, tmp_path) -> Path:
    """The records of `shards` alone, as the original's script leaves them."""
    for path in shards.glob("train*.tfrecord"):
        shutil.copy(path, tmp_path)
    return tmp_path


def inspect(capsys, *arguments: object, code: int = 0) -> str:
    """Standard output of the command; standard error where it has to fail."""
    capsys.readouterr()
    assert main(["inspect", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def examples(folder: Path, split: str = "train") -> list[dict[str, list]]:
    """Features of every record, by `tf.train.Example`."""
    found = []
    for path in sorted(folder.glob(f"{split}*.tfrecord")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            found.append(
                {
                    name: list(feature.int64_list.value or feature.float_list.value)
                    for name, feature in features.items()
                }
            )
    return found


def pieces(folder: Path) -> list[str]:
    return (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()


def test_instances_are_those_of_the_shards(shards):
    vocabulary = pieces(shards)
    stored = {}
    for example in examples(shards):
        length = sum(example["input_mask"])
        shown = tuple(vocabulary[id_] for id_ in example["input_ids"][:length])
        hidden = {
            position: vocabulary[id_]
            for position, id_, weight in zip(
                example["masked_lm_positions"],
                example["masked_lm_ids"],
                example["masked_lm_weights"],
                strict=True,
            )
            if weight
        }
        stored[shown] = hidden, ("IsNext", "NotNext")[example["next_sentence_labels"][0]]
    found = displayed_instances(
        open_shards(shards), BertTokenizer.from_directory(shards), count=50, seed=1
    )
    assert len(found) == 50
    for instance in found:
        shown = tuple(token.shown for token in instance.tokens)
        hidden = {
            position: token.hidden
            for position, token in enumerate(instance.tokens)
            if token.hidden is not None
        }
        assert stored[shown] == (hidden, instance.label)


@pytest.mark.slow
def test_masks_are_drawn_for_instances_without(compact):
    vocabulary = pieces(compact)
    stored = {
        tuple(vocabulary[id_] for id_ in example["input_ids"]): example["next_sentence_labels"][0]
        for example in examples(compact)
    }
    opened, tokenizer = open_shards(compact), BertTokenizer.from_directory(compact)
    found = displayed_instances(opened, tokenizer, count=40, seed=1)
    assert len(found) == 40
    for instance in found:
        unmasked = tuple(token.hidden or token.shown for token in instance.tokens)
        assert ("IsNext", "NotNext")[stored[unmasked]] == instance.label
        hidden = sum(token.hidden is not None for token in instance.tokens)
        assert hidden == max(1, round(0.15 * len(instance.tokens)))
    assert found == displayed_instances(opened, tokenizer, count=40, seed=1)
    assert found != displayed_instances(opened, tokenizer, count=40, seed=2)


def test_instances_are_printed_as_in_the_paper(shards, capsys):
    printed = inspect(capsys, "--shards", shards, "--examples", 3)
    inputs = re.findall(r"^Input = (\[CLS\] .+ \[SEP\] .+ \[SEP\])$", printed, re.M)
    assert len(inputs) == 3
    assert len(re.findall(r"^Label = (?:IsNext|NotNext)$", printed, re.M)) == 3
    for shown, line in zip(inputs, re.findall(r"^Hidden = (.+)$", printed, re.M), strict=True):
        hidden = re.findall(r"(\S+)->(\S+?)(?: \((kept|random)\))?(?:, |$)", line)
        assert len(hidden) == round(0.15 * len(shown.split()))
        for piece, was, kind in hidden:
            assert piece in shown.split()
            assert kind == ("" if piece == "[MASK]" else "kept" if piece == was else "random")


def test_words_to_predict_are_coloured_on_a_terminal(shards, capsys, monkeypatch):
    assert "\x1b" not in inspect(capsys, "--shards", shards)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;33m[MASK]\x1b[0m" in inspect(capsys, "--shards", shards)


def test_full_sentences_have_no_label(compact, tmp_path, capsys):
    folder = tmp_path / "shards"
    shutil.copytree(compact, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["options"]["instances"] = "full_sentences"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    printed = inspect(capsys, "--shards", folder)
    assert printed.count("Input = ") == 5 and "Label" not in printed


def test_tables_have_settings_text_and_statistics(shards, capsys):
    manifest = json.loads((shards / "manifest.json").read_text())
    printed = inspect(capsys, "--shards", shards, "--examples", 0)
    assert "Input = " not in printed
    cells = {
        row[0].strip(): [cell.strip() for cell in row[1:]]
        for line in printed.splitlines()
        if len(row := line.strip("│┃").split("│")) > 1
    }
    assert cells["max seq length"] == ["32"]
    assert (cells["mask token share"], cells["random token share"]) == (["0.8"], ["0.1"])
    assert cells["documents"] == [f"{manifest['documents']:,}"] == ["40"]
    statistics = [manifest["statistics"][split] for split in ("train", "held_out")]
    assert cells["instances"] == [f"{each['instances']:,}" for each in statistics]
    assert cells["mask share"] == [f"{each['mask_share']:.1%}" for each in statistics]
    assert cells["length mean"] == [f"{each['length_mean']:,.1f}" for each in statistics]


def test_held_out_shards(shards, compact, capsys):
    held_out = inspect(capsys, "--shards", shards, "--split", "held_out", "--examples", 2)
    (first, *_) = re.findall(r"^Input = (.+)$", held_out, re.M)
    vocabulary = pieces(shards)
    stored = {
        " ".join(vocabulary[id_] for id_ in example["input_ids"][: sum(example["input_mask"])])
        for example in examples(shards, "held_out")
    }
    assert first in stored
    error = inspect(capsys, "--shards", compact, "--split", "held_out", code=2)
    assert str(compact) in error and "held_out" in error


def test_all_is_well_or_the_damaged_shard_is_named(shards, tmp_path, capsys):
    folder = tmp_path / "shards"
    shutil.copytree(shards, folder)
    files = len(list(folder.glob("*.tfrecord")))
    assert inspect(capsys, "--shards", folder).endswith(
        f"All {files} shards match their checksums.\n"
    )
    damaged = sorted(folder.glob("held_out*.tfrecord"))[0]  # not the split that is printed
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    error = inspect(capsys, "--shards", folder, code=2)
    assert str(damaged) in error and "checksum" in error
    assert "match their checksums" not in inspect(capsys, "--shards", folder, "--no_verify")
    damaged.write_bytes(content[:-9])
    assert str(damaged) in inspect(capsys, "--shards", folder, code=2)


def test_shards_of_the_original_script(foreign, shards, tokenizer, capsys):
    error = inspect(capsys, "--shards", foreign, code=2)
    assert str(foreign) in error and "--tokenizer" in error
    printed = inspect(capsys, "--shards", foreign, "--tokenizer", tokenizer)
    assert printed.count("Label = ") == 5
    records = len(examples(shards))
    assert printed.endswith(f"All {records} records are readable.\n")
    assert inspect(capsys, "--shards", foreign, "--tokenizer", tokenizer / "vocab.txt") == printed
    damaged = sorted(foreign.glob("*.tfrecord"))[-1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    error = inspect(capsys, "--shards", foreign, "--examples", 0, code=2)
    assert str(damaged) in error


def test_a_tokenizer_of_fewer_pieces(foreign, tokenizer, tmp_path, capsys):
    small = tmp_path / "vocab"
    small.mkdir()
    (small / "vocab.txt").write_text("\n".join(pieces(tokenizer)[:100]) + "\n", encoding="utf-8")
    error = inspect(capsys, "--shards", foreign, "--tokenizer", small, code=2)
    assert str(foreign) in error and "100 pieces" in error


def test_fewer_than_no_examples(shards, capsys):
    assert "--examples is -1" in inspect(capsys, "--shards", shards, "--examples", "-1", code=2)


def test_a_folder_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("nowhere", "nowhere/128", "../nowhere"):
        assert f"{folder}: no such f" in inspect(capsys, "--shards", folder, code=2)
    (tmp_path / "nowhere" / ".journal").mkdir(parents=True)
    (tmp_path / "nowhere" / ".journal" / "lock").touch()
    for folder in ("nowhere", "nowhere/128"):
        assert "has not finished there" in inspect(capsys, "--shards", folder, code=2)
