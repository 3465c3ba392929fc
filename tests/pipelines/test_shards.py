import dataclasses
import gzip
import json
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from pipelines.manifest import Manifest, verify
from pipelines.options import PretrainingDataOptions
from pipelines.shards import write_shards


def options(**changed):
    return PretrainingDataOptions(
        **{"max_seq_length": 32, "num_shards": 3, "held_out_share": 0.1, **changed}
    )


def examples(folder, split="train"):
    found = []
    for file in sorted(folder.glob(f"{split}-*.tfrecord")):
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            found.append(
                {
                    name: list(feature.int64_list.value or feature.float_list.value)
                    for name, feature in features.items()
                }
            )
    return found


def unmasked(example):
    """Segments A and B of an example, as they were before masking."""
    ids = list(example["input_ids"])
    for position, label, weight in zip(
        example["masked_lm_positions"],
        example["masked_lm_ids"],
        example["masked_lm_weights"],
        strict=True,
    ):
        if weight:
            ids[position] = label
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
    manifest = write_shards(corpus, out, number_tokenizer, options())
    assert verify(out) == Manifest.load(out) == manifest
    assert manifest.corpus == [{"file": "corpus.txt", "bytes": corpus.stat().st_size}]
    assert manifest.vocabulary["hash"] == number_tokenizer.vocabulary_hash
    assert manifest.options["max_predictions_per_seq"] == 5
    assert {path.name for path in out.iterdir()} == {
        "manifest.json",
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


def test_manifest_keeps_options_of_the_data_alone(tmp_path, corpus, number_tokenizer):
    @dataclass(kw_only=True)
    class CommandOptions(PretrainingDataOptions):
        output: str

    made = CommandOptions(max_seq_length=32, output=str(tmp_path))
    manifest = write_shards(corpus, tmp_path / "out", number_tokenizer, made)
    assert "output" not in manifest.options
    assert manifest.options == dataclasses.asdict(PretrainingDataOptions(max_seq_length=32))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_one_seed_gives_the_same_bytes(tmp_path, corpus, number_tokenizer, monkeypatch):
    changed = {"buffer_bytes": 3000, "dupe_factor": 2}  # several batches in flight
    made = []
    for run, (seed, threads) in enumerate([(1, 1), (1, 4), (2, 4)]):
        monkeypatch.setattr("os.cpu_count", lambda threads=threads: threads)
        out = tmp_path / f"run{run}"
        write_shards(corpus, out, number_tokenizer, options(seed=seed, **changed))
        made.append(contents(out))
    assert made[0] == made[1]
    assert all(made[0][name] != made[2][name] for name in made[0] if name.endswith("tfrecord"))


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
        (b"1 2\n\n3 4\n\xff\n", r"line 4: invalid UTF-8"),
    ],
)
def test_bad_corpora_leave_nothing_behind(tmp_path, number_tokenizer, text, message):
    (tmp_path / "bad.txt").write_bytes(text)
    with pytest.raises(InputError, match=rf"bad\.txt.*{message}") as raised:
        write_shards(tmp_path / "bad.txt", tmp_path / "out" / "shards", number_tokenizer)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "out").iterdir())


def test_failing_late_leaves_the_old_folder(tmp_path, corpus, number_tokenizer):
    out = tmp_path / "shards"
    write_shards(corpus, out, number_tokenizer, options())
    before = contents(out)
    bad = tmp_path / "zzz.txt"
    bad.write_bytes(corpus.read_bytes() + b"\xff")
    with pytest.raises(InputError, match=r"zzz\.txt, line 519: invalid UTF-8"):
        write_shards(
            [corpus, bad], out, number_tokenizer, options(buffer_bytes=2000), overwrite=True
        )
    assert contents(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "zzz.txt", "shards"}


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
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="not empty"):
        write_shards(corpus, out, number_tokenizer, options())
    assert (out / "mine.txt").read_text() == "keep"
    write_shards(corpus, out, number_tokenizer, options(), overwrite=True)
    assert not (out / "mine.txt").exists()
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
    ],
)
def test_options_out_of_range_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        PretrainingDataOptions(**wrong)


@pytest.mark.parametrize(("length", "predictions"), [(128, 20), (512, 77), (20, 3)])
def test_predictions_by_default(length, predictions):
    assert PretrainingDataOptions(max_seq_length=length).max_predictions_per_seq == predictions


@pytest.fixture(scope="module")
def original_tokenizer(shared):
    from bert_tf.tokenization.tokenizer import BertTokenizer

    return BertTokenizer(shared / "data" / "vocab" / "bert_base_uncased.txt")


@pytest.mark.parametrize("length", [128, 512])
def test_statistics_match_the_original(tmp_path, shared, original_tokenizer, length):
    """At the default seed, both lengths are within 1 point and 5% of a run of the original.

    Not so at every seed, neither here nor there: a document has one target length, and with 122
    documents the share of full-length instances moves by 3 points (standard deviation, five
    rounds). That the distribution is the same whatever the seed is tested elsewhere, against a
    plain walk.
    """
    golden = json.loads((shared / "golden" / "pretraining_instances.json").read_text())
    golden = golden[f"max_seq_length={length}"]
    manifest = write_shards(
        shared / "data" / "corpus" / "wiki.txt.gz",
        tmp_path / "shards",
        original_tokenizer,
        PretrainingDataOptions(max_seq_length=length, dupe_factor=5, held_out_share=0),
    )
    ours = manifest.statistics["train"]
    assert manifest.options["max_predictions_per_seq"] == golden["max_predictions_per_seq"]
    for name in (
        "is_random_next",
        "full_length_share",
        "predictions_over_length",
        "mask_share",
        "random_share",
        "kept_share",
    ):
        assert ours[name] == pytest.approx(golden[name], abs=0.01), name
    assert ours["instances"] / 5 == pytest.approx(golden["instances_per_dupe"], rel=0.05)
    assert ours["predictions_mean"] == pytest.approx(golden["predictions_mean"], rel=0.05)
    for name in ("length", "segment_a", "segment_b"):
        mean = name if name == "length" else f"{name}_length"
        assert ours[f"{mean}_mean"] == pytest.approx(golden[f"{mean}_mean"], rel=0.05)
        for ours_at, golden_at in zip(
            ours[f"{mean}_percentiles"].values(),
            golden[f"{name}_percentiles_5_25_50_75_95"],
            strict=True,
        ):
            assert ours_at == pytest.approx(golden_at, rel=0.05), name
