import os

from cases import refused

from bert_tf.files.cache import CACHE_FOLDER, CACHE_GIGABYTES, cache_bytes, cache_folder, make_room
from bert_tf.processor import fastest


def test_one_variable_moves_all_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv(CACHE_FOLDER, raising=False)
    assert cache_folder("models") == tmp_path / "xdg" / "bert-tf" / "models"
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "own"))
    assert cache_folder("models") == tmp_path / "own" / "models"
    fastest("speed.json", "here", ["a"], lambda: {"a": 1.0}, usual="a")
    assert (tmp_path / "own" / "speed.json").is_file() and not (tmp_path / "xdg").exists()
    monkeypatch.delenv(CACHE_FOLDER)
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert cache_folder() == tmp_path / ".cache" / "bert-tf"


def test_the_bound(monkeypatch):
    for gigabytes, expected in (("0.5", 500_000_000), ("", 20_000_000_000)):
        monkeypatch.setenv(CACHE_GIGABYTES, gigabytes)
        assert cache_bytes() == expected
    for gigabytes in ("20GB", "inf", "nan", "-1"):
        monkeypatch.setenv(CACHE_GIGABYTES, gigabytes)
        refused(f"CACHE_GB is '{gigabytes}': give a number of gig", cache_bytes)


def test_only_cached_copies_are_removed_and_those_used_longest_ago_first(tmp_path):
    """The folder may hold models of the user's own."""
    names = ["0123456789abcdef", "fedcba9876543210", "base", "0123"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").write_text("x")
    assert make_room(tmp_path, "[0-9a-f]" * 16, 0) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0123", "base"]
    for time in range(5):
        (tmp_path / f"{time}.block").write_text("xx")
        os.utime(tmp_path / f"{time}.block", (time, time))
    assert make_room(tmp_path, "*.block", 10) == 10  # all fit
    assert make_room(tmp_path, "*.block", 8, left=0.5, needed=tmp_path / "1.block") == 4
    assert sorted(path.stem for path in tmp_path.glob("*.block")) == ["1", "4"]
