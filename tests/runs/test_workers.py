"""`--strategy multi_worker` through the commands, two runs in one folder, deterministic runs.

The workers are two processes here, which talk as two machines would.
"""

import fcntl
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from cluster import workers
from command_line import words
from preloaded import run_code, wait_until
from pretraining_runs import pretraining_command
from rounding import rounding
from run_logs import logged, newest_checkpoint
from safetensors.numpy import load_file

from bert_tf import AdamWeightDecay, BertPreTrainer, load_model
from bert_tf.cli import main
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.training.trainer import Trainer


def ended(processes) -> tuple[list[int], list[str]]:
    """Exit codes, and what each wrote on standard error."""
    told = [process.communicate(timeout=200)[1].strip() for process in processes]
    return [process.returncode for process in processes], told


def event_files(output: Path) -> dict[str, int]:
    files = [path.parent.name for path in (output / "logs").rglob("*.tfevents.*")]
    return {folder: files.count(folder) for folder in files}


def pretraining(shards, config, output, **more) -> list[str]:
    every = {"save_every": 10, "log_every": 20, "evaluate_every": 20}
    usual = {"steps": 40, "evaluation_batches": 100, "watch_text": "the [MASK]"}
    return pretraining_command(shards, config, output, **every | usual | more)


@pytest.fixture(scope="module")
def without_dropout(pretrained, tmp_path_factory) -> Path:
    """A model directory; replicas draw dropout of their own, one device draws another."""
    from bert_tf import BertTokenizer
    from bert_tf.models.saving import save_model

    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = load_model(pretrained / "last", BertPreTrainer, **rates)
    folder = tmp_path_factory.mktemp("without_dropout")
    save_model(model, folder, tokenizer=BertTokenizer.from_directory(pretrained / "last"))
    return folder


@pytest.mark.slow
def test_two_workers_fine_tune_as_one_device_does(without_dropout, labelled, tmp_path):
    def command(output, *more) -> list[str]:
        # 86 examples to train and 10 to validate on: the second worker has fewer rows of the
        # last batch of an epoch than the first, and none of the last one of an evaluation.
        line = "finetune --epochs 2 --batch-size 8 --log-every 4 --learning-rate 5e-3"
        line += " --max-length 16 --deterministic"
        train = labelled / "train.tsv"
        return [*words(line, model=without_dropout, train=train, output=output), *more]

    two, one = tmp_path / "two", tmp_path / "one"
    with workers(command(two), command(two)) as processes:
        codes, told = ended(processes)
    assert codes == [0, 0], told
    assert f"{two}/best" in told[0]
    assert told[1] == ""
    assert event_files(two) == {"logs": 2, "train": 1, "held_out": 1}
    folders = {path.name for path in two.iterdir() if path.is_dir()}
    assert folders == {"best", "last", "logs", "checkpoints"}
    assert 'strategy: "multi_worker"' in (two / "config.yaml").read_text()

    assert main([*command(one), "--no_deterministic"]) == 0
    # What the 20 products on the way to a gradient, of sums of up to 128 terms (the tokens of a
    # batch), round in float32; updates are at most 7.3 times their rates, whose sum is 0.055.
    share = 20 * 128 * 2.0**-24
    for kind in ("train", "held_out"):
        for ours, expected in zip(logged(two, kind), logged(one, kind), strict=True):
            assert ours == pytest.approx(expected, rel=share)
    for model in ("best", "last"):
        ours, expected = (load_file(run / model / "model.safetensors") for run in (two, one))
        assert ours.keys() == expected.keys()
        for name, tensor in ours.items():
            np.testing.assert_allclose(tensor, expected[name], rtol=0, atol=7.3 * 0.055 * share)
    scores = [json.loads((run / "best" / "metrics.json").read_text()) for run in (two, one)]
    assert scores[0] == scores[1]
    assert scores[0]["examples"] == 10


@pytest.fixture(scope="module")
def undisturbed(shards, small_config, tmp_path_factory) -> tuple[Path, list[str]]:
    """The run directory of two workers, and what they wrote on standard error."""
    output = tmp_path_factory.mktemp("workers") / "undisturbed"
    command = pretraining(shards, small_config, output)
    with workers(command, command) as processes:
        codes, told = ended(processes)
    assert codes == [0, 0], told
    return output, told


@pytest.mark.slow
def test_two_workers_pretrain_and_one_tells(undisturbed, shards):
    output, told = undisturbed
    assert [line["step"] for line in logged(output, "train")] == [20, 40]
    assert [line["step"] for line in logged(output, "held_out")] == [20, 40]
    assert "stop_asked" not in logged(output, "train")[0] | logged(output, "held_out")[0]
    assert told[0].count("held-out") == 3  # and in the last line
    assert told[1] == ""
    assert event_files(output) == {"logs": 2, "train": 1, "held_out": 1, "masked_words": 1}
    assert newest_checkpoint(output) == 40

    # The 139 held-out instances are no multiple of 8.
    model = load_model(output / "last", BertPreTrainer)
    losses = {"mlm_logits": cross_entropy, "nsp_logits": cross_entropy}
    trainer = Trainer(model, AdamWeightDecay(1e-3), loss=losses)
    held_out = pretraining_batches(shards, 139, split="held_out", shuffle=False, repeat=False)
    scores = trainer.evaluate(held_out)
    for ours, name in (("mlm_loss", "mlm_logits_loss"), ("nsp_loss", "nsp_logits_loss")):
        last = logged(output, "held_out")[-1]
        assert last[ours] == pytest.approx(scores[name], rel=rounding(24, 32))


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_both_without_loss(undisturbed, shards, small_config, tmp_path):
    output = tmp_path / "run"
    command = pretraining(shards, small_config, output)
    with workers(command, command, late=0.2) as processes:
        wait_until(lambda: newest_checkpoint(output) > 0, *processes)
        processes[1].send_signal(signal.SIGTERM)
        codes, told = ended(processes)
    assert codes == [75, 75], told
    newest = newest_checkpoint(output)
    assert 10 <= newest < 40
    for each in told:
        cure = "run the same command again to resume"
        assert each.endswith(f"bert-tf pretrain: stopped at step {newest} and saved: {cure}")
    with workers(command, command) as processes:
        codes, told = ended(processes)
    assert codes == [0, 0], told
    assert f"Resumed from step {newest}" in told[0]
    for model in ("best/model.safetensors", "last/model.safetensors"):
        assert (output / model).read_bytes() == (undisturbed[0] / model).read_bytes()
    for kind in ("train", "held_out"):
        assert logged(output, kind) == logged(undisturbed[0], kind)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_other_with_a_line(shards, small_config, tmp_path):
    command = pretraining(shards, small_config, tmp_path / "run", steps=1_000_000)
    with workers(command, command) as (killed, other):
        wait_until(lambda: newest_checkpoint(tmp_path / "run") > 0, killed, other)
        killed.kill()
        _, told = other.communicate(timeout=60)
    assert other.returncode == 75, told
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith("bert-tf pretrain: another worker of the run has ended")


@pytest.mark.slow
def test_workers_that_cannot_be_one_run_end_together(undisturbed, shards, small_config, tmp_path):
    output, _ = undisturbed
    command = pretraining(shards, small_config, output)
    elsewhere = pretraining(shards, small_config, tmp_path / "elsewhere")
    with workers(command, elsewhere) as processes:
        codes, told = ended(processes)
    assert codes == [2, 2], told
    for each in told:
        assert "checkpoints of different steps (40, 0): give --output a folder" in each
    with (output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with workers(command, command) as processes:
            codes, told = ended(processes)
    assert codes == [2, 2], told
    for each in told:
        assert f"{output}: another process is training there" in each


_DETERMINISTIC = """
import sys
import tensorflow as tf
enable, enabled = tf.config.experimental.enable_op_determinism, []
tf.config.experimental.enable_op_determinism = lambda: enabled.append(enable())
from bert_tf.cli import main
for arguments in sys.argv[1:]:
    assert main([*arguments.split("|"), "--deterministic"]) == 0
    enabled.pop()
tf.random.normal([1])  # nothing is left behind: without a seed it would refuse to draw
"""


@pytest.mark.slow
def test_deterministic_runs_repeat_themselves(dynamic_shards, small_config, tmp_path):
    """Two workers fine-tune so above."""

    def command(name) -> list[str]:
        few = {"steps": 8, "gradient_accumulation_steps": 2}
        return pretraining_command(dynamic_shards, small_config, tmp_path / name, **few)

    run_code(_DETERMINISTIC, ["|".join(command(name)) for name in ("first", "second")], check=True)
    assert main(command("plain")) == 0
    folders = (tmp_path / name / "last" for name in ("first", "second", "plain"))
    first, second, plain = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(np.array_equal(first[name], second[name]) for name in first | second)
    # Sums in another order: what 20 products, of sums of up to 256 terms, round in float32. Eight
    # updates are at most 7.3 times their rates, whose sum is 0.0008.
    atol = 7.3 * 0.0008 * 20 * 256 * 2.0**-24
    for name, tensor in first.items():
        np.testing.assert_allclose(tensor, plain[name], rtol=0, atol=atol)
