import subprocess
import sys

import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.strategy import check_batch_size, check_jit_compile, make_strategy

# Logical devices must be made before TensorFlow starts, hence a process of its own. What training
# on them gives is in test_trainer.py.
_DEVICES = """
import os
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from bert_tf.errors import InputError
from bert_tf.training.strategy import make_strategy

assert make_strategy("mirrored").num_replicas_in_sync == 2
assert make_strategy("auto").num_replicas_in_sync == 1
os.environ.pop("TPU_NAME", None)
try:
    make_strategy("tpu")
    raise AssertionError("there is no TPU")
except InputError as error:
    assert str(error).startswith("no TPU answers ("), error
"""


def test_devices_by_name():
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        pytest.skip("this machine has accelerators")
    done = subprocess.run(
        [sys.executable, "-c", _DEVICES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_auto_is_one_device_on_a_machine_without_accelerators():
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        pytest.skip("this machine has accelerators")
    assert make_strategy("auto") is tf.distribute.get_strategy()


def test_names_and_batches_that_cannot_be_used():
    with pytest.raises(InputError, match="auto, one, mirrored, multi_worker, tpu"):
        make_strategy("two")
    with pytest.raises(InputError, match="positive multiple"):
        check_batch_size(0, make_strategy("one"))
    check_batch_size(7, make_strategy("one"))
    check_batch_size(6, make_strategy("one"), gradient_accumulation_steps=3)
    with pytest.raises(InputError, match=r"into 4 pieces on each of 1 .* a multiple of 4"):
        check_batch_size(6, make_strategy("one"), gradient_accumulation_steps=4)
    check_jit_compile(True, make_strategy("one"))
    with pytest.raises(InputError, match="--jit_compile does not work under --strategy mirrored"):
        check_jit_compile(True, make_strategy("mirrored"))
