import dataclasses
import gzip
import json
import os
import re
import shutil
import struct
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import temporary_name
from bert_tf.files.storage import Folder, open_folder
from bert_tf.pipelines.corpus import formats
from bert_tf.pipelines.corpus.sources import open_corpus
from bert_tf.pipelines.corpus.text_files import UnreadableFile
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances import records as instance_records
from bert_tf.pipelines.shards.journal import Journal
from bert_tf.pipelines.shards.manifest import Manifest, verify
from bert_tf.pipelines.shards.units import write_units
from bert_tf.pipelines.shards.writing import (
    _sources,
    _unsuited,
    write_shards,
    write_shards_of_lengths,
)


def options(**changed):
    return PretrainingDataOptions(
        **{"max_seq_length": 32, "num_shards": 3, "held_out_share": 0.1, **changed}
    )


def records(file):
    """The records of a file, without a graph: the checksums are verified elsewhere."""
    content, place = file.read_bytes(), 0
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        yield content[place + 12 : place + 12 + size]
        place += 12 + size + 4


def examples(folder, split="train"):
    found = []
    for file in sorted(folder.rglob(f"{split}-*.tfrecord")):
        for record in records(file):
            features = tf.train.Example.FromString(record).features.feature
            found.append(
                {
                    name: list(feature.int64_list.value or feature.float_list.value)
                    for name, feature in features.items()
                }
            )
    return found


def original_ids(example):
    """The ids of an example as they were before masking."""
    ids = list(example["input_ids"])
    for position, label, weight in zip(
        example["masked_lm_positions"],
        example["masked_lm_ids"],
        example["masked_lm_weights"],
        strict=True,
    ):
        if weight:
            ids[position] = label
    return ids


def unmasked(example):
    """Segments A and B of an example, as they were before masking."""
    ids = original_ids(example)
    length = sum(example["input_mask"])
    first_sep = example["segment_ids"].index(1) - 1
    assert (ids[0], ids[first_sep], ids[length - 1]) == (2, 3, 3)
    assert not any(ids[length:])
    return ids[1:first_sep], ids[first_sep + 1 : length - 1]


@pytest.fixture
def corpus(tmp_path, number_corpus):
    path = tmp_path / "corpus.txt"
    path.write_text(number_corpus(40))
    return path


def test_records_are_the_originals_and_pairs_are_sound(tmp_path, corpus, number_tokenizer):
    out = tmp_path / "shards"
    manifest = write_shards(corpus, out, number_tokenizer, options(dupe_factor=3))
    assert (manifest.documents, manifest.sentences) == (40, 480)
    document_tokens = 12 * 9
    documents_by_split = {}
    for split in ("train", "held_out"):
        found = examples(out, split)
        assert len(found) == manifest.instances(split) > 0
        of_split = documents_by_split.setdefault(split, set())
        for example in found:
            assert {name: len(values) for name, values in example.items()} == {
                "input_ids": 32,
                "input_mask": 32,
                "segment_ids": 32,
                "masked_lm_positions": 5,
                "masked_lm_ids": 5,
                "masked_lm_weights": 5,
                "next_sentence_labels": 1,
            }
            a, b = unmasked(example)
            for segment in (a, b):  # an unbroken run of tokens of one document
                assert segment == list(range(segment[0], segment[0] + len(segment)))
                assert (segment[0] - 10) // document_tokens == (segment[-1] - 10) // document_tokens
            document_a, document_b = ((s[0] - 10) // document_tokens for s in (a, b))
            of_split.update((document_a, document_b))
            assert (document_a != document_b) == bool(example["next_sentence_labels"][0])
    assert not documents_by_split["train"] & documents_by_split["held_out"]
    assert documents_by_split["train"] | documents_by_split["held_out"] == set(range(40))


def test_manifest_describes_what_is_on_disk(tmp_path, corpus, number_tokenizer):
    out = tmp_path / "shards"
    corpus = corpus.rename(tmp_path / "corpus [1, 2].txt")
    manifest = write_shards(corpus, out, number_tokenizer, options())
    assert verify(out) == Manifest.load(out) == manifest
    assert manifest.corpus == [{"file": "corpus [1, 2].txt", "bytes": corpus.stat().st_size}]
    assert manifest.vocabulary["hash"] == number_tokenizer.vocabulary_hash
    assert manifest.options["max_predictions_per_seq"] == 5
    assert {path.name for path in out.iterdir()} == {
        "manifest.json",
        "blocks.npy",
        "tokenizer_config.json",
        *(shard.file for split in manifest.shards.values() for shard in split),
    }
    for split, found in manifest.shards.items():
        assert [shard.file for shard in found] == sorted(p.name for p in out.glob(f"{split}-*"))
        counts = [shard.instances for shard in found]
        assert max(counts) - min(counts) <= 1
    train = examples(out)
    statistics = manifest.statistics["train"]
    assert statistics["instances"] == len(train)
    assert statistics["is_random_next"] == np.mean([e["next_sentence_labels"] for e in train])
    lengths = [sum(e["input_mask"]) for e in train]
    assert statistics["length_mean"] == pytest.approx(np.mean(lengths))
    assert statistics["full_length_share"] == np.mean(np.array(lengths) == 32)
    weights = np.sum([e["masked_lm_weights"] for e in train])
    assert statistics["predictions_mean"] == pytest.approx(weights / len(train))


def test_names_of_files_may_be_any_bytes(tmp_path, corpus, number_tokenizer):
    corpus = corpus.rename(tmp_path / os.fsdecode(b"caf\xe9.txt"))
    manifest = write_shards(corpus, tmp_path / "shards", number_tokenizer, options())
    assert [each["file"] for each in manifest.corpus] == ["caf\\xe9.txt"]
    assert verify(tmp_path / "shards") == manifest


def test_a_manifest_lists_the_folders_of_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.shards.writing._LISTED_SOURCES", 3)
    for name in ("a/1", "a/2", "b/c/1", "b/d/2", "b/e/3"):
        file = tmp_path / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text")
    assert _sources(open_corpus([tmp_path / "a"])) == [
        {"file": "1.txt", "bytes": 4},
        {"file": "2.txt", "bytes": 4},
    ]
    assert _sources(open_corpus([tmp_path])) == [
        {"file": ".", "bytes": 8, "files": 2},
        {"file": "b", "bytes": 12, "files": 3},
    ]


def test_manifest_keeps_options_of_the_data_alone(tmp_path, corpus, number_tokenizer):
    @dataclass(kw_only=True)
    class CommandOptions(PretrainingDataOptions):
        output: str

    made = CommandOptions(max_seq_length=32, output=str(tmp_path))
    manifest = write_shards(corpus, tmp_path / "out", number_tokenizer, made)
    assert "output" not in manifest.options
    expected = dataclasses.asdict(PretrainingDataOptions(max_seq_length=32))
    # Newer than the format: in the manifest, which a run's identity rests on, where they are set.
    newer = {"mask_token_share": 0.8, "random_token_share": 0.1, "skip_bad_lines": False}
    newer |= {"max_held_out_bytes": None, "max_tokens": None}
    assert {name: expected.pop(name) for name in newer} == newer
    assert manifest.options == expected
    assert manifest.data_options == PretrainingDataOptions(max_seq_length=32)
    # Older shards say nothing of long sentences: these were paired whole.
    del manifest.options["cut_long_sentences"]
    assert not manifest.data_options.cut_long_sentences
    changed = {"mask_token_share": 0.0, "random_token_share": 1.0}
    made = PretrainingDataOptions(max_seq_length=32, **changed)
    manifest = write_shards(corpus, tmp_path / "random", number_tokenizer, made)
    assert manifest.options == expected | changed
    assert Manifest.load(tmp_path / "random").data_options == made
    assert manifest.statistics["train"]["mask_share"] == 0
    assert manifest.statistics["train"]["random_share"] > 0.99  # a few are themselves by chance


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("Bär für immer", {"do_lower_case": False}, "18.2% of the letters .*decomposed.*ä"),
        ("Bär für immer", {"do_lower_case": True, "strip_accents": False}, "decomposed"),
        ("형태소 분석", {"do_lower_case": True, "strip_accents": False}, "100.0% of the letters"),
        ("Bär für immer", {"do_lower_case": True}, None),
        ("她 来 了 的", {"do_lower_case": True}, "--whole_word_masking masks single characters"),
        ("她 来 了", {"do_lower_case": True, "tokenize_chinese_chars": False}, None),
    ],
)
def test_text_that_does_not_suit_the_tokenizer_is_named(tmp_path, text, settings, said):
    (tmp_path / "text.txt").write_text(unicodedata.normalize("NFD", text))
    tokenizer = SimpleNamespace(settings=settings)
    made = options(whole_word_masking=True)
    found = list(_unsuited(open_corpus(tmp_path / "text.txt"), tokenizer, made))
    assert len(found) == bool(said)
    assert all(re.search(said, line) for line in found)
    (tmp_path / "text.txt").write_text(text)
    found = list(_unsuited(open_corpus(tmp_path / "text.txt"), tokenizer, made))
    assert not any("decomposed" in line for line in found)


def test_one_seed_gives_the_same_bytes(tmp_path, corpus, number_tokenizer, monkeypatch):
    changed = {"buffer_bytes": 3000, "dupe_factor": 2}  # several batches in flight
    made = []
    for run, (seed, threads) in enumerate([(1, 1), (1, 4), (2, 4)]):
        monkeypatch.setattr("os.cpu_count", lambda threads=threads: threads)
        out = tmp_path / f"run{run}"
        write_shards(corpus, out, number_tokenizer, options(seed=seed, **changed))
        made.append(contents(out))
    assert made[0] == made[1]
    shards = [name for name in made[0] if name.endswith("tfrecord")]
    assert shards and all(made[0][name] != made[2][name] for name in shards)


def test_rounds_differ_and_each_goes_through_all_text(tmp_path, corpus, number_tokenizer):
    out = tmp_path / "shards"
    write_shards(corpus, out, number_tokenizer, options(dupe_factor=2, held_out_share=0))
    seen = [tuple(e["input_ids"]) for e in examples(out)]
    assert len(set(seen)) == len(seen)
    covered = {token for e in examples(out) for segment in unmasked(e) for token in segment}
    assert len(covered) > 0.95 * 40 * 12 * 9  # truncation loses some


def test_gzip_and_folders_give_the_same_instances(tmp_path, corpus, number_tokenizer):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "corpus.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    write_shards(corpus, tmp_path / "a", number_tokenizer, options())
    write_shards(folder, tmp_path / "b", number_tokenizer, options())
    assert examples(tmp_path / "a") == examples(tmp_path / "b")


def test_unknown_tokens_are_counted(tmp_path, corpus, number_tokenizer):
    lines = [line.split() for line in corpus.read_text().splitlines()]
    unknown = str(number_tokenizer.unk_token_id)
    text = "\n".join(" ".join([unknown, unknown, *words[2:]][: len(words)]) for words in lines)
    (tmp_path / "unknown.txt").write_text(text)
    for path, share in ((corpus, 0), (tmp_path / "unknown.txt", 2 / 9)):
        made = options(held_out_share=0, buffer_bytes=3000, dupe_factor=2)  # with donors
        manifest = write_shards(path, tmp_path / f"out-{share}", number_tokenizer, made)
        assert manifest.statistics["train"]["unknown_token_share"] == share


def test_dropped_tokens_are_counted(tmp_path, number_corpus, number_tokenizer):
    # Every token occurs once, so the text in the shards can be compared with the corpus.
    text = number_corpus(30, sentences=5, length=90)
    (tmp_path / "corpus.txt").write_text(text)
    shares = {}
    for cut in (False, True):
        out = tmp_path / f"cut-{cut}"
        made = options(cut_long_sentences=cut, held_out_share=0)
        manifest = write_shards(tmp_path / "corpus.txt", out, number_tokenizer, made)
        used = set()
        for example in examples(out):
            a, b = unmasked(example)
            used.update(a, () if example["next_sentence_labels"][0] else b)
        shares[cut] = 1 - len(used) / (30 * 5 * 90)
        statistics = manifest.statistics["train"]
        assert statistics["dropped_token_share"] == pytest.approx(shares[cut], abs=1e-12)
        assert (statistics["is_random_next"] == 1) == (not cut)
    assert shares[False] > 0.8
    assert shares[True] < 0.15


def test_progress_ends_at_the_whole(tmp_path, corpus, number_tokenizer):
    seen = []
    manifest = write_shards(
        corpus,
        tmp_path / "out",
        number_tokenizer,
        options(buffer_bytes=3000),
        progress=lambda now: seen.append((now.bytes_read, now.total_bytes, now.instances)),
    )
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1][:2] == (corpus.stat().st_size,) * 2
    assert seen[-1][2] == sum(map(manifest.instances, manifest.shards))


def test_held_out_text_has_a_bound(tmp_path, number_corpus, number_tokenizer):
    (tmp_path / "text.txt").write_text(number_corpus(400, sentences=2))
    size = (tmp_path / "text.txt").stat().st_size
    held_out = []
    for most in (None, size // 20):
        made = options(held_out_share=0.3, max_held_out_bytes=most, num_shards=1)
        manifest = write_shards(tmp_path / "text.txt", tmp_path / str(most), number_tokenizer, made)
        held_out.append(manifest.instances("held_out") / manifest.instances())
    # Of 400 documents 20 are held out, give or take 4.4 (a standard deviation).
    assert 0.02 < held_out[1] < 0.1 < 0.3 < held_out[0]


def test_small_corpus_without_held_out_text(tmp_path, number_corpus, number_tokenizer):
    path = tmp_path / "two.txt"
    path.write_text(number_corpus(2))
    manifest = write_shards(path, tmp_path / "out", number_tokenizer, options(num_shards=1))
    assert list(manifest.shards) == ["train"]
    assert not list((tmp_path / "out").glob("held_out*"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\n\n \n", "no text"),
        (b"1 2 3\n4 5 6\n", "single document"),
        (b"1 2\n\n3 4\n" + b"\xff\n" * 11, r"line 4: invalid UTF-8"),
    ],
)
def test_bad_corpora_leave_nothing_behind(tmp_path, number_tokenizer, text, message):
    (tmp_path / "bad.txt").write_bytes(text)
    with pytest.raises(InputError, match=rf"bad\.txt.*{message}") as raised:
        write_shards(tmp_path / "bad.txt", tmp_path / "out" / "shards", number_tokenizer)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "out").iterdir())


def test_an_old_folder_is_replaced_once_the_inputs_are_sound(tmp_path, corpus, number_tokenizer):
    out = tmp_path / "shards"
    write_shards(corpus, out, number_tokenizer, options())
    before = contents(out)
    named = {"overwrite": True}
    with pytest.raises(InputError, match="no such file"):
        write_shards([corpus, tmp_path / "no"], out, number_tokenizer, options(), **named)
    assert contents(out) == before
    bad = tmp_path / "zzz.txt"
    bad.write_bytes(corpus.read_bytes() + b"\n\xff" * 300)
    with pytest.raises(InputError, match=r"zzz\.txt, line 520: invalid UTF-8"):
        write_shards([corpus, bad], out, number_tokenizer, options(buffer_bytes=2000), **named)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "zzz.txt"}


def test_text_without_tokens_is_refused(tmp_path, number_tokenizer, monkeypatch):
    class NoTokens(type(number_tokenizer)):
        def tokenize(self, texts):
            return tf.RaggedTensor.from_row_lengths(
                tf.zeros([0], tf.int32), tf.zeros_like(tf.strings.length(texts))
            )

    (tmp_path / "text.txt").write_text("a\nb\n\nc\nd\n")
    with pytest.raises(InputError, match=r"text\.txt: no instance"):
        write_shards(tmp_path / "text.txt", tmp_path / "out", NoTokens())
    assert not (tmp_path / "out").exists()


def test_full_folders_are_replaced_only_when_asked(tmp_path, corpus, number_tokenizer):
    out = tmp_path / "shards"
    (out / "128").mkdir(parents=True)
    (out / "128" / "mine.txt").write_text("keep")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"holds 128/mine\.txt"):
            write_shards(corpus, out, number_tokenizer, options(), overwrite=overwrite)
    assert (out / "128" / "mine.txt").read_text() == "keep"
    (out / "128" / "mine.txt").rename(out / "128" / "train-1.tfrecord")  # an older run's
    with pytest.raises(InputError, match="not empty"):
        write_shards(corpus, out, number_tokenizer, options())
    write_shards(corpus, out, number_tokenizer, options(), overwrite=True)
    assert not (out / "128").exists()
    with pytest.raises(InputError, match="is a file"):
        write_shards(corpus, corpus, number_tokenizer, options())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_seq_length": 4},
        {"masked_lm_prob": 1.5},
        {"short_seq_prob": -0.1},
        {"dupe_factor": 0},
        {"held_out_share": 1.0},
        {"num_shards": 0},
        {"max_predictions_per_seq": 0},
        {"num_shards": 100_000},
        {"dupe_factor": 10**400},
        {"seed": 2**63},
        {"seed": -1},
        {"masked_lm_prob": float("nan")},
        {"mask_token_share": -0.1},
        {"random_token_share": 1.1},
    ],
)
def test_options_out_of_range_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        PretrainingDataOptions(**wrong)


@pytest.mark.parametrize(("length", "predictions"), [(128, 20), (512, 77), (20, 3)])
def test_predictions_by_default(length, predictions):
    assert PretrainingDataOptions(max_seq_length=length).max_predictions_per_seq == predictions


@pytest.fixture(scope="module")
def units():
    """Small units and groups, so that a small corpus has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 8_000)
        patch.setattr("bert_tf.pipelines.corpus.documents.GROUP_BYTES", 5_000)
        yield


def write_many(folder, number_corpus, files=5):
    folder.mkdir()
    for index in range(files):
        text = number_corpus(30, first=10 + index * 30 * 12 * 9)
        (folder / f"{index}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def many(tmp_path_factory, number_corpus):
    """Five files of thirty documents, some 90 kB."""
    return write_many(tmp_path_factory.mktemp("corpora") / "many", number_corpus)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, many, number_tokenizer, units):
    """The shards of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    write_shards(many, out, number_tokenizer, many_options())
    return out


def many_options(**changed):
    return options(**{"buffer_bytes": 2000, "num_shards": 4, "dupe_factor": 2, **changed})


def test_a_group_has_a_shard_for_every_round(whole):
    manifest = verify(whole)
    names = [shard.file for shard in manifest.shards["train"]]
    assert names == sorted(names)
    places = {tuple(name.split("-")[1:3]) for name in names}
    assert len(names) == 2 * len(places)
    assert len({unit for unit, _ in places}) > 5
    assert len(places) > 10
    # Between them, the rounds go through every group.
    seen = {token for e in examples(whole) for part in unmasked(e) for token in part}
    held_out = examples(whole, "held_out")
    seen.update(token for e in held_out for part in unmasked(e) for token in part)
    assert len(seen) > 0.95 * 150 * 12 * 9
    assert manifest.documents == 150
    assert manifest.sentences == 1800


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "after", [0, 25, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8))]
)
def test_a_run_that_ends_anywhere_is_continued(tmp_path, many, number_tokenizer, whole, after):
    batches = 0

    def stop(progress):
        nonlocal batches
        batches += 1
        if batches > after:
            raise Killed

    out = tmp_path / "out"
    with pytest.raises(Killed):
        write_shards(many, out, number_tokenizer, many_options(), progress=stop)
    assert not (out / "manifest.json").exists()
    made = {path: path.stat().st_mtime_ns for path in out.rglob("*.tfrecord")}
    assert not list(out.rglob("*.tmp"))
    write_shards(many, out, number_tokenizer, many_options())
    assert contents(out) == contents(whole)
    for path, time in made.items():  # finished shards were not made again
        assert path.stat().st_mtime_ns == time
    assert bool(made) == (after >= 8)


def begin(many, out, tokenizer, batches=20, **changed):
    """Begins a run that is stopped."""
    left = iter(range(batches))

    def stop(progress):
        if next(left, None) is None:
            raise Killed

    with pytest.raises(Killed):
        write_shards(many, out, tokenizer, many_options(**changed), progress=stop)


def test_what_a_kill_left_is_made_again(tmp_path, many, number_tokenizer, whole):
    out = tmp_path / "out"
    begin(many, out, number_tokenizer)
    shards = sorted(out.glob("train-*"))
    last = shards[-1]
    last.write_bytes(last.read_bytes()[:-1])
    shards[0].write_bytes(bytes(shards[0].stat().st_size))  # as a power failure may leave it
    (out / "train-99999-00000-00-00.tfrecord").write_bytes(b"not in the journal")
    temporary_name(shards[0]).write_bytes(b"half")
    write_shards(many, out, number_tokenizer, many_options())
    assert contents(out) == contents(whole)


def test_a_shard_lost_from_a_finished_unit_is_made_again(
    tmp_path, many, number_tokenizer, whole, units
):
    out = tmp_path / "out"
    begin(many, out, number_tokenizer)
    entries = [json.loads(path.read_text()) for path in sorted((out / ".journal").glob("*-*.json"))]
    ended = {entry["unit"] for entry in entries if entry["ends_unit"]}
    lost = [entry for entry in entries if entry["unit"] in ended and not entry["ends_unit"]]
    assert lost
    for splits in lost[0]["shards"]:
        (out / splits["train"][0]["file"]).unlink()
    write_shards(many, out, number_tokenizer, many_options())
    assert contents(out) == contents(whole)


def zeros(path):
    """What another worker left there that was making the same unit."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("lost", "lose"),
    [
        (".journal/00001-*.json", Path.unlink),
        ("train-00001-*.tfrecord", Path.unlink),
        ("train-00001-*.tfrecord", zeros),
    ],
)
def test_a_run_that_lacks_groups_at_its_end_is_no_success(
    tmp_path, many, number_tokenizer, units, lost, lose
):
    def forgetful(job, units, report):
        write_units(job, units, number_tokenizer, job.journal.documents, report)
        lose(next(Path(job.folder).glob(lost)))

    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"shards of 1 of \d+ units .* same command again"):
        write_shards(many, out, number_tokenizer, many_options(), runner=forgetful)
    assert not (out / "manifest.json").exists()


def test_an_error_in_the_last_group_ends_the_run(tmp_path, many, number_tokenizer, units):
    """Groups are finished while the next one is made; the last has no next one."""

    def failing(self, group):
        if group.ends_unit:
            raise PermissionError

    def first_unit(job, units, report):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(PermissionError):
            patch.setattr(Journal, "add", failing)
            write_units(job, units[:1], number_tokenizer, job.journal.documents, report)
        raise Killed

    with pytest.raises(Killed):
        write_shards(many, tmp_path / "out", number_tokenizer, many_options(), runner=first_unit)


def test_a_journal_whose_removal_fails_still_has_its_plan(tmp_path, monkeypatch):
    journal = Journal(open_folder(tmp_path), [""])
    (tmp_path / ".journal").mkdir()
    for name in ("a.json", "plan.json", "z.json"):
        (tmp_path / ".journal" / name).write_text("{}")
    monkeypatch.setattr(Folder, "remove", lambda self, names: removed.append([*names]))
    removed = []
    journal.remove()
    removed = [set(names) for names in removed if names]
    assert removed == [{"a.json", "z.json"}, {"a.json", "plan.json", "z.json"}]


@pytest.mark.parametrize("begins", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_place_that_refuses_the_last_step_loses_nothing(
    tmp_path, many, number_tokenizer, whole, monkeypatch, begins
):
    """As a store does with an InputError, in the run that makes the units or in a later one."""
    out = tmp_path / "out"
    if begins:
        begin(many, out, number_tokenizer)
    made = []

    def refuse(manifest, directory):
        made.extend(path.name for path in out.glob("*.tfrecord"))
        raise InputError("no permission")

    with monkeypatch.context() as patch, pytest.raises(InputError, match="no permission"):
        patch.setattr(Manifest, "save", refuse)
        write_shards(many, out, number_tokenizer, many_options())
    assert made
    assert sorted(path.name for path in out.glob("*.tfrecord")) == sorted(made)
    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.pipelines.shards.units._OpenGroup", None)  # makes none again
        write_shards(many, out, number_tokenizer, many_options())
    assert contents(out) == contents(whole)


@pytest.mark.parametrize("name", ["notes.txt", "mine.tfrecord", ".mine.12345678.tmp"])
def test_a_folder_of_others_is_left_alone(tmp_path, corpus, number_tokenizer, name):
    foreign = tmp_path / "out"
    foreign.mkdir()
    (foreign / name).write_text("keep")
    with pytest.raises(InputError, match=r"out: "):
        write_shards(corpus, foreign, number_tokenizer, options())
    assert contents(foreign) == {name: b"keep"}


def test_a_run_killed_after_its_last_step_is_finished(tmp_path, many, number_tokenizer, whole):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    (out / ".journal").mkdir()
    begin(many, tmp_path / "other", number_tokenizer)
    plan = tmp_path / "other" / ".journal" / "plan.json"
    (out / ".journal" / "plan.json").write_bytes(plan.read_bytes())
    (out / ".journal" / "00000-00000.json").write_text("{}")  # some of it was removed already
    assert write_shards(many, out, number_tokenizer, many_options()) == Manifest.load(whole)
    assert contents(out) == contents(whole)


def test_an_unfinished_run_is_continued_with_its_settings_alone(
    tmp_path, number_corpus, number_tokenizer, units
):
    many = write_many(tmp_path / "many", number_corpus)
    out = tmp_path / "out"
    begin(many, out, number_tokenizer)
    with pytest.raises(InputError, match=r"out: .*seed \(12345 there, 3 now\)"):
        write_shards(many, out, number_tokenizer, many_options(seed=3))
    with pytest.raises(InputError, match=r"mask_token_share \(0\.8 there, 0\.5 now\)"):
        write_shards(many, out, number_tokenizer, many_options(mask_token_share=0.5))
    unfinished = contents(out)
    (many / "0.txt").write_text("1 2 3\n\n4 5 6\n")
    with pytest.raises(InputError, match=r"the corpus \(.*0\.txt, or a file beside it, is new"):
        write_shards(many, out, number_tokenizer, many_options())
    assert contents(out) == unfinished


def test_an_unfinished_run_of_an_older_version_is_refused(tmp_path, many, number_tokenizer, units):
    out = tmp_path / "out"
    begin(many, out, number_tokenizer)
    plan = out / ".journal" / "plan.json"
    begun = json.loads(plan.read_text())
    del begun["format"]
    plan.write_text(json.dumps(begun))
    with pytest.raises(InputError, match=r"out: .* differs in the version of bert-tf"):
        write_shards(many, out, number_tokenizer, many_options())


@pytest.mark.slow
def test_a_file_that_stopped_a_run_can_be_mended(tmp_path, number_corpus, number_tokenizer, units):
    many = write_many(tmp_path / "many", number_corpus)
    made_of = many_options(instances="full_sentences", held_out_share=0)  # read once, in order
    write_shards(many, tmp_path / "whole", number_tokenizer, made_of)
    bad = many / "4.txt"
    good = bad.read_bytes()
    bad.write_bytes(good[:50] + b"\xff\n" * 3000 + good[50:])
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"4\.txt, line 1: inv"):
        write_shards(many, out, number_tokenizer, made_of)
    assert list(out.glob("train-*"))
    bad.write_bytes(good)
    write_shards(many, out, number_tokenizer, made_of)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_line_that_stopped_a_run_can_be_skipped(tmp_path, number_corpus, number_tokenizer, units):
    (tmp_path / "text").mkdir()
    for index in range(3):
        documents = number_corpus(20, first=10 + index * 20 * 12 * 9).split("\n\n")
        lines = [json.dumps({"text": document}) for document in documents]
        (tmp_path / "text" / f"{index}.jsonl").write_text("\n".join(lines + ["{}"] * (index == 2)))
    made_of = {"instances": "full_sentences", "held_out_share": 0}  # read once, in order
    strict, skipping = many_options(**made_of), many_options(**made_of, skip_bad_lines=True)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"2\.jsonl, line \d+.* --skip_bad_lines"):
        write_shards(tmp_path / "text", out, number_tokenizer, strict)
    made = list(out.glob("train-*"))
    assert made
    times = [path.stat().st_mtime_ns for path in made]
    manifest = write_shards(tmp_path / "text", out, number_tokenizer, skipping)
    assert manifest.irregularities["bad_lines"] == 1
    assert [path.stat().st_mtime_ns for path in made] == times
    write_shards(tmp_path / "text", tmp_path / "other", number_tokenizer, skipping)
    assert contents(out) == contents(tmp_path / "other")


def test_a_file_that_vanishes_stops_the_run_or_is_counted(
    tmp_path, number_corpus, number_tokenizer, units
):
    many = write_many(tmp_path / "many", number_corpus, files=10)

    def vanish(progress):
        (many / "9.txt").unlink(missing_ok=True)

    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"9\.txt: cannot be read"):
        write_shards(many, out, number_tokenizer, many_options(), progress=vanish)
    assert not (out / "manifest.json").exists()
    shutil.copy(many / "8.txt", many / "9.txt")
    assert (many / "9.txt").stat().st_size > 2 * 8000  # several slices: it counts once
    skipping = many_options(skip_unreadable=True)
    manifest = write_shards(many, tmp_path / "skipped", number_tokenizer, skipping, progress=vanish)
    assert manifest.irregularities["unreadable_files"] == 1
    assert manifest.documents == 270


def test_a_file_that_changes_stops_the_run(tmp_path, number_corpus, number_tokenizer, units):
    many = write_many(tmp_path / "many", number_corpus, files=10)

    def change(progress):
        with (many / "9.txt").open("a") as file:
            file.write("\n\n1 2 3\n")

    with pytest.raises(InputError, match=r"9\.txt: has changed since the run began"):
        write_shards(many, tmp_path / "out", number_tokenizer, many_options(), progress=change)


@pytest.mark.parametrize("passing", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_file_that_can_be_read_again_or_no_more_is_neither_lost_nor_doubled(
    tmp_path, number_corpus, number_tokenizer, units, monkeypatch, passing
):
    """A unit that was stopped within is made anew, with all files that can be read now."""
    folder = tmp_path / "text"
    folder.mkdir()
    for index in range(8):
        (folder / f"{index}.txt").write_text(number_corpus(3, first=10 + index * 3 * 12 * 9))
    skipping = many_options(
        skip_unreadable=True, held_out_share=0, buffer_bytes=1000, dupe_factor=1, num_shards=1
    )
    read_blocks = formats.read_blocks

    def failing(path, *arguments, **named):
        if path.endswith("1.txt"):
            raise UnreadableFile(f"{path}: cannot be read")
        return read_blocks(path, *arguments, **named)

    def run(name, fails, **named):
        monkeypatch.setattr(formats, "read_blocks", failing if fails else read_blocks)
        return write_shards(folder, tmp_path / name, number_tokenizer, skipping, **named)

    expected = run("undisturbed", not passing)
    assert expected.irregularities["unreadable_files"] == (not passing)
    unfinished = tmp_path / "out"

    def stop(progress):  # when the second group of the first unit is begun
        if any(unfinished.glob("*train-00000-00001-*")):
            raise Killed

    with pytest.raises(Killed):
        run("out", passing, progress=stop)
    assert [path.name for path in (unfinished / ".journal").glob("*-*")] == ["00000-00000.json"]
    run("out", not passing)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_only_one_process_writes_a_folder(tmp_path, many, number_tokenizer, units):
    out = tmp_path / "out"

    def write_too(progress):
        with pytest.raises(InputError, match="another process is writing there"):
            write_shards(many, out, number_tokenizer, many_options())

    manifest = write_shards(many, out, number_tokenizer, many_options(), progress=write_too)
    assert verify(out) == manifest


@pytest.mark.slow
def test_two_lengths_in_one_pass(tmp_path, many, number_tokenizer, units):
    lengths = [many_options(max_seq_length=64), many_options(max_seq_length=32)]
    out = tmp_path / "out"
    short, long = write_shards_of_lengths(many, out, number_tokenizer, lengths)
    assert {path.name for path in out.iterdir()} == {"32", "64"}
    assert (verify(out / "32"), verify(out / "64")) == (short, long)
    alone = write_shards(many, tmp_path / "alone", number_tokenizer, lengths[0])
    assert contents(out / "64") == contents(tmp_path / "alone")
    assert alone == long
    with pytest.raises(InputError, match="given twice"):
        write_shards_of_lengths(many, tmp_path / "b", number_tokenizer, lengths[:1] * 2)
    with pytest.raises(InputError, match="seed differs"):
        write_shards_of_lengths(
            many, tmp_path / "b", number_tokenizer, [lengths[0], many_options(seed=2)]
        )


def test_batches_rounds_splits_lengths_and_runs_have_seeds_of_their_own(monkeypatch):
    """They would make like choices at the same places."""

    def seeds_only(sentences, tokens, tokenizer, options, seed):
        return seed, SimpleNamespace(_replace=lambda unknown: None)

    monkeypatch.setattr(instance_records, "_make_records", seeds_only)
    made = {"held_out": False, "number": 0, "indexed": (None, None), "short": (0, 0)}
    made |= dict.fromkeys(("tokens", "unknown", "sentences", "without_tokens"))
    found = []
    for seed in (1, 2):
        lengths = [options(seed=seed, max_seq_length=length) for length in (32, 64)]
        _, serialize = instance_records._functions(None, lengths, False)
        for changed in ({}, {"held_out": True}, {"number": 1}):
            for index in range(2):
                *_, of_lengths = serialize.python_function({**made, **changed}, index)
                found += [tuple(each.records.numpy()) for each in of_lengths]
    assert len(set(found)) == len(found) == 24


def test_dynamic_masking_keeps_the_text(tmp_path, many, number_tokenizer, whole):
    static = Manifest.load(whole)
    dynamic = write_shards(
        many, tmp_path / "dynamic", number_tokenizer, many_options(masking="dynamic")
    )
    assert static.instances() == dynamic.instances()
    for masked, plain in zip(examples(whole), examples(tmp_path / "dynamic"), strict=True):
        assert set(plain) == {"input_ids", "first_segment_length", "next_sentence_labels"}
        a, b = unmasked(masked)
        assert plain["input_ids"] == [2, *a, 3, *b, 3]
        assert plain["first_segment_length"] == [len(a) + 2]
        assert plain["next_sentence_labels"] == masked["next_sentence_labels"]
    statistics = dynamic.statistics["train"]
    assert "mask_share" not in statistics
    assert statistics["length_mean"] == static.statistics["train"]["length_mean"]


def test_full_sentences_use_the_text_once(tmp_path, many, number_tokenizer, units):
    made = many_options(instances="full_sentences", held_out_share=0, dupe_factor=1)
    manifest = write_shards(many, tmp_path / "out", number_tokenizer, made)
    found = examples(tmp_path / "out")
    tokens = []
    for example in found:
        ids = original_ids(example)
        length = sum(example["input_mask"])
        assert (ids[0], ids[length - 1]) == (2, 3)
        assert not any(example["segment_ids"])
        assert example["next_sentence_labels"] == [0]
        tokens += [token for token in ids[:length] if token > 4]
    assert sorted(tokens) == list(range(10, 10 + 150 * 12 * 9))
    statistics = manifest.statistics["train"]
    assert statistics["length_mean"] == np.mean([sum(e["input_mask"]) for e in found])
    assert "is_random_next" not in statistics


@pytest.mark.slow
def test_tokens_have_a_bound(tmp_path, many, number_tokenizer, units):
    made = many_options(instances="full_sentences", held_out_share=0, dupe_factor=1)
    of_unit = 1500  # tokens, in 8,000 bytes
    tokens = []
    for seed in (1, 1, 2):
        out = tmp_path / str(len(tokens))
        made = dataclasses.replace(made, max_tokens=6000, seed=seed)
        write_shards(many, out, number_tokenizer, made)
        used = {token for example in examples(out) for token in original_ids(example) if token > 4}
        tokens.append(used)
    assert 6000 <= len(tokens[0]) < 6000 + 3 * of_unit
    assert tokens[0] == tokens[1] != tokens[2]


def test_full_sentences_can_be_of_one_document(tmp_path, number_tokenizer, number_corpus):
    (tmp_path / "one.txt").write_text(number_corpus(1, sentences=100))
    made = options(instances="full_sentences", num_shards=1)
    manifest = write_shards(tmp_path / "one.txt", tmp_path / "out", number_tokenizer, made)
    assert manifest.documents == 1
    assert manifest.instances() > 30


def test_whole_words_are_masked(tmp_path, many, number_tokenizer, units):
    made = many_options(whole_word_masking=True, held_out_share=0)
    write_shards(many, tmp_path / "out", number_tokenizer, made)
    continues = number_tokenizer.is_continuation
    words = 0
    for example in examples(tmp_path / "out")[:300]:
        a, b = unmasked(example)
        ids = [2, *a, 3, *b, 3]
        masked = {
            p
            for p, w in zip(
                example["masked_lm_positions"], example["masked_lm_weights"], strict=True
            )
            if w
        }
        for position in range(1, len(ids) - 1):
            if continues[ids[position]] and ids[position] > 4 and ids[position - 1] > 4:
                assert (position in masked) == (position - 1 in masked)
                words += position in masked
    assert words > 100


def test_a_unit_without_text_is_passed_over(tmp_path, number_tokenizer, number_corpus, units):
    for index in range(5):
        text = number_corpus(20, first=10 + index * 20 * 12 * 9) if index % 2 else "\n" * 9000
        (tmp_path / f"{index}.txt").write_text(text)
    for instances in ("sentence_pairs", "full_sentences"):
        manifest = write_shards(
            str(tmp_path / "*.txt"),
            tmp_path / instances,
            number_tokenizer,
            many_options(instances=instances),
        )
        assert manifest.documents == 40


def test_what_is_met_in_the_text_is_counted(tmp_path, number_tokenizer):
    # With [CLS] and twice [SEP], the last two have 32 tokens and more.
    enough, more = (" ".join(map(str, range(10, end))) for end in (39, 400))
    documents = ["1 2 3", "", "4 5\u0000 6\n7 8 9", "\n\n", enough, more]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    manifest = write_shards(
        path, tmp_path / "out", number_tokenizer, options(held_out_share=0, num_shards=1)
    )
    assert manifest.documents == 4
    assert manifest.irregularities == {
        "documents_shorter_than_an_instance": 2,
        "sentences_without_tokens": 0,
        "empty_documents": 2,
        "invalid_utf8_lines": 0,
        "nul_bytes": 1,
        "cut_lines": 0,
        "bad_lines": 0,
        "unreadable_files": 0,
    }


def test_paragraphs_are_split_into_sentences(tmp_path):
    from bert_tf.tokenization import BertTokenizer

    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz." for mark in ("", "##")]
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(
            f"The {name} cat\nsat. It slept. Then it ate.\n\nEnd."
        )
    manifest = write_shards(
        [tmp_path / "a.txt", tmp_path / "b.txt"],
        tmp_path / "out",
        tokenizer,
        options(corpus_format="text", held_out_share=0),
    )
    assert (manifest.documents, manifest.sentences) == (2, 8)
