import json
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from command_line import words
from preloaded import run_code, run_command, start_command, wait_until
from pretraining_runs import pretraining_command
from run_logs import logged, newest_checkpoint, scalar_events

from bert_tf.cli import main
from bert_tf.pipelines.shards.manifest import verify


def models(output: Path) -> list[bytes]:
    return [(output / name / "model.safetensors").read_bytes() for name in ("best", "last")]


@pytest.mark.slow  # tests of test_pretrain.py resume a copy made where a kill could be
def test_sigkill_of_pre_training_at_random_moments(shards, small_config, tmp_path):
    killed, undisturbed, steps = tmp_path / "killed", tmp_path / "undisturbed", 200
    every = {"steps": steps, "save_every": 5, "log_every": 7, "evaluate_every": 40}
    pretraining = partial(pretraining_command, shards, small_config, **every)
    draw = random.Random(2)
    for _ in range(2):
        process, before = start_command(pretraining(killed)), newest_checkpoint(killed)
        wait_until(lambda before=before: newest_checkpoint(killed) > before, process)
        time.sleep(draw.random() * 0.2)  # tens of steps, checkpoints and evaluations
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (killed / "last").exists()
    assert main(pretraining(killed)) == 0
    assert not list((killed / "checkpoints").glob(".*"))
    assert main(pretraining(undisturbed)) == 0
    assert [line["step"] for line in logged(killed, "held_out")] == [*range(40, steps + 1, 40)]
    assert logged(killed) == logged(undisturbed)
    assert scalar_events(killed) == scalar_events(undisturbed)
    assert len(scalar_events(killed)) > len(logged(killed))
    assert models(killed) == models(undisturbed)


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


# Units of work so small that a small corpus has many.
SMALL_UNITS = """
import bert_tf.pipelines.corpus.sources, bert_tf.pipelines.corpus.documents
bert_tf.pipelines.corpus.sources.UNIT_BYTES = 40_000
bert_tf.pipelines.corpus.documents.GROUP_BYTES = 10_000
"""


def contents(folder):
    return {x.relative_to(folder): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


@pytest.mark.slow
def test_sigkill_of_shards_at_random_moments(corpus, tokenizer, tmp_path):
    def command(output) -> list[str]:
        line = "shards --max-seq-length 32 64 --dupe-factor 2 --buffer-bytes 2000"
        return words(line, corpus=corpus, tokenizer=tokenizer, output=tmp_path / output)

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
    line = "shards --max-seq-length 32 --dupe-factor 2 --buffer-bytes 2000"
    arguments = words(line, corpus=corpus, tokenizer=tokenizer)
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
