import gzip
import json
import lzma
import random
import textwrap
from collections import Counter

import pytest
from cases import for_each, refused
from corpus_reading import documents_of, lines_of

from bert_tf.errors import InputError
from bert_tf.pipelines.corpus import formats
from bert_tf.pipelines.corpus.sources import open_corpus
from bert_tf.pipelines.corpus.text_files import zstd
from bert_tf.pipelines.data_options import CorpusOptions, PretrainingDataOptions

SENTENCES = "one a\none b\n\n\n \ntwo a\n"
JSON_LINES = '{"id": 1, "text": "one a\\none b"}\n\n{"text": "two a"}\n'


@for_each(
    "name compress",
    *((f"corpus.{kind}.zst", x) for kind in ("txt", "jsonl") for x in (bytes, zstd.compress)),
    ("corpus.txt.xz", lzma.compress),
    ("corpus.jsonl.zst", gzip.compress),
)
def test_formats_are_known_by_name_whatever_the_compression(tmp_path, name, compress):
    is_json = "jsonl" in name
    (tmp_path / name).write_bytes(compress((JSON_LINES if is_json else SENTENCES).encode()))
    opened = open_corpus(tmp_path / name)
    first = [b"one a one b"] if is_json else [b"one a", b"one b"]
    assert documents_of(opened) == [first, [b"two a"]]
    assert opened.split_sentences == is_json


def test_plain_text_is_unwrapped_into_paragraphs(tmp_path, monkeypatch):
    long = "A line that nobody wrapped. " * 8
    text = f"A title\n\nThis is wrapped\nat a width\n\n\n{long}\nshort\n{long}\nlast\n"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("second document")
    opened = open_corpus(tmp_path, CorpusOptions(corpus_format="text"))
    first, second = documents_of(opened)
    paragraphs = ["A title", "This is wrapped at a width", long.strip(), "short"]
    assert [x.decode() for x in first] == [*paragraphs, long.strip(), "last"]
    assert second == [b"second document"]
    assert opened.split_sentences
    monkeypatch.setattr("bert_tf.pipelines.corpus.text_files.BLOCK_BYTES", 50)
    (tmp_path / "a.txt").write_text("\n".join(["some words"] * 40) + "\n\nnext")
    opened = open_corpus(tmp_path / "a.txt", CorpusOptions(corpus_format="text"))
    assert documents_of(opened) == [[b" ".join([b"some words"] * 40), b"next"]]


def test_wrapped_lines_are_known_by_characters(tmp_path):
    for letter in "aж한𝄞":
        wrapped, long = [letter * 120] * 3, letter * 121
        (tmp_path / "a.txt").write_text("\n".join([*wrapped, long, long]), encoding="utf-8")
        (paragraphs,) = documents_of(open_corpus(tmp_path, CorpusOptions(corpus_format="text")))
        assert [paragraph.decode() for paragraph in paragraphs] == [" ".join(wrapped), long, long]


def test_sections_end_at_two_blank_lines_once_they_hold_text(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.text_files.BLOCK_BYTES", 50)
    text = "\n".join(["some wrapped words"] * 60)
    (tmp_path / "a.txt").write_text(f"I\n\n\n{text}\n\nlast\n \n\n\nII\n\n\n{text}")
    opened = open_corpus(tmp_path / "a.txt", CorpusOptions(corpus_format="sections"))
    paragraph = text.replace("\n", " ").encode()
    assert documents_of(opened) == [[b"I", paragraph, b"last"], [b"II", paragraph]]
    assert opened.split_sentences


@for_each(
    "files settings expected",
    (1, {}, "sections"),
    (3, {}, "sections"),
    (4, {}, "text"),
    (1, {"instances": "full_sentences"}, "text"),
    (1, {"corpus_format": "text"}, "text"),
)
def test_a_few_files_have_sections_where_pairs_need_documents(tmp_path, files, settings, expected):
    for number in range(files):
        (tmp_path / f"{number}.txt").write_text("text\n")
    options = PretrainingDataOptions(**settings)
    assert open_corpus(tmp_path, options, lambda *judged: "text").format == expected


def test_json_lines_of_another_field_and_bad_ones(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"body": "one"}\n{"body": ""}\n{"body": "\\ud800tw\\u0000o"}\n')
    counts = Counter()
    opened = open_corpus(path, CorpusOptions(text_field="body"))
    assert documents_of(opened, counts) == [[b"one"], [b"two"]]
    assert counts == {"empty_documents": 1, "nul_bytes": 1}
    nested = '{"body": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for bad in ('{"body": 3}', '{"text": "x"}', "[1]", '"x"', '{"body": "x"', nested):
        path.write_text('{"body": "one"}\n' + bad + "\n")
        opened = open_corpus(path, CorpusOptions(text_field="body"))
        refused(r"corpus\.jsonl, line 2: .*--text_field", documents_of, opened)


def test_json_is_known_by_its_first_line(tmp_path):
    (tmp_path / "a.json").write_text('{ "text": "one" }\n{"text": "two"}\n')
    assert lines_of(tmp_path / "a.json") == [b"one", b"two"]
    for name, text, message in (
        ("a.json", '[{"text": "one"}, {"text": "two"}]', r"not an object on each line.*jq -c"),
        ("a.jsonl", '[\n  {"text": "one"}\n]', r"not an object on each line.*jq -c"),
        ("a.json", '{\n  "text": "one"\n}', r"not an object on each line.*jq -c"),
        ("wiki_00", '<doc id="1" url="u" title="A">\nA\n\nOne.\n</doc>', "WikiExtractor.*--json"),
        ("a.txt", '{"text": "one"}\n{"text": "two"}\n', r"JSON: give --corpus_format jsonl"),
        ("a.txt", '\n[\n  {"text": "one"}\n]', r"JSON: give --corpus_format jsonl"),
        ("a.xml", '<?xml version="1.0"?>\n<a>one</a>\n', r"XML or HTML: extract its text"),
        ("a.txt", "<mediawiki xmlns=''>\n<page>\n", r"XML or HTML: extract .*WikiExtractor"),
        ("a.html", "<!DOCTYPE html>\n<p>one</p>\n", r"XML or HTML: extract its text"),
    ):
        (tmp_path / name).write_text(text)
        refused(message, lines_of, tmp_path / name)
    as_text = CorpusOptions(corpus_format="sentences")
    assert len(lines_of(tmp_path / "a.html", as_text)) == 2
    for text in ("{curly} text\n", "[1] a footnote\n", "<doc id=1>\ntext\n</doc>\n"):
        (tmp_path / "b.txt").write_text(text)
        assert lines_of(tmp_path / "b.txt") == text.encode().splitlines()


def test_several_fields_make_a_document(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"title": "A", "body": "one"}, {"body": "two"}, {"title": None, "body": "three"}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    options, counts = CorpusOptions(text_field="title,body,note"), Counter()
    found = documents_of(open_corpus(path, options), counts)
    assert found == [[b"A", b"one"], [b"two"], [b"three"]]
    assert counts == {"documents_without_title": 2, "documents_without_note": 3}
    path.write_text('{"title": "A", "body": 3}\n')
    refused("body is int", documents_of, open_corpus(path, options))
    path.write_text('{"other": "A"}\n')
    refused("not a JSON object with text in the field", documents_of, open_corpus(path, options))


def test_bad_json_lines_are_skipped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.text_files.BLOCK_BYTES", 100)
    monkeypatch.setattr("bert_tf.pipelines.corpus.text_files.MOST_LINE_BYTES", 1000)
    good = ['{"text": "one"}', '{"text": "two"}', '{"text": "three"}', '{"text": "four"}']
    long = '{"text": "' + "x" * 2000 + '"}'
    path = tmp_path / "corpus.jsonl"
    lines = [good[0], "{", long, good[1], '{"text": 3}', long, good[2], good[3], long]
    path.write_text("\n".join(lines) + "\n")
    counts = Counter()
    opened = open_corpus(path, CorpusOptions(skip_bad_lines=True))
    assert documents_of(opened, counts) == [[b"one"], [b"two"], [b"three"], [b"four"]]
    assert counts == {"bad_lines": 5}
    path.write_text("\n".join([good[0], long, good[1]]))
    refused(r"line 2: longer than .*--skip_bad_lines", documents_of, open_corpus(path))


def test_a_long_json_line_is_one_document(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.text_files.BLOCK_BYTES", 1000)
    text = " ".join(f"word{i}" for i in range(30_000))
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": text}) + '\n{"text": "b"}\n')
    counts = Counter()
    first, second = documents_of(open_corpus(tmp_path / "corpus.jsonl"), counts)
    assert b" ".join(first).decode() == text
    assert max(map(len, first)) <= 1 << 16  # what is split into sentences at once
    assert second == [b"b"]
    assert counts == {"cut_lines": 1}


def test_unreadable_files_stop_or_are_counted(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    options = CorpusOptions(skip_unreadable=True)
    opened, strict = open_corpus(tmp_path, options), open_corpus(tmp_path)
    (tmp_path / "b.txt").unlink()  # after it was listed
    unreadable = set()
    assert documents_of(opened, None, unreadable) == [[b"a"], [b"c"]]
    assert unreadable == {str(tmp_path / "b.txt")}
    refused(r"b\.txt: cannot be read", documents_of, strict)
    with pytest.raises(InputError, match=r"b\.txt: cannot be read"), formats.input_errors():
        list(formats.read_lines(strict))


def test_positions_end_at_the_size(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(SENTENCES.encode() * 1000))
    for options in (CorpusOptions(), CorpusOptions(corpus_format="text")):
        opened = open_corpus(path, options)
        *_, last = formats.read_slice(opened.units[0][0], options, Counter())
        assert last.position == path.stat().st_size == opened.sources.total()


@for_each("name", "a.txt", "a.txt.gz", "a.parquet")
def test_a_sample_is_of_the_whole_text(tmp_path, name):
    """Not of its beginning: another language may follow, or another form of Unicode."""
    rng = random.Random(1)
    lines = [f"plain English {rng.random()}\n" for _ in range(10_000)]
    lines += [f"한국어 문장 {rng.random()}\n" for _ in range(20_000)]
    path = tmp_path / name
    if name.endswith(".parquet"):
        table = pytest.importorskip("pyarrow").table({"text": lines})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        text = "".join(lines).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    for most in (8, 200):
        sample = "\n".join(formats.sample_text(open_corpus(path), most))
        english, korean = sample.count("English"), sample.count("한국어")
        assert korean / (english + korean) == pytest.approx(2 / 3, abs=0.15)
        assert len(sample.encode()) <= 1.1 * most * (1 << 16)


SENTENCE = "Number {} is a sentence of the text, long enough to be wrapped somewhere."
PROSE = [" ".join(SENTENCE.format(n) for n in range(p, p + 9)) for p in range(60)]


@for_each(
    "lines expected",
    ([line for text in PROSE for line in [*textwrap.wrap(text, 70), ""]], "text"),
    (PROSE, "text"),  # a paragraph on each line
    (["章程于一九八二年通过。我们" * 9] * 60, "text"),
    ([SENTENCE.format(n) for n in range(60)], "sentences"),
    ([f"number {n} in lower case without any mark" for n in range(60)], "sentences"),
    (PROSE[:3], "sentences"),  # too few to tell
    (["One. Two.", *[SENTENCE.format(n) for n in range(4)]] * 9, "sentences"),
    (["One. Two.", SENTENCE, SENTENCE] * 9, "33% of the lines"),
    (["One. Two", *["a heading"] * 12] * 9, "8% of the lines"),
)
@for_each("compress", bytes, gzip.compress)
def test_lines_are_judged_by_where_sentences_end(tmp_path, lines, expected, compress):
    (tmp_path / "a.txt").write_bytes(compress("\n".join(lines).encode()))
    if "of the lines" in expected:
        refusal = rf"{expected} .*--corpus_format text .*--corpus_format sentences"
        refused(refusal, open_corpus, tmp_path, judge=formats.judged_format)
        return
    assert open_corpus(tmp_path, judge=formats.judged_format).format == expected
    assert open_corpus(tmp_path).format == "sentences"  # nobody asked
    jsonl = CorpusOptions(corpus_format="jsonl")
    assert open_corpus(tmp_path, jsonl, judge=formats.judged_format).format == "jsonl"
