import contextlib
import json
import shutil
import tempfile

import pytest
from cases import for_each, refused
from s3_server import put

from bert_tf.errors import InputError
from bert_tf.files import cache as caches
from bert_tf.files import mirror, storage


@pytest.fixture
def copies(tmp_path):
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
    first = [*names[1:4], "m/1/variables/v"]
    marks = ["best/config.json", "m/1/saved_model.pb"]
    assert done == [*first, *marks, "checkpoints/step-1"]
    done.clear()
    copy.push()
    assert not done
    (tmp_path / "checkpoints" / "step-1").rename(tmp_path / "checkpoints" / "step-2")
    copy.push()
    assert done == ["checkpoints/step-2", "-checkpoints/step-1"]


def test_a_pushed_copy_removes_the_object_of_that_name_alone(s3, tmp_path):
    put("push/a1.txt")
    made = mirror.Mirror(f"{s3}/push", tmp_path)
    (tmp_path / "a[1].txt").write_text("x")
    made.push()
    (tmp_path / "a[1].txt").unlink()
    made.push()
    assert made.remote.all_names() == ["a1.txt"]


def test_a_key_that_leaves_the_folder_is_refused(s3, tmp_path):
    put("leaves/../w/evil.txt", "leaves/deep//x")
    url = f"{s3}/leaves"
    for pulled in (lambda: mirror.mirrored(url).__enter__(), lambda: caches.fetched(url)):
        refused(r"leaves: holds the key '[^']*', which names no", pulled)
    with pytest.raises(InputError, match=r"/w/\.\./run: has an empty part, \. or \.\."):
        mirror.mirrored(f"{s3}/w/../run").__enter__()


@for_each(
    "task cluster is_other",
    (("worker", 0), {"worker": ["a:1", "b:1"]}, False),
    (("worker", 1), {"worker": ["a:1", "b:1"]}, True),
    (("worker", 0), {"worker": ["a:1"], "chief": ["b:1"]}, True),
    (("chief", 0), {"worker": ["a:1"], "chief": ["b:1"]}, False),
)
def test_of_several_workers_the_chief_alone_is_the_writer(task, cluster, is_other, monkeypatch):
    config = {"cluster": cluster, "task": dict(zip(("type", "index"), task, strict=True))}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert mirror._is_other_worker() is is_other
    monkeypatch.setenv("TF_CONFIG", "[]")
    assert mirror._is_other_worker() is False


class Denied:
    def __init__(self, folder, *names):
        self.folder, self.names = folder, set(names)

    def __getattr__(self, name):
        def refuse(*arguments):
            raise InputError("s3://bucket: no permission (Access Denied)")

        return refuse if name in self.names else getattr(self.folder, name)


def test_a_copy_that_is_not_uploaded_is_kept_and_tried_again(s3, caplog, monkeypatch, tmp_path):
    url = f"{s3}/kept"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failed = pytest.raises(InputError, match=r"kept: not everything could be uploaded \(.*Denied")
    with failed, mirror.mirrored(url):
        copy = mirror.local_path(url)
        (copy / "checkpoint").write_text("1")
        made = mirror._mirrors[-1]
        made.remote = Denied(made.remote, "upload")
        mirror.push(copy)
        told = "the upload failed (s3://bucket: no permission (Access Denied)): it is tr"
        assert told in caplog.text
        made.remote = made.remote.folder
        mirror.push(copy)
        assert storage.open_folder(url).read("checkpoint") == b"1"
        (copy / "checkpoint").write_text("22")
        monkeypatch.setattr(made, "remote", Denied(made.remote, "upload"))
    assert (copy / "checkpoint").read_text() == "22"
    with mirror.mirrored(url):
        assert mirror.local_path(url) != copy
    assert (copy / "checkpoint").exists()


def test_the_copy_of_a_killed_process_is_removed_by_the_next(s3, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copies = [contextlib.ExitStack() for _ in range(2)]
    left, running = (copy.enter_context(mirror._copy(f"{s3}/run")) for copy in copies)
    for copy in (left, running):
        (copy / "checkpoint").write_text("1")
    users = tmp_path / "bert-tf-main" / "file"
    users.parent.mkdir()
    users.touch()
    shutil.copytree(left.parent, tmp_path / "bert-tf-killed")  # which nobody locks
    with mirror.mirrored(f"{s3}/other"):
        assert not (tmp_path / "bert-tf-killed").exists()
        assert left.exists() and running.exists() and users.exists()
    for copy in copies:
        copy.close()
    assert [path.name for path in tmp_path.iterdir()] == ["bert-tf-main"]


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
