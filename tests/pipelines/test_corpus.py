import gzip
import os

import pytest

from bert_tf.errors import InputError
from pipelines import corpus
from pipelines.corpus import find_files, input_errors, read_blocks, read_lines


def lines_of(*files):
    with input_errors():
        return [line for batch in read_lines(files).as_numpy_iterator() for line in batch]


def test_files_of_folders_globs_and_lists_are_sorted_and_listed_once(tmp_path):
    for name in ("b.txt", "a.txt", "more/c.txt", ".hidden", "more/.cache/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("text\n")
    expected = [str(tmp_path / name) for name in ("a.txt", "b.txt", "more/c.txt")]
    assert find_files(tmp_path) == expected
    assert find_files([tmp_path / "b.txt", tmp_path, str(tmp_path / "more" / "c.txt")]) == expected
    assert find_files(str(tmp_path / "**" / "*.txt")) == expected
    assert find_files(str(tmp_path / "*.txt")) == expected[:2]


@pytest.mark.parametrize("name", ["missing.txt", "*.txt", "empty"])
def test_inputs_without_files_are_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=name.replace("*", r"\*")):
        find_files(tmp_path / name)
    with pytest.raises(InputError, match="no corpus"):
        find_files([])


def test_lines_are_stripped_and_blank_ones_left_out(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeff first \r\n\r\n\u3000\u00a0\n\u00a0second\u2003\n\t\nlast".encode())
    assert lines_of(str(path)) == [b"first", b"second", b"last"]


def test_gzip_is_known_by_content(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert lines_of(str(path)) == [b"one", b"two"]


def test_blocks_end_at_line_ends_and_number_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 10)
    lines = [b"x" * (i % 37) for i in range(100)]
    path = tmp_path / "text.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    read, expected_first = [], 1
    for block in read_blocks(str(path)):
        assert block.first_line == expected_first
        expected_first += len(block.lines)
        read += block.lines
    assert read == lines
    assert block.position == path.stat().st_size


def test_invalid_utf8_names_file_and_line(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 16)
    path = tmp_path / "latin.txt"
    path.write_bytes(b"plain\n" * 40 + b"caf\xe9\n" + b"plain\n" * 40)
    with pytest.raises(InputError, match=r"latin\.txt, line 41: invalid UTF-8 .*iconv") as raised:
        lines_of(str(path))
    assert "\n" not in str(raised.value)


def test_unusable_files_are_named(tmp_path):
    damaged = tmp_path / "cut.gz"
    damaged.write_bytes(gzip.compress(os.urandom(5000).hex().encode())[:-100])
    with pytest.raises(InputError, match=r"cut\.gz: damaged gzip"):
        lines_of(str(damaged))
    with pytest.raises(InputError, match=r"gone\.txt: cannot be read"):
        lines_of(str(tmp_path / "gone.txt"))
    blank = tmp_path / "blank.txt"
    blank.write_text("\n \n\t\n")
    with pytest.raises(InputError, match=r"blank\.txt: no text"):
        lines_of(str(blank))
