import keras
import numpy as np
from cases import for_each, refused

from bert_tf.training.schedule import (
    WarmupConstant,
    WarmupCosineDecay,
    WarmupLinearDecay,
    WarmupStableDecay,
)


@for_each("warmup total", (10, 40), (0, 10), (10, 10))
def test_the_originals_formula(warmup, total):
    schedule = WarmupLinearDecay(2e-4, warmup_steps=warmup, total_steps=total)
    steps = np.arange(50)
    # optimization.py: polynomial decay over the global step, warm-up in its place while it lasts.
    decay = 2e-4 * (1 - np.minimum(steps, total) / total)
    expected = np.where(steps < warmup, 2e-4 * steps / max(warmup, 1), decay)
    np.testing.assert_allclose([schedule(step) for step in steps], expected, rtol=1e-5, atol=1e-12)


def test_cosine_and_constant():
    cosine, constant = (kind(2.0, 4, 12) for kind in (WarmupCosineDecay, WarmupConstant))
    steps = [0, 2, 4, 6, 8, 12, 20]
    expected = [0, 1, 2, 1 + 0.5**0.5, 1, 0, 0]
    np.testing.assert_allclose([cosine(step) for step in steps], expected, atol=1e-6)
    np.testing.assert_allclose([constant(step) for step in steps], [0, 1, 2, 2, 2, 2, 2])


def test_warmup_stable_decay():
    """20 steps: 4 of warm-up, 12 at the peak of 2, and 4 of 1 - sqrt(0, 1/4, 1/2, 3/4)."""
    schedule = WarmupStableDecay(2.0, 4, 20, decay_share=0.2)
    steps = [0, 1, 4, 10, 15, 16, 17, 18, 19, 20, 30]
    falls = [2, 2 * (1 - 0.5), 2 * (1 - 0.5**0.5), 2 * (1 - 0.75**0.5)]
    expected = [0, 0.5, 2, 2, 2, *falls, 0, 0]
    np.testing.assert_allclose([schedule(step) for step in steps], expected, atol=1e-6)
    longer = WarmupStableDecay(2.0, 4, 200, decay_share=0.2)
    assert [float(longer(n)) for n in range(17)] == [float(schedule(n)) for n in range(17)]


def test_the_decay_is_a_share_of_the_steps():
    shares = [(100, 0.29, 29), (100, 0.1, 10), (5, 0.1, 1), (25, 0.1, 2), (7, 1.0, 7)]
    for total, share, decay in shares:
        assert WarmupStableDecay(1.0, 0, total, decay_share=share).decay_steps == decay
    for warmup in range(11):  # a warm-up and a decay that share the run fit it, whatever its length
        for total in range(1, 40):
            if round(total * warmup / 10) < total:
                WarmupStableDecay(1.0, round(total * warmup / 10), total, 1 - warmup / 10)
    refused("9 warm-up .* 2 of decay do not fit 10", WarmupStableDecay, 1.0, 9, 10, decay_share=0.2)


def test_steps_may_be_of_any_integer_type():
    schedule = WarmupLinearDecay(1.0, 0, 4)
    for kind in ("int32", "int64"):
        rate = schedule(keras.ops.convert_to_tensor(1, dtype=kind))
        assert (float(rate), keras.backend.standardize_dtype(rate.dtype)) == (0.75, "float32")


@for_each("schedule", WarmupLinearDecay(1e-3, 5, 50), WarmupStableDecay(1e-3, 5, 50, 0.3))
def test_config(schedule):
    serialized = keras.optimizers.schedules.serialize(schedule)
    twin = keras.optimizers.schedules.deserialize(serialized)
    assert type(twin) is type(schedule)
    assert twin.get_config() == schedule.get_config()


@for_each(
    "arguments message",
    ((0.0, 1, 10), "learning rate is 0.0"),
    ((-1.0, 1, 10), "learning rate is -1.0"),
    ((1.0, 11, 10), "11 warm-up steps do not fit 10"),
    ((1.0, -1, 10), "-1 warm-up steps do not fit 10"),
    ((1.0, 0, 0), "0 warm-up steps do not fit 0"),
)
def test_refusals(arguments, message):
    refused(message, WarmupLinearDecay, *arguments)


def test_a_tenth_of_the_steps_decays_by_default():
    assert WarmupStableDecay(1.0, 0, 50).decay_steps == 5
