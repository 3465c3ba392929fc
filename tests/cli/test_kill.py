"""A run that is killed goes on from its last checkpoint and ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time

from bert_tf.cli.main import main


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


def test_a_killed_shards_command_leaves_no_folder(corpus, tokenizer, tmp_path):
    # Many rounds over the corpus, so that there is time to kill it while it writes.
    command = [
        sys.executable, "-m", "bert_tf.cli.main", "shards", "--corpus", str(corpus),
        "--tokenizer", str(tokenizer), "--output", str(tmp_path / "shards"),
        "--max-seq-length", "32", "--dupe-factor", "500",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".shards*.tmp/*.tfrecord")):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (tmp_path / "shards").exists()
    assert main([*command[3:-1], "1"]) == 0  # and what it left is in nobody's way
    assert (tmp_path / "shards" / "manifest.json").is_file()
