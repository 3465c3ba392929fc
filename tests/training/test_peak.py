import pytest
import tensorflow as tf

from bert_tf.training import peak
from bert_tf.training.peak import product_rates, strategy_peak


def test_the_rates_are_those_of_a_machine():
    rates = product_rates(["float32"])  # over in time or not
    assert list(rates) == ["float32"]
    assert 1e8 < rates["float32"] < 1e16


def test_products_keep_their_size():
    """Numbers that vanish or overflow are multiplied at another speed."""
    halves, first, second = peak._factors(64, 256, 512, "float32")
    products = tf.matmul(tf.matmul(halves, first), second)
    # Uniform factors of variance 1 / fan-in: the variance stays 1.
    assert float(tf.math.reduce_variance(products)) == pytest.approx(1, rel=0.5)


class Machine:
    """A machine of changing speed, on which a measurement takes a second."""

    def __init__(self):
        self.rate, self.clock, self.measured = 7.0, 0.0, 0

    def product_rates(self, dtypes, seconds):
        self.clock += 1
        self.measured += 1
        return dict.fromkeys(dtypes, self.rate)

    def monotonic(self):
        return self.clock


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(peak, "product_rates", machine.product_rates)
    monkeypatch.setattr(peak.time, "monotonic", machine.monotonic)
    monkeypatch.setattr(peak, "_peak", peak._Peak)
    return machine


def test_logical_devices_of_a_machine_count_as_one(machine):
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(cpus)):
        assert strategy_peak(strategy, "float32")() == 7.0


def test_the_peak_follows_the_speed_of_the_machine(machine):
    now = strategy_peak(tf.distribute.get_strategy(), "float32")
    machine.rate = 3.0
    for _ in range(900):  # steps of a second
        machine.clock += 1
        rate = now()
    assert rate == 3.0
    assert machine.measured == 1 + 2  # less than a percent of the time
