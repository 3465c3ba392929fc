import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from pretraining_runs import options, run, two_lengths

from bert_tf import BertConfig, BertPreTrainer, BertTokenizer, load_model, save_model
from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.commands.pretraining_data import PretrainingData
from bert_tf.errors import InputError
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches


@pytest.mark.slow  # tests/runs/test_watching.py trains on full sentences without --objective
def test_the_masked_language_model_is_trained_alone(dynamic_shards, small_config, tmp_path):
    folder = Path(shutil.copytree(dynamic_shards, tmp_path / "shards"))
    manifest = Manifest.load(folder)
    manifest.options["instances"] = "full_sentences"
    manifest.save(folder)
    with pytest.raises(InputError, match=r"mlm\+nsp needs pairs of sentences"):
        run(options(folder, small_config, tmp_path / "run", objective="mlm+nsp"))
    run(options(dynamic_shards, small_config, tmp_path / "run", seed=3, objective="mlm"))
    new = BertPreTrainer(BertConfig.from_json(small_config), seed=3)
    trained = load_model(tmp_path / "run" / "last", BertPreTrainer)
    for before, after in zip(new.trainable_variables, trained.trainable_variables, strict=True):
        untrained = "pooler" in before.path or "next_sentence" in before.path
        same = np.array_equal(before.numpy(), after.numpy())
        assert same == untrained, before.path


@for_each(
    "changed cause",
    ({"long_share": 0.01}, "0.01 of 10 steps leaves none for the last phase"),
    ({"long_gradient_accumulation_steps": 3}, "does not divide into 3 micro-batches"),
    ({"late_batch_size": 16, "late_share": 0.95}, "0.95 of 8 steps leaves none before"),
    ({"late_batch_size": 16, "late_share": 0.9}, "leaves 1 before the last phase, which starts"),
    ({"max_position_embeddings": 24}, "32 tokens, the model 24 positions"),
    ({"type_vocab_size": 1}, "cannot tell the texts of a pair apart"),
    ({"vocab_size": 7}, "has vocab_size 7, the tokenizer 600 entries"),
    ({"max_ngram": 3}, "remove max_ngram, or make shards with --masking dynamic"),
    ({"freeze_layers": 7}, "the encoder has 1"),
    ({"steps_per_execution": 3}, "--steps_per_execution 3 does not divide"),
    ({"strategy": "tpu"}, "no TPU answers"),
    ({"schedule": "warmup_stable_decay", "decay_share": 1.0, "warmup_steps": 1}, "8 of decay do"),
    ({"strategy": "mirrored", "jit_compile": True}, "leave --jit_compile out"),
    ({"watch_text": ["the [MASK]", "no gap"]}, "no [MASK] in 'no gap': write it in place"),
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    shards, shards_of_two_lengths, small_config, tmp_path, changed, cause
):
    config = json.loads(small_config.read_text())
    of_config = {name: value for name, value in changed.items() if name in config}
    (tmp_path / "config.json").write_text(json.dumps(config | of_config))
    is_long = any(name.startswith("long") for name in changed)
    make, folder = (two_lengths, shards_of_two_lengths) if is_long else (options, shards)
    more = {name: value for name, value in changed.items() if name not in config}
    refused(re.escape(cause), run, make(folder, tmp_path / "config.json", tmp_path / "run", **more))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_another_vocabulary_is_refused(shards, small_config, pretrained, tmp_path, capsys):
    model = Path(shutil.copytree(pretrained / "best", tmp_path / "model"))
    pieces = (model / "vocab.txt").read_text().splitlines()
    (model / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    with pytest.raises(InputError, match="was made with another vocabulary than that of"):
        run(options(shards, small_config, tmp_path / "run", model=str(model)))
    assert not (tmp_path / "run").exists()
    (model / "vocab.txt").unlink()  # the number of pieces is all there is to go by
    lines = run(options(shards, small_config, tmp_path / "run", model=str(model), steps=1))
    assert lines[-1][:2] == (1, "held_out")


def test_another_casing_or_tokenizer_is_refused(shards, small_config, tmp_path):
    model = tmp_path / "model"
    new = BertPreTrainer(BertConfig.from_json(small_config))
    save_model(new, model, BertTokenizer.from_directory(shards))
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": False}))
    with pytest.raises(InputError, match=r"tokenizes in another way than .*do_lower_case"):
        run(options(shards, small_config, tmp_path / "run", model=str(model)))
    with pytest.raises(InputError, match=r"differs from the tokenizer of .*remove --tokenizer"):
        run(options(shards, small_config, tmp_path / "run", tokenizer=str(model)))


def damage(folder: Path) -> str:
    """Flips a byte of the 3rd record of a shard; returns the shard's name."""
    shard = Manifest.load(folder).shards["train"][1]
    records = list(tf.data.TFRecordDataset(str(folder / shard.file)).as_numpy_iterator())
    content = bytearray((folder / shard.file).read_bytes())
    content[sum(len(record) + 16 for record in records[:2]) + 50] ^= 1
    (folder / shard.file).write_bytes(content)
    return shard.file


@pytest.mark.slow
def test_corrupt_records_stop_a_run_or_are_left_out(dynamic_shards, small_config, tmp_path, call):
    folder = Path(shutil.copytree(dynamic_shards, tmp_path / "shards"))
    shard = damage(folder)
    manifest = Manifest.load(folder)
    manifest.statistics["train"]["unknown_token_share"] = 0.5
    manifest.save(folder)
    given = {"shards": folder, "size": small_config, "output": tmp_path / "run"}
    before = ("CPU, float32: ", str(folder))
    line = call.refused("pretrain --steps 3 --batch-size 8", announced=before, **given)
    assert f"{shard}: record 3 is damaged" in line and "--skip_corrupt" in line
    # The run that stopped goes on.
    _, err = call("pretrain --steps 3 --batch-size 8 --skip_corrupt", **given)
    told = " ".join(err.split())
    assert f"skipping 256 record(s) of {folder / shard}: blocks" in told
    assert f"{folder}: Warning: 50.0% of the tokens are [UNK]" in told
    assert (tmp_path / "run" / "last").is_dir()


def test_a_run_tells_what_came_of_it(shards, small_config, tmp_path, call, words_are_hidden):
    line = "pretrain --steps 4 --batch-size 8 --evaluate-every 2 --evaluation-batches 2"
    given = {"shards": shards, "size": small_config, "output": tmp_path / "run"}
    dry = call(f"{line} --dry_run", **given)[1].splitlines()
    assert "CPU, float32: " in dry[0] and " instances of 32 tokens, 4 steps of 8" in dry[0]
    assert any("parameters" in line for line in dry) and any("4 steps of about" in s for s in dry)
    assert any("GiB of memory" in line for line in dry)
    assert not (tmp_path / "run").exists()

    first = call(line, **given)[1].splitlines()
    assert first[0] == dry[0]
    metrics = json.loads((tmp_path / "run" / "best" / "metrics.json").read_text())
    (best,) = [line for line in first if line.startswith("Best model")]
    assert f", step {metrics['step']}): " in best and best.endswith("best")
    # Four steps teach nothing but frequencies: no advice to go on from there.
    assert any("word frequencies (loss " in line for line in first)
    assert not any(line.startswith("Next:") for line in first)

    again = call(line, **given)[1].splitlines()
    assert "The run was complete: it ended at step 4" in again
    texts = [path.name for path in (tmp_path / "run/logs/masked_words").iterdir()]
    assert texts  # guesses for words of the held-out text


def test_a_held_out_share_of_every_file_is_evaluated_on(shards, small_config, tmp_path):
    data = PretrainingData(options(shards, small_config, tmp_path, batch_size=4))
    (phase,) = data.phases
    first = pretraining_batches(phase.held_out, 4, shuffle=False, repeat=False).take(2)
    both = ([x["token_ids"] for x, _, _ in y] for y in (data.held_out_sample(phase), first))
    sampled, in_order = map(np.concatenate, both)
    assert sampled.shape == in_order.shape
    assert not np.array_equal(sampled, in_order)


@for_each(
    "changed cause",
    ({"model": "pre", "size": "tiny"}, "--size is for new models"),
    ({"model": "pre", "initializer_range": 0.1}, "--initializer_range is for new models"),
    *(
        ({"mix_shards": [given]}, f"--mix_shards {given}: give a folder and its share")
        for given in ("books", "books=x", "books=0", "books=1", "=0.5", "books=nan")
    ),
    ({"mix_shards": ["a=0.6", "b=0.4"]}, "has 1 of the examples, which leaves none for"),
    ({"mix_shards": ["a=0.2", "a/=0.2"]}, "a/=0.2: the folder is given twice"),
    ({"mix_shards": ["shards/=0.2"]}, "the folder is given twice"),
    ({"mix_shards": ["a=0.2"], "long_shards": "b"}, "--long_shards cannot be combined"),
    ({"long_share": 0.2}, "--long_share is for --long_shards"),
    ({"late_batch_size": 20}, "20 is no multiple of --batch_size 8: give 16, 24 or so on"),
    ({"late_batch_size": 8}, "8 is no multiple of --batch_size 8: give 16"),
    ({"late_share": 0.5}, "--late_share is for --late_batch_size: give both"),
    ({"late_batch_size": 16, "long_shards": "long"}, "--long_shards cannot be combined"),
    ({"long_gradient_accumulation_steps": 2}, "is for --long_shards"),
    ({"warmup_steps": 9}, "--warmup_steps is 9 of 8 steps"),
    ({"decay_share": 0.1}, "--decay_share is for --schedule warmup_stable_decay, not linear"),
    *(({"profile": x}, f"--profile is '{x}': give FIRST:LAST") for x in ("5", "0:3", "4:3")),
)
def test_options_that_would_be_ignored_or_do_harm_are_refused(changed, cause):
    with pytest.raises(InputError, match=cause):
        PretrainingOptions(shards="shards", output="run", **{"steps": 8, "batch_size": 8} | changed)


LATE = ("late_share", 0.5, {"late_batch_size": 128})


@for_each("name default beside", ("long_share", 0.1, {"long_shards": "b"}), LATE)
def test_a_share_that_is_the_default_is_no_other_setting(name, default, beside):
    made = PretrainingOptions(shards="a", output="run", **beside)
    assert PretrainingOptions(shards="a", output="run", **beside, **{name: default}) == made
    assert PretrainingOptions(shards="a", output="run", **beside, **{name: 0.3}) != made


def test_other_shards_of_the_original_are_other_data(shards, tokenizer, small_config, tmp_path):
    folder = Path(shutil.copytree(shards, tmp_path / "shards"))
    (folder / "manifest.json").unlink()
    made = options(folder, small_config, tmp_path / "run", tokenizer=str(tokenizer))
    before = PretrainingData(made).phases[0].fingerprint
    assert PretrainingData(made).phases[0].fingerprint == before
    next(iter(sorted(folder.glob("*.tfrecord*")))).unlink()
    assert PretrainingData(made).phases[0].fingerprint != before
