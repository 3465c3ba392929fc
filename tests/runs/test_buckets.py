"""Runs, models and exports in a bucket."""

import errno
import json
import re
import tempfile
import time
from pathlib import Path

import pytest
from command_line import words
from preloaded import start_command
from s3_server import Faults, bucket

from bert_tf.cli import main
from bert_tf.commands import serve
from bert_tf.errors import InputError
from bert_tf.files import cache as caches
from bert_tf.files import lease, mirror, storage


@pytest.fixture(scope="module")
def s3():
    with bucket() as url:
        yield url


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(caches.CACHE_FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def pretraining(shards, small_config, output):
    return words(
        "pretrain --steps 20 --batch-size 8 --save-every 5 --log-every 5 "
        "--evaluate-every 10 --evaluation-batches 2 --learning-rate 1e-3",
        shards=shards,
        size=small_config,
        output=output,
    )


@pytest.mark.slow
def test_a_run_in_a_bucket_that_is_killed_is_resumed_elsewhere(s3, shards, small_config, tmp_path):
    run, local = f"{s3}/runs/pre", tmp_path / "run"
    assert main(pretraining(shards, small_config, local)) == 0
    process = start_command(pretraining(shards, small_config, run))
    while not storage.open_folder(f"{run}/checkpoints").sizes():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not storage.open_folder(f"{run}/last").sizes()
    assert main(pretraining(shards, small_config, run)) == 0
    remote = storage.open_folder(run)
    for name in ("best/model.safetensors", "last/model.safetensors", "best/vocab.txt"):
        assert remote.read(name) == (local / name).read_bytes(), name
    there = [json.loads(line) for line in remote.read("logs/scalars.jsonl").splitlines()]
    here = [json.loads(line) for line in (local / "logs/scalars.jsonl").open()]
    assert [(x["step"], x["kind"], x["loss"]) for x in there] == [
        (x["step"], x["kind"], x["loss"]) for x in here
    ]
    assert f"output: {json.dumps(run)}" in remote.read("config.yaml").decode()
    checkpoints = sorted(storage.open_folder(f"{run}/checkpoints").sizes())
    assert checkpoints == sorted(path.name for path in (local / "checkpoints").iterdir())


@pytest.mark.slow
def test_from_a_model_in_a_bucket_to_answers_of_an_export_there(
    s3, pretrained, tmp_path, cache, capsys
):
    """With pairs in CSV files, one of them to validate on."""
    rows = ["first,second,same"]
    for i in range(16):
        rows.append(f'"ship, ""{i}""\twith a tab",the waves,{"yes" if i % 2 else "no"}')
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("\n".join(rows) + "\n")
    mirror.Folder(f"{s3}/pre").upload(pretrained / "last" / "config.json", "best/config.json")
    for path in (pretrained / "last").iterdir():
        mirror.Folder(f"{s3}/pre/best").upload(path, path.name)
    with pytest.raises(InputError, match=r"pre is a run directory.* did you mean .*pre/best\?"):
        caches.fetched(f"{s3}/pre")
    finetuning = words(
        "finetune --text_column first --pair_column second --label_column same "
        "--max-length 16 --epochs 1 --batch-size 4",
        model=f"{s3}/pre/best",
        train=pairs,
        validation=pairs,
        output=f"{s3}/runs/cls",
    )
    assert main(finetuning) == 0
    finetuned = storage.open_folder(f"{s3}/runs/cls/best")
    assert finetuned.read("metrics.json")
    header, *rows = finetuned.read("predictions.tsv").decode().splitlines()
    assert header.split("\t") == ["first", "second", "label", "predicted", "no", "yes"]
    assert {row.split("\t")[0] for row in rows} == {f'ship, "{i}" with a tab' for i in range(16)}
    export = words("export --name cls", model=f"{s3}/runs/cls/best", output=f"{s3}/served")
    for version in (1, 2):
        assert main(export) == 0
        assert storage.open_folder(f"{s3}/served/cls/{version}").read("saved_model.pb")
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
    assert (Path(options.models) / "cls" / "2" / "saved_model.pb").is_file()


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


@pytest.fixture
def copies(tmp_path):
    """A mirror whose bucket is a list of what is done there."""
    done = []

    class Bucket:
        def upload(self, path, name):
            done.append(name)

        def remove(self, names):
            done.extend(f"-{name}" for name in names)

    made = mirror.Mirror("s3://bucket/run", tmp_path)
    made.remote = Bucket()
    return made, done


def test_marks_and_checkpoints_are_uploaded_last(copies, tmp_path):
    copy, done = copies
    names = ["best/config.json", "best/model.safetensors", "best/vocab.txt", "logs/a"]
    names += ["checkpoints/step-1", "m/1/saved_model.pb", "m/1/variables/v", ".lock", "b/.x.tmp"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    copy.push()
    assert done == [
        "best/model.safetensors",
        "best/vocab.txt",
        "logs/a",
        "m/1/variables/v",
        "best/config.json",
        "m/1/saved_model.pb",
        "checkpoints/step-1",
    ]
    done.clear()
    copy.push()
    assert not done
    (tmp_path / "checkpoints" / "step-1").rename(tmp_path / "checkpoints" / "step-2")
    copy.push()
    assert done == ["checkpoints/step-2", "-checkpoints/step-1"]


def objects(s3):
    return {name.removeprefix("bucket/") for name in storage._file_system("s3").find("bucket")}


def put(s3, *keys):
    for key in keys:
        storage._file_system("s3").pipe_file(f"bucket/{key}", b"")


def test_a_whole_bucket_is_no_output(s3, shards, small_config, capsys):
    put(s3, "others/data")
    before = objects(s3)
    folder = storage.open_folder(s3)
    for change in (
        folder.clear,
        lambda: folder.remove(["x"]),
        lambda: folder.write("x", b""),
    ):
        with pytest.raises(InputError, match=r"s3://bucket: is a whole bucket: name a folder"):
            change()
    assert main(pretraining(shards, small_config, f"{s3}/")) == 2
    assert "is a whole bucket" in capsys.readouterr().err
    assert objects(s3) == before


def test_nothing_in_a_key_is_a_pattern(s3):
    others = {"exp1/a", "exp2/a", "run1/important.bin", "exp1.txt"}
    put(s3, *others, "exp?/a", "exp?/a[1].txt", "exp?/a1.txt", "exp?/b*")
    folder = storage.open_folder(f"{s3}/exp?")
    folder.remove(["a[1].txt"])
    assert sorted(folder.all_names()) == ["a", "a1.txt", "b*"]
    folder.clear()
    storage.open_folder(f"{s3}/run[1]").clear()
    assert others <= objects(s3) and not folder.all_names()


def test_a_pushed_copy_removes_the_object_of_that_name_alone(s3, tmp_path):
    put(s3, "push/a1.txt")
    made = mirror.Mirror(f"{s3}/push", tmp_path)
    (tmp_path / "a[1].txt").write_text("x")
    made.push()
    (tmp_path / "a[1].txt").unlink()
    made.push()
    assert made.remote.all_names() == ["a1.txt"]


def test_a_key_that_leaves_the_folder_is_refused(s3, tmp_path):
    put(s3, "leaves/../w/evil.txt", "leaves/deep//x")
    url = f"{s3}/leaves"
    for pulled in (lambda: mirror.mirrored(url).__enter__(), lambda: caches.fetched(url)):
        with pytest.raises(InputError, match=r"leaves: holds the key '[^']*', which names no"):
            pulled()
    with pytest.raises(InputError, match=r"/w/\.\./run: has an empty part, \. or \.\."):
        mirror.mirrored(f"{s3}/w/../run").__enter__()


def test_folders_of_a_console_and_hidden_or_empty_or_patterned_names_are_read(s3, tmp_path):
    put(s3, "console/", "console/deep/", "console/deep/a", "console/.hidden/b")
    folder = storage.open_folder(f"{s3}/console")
    assert folder.all_names() == [".hidden/b", "deep/a"]
    assert folder.sizes() == {}
    assert [*storage.find_objects(f"{s3}/console")] == [f"{s3}/console/deep/a"]
    assert [*storage.find_objects(f"{s3}/console/.hidden")] == [f"{s3}/console/.hidden/b"]
    assert [*storage.find_objects(f"{s3}/console/.hidden/*")] == [f"{s3}/console/.hidden/b"]
    put(s3, "text/a[1].txt", "text/a1.txt")
    assert [*storage.find_objects(f"{s3}/text/a[1].txt")] == [f"{s3}/text/a[1].txt"]
    assert [*storage.find_objects(f"{s3}/text/a?.txt")] == [f"{s3}/text/a1.txt"]
    with mirror.mirrored(f"{s3}/console"):
        copy = mirror.local_path(f"{s3}/console")
        assert (copy / "deep" / "a").is_file()


@pytest.fixture
def quick_leases(monkeypatch):
    monkeypatch.setattr(lease, "_BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "_PATIENCE_SECONDS", 0.3)


def test_one_process_writes_a_url_at_a_time(
    s3, quick_leases, monkeypatch, shards, small_config, capsys
):
    url = f"{s3}/one"
    folder = storage.open_folder(url)
    put(s3, "one/.writable")
    with (
        mirror.mirrored(url),
        pytest.raises(InputError, match="one: another process is writing there"),
    ):
        lease.Lease(folder).take()
    assert folder.all_names() == [".writable"]
    killed = lease.Lease(folder)
    monkeypatch.setattr(killed, "_beat", lambda: None)
    killed._thread.run = lambda: None
    killed.take()
    successor = lease.Lease(folder)  # after it has watched it
    successor.take()
    with pytest.raises(lease.LostLeaseError):
        killed.check()
    assert main(pretraining(shards, small_config, url)) == 2
    assert "one: another process is writing there: wait" in capsys.readouterr().err
    # Both find it dead, or no writer, at the same time: one may create the next lease.
    late = lease.Lease(folder)
    monkeypatch.setattr(late, "_last", lambda: 1)
    monkeypatch.setattr(late, "_is_alive", lambda number: False)
    with pytest.raises(InputError, match="another process is writing there"):
        late.take()
    successor.release()
    assert folder.all_names() == [".writable"]


@pytest.mark.parametrize("released", [0, 1])
def test_whoever_looks_while_another_begins_is_no_writer(s3, released):
    """The other takes the next lease, or a later one, if that was released meanwhile."""
    folder = storage.open_folder(f"{s3}/meanwhile{released}")
    first, late = lease.Lease(folder), lease.Lease(folder)

    def last():
        number = lease.Lease._last(late)
        if not first._number:
            if released:
                folder.write(f".bert-tf-lease-{released}", b"")
            first.take()
        return number

    late._last = last
    with pytest.raises(InputError, match="another process is writing there"):
        late.take()
    first.check()
    first.release()
    assert not folder.all_names()


def test_stores_without_conditional_writes_have_one_writer_too(s3, monkeypatch):
    """Some refuse the condition, some report in words of their own that it does not hold."""
    files = storage._file_system("s3")
    pipe_file = files.pipe_file

    def without(key, content, mode="overwrite"):
        if mode == "create":
            raise OSError(errno.ENOSYS, "NotImplemented")
        pipe_file(key, content)

    monkeypatch.setattr(files, "pipe_file", without)
    folder = storage.open_folder(f"{s3}/plain")
    for content in (b"first", b"second"):
        folder.create("name", content)
        assert folder.read("name") == b"first"
    Faults.faults[:] = ["denied"] * 3
    monkeypatch.undo()
    with pytest.raises(InputError, match="plain/other: no permission"):
        folder.create("other", b"")
    Faults.faults.clear()


@pytest.mark.parametrize(
    ("task", "cluster", "is_other"),
    [
        (("worker", 0), {"worker": ["a", "b"]}, False),
        (("worker", 1), {"worker": ["a", "b"]}, True),
        (("worker", 0), {"worker": ["a"], "chief": ["b"]}, True),
        (("chief", 0), {"worker": ["a"], "chief": ["b"]}, False),
    ],
)
def test_of_several_workers_the_chief_alone_is_the_writer(task, cluster, is_other, monkeypatch):
    config = {"cluster": cluster, "task": dict(zip(("type", "index"), task, strict=True))}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert mirror._is_other_worker() is is_other
    monkeypatch.setenv("TF_CONFIG", "[]")
    assert mirror._is_other_worker() is False


def test_a_writer_that_died_here_is_not_watched(s3):
    folder = storage.open_folder(f"{s3}/died")
    dead = lease.Lease(folder)
    dead._writer["process"] = 2**22 + 1  # above the largest number of a process
    folder.write(".bert-tf-lease-7", dead._content())
    successor = lease.Lease(folder)
    began = time.monotonic()
    successor.take()
    assert time.monotonic() - began < lease._BEAT_SECONDS
    successor.release()


class Denied:
    """A remote folder that refuses some calls."""

    def __init__(self, folder, *names):
        self.folder, self.names = folder, set(names)

    def __getattr__(self, name):
        def refuse(*arguments):
            raise InputError("s3://bucket: no permission (Access Denied)")

        return refuse if name in self.names else getattr(self.folder, name)


def test_a_copy_that_could_not_be_uploaded_is_kept_and_tried_again(
    s3, caplog, monkeypatch, tmp_path
):
    url = f"{s3}/kept"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(InputError, match=r"kept: not everything could be uploaded \(.*Denied"),
        mirror.mirrored(url),
    ):
        copy = mirror.local_path(url)
        (copy / "checkpoint").write_text("1")
        made = mirror._mirrors[-1]
        made.remote = Denied(made.remote, "upload")
        mirror.push(copy)
        assert "the upload failed (s3://bucket: no permission (Access Denied)): it is tr" in (
            caplog.text
        )
        made.remote = made.remote.folder
        mirror.push(copy)
        assert storage.open_folder(url).read("checkpoint") == b"1"
        (copy / "checkpoint").write_text("22")
        monkeypatch.setattr(made, "remote", Denied(made.remote, "upload"))
    assert (copy / "checkpoint").read_text() == "22"
    with mirror.mirrored(url):
        assert mirror.local_path(url) != copy
    assert (copy / "checkpoint").exists()


def test_a_bucket_without_the_right_to_delete_is_written(s3, caplog, monkeypatch):
    url = f"{s3}/nodelete"
    monkeypatch.setattr(storage.Folder, "remove", Denied(None, "remove").remove)
    for content in ("1", "2"):  # its lease stays, too, and says that it is released
        with mirror.mirrored(url):
            copy = mirror.local_path(url)
            for name in ("a", "b"):
                (copy / name).write_text(content)
                mirror.push(copy)
                (copy / name).unlink()
    assert caplog.text.count("what is no longer needed stays there") == 2
    assert storage.open_folder(url).read("b") == b"2"


@pytest.mark.slow
def test_a_run_whose_uploads_are_refused_can_go_on_from_its_copy(
    s3, shards, small_config, tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    upload = storage.Folder.upload

    def refused(folder, path, name):
        if name == "best/config.json":
            raise InputError(f"{folder}/{name}: no permission (Access Denied)")
        upload(folder, path, name)

    monkeypatch.setattr(storage.Folder, "upload", refused)
    assert main(pretraining(shards, small_config, f"{s3}/refused")) == 2
    assert caplog.text.count("it is tried again at the next checkpoint") > 1
    line = capsys.readouterr().err.splitlines()[-1]
    copy = Path(re.search(r"give --output (\S+)", line)[1])
    assert copy.parent == tmp_path and (copy / "last" / "model.safetensors").is_file()
    assert main(pretraining(shards, small_config, copy)) == 0  # with the same settings
    assert storage.open_folder(f"{s3}/refused/best").read("config.json") is None
