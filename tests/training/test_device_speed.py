import json
from importlib import metadata
from types import SimpleNamespace

import pytest
import tensorflow as tf
from cases import for_each

from bert_tf import processor
from bert_tf.commands.export import dtype_policy
from bert_tf.training import device_speed
from bert_tf.training.device_speed import fast_precision, product_rates, strategy_peak

ONE = tf.distribute.get_strategy()
WITH_BFLOAT16 = "model name\t: AMD EPYC\nmodel\t\t: 17\nflags\t\t: fpu avx512_bf16 amx_tile\n"


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Pretends to be a machine that multiplies at given rates, in GFLOP/s, in a new process.

    Gives a list of its measurements.
    """

    def on(float32, bfloat16, cpuinfo=WITH_BFLOAT16):
        measured = []

        def product_rates(dtypes, seconds):
            measured.append(dtypes)
            return {"float32": 1e9 * float32, "bfloat16": 1e9 * bfloat16}

        (tmp_path / "cpuinfo").write_text(cpuinfo)
        monkeypatch.setattr(processor, "_CPU", tmp_path / "cpuinfo")
        monkeypatch.setattr(device_speed, "product_rates", product_rates)
        processor._TIMES.clear()
        return measured

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    yield on
    processor._TIMES.clear()


@for_each(
    "float32 bfloat16 expected",
    (203, 397, ("mixed_bfloat16", "products 397 GFLOP/s, float32 203")),
    (263, 151, ("float32", "products 263 GFLOP/s, bfloat16 151")),
    (200, 219, ("float32", "products 200 GFLOP/s, bfloat16 219")),  # no clear margin
    (200, 221, ("mixed_bfloat16", "products 221 GFLOP/s, float32 200")),
)
def test_the_precision_is_the_one_measured_to_be_faster(on, float32, bfloat16, expected):
    on(float32, bfloat16)
    assert fast_precision(ONE) == expected


@for_each("cpuinfo", "", "flags\t\t: fpu avx2 avx512f\n")
def test_a_processor_without_bfloat16_is_not_measured(on, cpuinfo):
    measured = on(1, 2, cpuinfo)
    assert fast_precision(ONE) == ("float32", "") and not measured


def test_a_processor_is_measured_once(on, tmp_path, monkeypatch):
    """Two runs must not differ because a measurement did."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    first = on(200, 400)
    assert fast_precision(ONE)[0] == "mixed_bfloat16" and len(first) == 1
    second = on(400, 200)  # a new process, at a worse moment
    assert fast_precision(ONE)[0] == "mixed_bfloat16" and not second
    slow = on(400, 200, "CPU part\t: 0xd4f\nFeatures\t: fp asimd bf16\n")
    assert fast_precision(ONE)[0] == "float32" and len(slow) == 1
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # other kernels
    assert fast_precision(ONE)[0] == "float32" and len(slow) == 2
    known = json.loads((tmp_path / "cache" / "bert-tf" / "product_times.json").read_text())
    assert len(known) == 3
    assert f"AMD EPYC 17 avx512_bf16 {metadata.version('tensorflow')}" in known


DAMAGED = ["", "{", "[1]", '{"KEY": 3}', '{"KEY": {"float32": 1.0, "bfloat16": NaN}}', "[" * 9999]


@for_each("content", *DAMAGED)
def test_a_damaged_cache_is_measured_again(on, tmp_path, content):
    on(100, 200)
    file = tmp_path / "cache" / "bert-tf" / "product_times.json"
    file.parent.mkdir(parents=True)
    file.write_text(content.replace("KEY", processor.processor()))
    assert fast_precision(ONE)[0] == "mixed_bfloat16"
    on(200, 100)
    assert fast_precision(ONE)[0] == "mixed_bfloat16"  # it was written anew


def test_a_cache_that_cannot_be_written_is_no_error(on, tmp_path):
    (tmp_path / "cache").write_text("a file, where a folder should be")
    measured = on(100, 200)
    for _ in range(2):  # and the runs of one process agree
        assert fast_precision(ONE)[0] == "mixed_bfloat16"
    assert len(measured) == 1


def test_the_export_says_what_was_measured(on):
    on(263, 151)
    policy, remark = dtype_policy("bfloat16")
    assert policy == "mixed_bfloat16" and "slow on processors like this one: products 263" in remark
    on(1, 2, "")
    assert "does not multiply bfloat16" in dtype_policy("bfloat16")[1]
    assert dtype_policy("float32") == ("float32", "")


def test_the_rates_are_those_of_a_machine_and_products_keep_their_size():
    rates = product_rates(["float32"])  # over in time or not
    assert list(rates) == ["float32"]
    assert 1e8 < rates["float32"] < 1e16
    # Numbers that vanish or overflow are multiplied at another speed.
    halves, first, second = device_speed._factors(64, 256, 512, "float32")
    products = tf.matmul(tf.matmul(halves, first), second)
    # Uniform factors of variance 1 / fan-in: the variance stays 1.
    assert float(tf.math.reduce_variance(products)) == pytest.approx(1, rel=0.5)


@pytest.fixture
def changing(monkeypatch):
    """A machine of changing speed, on which a measurement takes a second."""
    machine = SimpleNamespace(rate=7.0, clock=0.0, measured=0)

    def product_rates(dtypes, seconds):
        machine.clock += 1
        machine.measured += 1
        return dict.fromkeys(dtypes, machine.rate)

    monkeypatch.setattr(device_speed, "product_rates", product_rates)
    monkeypatch.setattr(device_speed.time, "monotonic", lambda: machine.clock)
    monkeypatch.setattr(device_speed, "_peak", device_speed._Peak)
    return machine


def test_the_peak_is_that_of_a_machine_and_follows_its_speed(changing):
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(cpus)):
        assert strategy_peak(strategy, "float32")() == 7.0
    before = changing.measured
    now = strategy_peak(tf.distribute.get_strategy(), "float32")
    changing.rate = 3.0
    for _ in range(900):  # steps of a second
        changing.clock += 1
        rate = now()
    assert rate == 3.0
    assert changing.measured == before + 1 + 2  # less than a percent of the time


@for_each("major expected", (7, "float32"), (8, "mixed_bfloat16"), (9, "mixed_bfloat16"))
def test_gpus_have_bfloat16_from_ampere_on(major, expected, monkeypatch):
    details = {"compute_capability": (major, 5)}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert fast_precision(ONE) == (expected, "")
