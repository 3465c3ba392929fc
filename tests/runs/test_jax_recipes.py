import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from command_line import words
from preloaded import wait_until
from rounding import rounding
from tiny import tiny_config

import bert_tf
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.training.trainer import Trainer

RECIPES = Path(__file__).parents[2] / "recipes"
FOLDERS = [str(RECIPES), str(Path(__file__).parents[1] / "processes" / "without_tensorflow")]
STEPS, BATCH = 12, 16
needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="needs jax")


def on_jax(*arguments: object, devices: int = 1, **options: object) -> subprocess.CompletedProcess:
    """Runs Python on Keras' JAX backend, with a number of devices and no TensorFlow."""
    command = [sys.executable, *map(str, arguments)]
    how = {"capture_output": True, "text": True, "env": environment(devices)}
    return subprocess.run(command, **how, **options)


def environment(devices: int) -> dict[str, str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    folders = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    own = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "PYTHONPATH": folders}
    return {**os.environ, **own}


def assert_equal(ours, theirs):
    for one, two in zip(ours, theirs, strict=True):
        assert one.keys() == two.keys()
        for name, values in one.items():
            np.testing.assert_array_equal(values, two[name], strict=True)


@pytest.fixture
def batches(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES)
    return importlib.import_module("shards_on_numpy").batches


@for_each("instances", "sentence_pairs", "full_sentences")
def test_the_reader_without_tensorflow(batches, shards, tmp_path, instances):
    """Batches of epochs, one after the other, are those of tf.data."""
    folder = shutil.copytree(shards, tmp_path / "shards")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["options"]["instances"] = instances
    (folder / "manifest.json").write_text(json.dumps(manifest))
    theirs = pretraining_batches(folder, 7, shuffle=False).as_numpy_iterator()
    number = 2 + sum(shard["instances"] for shard in manifest["shards"]["train"]) // 7
    pairs = zip(batches(folder, 7, seed=None), theirs, strict=False)
    for ours, expected in itertools.islice(pairs, number):
        assert_equal(ours, expected)


def test_the_order_of_the_reader_is_a_function_of_seed_and_step(batches, shards):
    from_start = list(itertools.islice(batches(shards, 5, seed=3), 300))
    for start in (1, 150, 299):
        for a, b in zip(batches(shards, 5, seed=3, start=start), from_start[start:], strict=False):
            assert_equal(a, b)
    other = next(batches(shards, 5, seed=4))
    assert (other[0]["token_ids"] != from_start[0][0]["token_ids"]).any()


def test_shards_that_the_reader_refuses(batches, shards, dynamic_shards, tmp_path):
    with pytest.raises(SystemExit, match="make shards with --masking static"):
        next(batches(dynamic_shards, 5))
    folder = shutil.copytree(shards, tmp_path / "shards")
    shard = next(folder.glob("train*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(SystemExit, match=f"{shard.name}: checksum mismatch"):
        list(itertools.islice(batches(folder, 5), 300))


ON_EIGHT_DEVICES = """
import itertools, json, sys
import jax, keras
import training_on_jax as training
from bert_tf import AdamWeightDecay, BertPreTrainer, WarmupLinearDecay
from shards_on_numpy import batches

directory, shards, steps, size = *sys.argv[1:3], *map(int, sys.argv[3:])
devices = keras.distribution.list_devices()

def trained(number, model_devices=1, micro_batches=1):
    options = training.parser("").parse_args(["--output", "", "--cpu", "--precision", "float32"])
    options.batch_size, options.micro_batches = size, micro_batches
    options.model_devices = model_devices
    training.distribute(options, devices[:number])
    model = BertPreTrainer.from_directory(directory)
    optimizer = AdamWeightDecay(WarmupLinearDecay(1e-3, 2, 40))
    state, update = training.training_step(model, optimizer, micro_batches)
    losses = []
    for batch in itertools.islice(batches(shards, size, seed=None), steps):
        state, loss = update(state, training.shared(batch))
        losses.append({name: float(x) for name, x in loss.items()})
    held = dict.fromkeys(devices[:number], 0)
    for shard in (shard for x in jax.tree.leaves(state) for shard in x.addressable_shards):
        held[f"cpu:{shard.device.id}"] += shard.data.nbytes
    return {"losses": losses, "bytes": held}

found = {
    "one": trained(1),
    "data": trained(8),
    "model": trained(8, model_devices=4),
    "micro": trained(2, micro_batches=4),
    "vocabulary": BertPreTrainer.from_directory(directory).config.vocab_size,
    "refusals": [],
}

def refused(function, *arguments):
    try:
        function(*arguments)
    except SystemExit as error:
        found["refusals"].append(str(error))

options = training.parser("").parse_args(["--output", "run", "--batch_size", "12"])
refused(training.distribute, options)
keras.backend.backend = lambda: "numpy"
refused(training.distribute, options)
keras.backend.backend = lambda: "jax"
options.cpu = True
refused(training.distribute, options)
options.model_devices = 3
refused(training.distribute, options)
training.LAYOUT[".*/no_such/kernel"] = (None, "model")
refused(training.training_step, BertPreTrainer.from_directory(directory), AdamWeightDecay())
print(json.dumps(found))
"""


REFUSALS = [
    'JAX sees no GPU or TPU: pip install "jax[cuda13]", or give --cpu',
    "Keras runs on numpy: set KERAS_BACKEND=jax",
    "a batch of 12 does not divide among 8 devices and 1 micro-batches: give a multiple",
    "--model_devices 3 does not divide 8 devices",
    "'.*/no_such/kernel' in LAYOUT names no variable: write it as of embeddings/",
]


@pytest.fixture(scope="module")
def on_eight_devices(shards, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    vocabulary = (shards / "vocab.txt").read_text(encoding="utf-8").splitlines()
    config = tiny_config(len(vocabulary), "1x32x4", max_position_embeddings=32, dropout=0.0)
    bert_tf.save_model(bert_tf.BertPreTrainer(config, seed=1), directory)
    done = on_jax("-c", ON_EIGHT_DEVICES, directory, shards, STEPS, BATCH, devices=8)
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout)


# A block is about 20 sums, embeddings and heads are ten more; a gradient doubles them. The largest
# have as many terms as the vocabulary has entries, fewer than 600; a loss is below 8. What the
# updates of all steps change in a loss, less than a loss itself, is off by the same share.
CLOSE = 2 * rounding(sums=2 * 30, terms=600, size=8.0)


@needs_jax
@pytest.mark.slow
def test_losses_are_tensorflows(on_eight_devices, shards):
    directory, found = on_eight_devices
    trainer = Trainer(
        bert_tf.BertPreTrainer.from_directory(directory),
        bert_tf.AdamWeightDecay(bert_tf.WarmupLinearDecay(1e-3, 2, 40)),
        loss=dict.fromkeys(("mlm_logits", "nsp_logits"), cross_entropy),
    )
    data = trainer.iterate(pretraining_batches(shards, BATCH, shuffle=False))
    assert len(found["one"]["losses"]) == STEPS
    for ours in found["one"]["losses"]:
        trainer.reset_means()
        logs = trainer.train(data)
        theirs = {name: float(logs[f"{name}_loss"]) for name in ours}
        assert ours == pytest.approx(theirs, rel=0, abs=CLOSE)
    assert ours["mlm_logits"] < found["one"]["losses"][0]["mlm_logits"] - 100 * CLOSE


@needs_jax
@pytest.mark.slow
def test_devices_and_micro_batches_train_as_one_does_and_share_memory(on_eight_devices):
    """Data parallel; two replicas of a model on four devices each; micro-batches on two devices."""
    _, found = on_eight_devices
    for way in ("data", "model", "micro"):
        for ours, expected in zip(found[way]["losses"], found["one"]["losses"], strict=True):
            assert ours == pytest.approx(expected, rel=0, abs=CLOSE)
    for line, expected in zip(found["refusals"], REFUSALS, strict=True):
        assert line.startswith(expected) and "\n" not in line
    (whole,) = found["one"]["bytes"].values()
    assert set(found["data"]["bytes"].values()) == {whole}
    h, inner, vocabulary = 32, 64, found["vocabulary"]
    split = 4 * h * h + 3 * h + 2 * h * inner + inner + vocabulary * h  # one block, and the table
    bytes_saved = 3 * 4 * split * 3 // 4  # with Adam's means, in float32; a quarter stays
    assert set(found["model"]["bytes"].values()) == {whole - bytes_saved}
    assert len(found["model"]["bytes"]) == 8


RUNS = """
import json, runpy, sys
for script, *arguments in json.loads(sys.argv[1]):
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as refused:
        print(refused, file=sys.stderr)
"""


def run_scripts(*commands) -> subprocess.CompletedProcess:
    """Runs recipes one after the other, in a process of two devices."""
    return on_jax("-c", RUNS, json.dumps([[*map(str, x)] for x in commands]), devices=2)


@pytest.fixture(scope="module")
def resumed(shards, small_config, labelled, tmp_path_factory):
    """A run that was killed and started again; another that was not, fine-tuned; what they said."""
    folder = tmp_path_factory.mktemp("runs")
    model = folder / "model"
    config = bert_tf.BertConfig.from_json(small_config)
    bert_tf.save_model(bert_tf.BertPreTrainer(config, seed=1), model)
    script = [RECIPES / "pretrain_on_jax.py", "--shards", shards, "--model", model, "--cpu"]
    script += words("--batch_size 8 --steps 100 --warmup_steps 10 --save_every 50 --log_every 50")
    script += words("--learning_rate 3e-3 --output")
    line = "--cpu --text text --batch_size 8 --epochs 5 --max_length 16 --learning_rate 5e-3"
    files = {"train": labelled / "train.tsv", "dev": labelled / "test.tsv"}
    files |= {"model": folder / "whole" / "last", "output": folder / "tuned"}
    tuning = words(f"{line} --precision float32", **files)
    whole = run_scripts([*script, folder / "whole"], [RECIPES / "finetune_on_jax.py", *tuning])
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, *map(str, script), str(folder / "killed")]
    process = subprocess.Popen(command, env=environment(2), stdout=subprocess.DEVNULL)
    wait_until((folder / "killed" / "checkpoint.safetensors").exists, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    script.append(folder / "killed")
    again = run_scripts([*script, "--batch_size", 16], script)
    assert again.returncode == 0, again.stderr
    assert "was saved with --batch_size 8: give that, or" in again.stderr
    return folder, whole.stdout, again.stdout


@needs_jax
@pytest.mark.slow
def test_a_killed_run_resumes_exactly(resumed):
    """Dropout, data and optimizer go on where they were, in bfloat16; so do TensorBoard's lines."""
    folder, whole, again = resumed
    first = int(re.search(r"resumed after (\d+) steps", again)[1])
    assert 0 < first < 100
    weights = [folder / run / "checkpoint.safetensors" for run in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    losses = [re.findall(r"step (\d+) mlm_logits (\S+) nsp", lines) for lines in (whole, again)]
    assert losses[0][-1] == losses[1][-1]
    assert float(losses[0][-1][1]) < 6  # of 6.4, the logarithm of the vocabulary
    (written,) = (folder / "whole").glob("events.*")
    steps = {}
    for event in tf.compat.v1.train.summary_iterator(str(written)):
        for value in event.summary.value:
            steps.setdefault(value.tag, []).append(event.step)
    names = ("mlm_logits", "nsp_logits", "sequences per second")
    assert steps == {name: [50, 100] for name in names}


@needs_jax
@pytest.mark.slow
def test_fine_tuning_goes_on_from_there(resumed, labelled):
    """Its accuracy is that of the saved model in TensorFlow, which tokenizes by itself."""
    folder, whole, _ = resumed
    found = float(re.findall(r"accuracy (\S+)", whole)[-1])
    assert found > 0.9
    model = bert_tf.BertClassifier.from_preset(folder / "tuned" / "last")
    rows = [line.split("\t") for line in (labelled / "test.tsv").read_text().splitlines()[1:]]
    texts, labels = zip(*rows, strict=True)
    answers = [answer["label"] for answer in model.classify(list(texts))]
    assert np.mean(np.array(answers) == labels) == pytest.approx(found, abs=1e-4)
