import itertools
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
from cases import for_each, refused

from bert_tf.pipelines.corpus import documents
from bert_tf.pipelines.corpus.documents import DocumentPlan, UnitReader, plan_documents
from bert_tf.pipelines.corpus.sources import open_corpus
from bert_tf.pipelines.data_options import CorpusOptions, PretrainingDataOptions


def write(folder, *texts):
    files = []
    for index, text in enumerate(texts):
        files.append(str(folder / f"{index:04d}.txt"))
        (folder / f"{index:04d}.txt").write_text(text)
    return files


def read(files, units=None, *, buffer_bytes=1000, group_bytes=10**9, finished=(), **options):
    """The batches of all units of a corpus, or of some."""
    opened = open_corpus(files, PretrainingDataOptions(buffer_bytes=buffer_bytes))
    plan = plan_documents(opened, **options)
    assert DocumentPlan.from_json(json.dumps(plan)) == plan
    for unit in range(len(opened.units)) if units is None else units:
        slices = opened.units[unit]
        yield from UnitReader(unit, slices, opened.options, plan, group_bytes, finished)


def total(batches, what):
    return sum(batch.counts[what] for batch in batches)


def own_lines(batch):
    return batch.lines[~batch.is_donor].tolist()


def test_blank_lines_and_files_end_documents(tmp_path):
    files = write(tmp_path, "a1\na2\n\n\n  \nb1\n", "c1\n\nd1\nd2")
    (batch,) = read(files)
    assert batch.lines.tolist() == [b"a1", b"a2", b"b1", b"c1", b"d1", b"d2"]
    assert batch.documents.tolist() == [0, 0, 1, 2, 3, 3]
    assert batch.passages.tolist() == [1, 1, 2, 3, 4, 4]
    assert batch.bytes_read == sum(Path(file).stat().st_size for file in files)
    (batch,) = read(write(tmp_path, "\n\n", " "))
    assert batch.ends_unit
    assert batch.lines.size == 0
    assert total([batch], "documents") == 0
    assert batch.bytes_read == 3


def test_batches_are_bounded_and_hold_every_line_once(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PART_BYTES", 300)
    texts = ["\n".join(f"file {f} line {i}" for i in range(200)) for f in range(20)]
    batches = list(read(write(tmp_path, *texts), buffer_bytes=4000))
    assert [batch.number for batch in batches] == list(range(len(batches)))
    lines = [line for batch in batches for line in own_lines(batch)]
    assert sorted(lines) == sorted("\n".join(texts).encode().split(b"\n"))
    assert len(lines) == 4000
    assert total(batches, "documents") == 20
    assert [batch.ends_unit for batch in batches] == [False] * (len(batches) - 1) + [True]
    for batch in batches[:-1]:
        assert sum(map(len, own_lines(batch))) <= 4000
        # Long files take turns: a batch holds parts of many.
        assert len(set(batch.documents)) >= 8


def test_passages_are_unbroken_runs_of_one_document(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PART_BYTES", 100)
    texts = ["\n".join(f"{f} {i}" for i in range(300)) for f in range(3)]
    for batch in read(write(tmp_path, *texts), buffer_bytes=1500, held_out_share=0.3, seed=4):
        rows = zip(batch.passages, batch.documents, batch.is_donor, batch.lines, strict=True)
        for _, run in itertools.groupby(rows, key=lambda row: row[0]):
            run = list(run)
            assert len({(document, donor) for _, document, donor, _ in run}) == 1
            named = [tuple(map(int, line.split())) for *_, line in run]
            first = named[0]
            assert named == [(first[0], first[1] + i) for i in range(len(named))]
        assert np.all(np.diff(batch.documents) >= 0)


def test_batches_of_one_long_document_get_donors(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 3000)
    monkeypatch.setattr(documents, "DONOR_BYTES", 100)
    texts = ["\n".join(f"{name}{i}" for i in range(1000)) for name in "abc"]
    batches = list(read(write(tmp_path, *texts)))
    assert {batch.unit for batch in batches} == {0, 1, 2}
    for batch in batches:
        assert len(set(batch.documents[~batch.is_donor])) == 1
        donors = batch.lines[batch.is_donor]
        # The pool is as wide as the corpus allows, and what is held does not grow with the text.
        assert len({line[:1] for line in donors} - {own_lines(batch)[0][:1]}) == 2
        assert sum(map(len, donors)) < 500
    lines = [line for batch in batches for line in own_lines(batch)]
    assert lines == "\n".join(texts).encode().split(b"\n")


@for_each("size", 3, 3000)  # within a batch, and over several
@for_each(
    "corpus_format cure",
    ("sentences", "put a blank line between"),
    ("text", "add files, or --corpus_format sections"),
    ("sections", "put two blank lines between"),
)
def test_one_document_is_refused(tmp_path, size, corpus_format, cure):
    write(tmp_path, "\n".join(f"line {i}" for i in range(size)))
    corpus = open_corpus(tmp_path, CorpusOptions(corpus_format=corpus_format))
    refused(rf"single document.*: add --instances full.*{cure}", plan_documents, corpus)


def sides(batches):
    """The first words of the lines of each split, donors included."""
    found = {False: set(), True: set()}
    for batch in batches:
        found[batch.held_out].update(line.split()[0] for line in batch.lines)
    return found


def test_held_out_text_is_apart_and_of_its_share(tmp_path):
    files = write(tmp_path, "\n\n".join(f"d{i} first\nd{i} second" for i in range(4000)))

    def split(seed):
        return sides(read(files, buffer_bytes=5000, held_out_share=0.1, seed=seed))

    found = split(1)
    assert not found[True] & found[False]
    assert len(found[True] | found[False]) == 4000
    assert 320 < len(found[True]) < 480
    assert found == split(1) != split(2)


def test_duplicates_are_held_out_together_and_other_files_make_no_difference(tmp_path):
    documents = [f"d{i} first\nd{i} second" for i in range(600)]
    again = [documents[i] for i in random.Random(1).sample(range(600), 300)]
    added = [f"e{i} other" for i in range(500)]
    options = {"held_out_share": 0.2, "seed": 1, "buffer_bytes": 5000}
    found = sides(read(write(tmp_path, "\n\n".join(documents)), **options))
    assert found[True]
    assert found[False]
    files = write(tmp_path, *("\n\n".join(texts) for texts in (added, again, documents)))
    more = sides(read(files, **options))
    assert not more[True] & more[False]
    for side, texts in found.items():
        assert {text for text in more[side] if text.startswith(b"d")} == texts


def test_a_long_document_is_on_one_side_and_so_are_its_donors(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PART_BYTES", 200)
    monkeypatch.setattr(documents, "DONOR_BYTES", 100)
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 4000)
    texts = ["\n".join(f"d{f} {i}" for i in range(300)) for f in range(40)]
    batches = list(read(write(tmp_path, *texts), held_out_share=0.3, seed=2))
    assert len({batch.unit for batch in batches}) > 10
    assert any(batch.is_donor.any() for batch in batches if batch.held_out)
    found = sides(batches)
    assert len(found[True]) >= 2
    assert not found[True] & found[False]


def test_a_small_corpus_keeps_duplicates_together(tmp_path):
    (tmp_path / "a.txt").write_text("same\n\n" * 3 + "b\n\nc\n\nd")
    for seed in range(20):
        found = sides(read(tmp_path, held_out_share=0.01, seed=seed))
        assert not found[True] & found[False]
    few = ("same\n\n" * 9, "b\n\nc\n\nd", "a\n\n" * 20 + "b\n\n" * 20, "a\n\nb\n\nc\n\n" * 9)
    for text in few:  # fewer than four begin differently
        (tmp_path / "a.txt").write_text(text)
        assert not sides(read(tmp_path, held_out_share=0.5, seed=3))[True]


@for_each("for_pairs", True, False)
@for_each("alike others share", (30, 10, 0.01), (100, 100, 0.05))
def test_documents_that_begin_alike_stay_together(tmp_path, alike, others, share, for_pairs):
    beginning = "\n".join(["the same licence"] * 64)
    texts = [f"{beginning}\na{i}" for i in range(alike)] + [f"b{i}" for i in range(others)]
    corpus = open_corpus(write(tmp_path, "\n\n".join(texts)))
    changed = 0
    for seed in range(25):
        plan = plan_documents(corpus, held_out_share=share, seed=seed, for_pairs=for_pairs)
        counts = Counter(
            part.draw < plan.held_out_below
            for unit, slices in enumerate(corpus.units)
            for part in UnitReader(unit, slices, corpus.options, plan, 1 << 30)._parts()
            if part.ordinal == 0
        )
        assert counts[True] >= 2
        assert counts[True] <= 4 * share * (alike + others) + 8
        changed += plan.seed != seed
    assert 0 < changed < 12  # others are as before


def same(batch, other):
    return all(np.array_equal(one, two) for one, two in zip(batch, other, strict=True))


def test_units_can_be_read_in_any_order_and_finished_groups_be_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 4000)
    text = "\n\n".join(f"d{i} a\nd{i} b" for i in range(1500))
    files = write(tmp_path, text, "x1\nx2", text.upper())
    options = {"held_out_share": 0.1, "seed": 5, "group_bytes": 900}
    in_order = list(read(files, **options))
    units = len({batch.unit for batch in in_order})
    assert units > 5
    for unit in random.Random(1).sample(range(units), units):
        groups = [batch.group for batch in in_order if batch.unit == unit]
        assert groups == sorted(groups) and set(groups) == set(range(groups[-1] + 1))
        for finished in ((), (0, 2)):
            again = list(read(files, [unit], finished=finished, **options))
            kept = [b for b in in_order if b.unit == unit and b.group not in finished]
            assert all(same(*pair) for pair in zip(again, kept, strict=True))
    assert max(batch.group for batch in in_order) > 2
    lines = sorted(line for batch in in_order for line in own_lines(batch))
    all_text = f"{text}\nx1\nx2\n{text.upper()}".encode()
    assert lines == sorted(line for line in all_text.split(b"\n") if line)
    assert total(in_order, "documents") == 3001


@for_each("share", 0.0001, 0.9999)
def test_a_corpus_of_few_documents_holds_out_two_over_its_units(tmp_path, monkeypatch, share):
    """Of a few books, too, of which a small share is less than two."""
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 500)
    monkeypatch.setattr(documents, "_BEGINNING_BYTES", 100)
    books = ["\n".join(f"d{book} text {line}" for line in range(90)) for book in range(9)]
    files = write(tmp_path, *books[:3], "\n\n".join(books[3:]))
    batches = list(read(files, held_out_share=share, seed=1))
    assert len({batch.unit for batch in batches}) > 2
    found = sides(batches)
    assert len(found[share < 0.5]) == 2
    assert not found[True] & found[False]
    lines = [line for batch in batches for line in own_lines(batch)]
    assert len(lines) == len(set(lines)) == 9 * 90


def test_donors_come_from_throughout_a_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 2000)
    monkeypatch.setattr(documents, "_BEGINNING_BYTES", 0)
    files = write(tmp_path, *("\n".join(f"{f} {i}" for i in range(200)) for f in range(40)))
    passage, draws = documents._passage, set()
    monkeypatch.setattr(
        documents,
        "_passage",
        lambda lines, draw: draws.add(draw.getstate()) or passage(lines, draw),
    )
    plans = [plan_documents(open_corpus(files), held_out_share=0.5, seed=s) for s in (1, 1, 2)]
    assert len(draws) == len(plans[0].donors) + len(plans[2].donors)
    assert plans[0] == plans[1] != plans[2]
    for held_out in (False, True):
        units = [donor.document[0] for donor in plans[0].donors if donor.held_out == held_out]
        assert len(units) == len(set(units)) >= documents.FEW_DOCUMENTS
        assert max(units) - min(units) > 20
    assert not plan_documents(open_corpus(files), held_out_share=0.5, for_pairs=False).donors
