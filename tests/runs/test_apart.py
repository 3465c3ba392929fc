"""What nothing below knows may be missing: the rest of the package imports and trains."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "bert_tf"
OLD_FILES = Path(__file__).parents[1] / "frozen" / "d11b35f.tar.xz"  # shards, models, labelled text
# An editable installation would find the folder that is missing.
MISSING = """
import importlib.util, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
assert importlib.util.find_spec("bert_tf.{}") is None
"""
TRAINED = """
import importlib, pkgutil, sys
import bert_tf

above = sys.argv[1].split(",")
for module in pkgutil.walk_packages(bert_tf.__path__, "bert_tf."):
    if module.name not in above:
        importlib.import_module(module.name)

import tensorflow
from bert_tf.cli import main
tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
training = "--batch_size 4 --strategy one --learning_rate 1e-3".split()
assert main(["pretrain", "--model", "start", "--shards", "shards", "--steps", "1",
             "--output", "pretrained", *training]) == 0
assert main(["finetune", "--model", "pretrained/last", "--train", "train.tsv", "--max_steps", "1",
             "--text_column", "sentence", "--max_length", "16", "--output", "tuned",
             *training]) == 0
assert main(["predict", "--model", "tuned/best", "--text", "a raw string"]) == 0
print("trained")
"""
REFUSED = """
from bert_tf.errors import InputError

def refused(call, *texts):
    try:
        call()
    except InputError as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(texts)

refused(lambda: bert_tf.load_model("two_encoders/last"), "model_type", "+right_to_left")
refused(lambda: bert_tf.BertConfig(attention_direction="recurrent"), "'recurrent'", "both")
refused(lambda: bert_tf.BertConfig.from_dict({"is_decoder": True}), "is_decoder")
refused(lambda: bert_tf.BertConfig(feature_layers=["last"]), "feature_layers", "bert_tf.paper")
assert main("pretrain --shards shards --output run --objective ltr".split()) == 2
assert main("finetune --model start --train train.tsv --output run --bilstm".split()) == 2
"""


@pytest.mark.parametrize(
    ("folder", "commands", "more"),
    [
        ("paper", [], REFUSED),
        pytest.param("server", ["bert_tf.commands.serve"], "", marks=pytest.mark.slow),
        pytest.param("migration", ["bert_tf.commands.migrate"], "", marks=pytest.mark.slow),
    ],
)
def test_the_rest_imports_and_trains(folder, commands, more, tmp_path):
    """All but the package's own command; the paper's models and options are refused by name."""
    with tarfile.open(OLD_FILES) as archive:
        archive.extractall(tmp_path, filter="data")
    copy = tmp_path / "without" / "bert_tf"
    copy.mkdir(parents=True)
    for part in PACKAGE.iterdir():
        if part.name not in (folder, "__pycache__"):
            (copy / part.name).symlink_to(part.resolve())
    done = subprocess.run(
        [sys.executable, "-c", MISSING.format(folder) + TRAINED + more, ",".join(commands)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "trained\n" in done.stdout
    if more:
        assert "--objective is 'ltr': give one of mlm+nsp, mlm" in done.stderr
        assert "there is no option --bilstm" in done.stderr
