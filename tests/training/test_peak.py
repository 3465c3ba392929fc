import tensorflow as tf

from bert_tf.training import peak
from bert_tf.training.peak import measured_peak, strategy_peak


def test_the_peak_is_that_of_a_machine():
    assert 1e8 < measured_peak() < 1e16


def test_logical_devices_of_a_machine_count_as_one(monkeypatch):
    monkeypatch.setattr(peak, "measured_peak", lambda dtype: 7.0)
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert strategy_peak(tf.distribute.get_strategy()) == 7.0
    assert strategy_peak(tf.distribute.MirroredStrategy(cpus)) == 7.0


def test_a_machine_too_busy_for_a_measurement_in_time_is_measured_all_the_same(monkeypatch):
    monkeypatch.setattr(peak, "_PEAK_SECONDS", 0.0)  # over before the first product
    assert measured_peak.__wrapped__("float32") > 0
