import numpy as np
import tensorflow as tf
from small_trainers import fit, small, small_batch, values_of

from bert_tf.training import loss_scale


def test_float16_overflow_is_no_divergence():
    trainer = small("mixed_float16")
    before = values_of(trainer)
    logs = fit(trainer, [small_batch(0, scale=20.0)] * 12)
    scales = [line["loss_scale"] for line in logs]
    assert scales[0] == 2.0**14  # the first scale overflowed: the step was left out
    assert scales == sorted(scales, reverse=True)
    assert scales[-1] == scales[-2] > 1  # and in the end one fits
    assert np.isinf(logs[0]["gradient_norm"]) or np.isnan(logs[0]["gradient_norm"])
    assert np.isfinite(logs[-1]["gradient_norm"])
    assert {line["nonfinite"] for line in logs} == {0.0}
    assert int(trainer.nonfinite_steps) == 0
    assert not all(map(np.array_equal, values_of(trainer), before))

    # A loss that is not finite is divergence whatever the scale, which it says nothing about.
    (line,) = fit(trainer, [small_batch(1, np.nan)])
    assert line["nonfinite"] == 1.0
    assert line["loss_scale"] == scales[-1]
    # So is a gradient that no scale can mend.
    trainer.loss_scale.scale.assign(1.0)
    (line,) = fit(trainer, [small_batch(1, -1)])
    assert (line["nonfinite"], line["loss_scale"]) == (1.0, 1.0)
    assert int(trainer.nonfinite_steps) == 2
    # After many steps without overflow a larger scale is tried.
    trainer.loss_scale.steps.assign(1999)
    (line,) = fit(trainer, [small_batch(1)])
    assert line["loss_scale"] == 2.0
    assert int(trainer.loss_scale.steps) == 0


def test_an_overflow_restarts_the_count_of_steps_at_a_scale():
    scale = loss_scale.LossScale()
    scale.steps.assign(5)
    scales = []
    for overflow in (True, False):
        scale.update(tf.constant(overflow))
        scales.append((float(scale.scale), int(scale.steps)))
    assert scales == [(2.0**14, 0), (2.0**14, 1)]
