"""What `bert-tf pretrain` does with the different kinds of shards."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from preloaded import start_code
from safetensors.numpy import load_file

import bert_tf.training.loss_scale
from bert_tf.atomic import hold_output, temporary_name
from bert_tf.checkpoints.model_directory import load_model
from bert_tf.cli.main import main
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.options import PretrainingOptions
from bert_tf.tasks.pretraining import pretrain
from pipelines.shards.manifest import Manifest


class Killed(Exception):
    """Stands for whatever ends a process in the middle of a run."""


@pytest.fixture(scope="module")
def dynamic_shards(root, corpus, tokenizer) -> Path:
    output = root / "dynamic_shards"
    arguments = [
        "shards", "--corpus", corpus, "--tokenizer", tokenizer, "--output", output,
        "--max-seq-length", 32, "--held-out-share", 0.2, "--num-shards", 2, "--masking", "dynamic",
    ]  # fmt: skip
    assert main([str(argument) for argument in arguments]) == 0
    return output


def options(shards, small_config, output, **changed) -> PretrainingOptions:
    values = {
        "steps": 8, "batch_size": 8, "log_every": 1, "save_every": 3, "evaluate_every": 4,
        "evaluation_batches": 2, "learning_rate": 1e-3,
    }  # fmt: skip
    if "model" not in changed:
        values["size"] = str(small_config)
    return PretrainingOptions(shards=str(shards), output=str(output), **{**values, **changed})


def run(options, kill_at=None) -> list[tuple[int, str, dict[str, float]]]:
    lines = []

    def report(step, kind, scalars):
        timed = ("second", "share_of_peak", "minutes_left")
        kept = {k: v for k, v in scalars.items() if not any(part in k for part in timed)}
        lines.append((step, kind, kept))
        if step == kill_at:
            raise Killed

    if kill_at is None:
        pretrain(options, report)
    else:
        with pytest.raises(Killed):
            pretrain(options, report)
    return lines


def weights(output) -> bytes:
    return (Path(output) / "last" / "model.safetensors").read_bytes()


MASKS = {"masked_lm_prob": 0.3, "whole_word_masking": True, "max_ngram": 2}


@pytest.fixture(scope="module")
def undisturbed(dynamic_shards, small_config, root):
    """The run directory and the lines of a run with dynamic masks."""
    lines = run(options(dynamic_shards, small_config, root / "undisturbed", **MASKS))
    return root / "undisturbed", lines


def test_a_killed_run_with_dynamic_masks_goes_on_as_if_nothing_had_happened(
    undisturbed, dynamic_shards, small_config, tmp_path
):
    made = options(dynamic_shards, small_config, tmp_path, **MASKS)
    before = run(made, kill_at=7)
    after = run(made)
    assert weights(tmp_path) == weights(undisturbed[0])
    told = {line[:2]: line[2] for line in before + after}
    assert told == {line[:2]: line[2] for line in undisturbed[1]}


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_a_killed_run_in_half_precision_goes_on_as_if_nothing_had_happened(
    shards, small_config, tmp_path, monkeypatch, precision
):
    # The scale of the loss changes every so many steps: 2 and 4 of them are half-way when killed.
    monkeypatch.setattr(bert_tf.training.loss_scale, "_GROWTH_STEPS", 3)
    settings = {"precision": precision, "steps": 7, "save_every": 1}
    try:
        whole = run(options(shards, small_config, tmp_path / "whole", **settings))
        killed = options(shards, small_config, tmp_path / "killed", **settings)
        before = run(killed, kill_at=3)  # saved at 2
        after = run(killed)
    finally:
        keras.config.set_dtype_policy("float32")
    assert after[0][0] == 3
    told = {line[:2]: line[2] for line in before + after}
    assert told == {line[:2]: line[2] for line in whole}
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    names = {line[2].get("loss_scale") for line in whole if line[1] == "train"}
    scales = {2.0**15, 2.0**16, 2.0**17} if precision == "mixed_float16" else {None}
    assert names == scales


def test_what_a_killed_run_left_half_written_is_nothing(
    undisturbed, dynamic_shards, small_config, tmp_path
):
    """A process that is killed while it takes later events out of the logs leaves them twice."""
    made = options(dynamic_shards, small_config, tmp_path, **MASKS)
    run(made, kill_at=7)
    (events,) = (tmp_path / "logs" / "train").glob("*.tfevents.*")
    checkpoint = tmp_path / "checkpoints" / "step-00000009.safetensors"
    with hold_output(tmp_path):
        for path in (events, checkpoint):
            temporary_name(path).write_bytes(events.read_bytes())
    another = temporary_name(tmp_path / "vocab")  # of a command that is under way in the folder
    another.touch()
    run(made)
    assert list(tmp_path.rglob(".*.tmp")) == [another]
    steps = [
        event.step
        for path in (tmp_path / "logs" / "train").glob("*.tfevents.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "loss"
    ]
    assert sorted(steps) == list(range(1, 9))
    assert weights(tmp_path) == weights(undisturbed[0])


def test_a_run_is_not_continued_with_other_masks(dynamic_shards, small_config, tmp_path, capsys):
    run(options(dynamic_shards, small_config, tmp_path / "run"), kill_at=4)
    arguments = [
        "pretrain", "--config", tmp_path / "run" / "config.yaml", "--masked_lm_prob", "0.2",
    ]  # fmt: skip
    assert main([str(argument) for argument in arguments]) == 2
    assert "masked_lm_prob was None, is now 0.2" in capsys.readouterr().err


def test_full_sentences_train_the_masked_language_model_alone(
    dynamic_shards, small_config, tmp_path
):
    folder = Path(shutil.copytree(dynamic_shards, tmp_path / "shards"))
    manifest = Manifest.load(folder)
    manifest.options["instances"] = "full_sentences"
    manifest.save(folder)
    lines = run(options(folder, small_config, tmp_path / "run", seed=3))
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


@pytest.fixture(scope="module")
def shards_of_two_lengths(root, corpus, tokenizer) -> Path:
    output = root / "two_lengths"
    arguments = [
        "shards", "--corpus", corpus, "--tokenizer", tokenizer, "--output", output,
        "--max-seq-length", 16, 32, "--held-out-share", 0.2, "--num-shards", 2,
    ]  # fmt: skip
    assert main([str(argument) for argument in arguments]) == 0
    return output


def two_lengths(shards, small_config, output, **changed) -> PretrainingOptions:
    long = {"long_shards": str(shards / "32"), "long_share": 0.4}
    return options(shards / "16", small_config, output, **{**long, "steps": 10, **changed})


def test_the_last_steps_are_taken_on_long_sequences(shards_of_two_lengths, small_config, tmp_path):
    """The paper's schedule: one run, one learning rate, positions beyond the short ones last."""
    config = json.loads(small_config.read_text())
    small_config = tmp_path / "config.json"
    small_config.write_text(json.dumps({**config, "max_position_embeddings": 40}))
    made = two_lengths(
        shards_of_two_lengths, small_config, tmp_path / "run", save_every=6, keep=10,
        long_gradient_accumulation_steps=2,
    )  # fmt: skip
    lines = run(made)
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 6, 8, 10]
    rates = [scalars["learning_rate"] for _, kind, scalars in lines if kind == "train"]
    assert rates == pytest.approx([0, *(1e-3 * (1 - step / 10) for step in range(1, 10))], abs=1e-9)

    def position_moments(step):
        """Adam's means of the squared gradients of the position embeddings, [40, 16]."""
        tensors = load_file(tmp_path / f"run/checkpoints/step-{step:08d}.safetensors")
        return [tensors[name] for name in sorted(tensors) if tensors[name].shape == (40, 16)][-1]

    assert position_moments(6)[:16].all() and not position_moments(6)[16:].any()
    assert position_moments(8)[:32].all() and not position_moments(8)[32:].any()

    killed = two_lengths(
        shards_of_two_lengths, small_config, tmp_path / "killed", save_every=6, keep=10,
        long_gradient_accumulation_steps=2,
    )  # fmt: skip
    run(killed, kill_at=7)
    run(killed)
    assert weights(tmp_path / "killed") == weights(tmp_path / "run")


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"long_share": 0.01}, "leaves none on"),
        ({"long_share": 1.0}, "--long_share is 1.0: give above 0 and below 1"),
        ({"long_gradient_accumulation_steps": 3}, "does not divide into 3 pieces"),
    ],
)
def test_long_shards_that_cannot_be_trained_on(
    shards_of_two_lengths, small_config, tmp_path, changed, cause
):
    with pytest.raises(InputError, match=cause):
        run(two_lengths(shards_of_two_lengths, small_config, tmp_path / "run", **changed))
    assert not (tmp_path / "run").exists()


def test_sequences_longer_than_the_model_has_positions(shards, small_config, tmp_path):
    config = json.loads(small_config.read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}))
    with pytest.raises(InputError, match="32 tokens, the model 24 positions"):
        run(options(shards, tmp_path / "config.json", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


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
    lines = run(options(shards, small_config, tmp_path / "run", model=str(model), steps=2))
    assert [step for step, _, _ in lines] == [1, 2, 2]


def damage(folder: Path) -> str:
    """Flips a byte of the 3rd record of a shard; returns the shard's name."""
    shard = Manifest.load(folder).shards["train"][1]
    records = list(tf.data.TFRecordDataset(str(folder / shard.file)).as_numpy_iterator())
    content = bytearray((folder / shard.file).read_bytes())
    content[sum(len(record) + 16 for record in records[:2]) + 50] ^= 1
    (folder / shard.file).write_bytes(content)
    return shard.file


def test_corrupt_records_stop_a_run_or_are_left_out(dynamic_shards, small_config, tmp_path, capsys):
    folder = Path(shutil.copytree(dynamic_shards, tmp_path / "shards"))
    shard = damage(folder)
    arguments = [
        "pretrain", "--shards", folder, "--size", small_config, "--output", tmp_path / "run",
        "--steps", 3, "--batch-size", 8,
    ]  # fmt: skip
    arguments = [str(argument) for argument in arguments]
    capsys.readouterr()
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{shard}: record 3 is damaged" in line and "--skip_corrupt" in line
    assert main([*arguments, "--skip_corrupt"]) == 0  # the run that stopped goes on
    assert f"left out of {folder / shard}: 1 corrupt record" in capsys.readouterr().err
    assert (tmp_path / "run" / "last").is_dir()


def test_masking_options_are_for_dynamic_shards(shards, small_config, tmp_path, capsys):
    arguments = [
        "pretrain", "--shards", shards, "--size", small_config, "--output", tmp_path / "run",
        "--max_ngram", 3,
    ]  # fmt: skip
    assert main([str(argument) for argument in arguments]) == 2
    line = capsys.readouterr().err
    assert "leave max_ngram out, or make shards with --masking dynamic" in line
    assert not (tmp_path / "run").exists()


def test_an_unfinished_folder_is_told_from_a_missing_one(small_config, tmp_path, capsys):
    (tmp_path / "shards.unfinished").mkdir()
    arguments = [
        "pretrain", "--shards", tmp_path / "shards", "--size", small_config,
        "--output", tmp_path / "run",
    ]  # fmt: skip
    assert main([str(argument) for argument in arguments]) == 2
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


def test_a_data_service_changes_nothing(undisturbed, dynamic_shards, small_config, tmp_path):
    with pytest.raises(InputError, match=r"nowhere:1: no tf\.data service answers"):
        run(options(dynamic_shards, small_config, tmp_path, data_service="grpc://nowhere:1"))
    process = start_code(_SERVER)
    try:
        address = process.first_line()
        run(options(dynamic_shards, small_config, tmp_path, data_service=address, **MASKS))
    finally:
        process.kill()
    assert weights(tmp_path) == weights(undisturbed[0])
