import bz2
import codecs
import gzip
import io
import itertools
import lzma
import os
import tarfile
import zipfile
from collections import Counter
from functools import partial

from cases import for_each, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.files.storage import state_of
from bert_tf.pipelines.corpus import text_files
from bert_tf.pipelines.corpus.text_files import is_compressed, line_start, read_blocks, strip, zstd


def lines_of(path, *bounds, counts=None, **options):
    blocks = read_blocks(str(path), *bounds, counts=counts, **options)
    return [line for block in blocks for line in block.lines]


def test_blocks_end_at_line_ends_and_number_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 10)
    lines = [b"x" * (i % 37) for i in range(100)]
    path = tmp_path / "text.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    read, expected_first = [], 1
    for block in read_blocks(str(path), cut_to=None):
        assert block.first_line == expected_first
        expected_first += len(block.lines)
        read += block.lines
    assert read == lines
    assert block.position == path.stat().st_size


COMPRESSIONS = [gzip.compress, zstd.compress, lzma.compress, bz2.compress]


@for_each("compress", *COMPRESSIONS)
def test_compression_is_known_by_content(tmp_path, compress):
    path = tmp_path / "text"
    # Several members or frames, as parallel compressors write them.
    padding = b"\0\0\0\0" * (compress in (gzip.compress, lzma.compress))
    path.write_bytes(compress(b"one\ntw") + padding + compress(b"o\nthree") + padding)
    assert is_compressed(str(path))
    assert lines_of(path) == [b"one", b"two", b"three"]
    path.write_bytes(b"one\n")
    assert not is_compressed(str(path))


def test_zstd_frames_may_have_the_largest_window(tmp_path):
    """As `zstd --long=31` writes them: a descriptor of 2^31 bytes, and a block."""
    text = b"one\ntwo\n"
    block = (len(text) << 3 | 1).to_bytes(3, "little") + text  # the last one, uncompressed
    (tmp_path / "long.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + block)
    assert lines_of(tmp_path / "long.zst") == [b"one", b"two"]


@for_each("compress", *COMPRESSIONS)
def test_damaged_compressed_files_are_named(tmp_path, compress):
    path = tmp_path / "cut"
    path.write_bytes(compress(os.urandom(5000).hex().encode())[:-100])
    refused(r"cut: damaged compressed file", lines_of, path)
    damaged = bytearray(compress(b"two\n"))
    damaged[2] ^= 1
    path.write_bytes(compress(b"one\n") + damaged)  # the beginning of its second stream
    refused(r"cut: damaged compressed file", lines_of, path)


def test_missing_and_changed_files_are_named(tmp_path, monkeypatch):
    refused(r"gone\.txt: cannot be read \(No such file", lines_of, tmp_path / "gone.txt")
    refused(r"cannot be read \(Is a directory", lines_of, tmp_path)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 4)
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\ntwo\n")
    state = state_of(path.stat())
    assert lines_of(path, state=state) == [b"one", b"two"]
    blocks = read_blocks(str(path), state=state)
    assert next(blocks).lines == [b"one"]
    with path.open("ab") as file:
        file.write(b"six\n")
    refused(r"text\.txt: has changed since the run began: leave", list, blocks)
    # Of the same length, a moment later.
    state = state_of(path.stat())
    path.write_bytes(b"one\ntwo\nten\n")
    os.utime(path, ns=(state[1], state[1] + 1))
    refused("has changed", lines_of, path, state=state)


def test_a_few_invalid_bytes_nuls_and_byte_order_marks_go_and_are_counted(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"plain\n" * 60 + b"caf\xe9 au lait\n\xff\xfe\n" + b"plain\n" * 60)
    counts = Counter()
    lines = lines_of(path, counts=counts)
    assert lines[60:62] == [b"caf au lait", b""]
    assert len(lines) == 122
    assert counts == {"invalid_utf8_lines": 2}
    path = tmp_path / "text.txt"
    path.write_bytes(codecs.BOM_UTF8 + b"o\0ne\0\r\ntwo\n" + b"plain\n" * 99)
    counts = Counter()
    assert lines_of(path, counts=counts) == [b"one", b"two"] + [b"plain"] * 99
    assert counts == {"nul_bytes": 2}


def archive(write):
    packed = io.BytesIO()
    write(packed)
    return packed.getvalue()


def tar(packed):
    with tarfile.open(fileobj=packed, mode="w") as file:
        file.addfile(tarfile.TarInfo("a.txt"), io.BytesIO(b"text\n"))


def zipped(compression, packed):
    with zipfile.ZipFile(packed, "w", compression) as file:
        file.writestr("a.txt", "plain text\n" * 200)


@for_each("compress", bytes, gzip.compress)
@for_each(
    "content message",
    (codecs.BOM_UTF16_LE + "Text\n".encode("utf-16-le"), "UTF-16 .*iconv -f UTF-16 "),
    ("Text, one line\nand more\n".encode("utf-16-le"), "UTF-16LE .*iconv -f UTF-16LE"),
    ("Текст is text\nand more\n".encode("utf-16-be"), "UTF-16BE .*iconv -f UTF-16BE"),
    ("Text\n".encode("utf-32"), "UTF-32 .*iconv -f UTF-32 "),
    ("Text, \N{GRINNING FACE}, and more text\n".encode("utf-32-le"), "UTF-32LE .*-f UTF-32LE"),
    ("Текст и текст\n".encode("utf-32-be"), "UTF-32BE .*iconv -f UTF-32BE"),
    *(
        (f"{text}\n".encode(encoding), f"{named} .*iconv -f {named} ")
        for text in ("Грамматика языка.\nОна такова", "ภาษาไทย\nเป็นภาษา\n", "हिन्दी एक भाषा है")
        for encoding, named in (("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"))
    ),
    ("Plain.\n文字は漢字と仮名です。\n".encode("iso2022_jp"), "ISO-2022-JP .*-f ISO-2022-JP "),
    ("형태소 분석은 어렵다.\n".encode("iso2022_kr"), "ISO-2022-KR .*iconv -f ISO-2022-KR "),
    ("一个中国人的故事。\n".encode("hz"), "HZ .*iconv -f HZ "),
    (archive(tar), "a tar archive: unpack it with tar"),
    (archive(partial(zipped, zipfile.ZIP_STORED)), "a zip archive.*: unpack it"),
    (archive(partial(zipped, zipfile.ZIP_DEFLATED)), "a zip archive.*: unpack it"),
    (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + b"1 0 obj\n" * 99, "a PDF document: .*pdftotext"),
    (b"{\\rtf1 some text\n}", "an RTF document: save it"),
    (bytes.fromhex("d0cf11e0a1b11ae1") + bytes(504) + b"Text.", "a document of an older"),
    (b"PAR1\x15\x04\n", "a Parquet file: .*name it"),
)
def test_what_is_no_text_is_named_by_its_first_bytes(tmp_path, content, message, compress):
    path = tmp_path / "text.txt"
    path.write_bytes(compress(content))
    refused(rf"text\.txt: {message}", lines_of, path)


@for_each("mark", b"", codecs.BOM_UTF16_LE)
@for_each("block_bytes", 64, 1 << 20)
def test_utf_16_behind_utf_8_is_told_apart(tmp_path, monkeypatch, mark, block_bytes):
    """To convert the whole file would destroy its first part."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "text.txt"
    path.write_bytes("Zwölf.\n".encode() * 41 + mark + "plain, \n".encode("utf-16-le") * 40)
    encoding = "UTF-16" if mark else "UTF-16LE"
    refused(rf"line 42: {encoding} text follows UTF-8: convert the li", lines_of, path)


@for_each(
    "content line",
    ("형태소 분석은 어렵다.\n".encode("cp949") * 8, 1),
    ("Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich.\n".encode("latin-1") * 8, 1),
    ("Грамматика языка\n".encode("koi8-r"), 1),
    (bytes(range(1, 256)) * 6, 2),
    (b"plain\n" * 40 + b"caf\xe9\n" * 40, 41),
    ids=["CP949", "Latin-1", "KOI8-R", "binary", "from a later block on"],
)
def test_files_in_another_encoding_are_refused(tmp_path, monkeypatch, content, line):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 64)
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    refusal = rf"line {line}: (invalid UTF-8|NULs) \(byte 0x.*% of the bytes so far\): .*iconv"
    refused(refusal, lines_of, path)


@for_each("block_bytes", 7, 1 << 20)
def test_lines_may_end_at_carriage_returns_alone(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "text.txt"
    path.write_bytes(b"one 1\rtwo\r\rthree\rfour")
    assert lines_of(path) == [b"one 1", b"two", b"", b"three", b"four"]
    # Elsewhere a stray one ends no line, and no blank line ends a document by mistake.
    path.write_bytes(b"a\rb\nc\r\r\nd\r\n")
    assert [strip(line) for line in lines_of(path)] == [b"a\rb", b"c", b"d"]


@for_each("blocks", 1000, 1 << 20)
def test_a_long_line_is_cut_at_white_space(tmp_path, monkeypatch, blocks):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", blocks)
    monkeypatch.setattr(text_files, "LONG_LINE_BYTES", 900)
    words = [b"w%d" % i for i in range(3000)]
    path = tmp_path / "text.txt"
    path.write_bytes(b"before\n" + b" ".join(words) + b"\nafter\n")
    counts = Counter()
    lines = lines_of(path, counts=counts)
    assert (lines[0], lines[-1]) == (b"before", b"after")
    assert b" ".join(lines[1:-1]).split() == words
    assert max(map(len, lines)) <= 900
    assert counts == {"cut_lines": 1}
    assert lines_of(path, cut_to=None)[1] == b" ".join(words)


@settings(max_examples=30, deadline=None)
@given(st.text(st.sampled_from("aé한𝄞"), min_size=1, max_size=40))
def test_a_line_without_spaces_is_cut_between_characters(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("long") / "text.txt"
    path.write_text(text * 80_000, encoding="utf-8")
    counts = Counter()
    lines = lines_of(path, counts=counts)
    assert b"".join(lines).decode() == text * 80_000
    for line in lines:
        line.decode()
        assert len(line) <= text_files.LONG_LINE_BYTES
    assert "invalid_utf8_lines" not in counts


def test_a_huge_line_takes_little_memory(tmp_path):
    path = tmp_path / "text.txt"
    with path.open("wb") as file:
        for _ in range(20):
            file.write(b"word " * (1 << 18))  # 25 MB in all, no line end
    longest = 0
    for block in read_blocks(str(path)):
        longest = max(longest, sum(map(len, block.lines)))
    assert longest <= 2 * text_files.BLOCK_BYTES + text_files.LONG_LINE_BYTES


def test_lines_are_stripped_of_unicode_space_and_bytes_that_are_no_text_cut_where_they_are():
    assert strip("\u3000\u00a0 text\u2003\x1c".encode()) == b"text"
    assert strip("\u00a0".encode()) == b""
    assert text_files._cut_before("ก".encode() * 100, 299) == 297
    assert text_files._cut_before("ก".encode(), 3) == 0
    assert text_files._cut_before(b"\x80" * 100, 100) == 99


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "bcd", "", " ", "\u00a0", "efghijk"]), min_size=1),
    st.integers(1, 30),
    st.booleans(),
)
def test_slices_between_line_starts_are_the_file(tmp_path_factory, lines, step, after_blank):
    path = tmp_path_factory.mktemp("slices") / "text.txt"
    content = "\n".join(lines).encode()
    path.write_bytes(content)
    offsets = range(0, len(content) + step, step)
    starts = [line_start(str(path), offset, after_blank=after_blank) for offset in offsets]
    assert starts == sorted(starts)
    bounds = sorted({*starts, len(content)})
    joined = []
    for start, end in itertools.pairwise(bounds):
        if 0 < start < len(content) and after_blank:
            assert not strip(content[:start].split(b"\n")[-2])
        joined += lines_of(path, start, end)
    expected = content.split(b"\n")
    assert joined == (expected if expected[-1] else expected[:-1])
