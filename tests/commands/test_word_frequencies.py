import numpy as np
import pytest
import tensorflow as tf
from cases import for_each

from bert_tf.commands.word_frequencies import METRICS, plateau_notice, word_frequency_loss
from bert_tf.files.atomic import write_json

LITTLE = "has learned little beyond word frequencies"


def test_the_loss_of_frequencies_is_their_entropy():
    draw = np.random.default_rng(1)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    words = draw.choice(4, size=(50, 8, 20), p=shares)
    weights = (np.arange(20) < 15).astype("float32") * np.ones((50, 8, 1), "float32")
    words[..., 15:] = 99  # padded slots do not count
    both = ([{"mlm_logits": tf.constant(x)} for x in arrays] for arrays in (words, weights))
    batches = [(None, *pair) for pair in zip(*both, strict=True)]
    entropy = -(shares * np.log(shares)).sum()
    assert word_frequency_loss(batches) == pytest.approx(entropy, rel=0.01)
    assert word_frequency_loss([]) == 0.0


def test_a_small_sample_of_many_words_does_not_hide_most_of_them():
    draw = np.random.default_rng(1)
    shares = 1 / np.arange(1, 2001)
    shares /= shares.sum()
    words = tf.constant(draw.choice(2000, size=(1, 600), p=shares))
    loss = word_frequency_loss([(None, {"mlm_logits": words}, {"mlm_logits": words * 0 + 1})])
    assert loss == pytest.approx(-(shares * np.log(shares)).sum(), rel=0.1)


@for_each(
    "scores told",
    ({"mlm_loss": 6.05, "word_frequency_loss": 6.0}, LITTLE),
    ({"mlm_loss": 5.9, "word_frequency_loss": 6.0}, LITTLE),
    ({"mlm_loss": 4.0, "word_frequency_loss": 6.0}, None),
    ({"ltr_loss": 4.0, "rtl_loss": 5.9, "word_frequency_loss": 6.0}, LITTLE),
    ({"accuracy": 0.9}, None),
    ({"mlm_loss": None, "word_frequency_loss": 6.0}, None),
    ({"mlm_loss": 1.0, "word_frequency_loss": 0.0}, None),
    (
        {"mlm_loss": 7.3, "word_frequency_loss": 4.51},
        "predicts words worse than word frequencies (loss 7.30 per word; frequencies alone "
        "give 4.51): pre-train it for more steps",
    ),
)
def test_a_model_on_the_plateau_is_named(tmp_path, scores, told):
    assert plateau_notice(tmp_path) is None
    write_json(tmp_path / METRICS, scores)
    line = plateau_notice(tmp_path)
    assert (line or "").startswith(f"{tmp_path} {told}" if told else "")
    assert (line is None) == (told is None)
