"""`bert-tf pretrain` on the different kinds of shards."""

import contextlib
import functools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from command_line import words
from killed import copy_when_saved  # tests/processes/killed.py
from preloaded import start_code
from safetensors.numpy import load_file

import bert_tf.training.trainer
from bert_tf.cli import main
from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.commands.pretraining import pretrain
from bert_tf.commands.pretraining_data import DIRECTIONS, PretrainingData
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.files.atomic import hold_output, temporary_name
from bert_tf.models.language_model import BertLanguageModel, BertPreTrainer
from bert_tf.models.loading import load_model
from bert_tf.pipelines.shards.folder import open_shards
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.training.watcher import Watcher


class Killed(Exception):
    """Stands for whatever ends a process in the middle of a run."""


def options(shards, small_config, output, **changed) -> PretrainingOptions:
    values = {
        "steps": 8,
        "batch_size": 8,
        "log_every": 1,
        "save_every": 3,
        "evaluate_every": 4,
        "evaluation_batches": 2,
        "learning_rate": 1e-3,
    }
    if "model" not in changed:
        values["size"] = str(small_config)
    return PretrainingOptions(shards=str(shards), output=str(output), **{**values, **changed})


def run(options, kill_at=None, copy_at=None) -> list[tuple[int, str, dict[str, float]]]:
    """The lines of a run.

    With `copy_at`, `killed(options.output)` is the folder as a kill after that step leaves it.
    """
    lines = []

    class Watching(Watcher):
        def logged(self, step, kind, scalars):
            timed = ("second", "share_of_peak", "minutes_left")
            kept = {k: v for k, v in scalars.items() if not any(part in k for part in timed)}
            lines.append((step, kind, kept))
            if step == kill_at:
                raise Killed
            if step == copy_at:
                saved = (step - 1) // options.save_every * options.save_every
                copy_when_saved(Path(options.output), saved, killed(options.output))

    with contextlib.nullcontext() if kill_at is None else pytest.raises(Killed):
        pretrain(options, Watching())
    return lines


def killed(output) -> Path:
    return Path(f"{output}-killed")


def weights(output) -> bytes:
    return (Path(output) / "last" / "model.safetensors").read_bytes()


SETTINGS = {
    "masked_lm_prob": 0.3,
    "mask_token_share": 0.6,
    "random_token_share": 0.3,
    "whole_word_masking": True,
    "max_ngram": 2,
    "schedule": "warmup_stable_decay",
    "decay_share": 0.5,
}


@pytest.fixture(scope="module")
def undisturbed(dynamic_shards, small_config, tmp_path_factory):
    """The run directory and the lines of a run with dynamic masks; see `killed`."""
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    return output, run(options(dynamic_shards, small_config, output, **SETTINGS), copy_at=7)


@pytest.mark.slow
def test_a_killed_run_on_rows_of_instances_goes_on_as_if_nothing_had_happened(
    corpus, tokenizer, small_config, tmp_path
):
    arguments = words(
        "shards --max-seq-length 32 --held-out-share 0.2 --num-shards 2 --masking dynamic "
        "--short-seq-prob 0.9 --instances-per-row 4",
        corpus=corpus,
        tokenizer=tokenizer,
        output=tmp_path / "rows",
    )
    assert main(arguments) == 0
    with pytest.raises(InputError, match="shards without --instances_per_row"):
        run(options(tmp_path / "rows", small_config, tmp_path / "no", objective="bilm"))
    settings = {**SETTINGS, "gradient_accumulation_steps": 2}
    output = tmp_path / "run"
    lines = run(options(tmp_path / "rows", small_config, output, **settings), copy_at=7)
    after = run(options(tmp_path / "rows", small_config, killed(output), **settings))
    assert weights(killed(output)) == weights(output)
    assert after == [line for line in lines if line[0] > 6]


@pytest.mark.slow
def test_a_killed_run_in_half_precision_goes_on_as_if_nothing_had_happened(
    shards, small_config, tmp_path, monkeypatch
):
    # The scale of the loss changes every so many steps: 2 and 4 of them are half-way when killed.
    monkeypatch.setattr(bert_tf.training.trainer, "_GROWTH_STEPS", 3)
    settings = {"precision": "mixed_float16", "steps": 7, "save_every": 1}
    try:
        output = tmp_path / "run"
        whole = run(options(shards, small_config, output, **settings), copy_at=3)  # saved at 2
        after = run(options(shards, small_config, killed(output), **settings))
    finally:
        keras.config.set_dtype_policy("float32")
    assert after == [line for line in whole if line[0] > 2]
    assert weights(killed(output)) == weights(output)
    scales = {line[2].get("loss_scale") for line in whole if line[1] == "train"}
    assert scales == {2.0**15, 2.0**16, 2.0**17}


@pytest.mark.slow
def test_a_killed_run_with_dynamic_masks_goes_on_as_if_nothing_had_happened(
    undisturbed, dynamic_shards, small_config, tmp_path
):
    """What it left half-written is nothing.

    A process that is killed while it takes later events out of the logs leaves them twice.
    """
    output, lines = undisturbed
    shutil.copytree(killed(output), tmp_path, dirs_exist_ok=True)
    (events,) = (tmp_path / "logs" / "train").glob("*.tfevents.*")
    checkpoint = tmp_path / "checkpoints" / "step-00000009.safetensors"
    with hold_output(tmp_path):
        for path in (events, checkpoint):
            temporary_name(path).write_bytes(events.read_bytes())
    another = temporary_name(tmp_path / "vocab")  # of a command that is under way in the folder
    another.touch()
    after = run(options(dynamic_shards, small_config, tmp_path, **SETTINGS))
    assert after == [line for line in lines if line[0] > 6]
    assert list(tmp_path.rglob(".*.tmp")) == [another]
    steps = [
        event.step
        for path in (tmp_path / "logs" / "train").glob("*.tfevents.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "loss"
    ]
    assert sorted(steps) == list(range(1, 9))
    assert weights(tmp_path) == weights(output)


@pytest.mark.slow  # tests/runs/test_watching.py trains on full sentences without --objective
def test_the_masked_language_model_is_trained_alone(dynamic_shards, small_config, tmp_path):
    folder = Path(shutil.copytree(dynamic_shards, tmp_path / "shards"))
    manifest = Manifest.load(folder)
    manifest.options["instances"] = "full_sentences"
    manifest.save(folder)
    with pytest.raises(InputError, match=r"mlm\+nsp needs pairs of sentences"):
        run(options(folder, small_config, tmp_path / "run", objective="mlm+nsp"))
    lines = run(options(dynamic_shards, small_config, tmp_path / "run", seed=3, objective="mlm"))
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 8]
    for _, _, scalars in lines:
        assert {"loss", "mlm_loss", "mlm_accuracy"} <= set(scalars)
        assert not any("nsp" in name for name in scalars)
    new = BertPreTrainer(BertConfig.from_json(small_config), seed=3)
    trained = load_model(tmp_path / "run" / "last", BertPreTrainer)
    for before, after in zip(new.trainable_variables, trained.trainable_variables, strict=True):
        untrained = "pooler" in before.path or "next_sentence" in before.path
        same = np.array_equal(before.numpy(), after.numpy())
        assert same == untrained, before.path


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["ltr", "ltr+rtl", "bilm"])
def test_a_language_model_is_trained_resumed_and_trained_on(
    objective, dynamic_shards, shards, small_config, tmp_path
):
    made = options(dynamic_shards, small_config, tmp_path / "run", seed=3, objective=objective)
    lines = run(made, copy_at=7)
    if objective == "bilm":  # its two models are most of what a checkpoint can hold
        assert run(replace(made, output=str(killed(made.output)))) == [x for x in lines if x[0] > 6]
        assert weights(killed(made.output)) == weights(made.output)
    for _, _, scalars in lines:
        for name in objective.replace("bilm", "ltr+rtl").split("+"):
            assert {"loss", f"{name}_loss", f"{name}_accuracy"} <= set(scalars)
        assert not any(part in name for name in scalars for part in ("nsp", "mlm"))
    assert lines[-1][2]["loss"] < lines[0][2]["loss"]
    new = BertLanguageModel(
        replace(
            BertConfig.from_json(small_config),
            attention_direction=DIRECTIONS[objective],
        ),
        seed=3,
    )
    trained = load_model(tmp_path / "run" / "last")
    assert isinstance(trained, BertLanguageModel) and trained.config == replace(
        new.config, extra=trained.config.extra
    )
    for before, after in zip(new.trainable_variables, trained.trainable_variables, strict=True):
        if "pooler" not in before.path:
            assert not np.array_equal(before.numpy(), after.numpy()), before.path

    # It goes on with its own objective, on masked shards whose text is restored.
    start = str(tmp_path / "run" / "last")
    if objective == "ltr+rtl":
        more = options(shards, small_config, tmp_path / "more", model=start, steps=2)
        lines = run(more)
        assert lines and all({"ltr_loss", "rtl_loss"} <= set(scalars) for _, _, scalars in lines)
    cure = re.escape(f"mlm cannot train: give --objective {objective},")
    with pytest.raises(InputError, match=cure):
        run(options(shards, small_config, tmp_path / "no", model=start, objective="mlm"))
    with pytest.raises(InputError, match="max_ngram is for masked words"):
        run(options(shards, small_config, tmp_path / "no", model=start, max_ngram=2))
    assert not (tmp_path / "no").exists()


@pytest.fixture(scope="module")
def shards_of_two_lengths(made_once, corpus, tokenizer) -> Path:
    def make(path: Path) -> None:
        arguments = words(
            "shards --max-seq-length 16 32 --held-out-share 0.2 --num-shards 2",
            corpus=corpus,
            tokenizer=tokenizer,
            output=path,
        )
        assert main(arguments) == 0

    return made_once("shards_of_two_lengths", make)


def two_lengths(shards, small_config, output, **changed) -> PretrainingOptions:
    long = {"long_shards": str(shards / "32"), "long_share": 0.4}
    return options(shards / "16", small_config, output, **{**long, "steps": 10, **changed})


@pytest.mark.slow
def test_the_last_steps_are_taken_on_long_sequences(shards_of_two_lengths, small_config, tmp_path):
    """The paper's schedule: one run, one learning rate, positions beyond the short ones last."""
    config = json.loads(small_config.read_text())
    small_config = tmp_path / "config.json"
    small_config.write_text(json.dumps({**config, "max_position_embeddings": 40}))
    made = two_lengths(
        shards_of_two_lengths,
        small_config,
        tmp_path / "run",
        save_every=6,
        keep=10,
        long_gradient_accumulation_steps=2,
    )
    lines = run(made, copy_at=7)
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 6, 8, 10]
    rates = [scalars["learning_rate"] for _, kind, scalars in lines if kind == "train"]
    assert rates == pytest.approx([0, *(1e-3 * (1 - step / 10) for step in range(1, 10))], abs=1e-9)

    def position_moments(step):
        """Adam's means of the squared gradients of the position embeddings, [40, 16]."""
        tensors = load_file(tmp_path / f"run/checkpoints/step-{step:08d}.safetensors")
        return tensors["adam_weight_decay/embeddings_position_embeddings_embeddings_square"]

    assert position_moments(6)[:16].all() and not position_moments(6)[16:].any()
    assert position_moments(8)[:32].all() and not position_moments(8)[32:].any()

    run(replace(made, output=str(killed(made.output))))
    assert weights(killed(made.output)) == weights(made.output)


@pytest.mark.slow
def test_a_run_that_is_killed_in_each_of_its_phases_ends_as_if_nothing_had_happened(
    shards_of_two_lengths, small_config, tmp_path
):
    """Six steps on short sequences and four on long ones; checkpoints after 4 and 8 are read."""
    whole = two_lengths(shards_of_two_lengths, small_config, tmp_path / "run", save_every=2)
    lines = run(whole, copy_at=5)
    first = replace(whole, output=str(killed(whole.output)))
    in_first = run(first, copy_at=9)
    second = replace(whole, output=str(killed(first.output)))
    in_second = run(second)
    assert in_first[0][0] == 5 and in_second[0][0] == 9
    for rest in (in_first, in_second):
        assert rest == lines[-len(rest) :]
    assert weights(second.output) == weights(first.output) == weights(whole.output)


@pytest.mark.slow
def test_without_dropout_long_micro_batches_may_change(
    shards_of_two_lengths, small_config, tmp_path
):
    made = two_lengths(shards_of_two_lengths, small_config, tmp_path, dropout=0.0, save_every=1)
    run(made, kill_at=2)
    with pytest.raises(InputError, match="seed was"):
        run(replace(made, seed=7))
    lines = run(replace(made, long_gradient_accumulation_steps=2), kill_at=3)
    assert lines[-1][0] == 3


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"long_share": 0.01}, "0.01 of 10 steps leaves none for the last phase"),
        ({"long_share": 1.0}, "--long_share is 1.0: give above 0 and below 1"),
        ({"long_gradient_accumulation_steps": 3}, "does not divide into 3 micro-batches"),
    ],
)
def test_long_shards_that_cannot_be_trained_on(
    shards_of_two_lengths, small_config, tmp_path, changed, cause
):
    with pytest.raises(InputError, match=cause):
        run(two_lengths(shards_of_two_lengths, small_config, tmp_path / "run", **changed))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_killed_run_on_mixed_shards_goes_on_with_the_same_shares_alone(
    shards, dynamic_shards, small_config, tmp_path
):
    other = shutil.copytree(shards, tmp_path / "other")
    whole = options(shards, small_config, tmp_path / "run", mix_shards=[f"{other}=0.25"])
    lines = run(whole, copy_at=7)
    resumed = replace(whole, output=str(killed(tmp_path / "run")))
    with pytest.raises(InputError, match="data was"):
        run(replace(resumed, mix_shards=[f"{other}=0.3"]))
    rest = run(resumed)
    assert rest == lines[-len(rest) :]
    assert weights(resumed.output) == weights(whole.output)
    with pytest.raises(InputError, match=r"has masking dynamic, and .* static"):
        run(replace(whole, mix_shards=[f"{dynamic_shards}=0.25"]))


@pytest.mark.slow
def test_late_batches_are_larger_and_read_on(dynamic_shards, small_config, tmp_path):
    """Steps 1 to 6 take 4 examples, steps 7 to 10 take 12: no example is missed or seen twice."""
    late = {"batch_size": 4, "late_batch_size": 12, "late_share": 0.3, "steps": 10}
    made = options(
        dynamic_shards,
        small_config,
        tmp_path / "run",
        **late,
        gradient_accumulation_steps=2,
        save_every=8,
    )
    data = PretrainingData(made)
    steps = [phase.until for phase in data.phases]
    assert steps == [6, 10]  # three steps of ten would leave the reader within a batch of 12
    assert [phase.gradient_accumulation_steps for phase in data.phases] == [2, 6]
    assert data.summary.endswith(", 10 steps of 4, the last 4 of 12")
    strategy = tf.distribute.get_strategy()
    early, large = (
        list(data.train_batches(phase, strategy, 0).take(count).as_numpy_iterator())
        for phase, count in zip(data.phases, (6, 4), strict=True)
    )
    stream = pretraining_batches(dynamic_shards, 4, seed=made.seed).take(18)
    for name in ("segment_ids", "padding_mask"):  # masks are drawn by batch
        rows = [inputs[name] for inputs, *_ in early + large]
        whole = [inputs[name] for inputs, *_ in stream.as_numpy_iterator()]
        np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(whole))

    lines = run(made, copy_at=9)  # saved two steps into the large batches
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 6, 8, 10]
    after = run(replace(made, output=str(killed(made.output))))
    assert weights(killed(made.output)) == weights(made.output)
    assert after == [line for line in lines if line[0] > 8]
    for other, cause in (
        ({"late_batch_size": None, "late_share": None}, "late_batch_size was 12, is now None"),
        ({"masked_lm_prob": 0.2}, "masked_lm_prob was None, is now 0.2"),
    ):
        with pytest.raises(InputError, match=cause):
            run(replace(made, **other))


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"late_batch_size": 20}, "20 is no multiple of --batch_size 8: give 16, 24 or so on"),
        ({"late_batch_size": 8}, "8 is no multiple of --batch_size 8: give 16"),
        ({"late_share": 0.5}, "--late_share is for --late_batch_size: give both"),
        ({"late_batch_size": 16, "long_shards": "long"}, "--long_shards cannot be combined"),
        ({"late_batch_size": 16, "late_share": 0.95}, "0.95 of 8 steps leaves none before"),
        (
            {"late_batch_size": 16, "late_share": 0.9},
            "0.9 of 8 steps leaves 1 before the last phase, which starts after a multiple of 2",
        ),
    ],
)
def test_late_batches_that_cannot_be(shards, small_config, tmp_path, changed, cause):
    with pytest.raises(InputError, match=cause):
        run(options(shards, small_config, tmp_path / "run", **changed))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_position_embeddings": 24}, "32 tokens, the model 24 positions"),
        ({"type_vocab_size": 1}, "cannot tell the texts of a pair apart"),
    ],
)
def test_shards_that_do_not_fit_the_model(shards, small_config, tmp_path, change, message):
    config = json.loads(small_config.read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InputError, match=message):
        run(options(shards, tmp_path / "config.json", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_model_of_another_vocabulary_is_refused(
    shards, small_config, pretrained, tmp_path, capsys
):
    model = Path(shutil.copytree(pretrained / "best", tmp_path / "model"))
    pieces = (model / "vocab.txt").read_text().splitlines()
    (model / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    with pytest.raises(InputError, match="was made with another vocabulary than that of"):
        run(options(shards, small_config, tmp_path / "run", model=str(model)))
    assert not (tmp_path / "run").exists()
    (model / "vocab.txt").unlink()  # the number of pieces is all there is to go by
    lines = run(options(shards, small_config, tmp_path / "run", model=str(model)), kill_at=1)
    assert [step for step, _, _ in lines] == [1]


def test_a_model_with_other_casing_is_refused(shards, small_config, pretrained, tmp_path):
    model = Path(shutil.copytree(pretrained / "best", tmp_path / "model"))
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": False}))
    with pytest.raises(InputError, match=r"tokenizes in another way than .*do_lower_case"):
        run(options(shards, small_config, tmp_path / "run", model=str(model)))


def damage(folder: Path) -> str:
    """Flips a byte of the 3rd record of a shard; returns the shard's name."""
    shard = Manifest.load(folder).shards["train"][1]
    records = list(tf.data.TFRecordDataset(str(folder / shard.file)).as_numpy_iterator())
    content = bytearray((folder / shard.file).read_bytes())
    content[sum(len(record) + 16 for record in records[:2]) + 50] ^= 1
    (folder / shard.file).write_bytes(content)
    return shard.file


@pytest.mark.slow
def test_corrupt_records_stop_a_run_or_are_left_out(dynamic_shards, small_config, tmp_path, capsys):
    folder = Path(shutil.copytree(dynamic_shards, tmp_path / "shards"))
    shard = damage(folder)
    manifest = Manifest.load(folder)
    manifest.statistics["train"]["unknown_token_share"] = 0.5
    manifest.save(folder)
    arguments = words(
        "pretrain --steps 3 --batch-size 8",
        shards=folder,
        size=small_config,
        output=tmp_path / "run",
    )
    arguments = arguments
    capsys.readouterr()
    assert main(arguments) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert f"{shard}: record 3 is damaged" in line and "--skip_corrupt" in line
    assert main([*arguments, "--skip_corrupt"]) == 0  # the run that stopped goes on
    skipped = f"skipping 256 record(s) of {folder / shard}: blocks"
    told = capsys.readouterr().err.replace("\n", " ")
    assert skipped in told
    assert f"{folder}: Warning: 50.0% of the tokens are [UNK]" in told
    assert (tmp_path / "run" / "last").is_dir()


def test_masking_options_are_for_dynamic_shards(shards, small_config, tmp_path, capsys):
    arguments = words(
        "pretrain --max_ngram 3", shards=shards, size=small_config, output=tmp_path / "run"
    )
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert "remove max_ngram, or make shards with --masking dynamic" in line
    assert not (tmp_path / "run").exists()


def test_an_unfinished_folder_is_told_from_a_missing_one(small_config, tmp_path, capsys):
    (tmp_path / "shards" / ".journal").mkdir(parents=True)
    (tmp_path / "shards" / ".journal" / "lock").touch()
    arguments = words(
        "pretrain", shards=tmp_path / "shards", size=small_config, output=tmp_path / "run"
    )
    assert main(arguments) == 2
    assert "has not finished there" in capsys.readouterr().err


_SERVER = """
import time
import tensorflow as tf

service = tf.data.experimental.service
dispatcher = service.DispatchServer()
address = dispatcher.target.removeprefix("grpc://")
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
print(dispatcher.target, flush=True)
time.sleep(1e6)
"""


@pytest.mark.slow
def test_a_data_service_changes_nothing(undisturbed, dynamic_shards, small_config, tmp_path):
    with pytest.raises(InputError, match=r"nowhere:1: no tf\.data service answers"):
        run(options(dynamic_shards, small_config, tmp_path, data_service="grpc://nowhere:1"))
    process = start_code(_SERVER)
    try:
        address = process.first_line()
        run(options(dynamic_shards, small_config, tmp_path, data_service=address, **SETTINGS))
    finally:
        process.kill()
    assert weights(tmp_path) == weights(undisturbed[0])


def shown(arguments, capsys) -> list[str]:
    """The lines of a command that ends well."""
    capsys.readouterr()
    assert main(arguments) == 0
    return capsys.readouterr().err.strip().splitlines()


def test_a_run_tells_what_it_does_and_what_came_of_it(
    shards, small_config, tmp_path, capsys, words_are_hidden
):
    arguments = words(
        "pretrain --steps 4 --batch-size 8 --evaluate-every 2 --evaluation-batches 2",
        shards=shards,
        size=small_config,
        output=tmp_path / "run",
    )
    dry = shown([*arguments, "--dry_run"], capsys)
    assert "CPU, float32: " in dry[0] and " instances of 32 tokens, 4 steps of 8" in dry[0]
    assert any("parameters" in line for line in dry) and any("4 steps of about" in s for s in dry)
    assert any("GiB of memory" in line for line in dry)
    assert not (tmp_path / "run").exists()

    first = shown(arguments, capsys)
    assert first[0] == dry[0]
    metrics = json.loads((tmp_path / "run" / "best" / "metrics.json").read_text())
    assert f"Best model: of step {metrics['step']}" in first
    # Four steps teach nothing but frequencies: no advice to go on from there.
    assert any("word frequencies (loss " in line for line in first)
    assert not any(line.startswith("Next:") for line in first)

    again = shown(arguments, capsys)
    assert "The run was complete: it ended at step 4" in again
    texts = [path.name for path in (tmp_path / "run/logs/masked_words").iterdir()]
    assert texts  # guesses for words of the held-out text


def test_a_held_out_share_of_every_file_is_evaluated_on(shards, small_config, tmp_path):
    """Not the beginning of the files in their order (issue: the first files alone chose best/)."""
    data = PretrainingData(options(shards, small_config, tmp_path, batch_size=4))
    (phase,) = data.phases
    first = pretraining_batches(phase.held_out, 4, shuffle=False, repeat=False).take(2)
    sampled, in_order = (
        np.concatenate([inputs["token_ids"] for inputs, _, _ in batches])
        for batches in (data.held_out_sample(phase), first)
    )
    assert sampled.shape == in_order.shape
    assert not np.array_equal(sampled, in_order)


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
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
        ({"long_gradient_accumulation_steps": 2}, "is for --long_shards"),
        ({"clip_norm": 0.0}, "--clip_norm is 0.0: give above 0"),
        ({"clip_norm": -1.0}, "--clip_norm is -1.0: give above 0"),
        ({"warmup_steps": 9}, "--warmup_steps is 9 of 8 steps"),
        ({"seed": -1}, "--seed is -1: give at least 0"),
        ({"learning_rate": float("nan")}, "--learning_rate is nan"),
    ],
)
def test_options_that_would_be_ignored_or_do_harm_are_refused(changed, cause):
    with pytest.raises(InputError, match=cause):
        PretrainingOptions(shards="shards", output="run", **{"steps": 8, **changed})


@pytest.mark.parametrize(
    ("name", "default", "beside"),
    [("long_share", 0.1, {"long_shards": "b"}), ("late_share", 0.5, {"late_batch_size": 128})],
)
def test_a_share_that_is_the_default_is_no_other_setting(name, default, beside):
    made = PretrainingOptions(shards="a", output="run", **beside)
    assert PretrainingOptions(shards="a", output="run", **beside, **{name: default}) == made
    assert PretrainingOptions(shards="a", output="run", **beside, **{name: 0.3}) != made


@pytest.mark.slow
def test_a_run_is_not_continued_with_other_evaluations(shards, small_config, tmp_path):
    made = options(shards, small_config, tmp_path, save_every=1)
    run(made, kill_at=2)
    with pytest.raises(InputError, match="evaluation_batches was 2, is now 1"):
        run(replace(made, evaluation_batches=1))
    run(replace(made, evaluation_batches=1, override=True), kill_at=3)
    # What config.yaml repeats does not switch the guard off.
    assert "override" not in (tmp_path / "config.yaml").read_text()


def test_other_shards_of_the_original_script_are_other_data(
    shards, tokenizer, small_config, tmp_path
):
    folder = Path(shutil.copytree(shards, tmp_path / "shards"))
    (folder / "manifest.json").unlink()
    made = options(folder, small_config, tmp_path / "run", tokenizer=str(tokenizer))
    before = PretrainingData(made).phases[0].fingerprint
    assert PretrainingData(made).phases[0].fingerprint == before
    next(iter(sorted(folder.glob("*.tfrecord*")))).unlink()
    assert PretrainingData(made).phases[0].fingerprint != before


def test_an_output_in_the_shards_is_refused(shards, small_config, capsys):
    arguments = words("pretrain", shards=shards, output=shards / "run")
    assert main(arguments) == 2
    assert "lies in the input" in capsys.readouterr().err
    assert not (shards / "run").exists()


@pytest.mark.slow
def test_a_student_learns_a_teachers_guesses(dynamic_shards, small_config, tmp_path):
    """On the same batches with weight 1 it comes closer to the teacher than it was."""
    arguments = {"objective": "mlm", "dropout": 0.0}
    made = functools.partial(options, dynamic_shards, small_config, **arguments)
    teacher = tmp_path / "teacher"
    pretrain(made(teacher, steps=4, learning_rate=1e-2, initializer_range=0.2))
    by = {"teacher": str(teacher / "last"), "teacher_weight": 1.0}
    (batch, *_) = next(iter(pretraining_batches(open_shards(dynamic_shards, "train"), 8)))
    outputs = {}
    losses = {}  # of the first step
    for name, given in (("taught", by), ("alone", {})):
        lines = run(made(tmp_path / name, evaluate_every=40, steps=40, **given))
        losses[name] = lines[0][2]["loss"]
        outputs[name] = load_model(tmp_path / name / "last")(batch)["mlm_logits"]
    known = tf.nn.softmax(load_model(teacher / "last")(batch)["mlm_logits"])
    divergence = {
        name: np.mean(tf.reduce_sum(known * (tf.math.log(known) - tf.nn.log_softmax(x)), -1))
        for name, x in outputs.items()
    }
    assert divergence["taught"] < divergence["alone"] / 2
    # Layers are compared, too: tests/runs/test_teacher.py has students that learn them.
    layers = made(tmp_path / "layers", teacher_layers="hidden_states", **by)
    ((_, _, scalars),) = run(layers, kill_at=1)
    assert scalars["loss"] > 1.01 * losses["taught"]
    pieces = (teacher / "last" / "vocab.txt").read_text().split("\n")
    pieces[-2] = "another"
    (teacher / "last" / "vocab.txt").write_text("\n".join(pieces))
    with pytest.raises(InputError, match="last has another vocabulary than the shards"):
        pretrain(made(tmp_path / "none", teacher=str(teacher / "last")))
