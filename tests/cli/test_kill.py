"""A run that is killed goes on from its last checkpoint and ends as if nothing had happened."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from bert_tf.cli.main import main
from pipelines.manifest import verify


def test_sigkill_during_pre_training(shards, small_config, tmp_path):
    def arguments(output) -> list[str]:
        return [
            "pretrain", "--shards", str(shards), "--size", str(small_config), "--output",
            str(output), "--steps", "400", "--batch-size", "8", "--save-every", "20",
            "--evaluate-every", "1000", "--log-every", "100",
        ]  # fmt: skip

    process = subprocess.Popen(
        [sys.executable, "-m", "bert_tf.cli.main", *arguments(tmp_path / "killed")],
        stderr=subprocess.PIPE,
    )
    checkpoints = tmp_path / "killed" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("step-*")):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "last").exists()

    assert main(arguments(tmp_path / "killed")) == 0
    assert main(arguments(tmp_path / "undisturbed")) == 0
    weights = [
        (tmp_path / name / "last" / "model.safetensors").read_bytes()
        for name in ("killed", "undisturbed")
    ]
    assert weights[0] == weights[1]


# `bert-tf` with units of work so small that a small corpus has many.
SMALL_UNITS = """
import sys
import pipelines.corpus, pipelines.documents, pipelines.shard_groups
pipelines.corpus.UNIT_BYTES = 40_000
pipelines.documents.GROUP_BYTES = pipelines.shard_groups.GROUP_BYTES = 10_000
from bert_tf.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_sigkill_of_shards_at_random_moments(corpus, tokenizer, tmp_path, kills):
    def command(output) -> list[str]:
        return [
            sys.executable, "-c", SMALL_UNITS, "shards", "--corpus", str(corpus), "--tokenizer",
            str(tokenizer), "--output", str(tmp_path / output), "--max-seq-length", "32", "64",
            "--dupe-factor", "4", "--buffer-bytes", "2000",
        ]  # fmt: skip

    began = time.monotonic()
    subprocess.run(command("undisturbed"), check=True, capture_output=True)
    seconds = time.monotonic() - began
    draw = random.Random(kills)
    unfinished = tmp_path / "killed.unfinished"
    killed = 0
    for _ in range(kills):
        process = subprocess.Popen(command("killed"), stderr=subprocess.DEVNULL)
        journal = sorted(unfinished.glob(".journal/*-*.json"))
        deadline = time.monotonic() + 10 * seconds + 60
        # Not before it does something, or most kills would fall into its start.
        while process.poll() is None and sorted(unfinished.glob(".journal/*-*.json")) == journal:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(draw.random() * 0.3)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        # Nothing is half-written under a final name: what the journal does not have is not whole.
        assert not (tmp_path / "killed").exists() or verify(tmp_path / "killed" / "64")
    assert killed > 2
    finished = {path: path.stat().st_mtime_ns for path in unfinished.rglob("train*.tfrecord")}
    subprocess.run(command("killed"), check=True, capture_output=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")
    kept = [
        time
        for path, time in finished.items()
        if (tmp_path / "killed" / path.relative_to(unfinished)).stat().st_mtime_ns == time
    ]
    # But for what the last kill left outside the journal, a group at most for every length.
    assert len(kept) >= len(finished) - 2 * 4 * 8


def test_a_full_disk_ends_in_one_line_and_the_run_is_continued(corpus, tokenizer, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    arguments = [
        "shards", "--corpus", str(corpus), "--tokenizer", str(tokenizer), "--max-seq-length",
        "32", "--dupe-factor", "4", "--buffer-bytes", "2000", "--output",
    ]  # fmt: skip
    command = [sys.executable, "-c", SMALL_UNITS, *arguments]
    # Its own mount of a file system of 1 MB, and what it left there copied out.
    script = (
        f"mount -t tmpfs -o size=1m tmpfs {small} && "
        f"{shlex.join([*command, str(small / 'shards')])}; code=$?; "
        f"cp -r --preserve {small} {tmp_path / 'left'}; exit $code"
    )
    unshare = ["unshare", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*unshare, "mount", "-t", "tmpfs", "tmpfs", str(small)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("needs to mount a small file system")
    done = subprocess.run(
        [*unshare, "bash", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "the disk is full" in errors[0]
    left = tmp_path / "left"
    assert {path.name for path in left.iterdir()} == {"shards.unfinished"}
    assert not list(left.rglob("*.tmp"))
    subprocess.run([*command, str(left / "shards")], check=True, capture_output=True)
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    assert contents(left / "shards") == contents(tmp_path / "whole")
