"""A run that is killed goes on from its last checkpoint and ends as if nothing had happened."""

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_line import words
from preloaded import run_code, run_command, start_command, wait_until
from pretraining_runs import pretraining_command
from run_logs import logged, newest_checkpoint, scalar_events

from bert_tf.cli import main
from bert_tf.pipelines.shards.manifest import verify
from bert_tf.training.resuming import read_checkpoint


def pretraining(shards, config, output, steps, **more) -> list[str]:
    usual = {"steps": steps, "save_every": 5, "log_every": 7, "evaluate_every": 40}
    return pretraining_command(shards, config, output, **usual | more)


def wait_for_progress(process, output) -> None:
    """Until the process has written a checkpoint of its own."""
    before = newest_checkpoint(output)
    wait_until(lambda: newest_checkpoint(output) > before, process)


def kill_at_random_moments(command: list[str], output: Path, kills: int, setup: str = "") -> None:
    draw = random.Random(kills)
    for _ in range(kills):
        process = start_command(command, setup=setup)
        wait_for_progress(process, output)
        time.sleep(draw.random() * 0.2)  # tens of steps, checkpoints and evaluations
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (output / "last").exists()


def models(output: Path) -> list[bytes]:
    return [(output / name / "model.safetensors").read_bytes() for name in ("best", "last")]


@pytest.mark.slow  # tests of test_pretrain.py resume a copy made where a kill could be
def test_sigkill_of_pre_training_at_random_moments(shards, small_config, tmp_path):
    killed, undisturbed, steps = tmp_path / "killed", tmp_path / "undisturbed", 200
    kill_at_random_moments(pretraining(shards, small_config, killed, steps), killed, 2)
    assert main(pretraining(shards, small_config, killed, steps)) == 0
    assert not list((killed / "checkpoints").glob(".*"))
    assert main(pretraining(shards, small_config, undisturbed, steps)) == 0
    assert [line["step"] for line in logged(killed, "held_out")] == [*range(40, steps + 1, 40)]
    assert logged(killed) == logged(undisturbed)
    assert scalar_events(killed) == scalar_events(undisturbed)
    assert len(scalar_events(killed)) > len(logged(killed))
    assert models(killed) == models(undisturbed)


@pytest.mark.slow
def test_sigkill_of_fine_tuning_on_micro_batches(pretrained, labelled, tmp_path):
    """The last batch of an epoch divides unevenly; graphs are optimized, as for users."""
    optimized = """
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
"""
    killed, undisturbed = (
        words(
            "finetune --max-length 16 --batch-size 9 --gradient_accumulation_steps 3 "
            "--epochs 24 --save-every 5",
            model=pretrained / "last",
            output=tmp_path / name,
            train=labelled / "train.tsv",
        )
        for name in ("killed", "undisturbed")
    )
    kill_at_random_moments(killed, tmp_path / "killed", 1, optimized)
    for command in (killed, undisturbed):
        done = run_command(command, setup=optimized, check=True)
    assert "86 training" in done.stderr  # 9 x 9 + 5
    assert models(tmp_path / "killed") == models(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_run_keeps_others_out_until_sigterm(
    shards, small_config, labelled, pretrained, tmp_path, capsys
):
    output = tmp_path / "run"
    process = start_command(pretraining(shards, small_config, output, 100_000))
    try:
        wait_for_progress(process, output)
        config = (output / "config.yaml").read_bytes()
        finetuning = words(
            "finetune --max-length 16",
            model=pretrained / "last",
            train=labelled / "train.tsv",
            output=output,
        )
        for command in (pretraining(shards, small_config, output, 5), finetuning):
            assert main(command) == 2
            (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
            assert f"{output}: another process is training there: wait until it ends" in line
        assert (output / "config.yaml").read_bytes() == config
        assert process.poll() is None
    finally:
        process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    last = errors.splitlines()[-1]
    assert last.startswith(f"bert-tf pretrain: stopped at step {newest_checkpoint(output)}"), last


# As `unshare --map-root-user --mount`, then `mount`.
_ON_A_SMALL_DISK = """
import ctypes, os, shutil, sys
from pathlib import Path
from bert_tf.cli import main

folder, kilobytes, left, *arguments = sys.argv[1:]
libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
new_user, new_mount = 0x10000000, 0x00020000
try:
    if libc.unshare(new_user | new_mount):
        raise OSError
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={kilobytes}k".encode()):
        raise OSError
except OSError:
    sys.exit("no small disk")
try:
    sys.exit(main(arguments))
finally:
    shutil.copytree(folder, left)
"""


def on_a_small_disk(
    folder, kilobytes: int, command: list[str], copy_to, setup=""
) -> subprocess.CompletedProcess:
    """Runs a command with a small file system at `folder`, and copies out what it left there."""
    folder.mkdir()
    done = run_code(f"{setup}{_ON_A_SMALL_DISK}", [folder, kilobytes, copy_to, *command])
    if done.stderr == "no small disk\n":
        pytest.skip("needs to mount a small file system")
    return done


@pytest.mark.slow
def test_a_full_disk_during_pre_training(shards, small_config, tmp_path):
    small, left = tmp_path / "small", tmp_path / "left"
    lines = {"log_every": 1, "evaluate_every": 100_000}  # of each step: they fill the disk
    arguments = pretraining(shards, small_config, small / "run", 100_000, **lines)
    done = on_a_small_disk(small, 600, arguments, left)
    assert done.returncode == 2, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "the disk is full" in error
    assert str(small / "run") in error
    checkpoints = left / "run" / "checkpoints"
    files = sorted(path.name for path in checkpoints.iterdir())
    assert 1 <= len(files) <= 2
    assert all(name.startswith("step-") for name in files)
    for name in files:
        read_checkpoint(checkpoints / name)  # raises on a damaged one


@pytest.mark.slow
def test_a_shard_deleted_under_pre_training(shards, small_config, tmp_path):
    copy, output = tmp_path / "shards", tmp_path / "run"
    shutil.copytree(shards, copy)
    # The fewer batches, the sooner the shard is read again.
    process = start_command(pretraining(copy, small_config, output, 100_000, batch_size=64))
    wait_for_progress(process, output)
    deleted = sorted(copy.glob("train*"))[0]
    deleted.unlink()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert str(deleted) in errors.splitlines()[-1]
    newest = newest_checkpoint(output)
    assert newest > 0
    read_checkpoint(output / "checkpoints" / f"step-{newest:08d}.safetensors")


# Units of work so small that a small corpus has many.
SMALL_UNITS = """
import bert_tf.pipelines.corpus.sources, bert_tf.pipelines.corpus.documents
bert_tf.pipelines.corpus.sources.UNIT_BYTES = 40_000
bert_tf.pipelines.corpus.documents.GROUP_BYTES = 10_000
"""


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.slow
def test_sigkill_of_shards_at_random_moments(corpus, tokenizer, tmp_path):
    def command(output) -> list[str]:
        return words(
            "shards --max-seq-length 32 64 --dupe-factor 2 --buffer-bytes 2000",
            corpus=corpus,
            tokenizer=tokenizer,
            output=tmp_path / output,
        )

    began = time.monotonic()
    run_command(command("undisturbed"), setup=SMALL_UNITS, check=True)
    seconds = time.monotonic() - began
    draw = random.Random(1)
    unfinished = tmp_path / "killed"
    killed = 0
    finished: dict[Path, int] = {}  # shards in the journal at the last kill, by their time
    for _ in range(3):
        process = start_command(command("killed"), setup=SMALL_UNITS)
        journal = sorted(unfinished.glob(".journal/*-*.json"))
        deadline = time.monotonic() + 10 * seconds + 60
        # Not before it does something, or most kills would fall into its start.
        while process.poll() is None and sorted(unfinished.glob(".journal/*-*.json")) == journal:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(draw.random() * 0.1)
        process.kill()
        if process.wait() == 0:  # it was done before
            break
        assert process.returncode == -signal.SIGKILL
        killed += 1
        if (tmp_path / "killed" / "64" / "manifest.json").exists():
            assert verify(tmp_path / "killed" / "64")
            if not (tmp_path / "killed" / ".journal").exists():  # killed as it was about to end
                break
        finished |= {
            path.relative_to(unfinished): path.stat().st_mtime_ns
            for entry in unfinished.glob(".journal/*-*.json")
            for splits in json.loads(entry.read_text())["shards"]
            for shards in splits.values()
            for shard in shards
            for path in unfinished.glob(f"*/{shard['file']}")
        }
    assert killed > 1
    if not (tmp_path / "killed" / "64" / "manifest.json").exists():
        run_command(command("killed"), setup=SMALL_UNITS, check=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")
    assert finished
    for path, time_made in finished.items():  # what was finished was not made again
        assert (tmp_path / "killed" / path).stat().st_mtime_ns == time_made


@pytest.mark.slow
def test_a_full_disk_ends_in_one_line_and_the_run_is_continued(corpus, tokenizer, tmp_path):
    small, left = tmp_path / "small", tmp_path / "left"
    arguments = words(
        "shards --max-seq-length 32 --dupe-factor 2 --buffer-bytes 2000",
        corpus=corpus,
        tokenizer=tokenizer,
    )
    arguments.append("--output")
    done = on_a_small_disk(small, 500, [*arguments, str(small / "shards")], left, SMALL_UNITS)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "the disk is full" in errors[0]
    assert {path.name for path in left.iterdir()} == {"shards"}
    assert not list(left.rglob("*.tmp"))
    for output in (left / "shards", tmp_path / "whole"):
        run_command([*arguments, output], setup=SMALL_UNITS, check=True)
    assert contents(left / "shards") == contents(tmp_path / "whole")
