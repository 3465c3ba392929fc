import json
import re
import tempfile
from pathlib import Path

import pytest
from cases import refused
from command_line import words
from preloaded import start_command, wait_until
from pretraining_runs import pretraining_command
from s3_server import Faults

from bert_tf.cli import main
from bert_tf.commands import serve
from bert_tf.errors import InputError
from bert_tf.files import cache as caches
from bert_tf.files import mirror, storage


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(caches.CACHE_FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def pretraining(shards, config, output):
    every = {"save_every": 5, "log_every": 5, "evaluate_every": 10}
    return pretraining_command(shards, config, output, steps=20, learning_rate=1e-3, **every)


@pytest.mark.slow
def test_a_run_in_a_bucket_that_is_killed_is_resumed_elsewhere(s3, shards, small_config, tmp_path):
    run, local = f"{s3}/runs/pre", tmp_path / "run"
    assert main(pretraining(shards, small_config, local)) == 0
    process = start_command(pretraining(shards, small_config, run))
    wait_until(storage.open_folder(f"{run}/checkpoints").sizes, process)
    process.kill()
    process.wait()
    assert not storage.open_folder(f"{run}/last").sizes()
    assert main(pretraining(shards, small_config, run)) == 0
    remote = storage.open_folder(run)
    for name in ("best/model.safetensors", "last/model.safetensors", "best/vocab.txt"):
        assert remote.read(name) == (local / name).read_bytes(), name
    there = [json.loads(line) for line in remote.read("logs/scalars.jsonl").splitlines()]
    here = [json.loads(line) for line in (local / "logs/scalars.jsonl").open()]
    there, here = ([(x["step"], x["kind"], x["loss"]) for x in lines] for lines in (there, here))
    assert there == here
    assert f"output: {json.dumps(run)}" in remote.read("config.yaml").decode()
    checkpoints = sorted(storage.open_folder(f"{run}/checkpoints").sizes())
    assert checkpoints == sorted(path.name for path in (local / "checkpoints").iterdir())


@pytest.mark.slow
def test_from_a_model_in_a_bucket_to_an_export_there(s3, pretrained, tmp_path, cache, capsys):
    rows = ["first,second,same"]
    for i in range(16):
        rows.append(f'"ship, ""{i}""\twith a tab",the waves,{"yes" if i % 2 else "no"}')
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("\n".join(rows) + "\n")
    mirror.Folder(f"{s3}/pre").upload(pretrained / "last" / "config.json", "best/config.json")
    for path in (pretrained / "last").iterdir():
        mirror.Folder(f"{s3}/pre/best").upload(path, path.name)
    refused(r"pre is a run directory.* did you mean .*pre/best\?", caches.fetched, f"{s3}/pre")
    line = "finetune --text_column first --pair_column second --label_column same"
    line += " --max-length 16 --epochs 1 --batch-size 4"
    folders = {"model": f"{s3}/pre/best", "output": f"{s3}/runs/cls"}
    assert main(words(line, train=pairs, validation=pairs, **folders)) == 0
    finetuned = storage.open_folder(f"{s3}/runs/cls/best")
    assert finetuned.read("metrics.json")
    header, *rows = finetuned.read("predictions.tsv").decode().splitlines()
    assert header.split("\t") == ["first", "second", "label", "predicted", "no", "yes"]
    assert {row.split("\t")[0] for row in rows} == {f'ship, "{i}" with a tab' for i in range(16)}
    export = words("export --name cls", model=f"{s3}/runs/cls/best", output=f"{s3}/served")
    assert main(export) == 0
    assert storage.open_folder(f"{s3}/served/cls/1").read("saved_model.pb")
    assert b"cls" in storage.open_folder(f"{s3}/served").read("models.config")
    capsys.readouterr()
    predict = words("predict", model=f"{s3}/served/cls", text="a ship")
    assert main([*predict, "--pair", "a wave"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("yes", "no")
    assert main(predict) == 2  # from the cache
    assert "takes pairs" in capsys.readouterr().err
    assert len(list((cache / "models").iterdir())) == 3
    options = serve.Options(models=f"{s3}/served")
    serve.prepare(options)
    assert (Path(options.models) / "cls" / "1" / "saved_model.pb").is_file()


@pytest.mark.slow
def test_shards_are_made_with_a_tokenizer_in_a_bucket(s3, corpus, pretrained, tmp_path, capsys):
    for name in ("vocab.txt", "tokenizer_config.json"):
        mirror.Folder(f"{s3}/vocab").upload(pretrained / "last" / name, name)

    def shards(tokenizer, output):
        return main(words("shards", corpus=corpus, tokenizer=tokenizer, output=output))

    assert shards(str(pretrained / "last"), tmp_path / "local") == 0
    assert shards(f"{s3}/vocab", tmp_path / "remote") == 0
    for path in (tmp_path / "local").glob("*.tfrecord"):
        assert (tmp_path / "remote" / path.name).read_bytes() == path.read_bytes()
    capsys.readouterr()
    assert shards(f"{s3}/none", tmp_path / "none") == 2
    assert f"{s3}/none: no object there" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_mistakes_with_runs_in_buckets_are_named(s3, shards, small_config, capsys):
    def error(*arguments):
        assert main(pretraining(*arguments)) == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "s3://nowhere/run" in error(shards, small_config, "s3://nowhere/run")
    Faults.faults[:] = ["denied"] * 3
    line = error(shards, small_config, f"{s3}/run")
    Faults.faults.clear()
    assert f"{s3}/run: no permission" in line or f"{s3}/run/.bert-tf-lease-1: no permission" in line
    line = error("s3://bucket/run/shards", small_config, f"{s3}/run")
    assert f"--output {s3}/run holds the input" in line


@pytest.mark.slow
def test_a_run_whose_uploads_are_refused_can_go_on_from_its_copy(
    s3, shards, small_config, tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    upload = storage.Folder.upload

    def refuse(folder, path, name):
        if name == "best/config.json":
            raise InputError(f"{folder}/{name}: no permission (Access Denied)")
        upload(folder, path, name)

    monkeypatch.setattr(storage.Folder, "upload", refuse)
    assert main(pretraining(shards, small_config, f"{s3}/refused")) == 2
    assert caplog.text.count("it is tried again at the next checkpoint") > 1
    line = capsys.readouterr().err.splitlines()[-1]
    copy = Path(re.search(r"give --output (\S+)", line)[1])
    assert copy.is_relative_to(tmp_path) and (copy / "last" / "model.safetensors").is_file()
    assert main(pretraining(shards, small_config, copy)) == 0  # with the same settings
    assert storage.open_folder(f"{s3}/refused/best").read("config.json") is None
