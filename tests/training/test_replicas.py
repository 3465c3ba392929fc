from pathlib import Path

import pytest
from cases import for_each
from preloaded import run_code

# Logical devices must be made before TensorFlow starts, hence a process of its own.
_DEVICES = """
import sys
import tensorflow as tf

replicas, *names = int(sys.argv[2]), *sys.argv[3:]
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
sys.path.insert(0, sys.argv[1])
import pytest
from small_trainers import *
from bert_tf.networks.tensorflow import graphs
from bert_tf.training.optimizer import Lamb
from bert_tf.training.strategy import make_strategy
"""


def run_on_devices(code: str, replicas: int, *names: object) -> None:
    run_code(_DEVICES + code, [Path(__file__).parent, replicas, *names], check=True)


_REPLICAS = """
policy = next((name for name in names if name.startswith("mixed")), "float32")


def packed(batch):
    inputs, labels, weights = batch
    first = (2 + np.arange(len(labels["nsp_logits"])) % 4)[:, None]  # tokens of two instances
    second = np.arange(T) >= first
    instances = {
        "padding_mask": 1 + second,
        "position_ids": np.arange(T) - second * first,
        "first_positions": np.hstack([0 * first, first]),
    }
    inputs = {**inputs, **{name: x.astype("int32") for name, x in instances.items()}}
    of_both = ({**x, "nsp_logits": np.stack([x["nsp_logits"]] * 2, 1)} for x in (labels, weights))
    return inputs, *of_both


def losses(strategy, pieces):
    with strategy.scope():
        keras.config.set_dtype_policy(policy)
        model = BertPreTrainer(config(layers=2), seed=3)
        if "frozen_layers" in names:
            model.encoder.freeze_layers(1)
        model.encoder.rematerialize = "rematerialize" in names
        optimizer = (Lamb if "lamb" in names else AdamWeightDecay)(WarmupLinearDecay(1e-2, 2, 20))
        trainer = Trainer(model, optimizer, loss=LOSSES, gradient_accumulation_steps=pieces)
    trainer._halves = False  # each row stands among the same rows, on one device and on several
    start = model.get_weights()
    batches = BATCHES[:2]
    if "packed_rows" in names:
        batches = [packed(batch) for batch in batches]
    lines = fit(trainer, batches)
    if "late_batches" in names:
        trainer.accumulate_gradients(2 * pieces)
        lines += fit(trainer, [pretraining_batch(n, rows=16) for n in (7, 8)])
    kept = [v.path for v, x in zip(model.weights, start, strict=True) if (v.numpy() == x).all()]
    return lines, kept


# A replica's rows are a micro-batch of the one device: only the sum over them may round in
# another order, by the float32 epsilon for each of up to 16 * 3 words. A weight that it moves may
# then be cast to the next number of the compute dtype.
tolerance = 48 * 2.0**-23 + {"mixed_bfloat16": 2.0**-8, "mixed_float16": 2.0**-11}.get(policy, 0)
several, kept = losses(make_strategy("mirrored"), 1)
one, kept_of_one = losses(make_strategy("one"), replicas)
assert kept == kept_of_one and bool(kept) == ("frozen_layers" in names), (kept, kept_of_one)
for ours, theirs in zip(several, one, strict=True):
    assert ours["nonfinite"] == theirs["nonfinite"] == 0
    for key in ("loss", "mlm_logits_loss", "nsp_logits_loss"):
        assert ours[key] == pytest.approx(theirs[key], rel=tolerance), (key, ours, theirs)
print(several, one)
"""


@pytest.mark.slow
@for_each(
    "replicas names",
    (2, "late_batches"),
    (2, "mixed_bfloat16 lamb rematerialize"),
    (4, "mixed_float16 frozen_layers packed_rows"),
)
def test_replicas_train_as_one_device_does(replicas, names):
    run_on_devices(_REPLICAS, replicas, *names.split())


_MIRRORED = """
runs, strategies = {}, {name: make_strategy(name) for name in ("one", "mirrored")}
for name, options in (
    ("one", {}),
    ("mirrored", {"gradient_accumulation_steps": 2, "steps_per_execution": 2}),
):
    with strategies[name].scope():
        runs[name] = pretraining(**options)
    broken = pretraining_batch(4)
    broken[2]["mlm_logits"][0] = np.nan  # on the first replica alone
    runs[name].lines = fit(runs[name], [*BATCHES, broken, BATCHES[0]])
one, mirrored = runs["one"], runs["mirrored"]
assert mirrored.strategy.num_replicas_in_sync == 2
assert_close(one, mirrored, atol=CLOSE)
assert [line["nonfinite"] for line in one.lines] == [0, 0, 0, 0, 1, 0]
assert [line["nonfinite"] for line in mirrored.lines] == [0, 0, 1]
for ours, theirs in zip(mirrored.lines[:2], one.lines[1:4:2], strict=True):
    assert ours == pytest.approx(theirs, rel=ROUNDING)
for trainer in (one, mirrored):
    assert keras.ops.convert_to_numpy(trainer.nonfinite_steps) == 1
    assert keras.ops.convert_to_numpy(trainer.optimizer.iterations) == 6
rows = tf.data.Dataset.from_tensor_slices(pretraining_batch(9)).batch(3)  # 2 rows are left over
scores = [run.evaluate(rows) for run in (one, mirrored)]
assert scores[0] == pytest.approx(scores[1], rel=ROUNDING)
"""


@pytest.mark.slow
def test_two_replicas_train_as_one_device_does():
    run_on_devices(_MIRRORED, 2)


_KERAS_FIT = """
graphs._WORTH_COMPILING = int(names[0])
X = np.random.default_rng(5).normal(size=(8, 3)).astype("float32")
Y = 100 * X.sum(-1, keepdims=True)  # steep enough to be clipped
weights = []
for name in ("one", "mirrored"):
    with make_strategy(name).scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile(AdamWeightDecay(WarmupLinearDecay(0.05, 2, 40)), "mse")
    model.fit(tf.data.Dataset.from_tensors((X, Y)).repeat(4), verbose=0)
    weights.append([np.asarray(w) for w in model.trainable_variables])
for one, two in zip(*weights):
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
"""


@pytest.mark.slow
@for_each("least", 0, 2**30)
def test_keras_fit_clips_by_the_norm_of_the_replicas_sum(least):
    run_on_devices(_KERAS_FIT, 2, least)
