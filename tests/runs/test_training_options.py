import json

import numpy as np
import pytest
from cases import for_each
from command_line import words
from rounding import rounding
from safetensors.numpy import load_file

from bert_tf import BertConfig, BertPreTrainer, save_model
from bert_tf.cli import main
from bert_tf.commands.pretrain import Options as PretrainingOptions

# How far weights may be apart: by a share of their updates, each at most 7.3 times its rate, whose
# sum is 0.0045. The share is what the 20 products on the way to a gradient, of sums of up to 256
# terms (the tokens of a batch), round in float32.
CLOSE = 7.3 * 0.0045 * 20 * 256 * 2.0**-24


def train(shards, config, output, *options):
    """Eight steps of `bert-tf pretrain`; the last weights, and the lines of the log."""
    line = (
        "pretrain --steps 8 --batch-size 8 --log-every 2 --evaluate-every 4 "
        "--evaluation-batches 2 --learning-rate 0.001 --warmup-steps 2 --dropout 0"
    )
    assert main([*words(line, shards=shards, size=config, output=output), *options]) == 0
    lines = [json.loads(line) for line in (output / "logs/scalars.jsonl").read_text().splitlines()]
    losses = {(line["kind"], line["step"]): line["loss"] for line in lines}
    return load_file(output / "last" / "model.safetensors"), losses


@pytest.fixture(scope="module")
def plain(shards, small_config, tmp_path_factory):
    return train(shards, small_config, tmp_path_factory.mktemp("plain") / "run")


def initial(config, folder):
    """The weights that every run here begins with."""
    model = BertPreTrainer(BertConfig.from_json(config), seed=PretrainingOptions.seed)
    save_model(model, folder / "initial")
    return load_file(folder / "initial" / "model.safetensors")


def largest_difference(weights, others):
    assert weights.keys() == others.keys()
    return max(float(np.abs(weights[name] - others[name]).max()) for name in weights)


@pytest.mark.slow
@for_each(
    "options factor",
    (words("--gradient-accumulation-steps 4 --rematerialize --steps-per-execution 2"), 1),
    (["--jit-compile"], 10),  # XLA's functions are some units off
    (["--strategy", "mirrored"], 1),
    ids=lambda value: "_".join(map(str, value)).strip("-") if isinstance(value, list) else "",
)
def test_ways_of_computing_change_nothing(plain, shards, small_config, tmp_path, options, factor):
    weights, losses = train(shards, small_config, tmp_path / "run", *options)
    assert largest_difference(weights, plain[0]) <= factor * CLOSE
    assert losses == pytest.approx(plain[1], rel=factor * rounding(20, 256), abs=0)


@pytest.mark.slow
def test_options_of_the_optimizer_count(plain, shards, small_config, tmp_path):
    """LAMB moves each weight by the learning rate times its own norm (You et al. 2020)."""
    before = initial(small_config, tmp_path)
    options = words("--epsilon 1000000.0 --weight-decay 0")
    after, _ = train(shards, small_config, tmp_path / "epsilon", *options)
    assert largest_difference(after, before) < 1e-6 < 1e-3 < largest_difference(plain[0], before)
    options = words("--optimizer lamb --steps 1 --warmup-steps 0 --learning-rate 0.01")
    after, _ = train(shards, small_config, tmp_path / "lamb", *options)
    kernel = "bert.encoder.layer.0.attention.self.query.weight"
    moved = np.linalg.norm(after[kernel] - before[kernel])
    assert moved == pytest.approx(0.01 * np.linalg.norm(before[kernel]), rel=1e-3)
