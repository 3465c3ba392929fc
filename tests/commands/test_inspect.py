import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run
from shard_files import examples, flip

from bert_tf import BertTokenizer
from bert_tf.commands.inspect import displayed_instances
from bert_tf.pipelines.shards.folder import open_shards


@pytest.fixture(scope="module")
def compact(made_once, corpus, tokenizer) -> Path:
    line = "shards --masking dynamic --max_seq_length 32 --held_out_share 0"
    texts = {"corpus": corpus, "tokenizer": tokenizer}
    return made_once("compact", lambda path: run(line, **texts, output=path))


@pytest.fixture
def foreign(shards, tmp_path) -> Path:
    for path in shards.glob("train*.tfrecord"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.fixture
def inspect(call) -> Callable[..., str]:
    return lambda shards, line="", **more: call(f"inspect {line}", shards=shards, **more)[0]


def pieces(folder: Path) -> list[str]:
    return (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()


def damage(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def test_instances_are_those_of_the_shards(shards):
    vocabulary = pieces(shards)
    stored = {}
    for example in examples(shards):
        length = sum(example["input_mask"])
        shown = tuple(vocabulary[id_] for id_ in example["input_ids"][:length])
        names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        slots = zip(*(example[name] for name in names), strict=True)
        hidden = {position: vocabulary[id_] for position, id_, weight in slots if weight}
        stored[shown] = hidden, ("IsNext", "NotNext")[example["next_sentence_labels"][0]]
    tokenizer = BertTokenizer.from_directory(shards)
    instances = displayed_instances(open_shards(shards), tokenizer, count=50, seed=1)
    assert len(instances) == 50
    for instance in instances:
        shown = tuple(token.shown for token in instance.tokens)
        hidden = {i: token.hidden for i, token in enumerate(instance.tokens) if token.hidden}
        assert stored[shown] == (hidden, instance.label)


def test_instances_are_printed_as_in_the_paper(shards, inspect, monkeypatch):
    printed = inspect(shards, "--examples 3")
    inputs = re.findall(r"^Input = (\[CLS\] .+ \[SEP\] .+ \[SEP\])$", printed, re.M)
    assert len(inputs) == 3
    assert len(re.findall(r"^Label = (?:IsNext|NotNext)$", printed, re.M)) == 3
    for shown, line in zip(inputs, re.findall(r"^Hidden = (.+)$", printed, re.M), strict=True):
        hidden = re.findall(r"(\S+)->(\S+?)(?: \((kept|random)\))?(?:, |$)", line)
        assert len(hidden) == round(0.15 * len(shown.split()))
        for piece, was, kind in hidden:
            assert piece in shown.split()
            assert kind == ("" if piece == "[MASK]" else "kept" if piece == was else "random")
    assert "\x1b" not in printed  # words to predict are coloured on a terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;33m[MASK]\x1b[0m" in inspect(shards)


def test_tables_have_settings_text_and_statistics(shards, inspect):
    manifest = json.loads((shards / "manifest.json").read_text())
    printed = inspect(shards, "--examples 0")
    assert "Input = " not in printed
    rows = (line.strip("│┃").split("│") for line in printed.splitlines())
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if len(row) > 1}
    assert cells["max seq length"] == ["32"]
    assert (cells["mask token share"], cells["random token share"]) == (["0.8"], ["0.1"])
    assert cells["documents"] == [f"{manifest['documents']:,}"] == ["40"]
    statistics = [manifest["statistics"][split] for split in ("train", "held_out")]
    assert cells["instances"] == [f"{values['instances']:,}" for values in statistics]
    assert cells["mask share"] == [f"{values['mask_share']:.1%}" for values in statistics]
    assert cells["length mean"] == [f"{values['length_mean']:,.1f}" for values in statistics]


def test_held_out_shards_and_full_sentences(shards, compact, inspect, call, tmp_path):
    (first, *_) = re.findall(r"^Input = (.+)$", inspect(shards, "--split held_out"), re.M)
    vocabulary = pieces(shards)
    rows = [x["input_ids"][: sum(x["input_mask"])] for x in examples(shards, "held_out")]
    assert first in {" ".join(vocabulary[id_] for id_ in ids) for ids in rows}
    error = call.refused("inspect --split held_out", shards=compact)
    assert str(compact) in error and "held_out" in error
    folder = Path(shutil.copytree(compact, tmp_path / "shards"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["options"]["instances"] = "full_sentences"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    printed = inspect(folder)
    assert printed.count("Input = ") == 5 and "Label" not in printed


def test_all_is_well_or_the_damaged_shard_is_named(shards, tmp_path, inspect, call):
    folder = Path(shutil.copytree(shards, tmp_path / "shards"))
    files = len(list(folder.glob("*.tfrecord")))
    assert inspect(folder).endswith(f"All {files} shards match their checksums.\n")
    damaged = sorted(folder.glob("held_out*.tfrecord"))[0]  # not the split that is printed
    damage(damaged)
    error = call.refused("inspect", shards=folder)
    assert str(damaged) in error and "checksum" in error
    assert "match their checksums" not in inspect(folder, "--no_verify")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert str(damaged) in call.refused("inspect", shards=folder)
    (tmp_path / ".journal").mkdir()
    (tmp_path / ".journal" / "lock").touch()
    assert "has not finished there" in call.refused("inspect", shards=tmp_path / "128")


def test_shards_of_the_original_script(foreign, shards, tokenizer, inspect, call):
    error = call.refused("inspect", shards=foreign)
    assert str(foreign) in error and "--tokenizer" in error
    printed = inspect(foreign, tokenizer=tokenizer)
    assert printed.count("Label = ") == 5
    assert printed.endswith(f"All {len(list(examples(shards)))} records are readable.\n")
    assert inspect(foreign, tokenizer=tokenizer / "vocab.txt") == printed
    (foreign / "few.txt").write_text("\n".join(pieces(tokenizer)[:100]) + "\n", encoding="utf-8")
    error = call.refused("inspect", shards=foreign, tokenizer=foreign / "few.txt")
    assert str(foreign) in error and "100 pieces" in error
    few = {"tokenizer": foreign / "few.txt", "output": foreign.parent / "run"}
    error = call.refused("pretrain --size 1x32x2 --steps 1", shards=foreign, **few)
    assert str(foreign) in error and "100 pieces" in error
    damaged = sorted(foreign.glob("*.tfrecord"))[-1]
    damage(damaged)
    assert str(damaged) in call.refused("inspect --examples 0", shards=foreign)
