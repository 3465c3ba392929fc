import dataclasses
import json
import os
import re
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from shard_files import contents, examples, many_options, options

from bert_tf.errors import InputError
from bert_tf.pipelines.corpus.sources import open_corpus
from bert_tf.pipelines.instances import record_batches as instance_records
from bert_tf.pipelines.shards import run as runs
from bert_tf.pipelines.shards.manifest import Manifest, verify
from bert_tf.pipelines.shards.run import _notices, _sources, write_shards


def original_ids(example):
    ids = list(example["input_ids"])
    names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    for position, label, weight in zip(*map(example.get, names), strict=True):
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


# Together, as the graph that makes instances is traced for each choice.
ODD = {"mask_token_share": 0.0, "random_token_share": 1.0, "cut_long_sentences": False}


def test_manifest_describes_what_is_on_disk(tmp_path, corpus, number_tokenizer, write):
    out = tmp_path / "shards"
    corpus = corpus.rename(tmp_path / "corpus [1, 2].txt")
    made = options(**ODD)
    manifest = write(corpus, out, made)
    assert verify(out) == Manifest.load(out) == manifest
    assert manifest.data_options == dataclasses.replace(made, corpus_format="sentences")
    assert (manifest.documents, manifest.sentences) == (40, 480)
    assert manifest.corpus == [{"file": "corpus [1, 2].txt", "bytes": corpus.stat().st_size}]
    assert manifest.vocabulary["hash"] == number_tokenizer.vocabulary_hash
    assert manifest.options["max_predictions_per_seq"] == 5
    shards = {shard.file for split in manifest.shards.values() for shard in split}
    others = {"manifest.json", "blocks.npy", "tokenizer_config.json"}
    assert {path.name for path in out.iterdir()} == shards | others
    for split, found in manifest.shards.items():
        assert [shard.file for shard in found] == sorted(p.name for p in out.glob(f"{split}-*"))
        counts = [shard.instances for shard in found]
        assert max(counts) - min(counts) <= 1
    train = list(examples(out))
    for example in train:  # as the original's script writes them
        assert {name: len(values) for name, values in example.items()} == {
            **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), 32),
            **dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 5),
            "next_sentence_labels": 1,
        }
    statistics = manifest.statistics["train"]
    assert statistics["instances"] == len(train)
    assert statistics["is_random_next"] == np.mean([e["next_sentence_labels"] for e in train])
    lengths = [sum(e["input_mask"]) for e in train]
    assert statistics["length_mean"] == pytest.approx(np.mean(lengths))
    assert statistics["full_length_share"] == np.mean(np.array(lengths) == 32)
    weights = np.sum([e["masked_lm_weights"] for e in train])
    assert statistics["predictions_mean"] == pytest.approx(weights / len(train))
    assert statistics["mask_share"] == 0
    assert statistics["random_share"] > 0.99  # a few are themselves by chance


def test_a_manifest_lists_the_folders_of_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.shards.run._LISTED_SOURCES", 3)
    for name in ("a/1", b"a/caf\xe9", "b/c/1", "b/d/2", "b/e/3"):  # names may be any bytes
        file = tmp_path / f"{os.fsdecode(name)}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text")
    assert _sources(open_corpus([tmp_path / "a"])) == [
        {"file": "1.txt", "bytes": 4},
        {"file": "caf\\xe9.txt", "bytes": 4},
    ]
    assert _sources(open_corpus([tmp_path])) == [
        {"file": ".", "bytes": 8, "files": 2},
        {"file": "b", "bytes": 12, "files": 3},
    ]


@for_each(
    "text settings said",
    ("Bär für immer", {"do_lower_case": False}, "18.2% of the letters .*decomposed.*ä"),
    ("Bär für immer", {"do_lower_case": True, "strip_accents": False}, "decomposed"),
    ("형태소 분석", {"do_lower_case": True, "strip_accents": False}, "100.0% of the letters"),
    ("Bär für immer", {"do_lower_case": True}, None),
    ("Bär für immer", {"do_lower_case": False, "strip_accents": True}, None),
    ("她 来 了 的", {"do_lower_case": True}, "--whole_word_masking masks single characters"),
    ("她 来 了", {"do_lower_case": True, "tokenize_chinese_chars": False}, None),
)
def test_text_that_does_not_suit_the_tokenizer_is_named(tmp_path, text, settings, said):
    (tmp_path / "text.txt").write_text(unicodedata.normalize("NFD", text))
    tokenizer = SimpleNamespace(settings=settings)
    made = options(whole_word_masking=True, corpus_format="sentences")
    found = list(_notices(open_corpus(tmp_path / "text.txt"), tokenizer, made))
    assert len(found) == bool(said)
    assert all(re.search(said, line) for line in found)
    (tmp_path / "text.txt").write_text(text)
    found = list(_notices(open_corpus(tmp_path / "text.txt"), tokenizer, made))
    assert not any("decomposed" in line for line in found)


def test_unknown_tokens_are_counted(tmp_path, corpus, number_tokenizer, write):
    lines = [line.split() for line in corpus.read_text().splitlines()]
    unknown = str(number_tokenizer.unk_token_id)
    text = "\n".join(" ".join([unknown, unknown, *words[2:]][: len(words)]) for words in lines)
    (tmp_path / "unknown.txt").write_text(text)
    for path, share in ((corpus, 0), (tmp_path / "unknown.txt", 2 / 9)):
        made = options(held_out_share=0, buffer_bytes=3000, dupe_factor=2)  # with donors
        manifest = write(path, tmp_path / f"out-{share}", made)
        assert manifest.statistics["train"]["unknown_token_share"] == share


def test_dropped_tokens_are_counted(tmp_path, number_corpus, write):
    # Every token occurs once, so the text in the shards can be compared with the corpus.
    text = number_corpus(30, sentences=5, length=90)
    (tmp_path / "corpus.txt").write_text(text)
    shares = {}
    for cut in (False, True):
        out = tmp_path / f"cut-{cut}"
        made = options(**{} if cut else ODD, held_out_share=0)
        manifest = write(tmp_path / "corpus.txt", out, made)
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


def test_held_out_text_has_a_bound(tmp_path, number_corpus, write):
    (tmp_path / "text.txt").write_text(number_corpus(400, sentences=2))
    size = (tmp_path / "text.txt").stat().st_size
    held_out = []
    for most in (None, size // 20):
        made = options(held_out_share=0.3, max_held_out_bytes=most, num_shards=1)
        manifest = write(tmp_path / "text.txt", tmp_path / str(most), made)
        held_out.append(manifest.instances("held_out") / manifest.instances())
    # Of 400 documents 20 are held out, give or take 4.4 (a standard deviation).
    assert 0.02 < held_out[1] < 0.1 < 0.3 < held_out[0]


@for_each(
    "text message",
    (b"\n\n \n", "no text"),
    (b"1 2 3\n4 5 6\n", "single document"),
    (b"1 2\n\n3 4\n" + b"\xff\n" * 11, r"line 4: invalid UTF-8"),
)
def test_bad_corpora_leave_nothing_behind(tmp_path, number_tokenizer, text, message):
    (tmp_path / "bad.txt").write_bytes(text)
    with pytest.raises(InputError, match=rf"bad\.txt.*{message}"):
        write_shards(tmp_path / "bad.txt", tmp_path / "out/shards", number_tokenizer, options())
    assert not list((tmp_path / "out").glob("*"))


def test_an_old_folder_is_replaced_once_the_inputs_are_sound(tmp_path, corpus, write):
    out = tmp_path / "shards"
    write(corpus, out)
    before = contents(out)
    named = {"overwrite": True}
    refused("no such file", write, [corpus, tmp_path / "no"], out, **named)
    assert contents(out) == before
    bad = tmp_path / "zzz.txt"
    bad.write_bytes(corpus.read_bytes() + b"\n\xff" * 300)
    with pytest.raises(InputError, match=r"zzz\.txt, line 520: invalid UTF-8"):
        write([corpus, bad], out, **named)  # found where the lines are judged
    assert contents(out) == before
    named_format = options(buffer_bytes=2000, corpus_format="sentences")
    refused(r"zzz\.txt, line 520: invalid UTF-8", write, [corpus, bad], out, named_format, **named)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "zzz.txt"}


def test_text_without_tokens_is_refused(tmp_path, number_tokenizer, monkeypatch):
    class NoTokens(type(number_tokenizer)):
        def tokenize(self, texts):
            return tf.RaggedTensor.from_row_lengths(
                tf.zeros([0], tf.int32), tf.zeros_like(tf.strings.length(texts))
            )

    (tmp_path / "text.txt").write_text("a\nb\n\nc\nd\n")
    with pytest.raises(InputError, match=r"text\.txt: no instance"):
        write_shards(tmp_path / "text.txt", tmp_path / "out", NoTokens(), options())
    assert not (tmp_path / "out").exists()


def test_full_folders_are_replaced_only_when_asked(tmp_path, corpus, number_tokenizer, write):
    out = tmp_path / "shards"
    write(corpus, out / "128")
    refused("not empty", write, corpus, out)
    write(corpus, out, overwrite=True)
    assert not (out / "128").exists()
    refused("is a file", write, corpus, corpus)
    with pytest.raises(InputError, match="given twice"):
        write_shards(corpus, tmp_path / "b", number_tokenizer, options(), options())


@for_each("name", "mine.txt", "train-00099-00000-00-00.tfrecord", "128/vocab.txt")
@for_each("beside", "nothing", "shards")
def test_files_that_no_manifest_lists_are_never_replaced(tmp_path, corpus, write, name, beside):
    out = tmp_path / "out"
    if beside == "shards":
        write(corpus, out)
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    before = contents(out)
    refused("out: ", write, corpus, out)
    refused(f"out: holds {re.escape(name)}, which", write, corpus, out, overwrite=True)
    assert contents(out) == before


def test_a_group_has_a_shard_for_every_round(whole_many):
    manifest = verify(whole_many)
    names = [shard.file for shard in manifest.shards["train"]]
    assert names == sorted(names)
    places = {tuple(name.split("-")[1:3]) for name in names}
    assert len(names) == 2 * len(places)
    assert len({unit for unit, _ in places}) > 5
    assert len(places) > 10
    ids = [tuple(e["input_ids"]) for e in examples(whole_many)]
    assert len(set(ids)) == len(ids)  # of both rounds
    # Between them, the rounds go through every group.
    seen = {token for e in examples(whole_many) for part in unmasked(e) for token in part}
    held_out = examples(whole_many, "held_out")
    seen.update(token for e in held_out for part in unmasked(e) for token in part)
    assert len(seen) > 0.95 * 150 * 12 * 9
    assert manifest.documents == 150
    assert manifest.sentences == 1800


def test_groups_of_a_large_corpus_are_as_much_larger_as_its_units(
    tmp_path, many, write, whole_many, monkeypatch
):
    def places(folder):
        shards = Manifest.load(folder).shards["train"]
        return {tuple(shard.file.split("-")[1:3]) for shard in shards}

    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.MOST_UNITS", 8)
    write(many, tmp_path / "out", many_options())
    usual, larger = places(whole_many), places(tmp_path / "out")
    of_usual, of_larger = ({unit for unit, _ in each} for each in (usual, larger))
    assert len(of_larger) < len(of_usual)
    assert len(larger) < len(usual)


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


@pytest.mark.slow
def test_tokens_have_a_bound(tmp_path, many, write, small_units):
    made = many_options(instances="full_sentences", held_out_share=0, dupe_factor=1)
    of_unit = 1500  # tokens, in 8,000 bytes
    tokens = []
    for seed in (1, 1, 2):
        out = tmp_path / str(len(tokens))
        made = dataclasses.replace(made, max_tokens=6000, seed=seed)
        write(many, out, made)
        used = {token for example in examples(out) for token in original_ids(example) if token > 4}
        tokens.append(used)
    assert 6000 <= len(tokens[0]) < 6000 + 3 * of_unit
    assert tokens[0] == tokens[1] != tokens[2]


def test_full_sentences_can_be_of_one_document(tmp_path, write, number_corpus):
    (tmp_path / "one.txt").write_text(number_corpus(1, sentences=100))
    made = options(instances="full_sentences", num_shards=1)
    manifest = write(tmp_path / "one.txt", tmp_path / "out", made)
    assert manifest.documents == 1
    assert manifest.instances() > 30
    assert "is_random_next" not in manifest.statistics["train"]
    assert manifest.statistics["train"]["dropped_token_share"] == 0
    for example in examples(tmp_path / "out"):
        assert not any(example["segment_ids"] + example["next_sentence_labels"])


def test_a_unit_without_text_is_passed_over(tmp_path, write, number_corpus, small_units):
    for index in range(5):
        text = number_corpus(20, first=10 + index * 20 * 12 * 9) if index % 2 else "\n" * 9000
        (tmp_path / f"{index}.txt").write_text(text)
    for instances in ("sentence_pairs", "full_sentences"):
        made = many_options(instances=instances)
        assert write(str(tmp_path / "*.txt"), tmp_path / instances, made).documents == 40


def test_what_is_met_in_the_text_is_counted(tmp_path, write):
    # With [CLS] and twice [SEP], the last two have 32 tokens and more.
    enough, more = (" ".join(map(str, range(10, end))) for end in (39, 400))
    documents = ["1 2 3", "", "4 5\u0000 6\n7 8 9", "\n\n", enough, more]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    manifest = write(path, tmp_path / "out", options(held_out_share=0, num_shards=1))
    assert manifest.documents == 4
    met = {"documents_shorter_than_an_instance": 2, "empty_documents": 2, "nul_bytes": 1}
    assert {name: n for name, n in manifest.irregularities.items() if n} == met
    assert len(manifest.irregularities) == 8


def test_paragraphs_are_split_into_sentences(tmp_path):
    from bert_tf.tokenization import BertTokenizer

    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz." for mark in ("", "##")]
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"The {name} cat\nsat. It slept. It ate.\n\nEnd.")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    made = options(corpus_format="text", held_out_share=0)
    (manifest,) = write_shards(files, tmp_path / "out", tokenizer, made)
    assert (manifest.documents, manifest.sentences) == (2, 8)


def test_an_estimate_leaves_out_the_first_batch(many, number_tokenizer, monkeypatch):
    """It traces the graph: 100 of 101 seconds here."""
    clock = iter([0.0, 100.0, 101.0])
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("bert_tf.pipelines.corpus.documents.GROUP_BYTES", 5_000)
    text = sum(path.stat().st_size for path in many.iterdir())
    assert runs.estimate_shards(many, number_tokenizer, [many_options()]).seconds < 1.3
    assert text > 10 * 5_000
