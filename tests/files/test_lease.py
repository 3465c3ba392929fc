import time

import pytest
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.files import lease, mirror, storage


@pytest.fixture
def quick_leases(monkeypatch):
    monkeypatch.setattr(lease, "_BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "_PATIENCE_SECONDS", 0.3)


def test_one_process_writes_a_url_at_a_time(s3, quick_leases, monkeypatch):
    url = f"{s3}/one"
    folder = storage.open_folder(url)
    folder.write(".writable", b"")
    taken = pytest.raises(InputError, match="one: another process is writing there: wait")
    with mirror.mirrored(url), taken:
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
    with taken:
        mirror.mirrored(url).__enter__()
    # Both find it dead, or no writer, at the same time: one may create the next lease.
    late = lease.Lease(folder)
    monkeypatch.setattr(late, "_last", lambda: 1)
    monkeypatch.setattr(late, "_is_alive", lambda number: False)
    with taken:
        late.take()
    successor.release()
    assert folder.all_names() == [".writable"]


@for_each("released", 0, 1)
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
    refused("another process is writing there", late.take)
    first.check()
    first.release()
    assert not folder.all_names()


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
