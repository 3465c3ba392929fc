"""What nothing below knows may be missing: the rest of the package imports and trains."""

import sys
import tarfile
from pathlib import Path

import pytest
from cases import for_each
from command_line import finished

PACKAGE = Path(__file__).parents[2] / "bert_tf"
FILES = Path(__file__).parents[1] / "frozen" / "06fc4d9.tar.xz"  # shards, models, labelled text
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
assert main(["pretrain", "--model", "start/one", "--shards", "old_shards/static", "--steps", "1",
             "--output", "pretrained", *training]) == 0
assert main(["finetune", "--model", "pretrained/last", "--train", "data/classification.tsv",
             "--max_steps", "1", "--max_length", "16", "--output", "tuned", *training]) == 0
assert main(["predict", "--model", "tuned/best", "--text", "a raw string"]) == 0
print("trained")
"""
REFUSED = """
import json
from pathlib import Path
from bert_tf.errors import InputError

def refused(call, *texts):
    try:
        call()
    except InputError as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(texts)

config = json.loads(Path("start/one/config.json").read_text())
config["model_type"] = "bert_left_to_right+right_to_left"
Path("start/two/config.json").write_text(json.dumps(config))
refused(lambda: bert_tf.load_model("start/two"), "model_type", "+right_to_left")
refused(lambda: bert_tf.BertConfig(attention_direction="recurrent"), "'recurrent'", "both")
refused(lambda: bert_tf.BertConfig.from_dict({"is_decoder": True}), "is_decoder")
refused(lambda: bert_tf.BertConfig(feature_layers=["last"]), "feature_layers", "bert_tf.paper")
assert main("pretrain --shards old_shards/static --output run --objective ltr".split()) == 2
assert main("finetune --model start/one --train data/choice.csv --output run --bilstm".split()) == 2
"""


OTHERS = ["server", "migration"]
COMMANDS = ["bert_tf.commands.serve", "bert_tf.commands.migrate"]


@pytest.mark.slow  # `lint-imports` finds imports of a higher layer
@for_each("folders commands more", (["paper"], [], REFUSED), (OTHERS, COMMANDS, ""))
def test_the_rest_imports_and_trains(folders, commands, more, tmp_path):
    """All but the package's own command; the paper's models and options are refused by name."""
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path, filter="data")
    copy = tmp_path / "without" / "bert_tf"
    copy.mkdir(parents=True)
    for part in PACKAGE.iterdir():
        if part.name not in (*folders, "__pycache__"):
            (copy / part.name).symlink_to(part.resolve())
    missing = "".join(map(MISSING.format, folders))
    code, env = missing + TRAINED + more, {"PYTHONPATH": str(copy.parent)}
    done = finished(sys.executable, "-c", code, ",".join(commands), cwd=tmp_path, env=env)
    assert "trained\n" in done.stdout
    if more:
        assert "--objective is 'ltr': give one of mlm+nsp, mlm" in done.stderr
        assert "there is no option --bilstm" in done.stderr
