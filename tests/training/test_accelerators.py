"""On GPUs and TPUs a step has none of what was chosen for CPUs.

`OneDeviceStrategy` takes a device that the machine lacks: its step is traced for that device.
"""

from collections import Counter

import pytest
import tensorflow as tf
from cases import for_each, slow
from tiny import drawn_pretraining

from bert_tf import AdamWeightDecay, BertConfig, BertPreTrainer, startup
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.training.trainer import Trainer

# The word table is large enough to be worth compiling on a CPU.
V, T, P, ROWS = 4100, 16, 3, 8
CONFIG = BertConfig.named("1x64x2", intermediate_size=128, vocab_size=V, max_position_embeddings=T)
# Adam updates a parameter by one operation, or by several under XLA.
UPDATES = """AddV2 AssignSubVariableOp AssignVariableOp Mul ReadVariableOp RealDiv ResourceApplyAdam
    Sqrt Sub"""
CALLS = "Const Identity NoOp PartitionedCall Placeholder StatefulPartitionedCall"


@pytest.fixture(autouse=True)
def shared_cores(monkeypatch):
    """As `share_cores` leaves it on a machine without a GPU."""
    monkeypatch.setattr(startup, "_shares_cores", True)


def traced(strategy, step, **options):
    """How often a step runs each operation, and the number of functions compiled within it."""
    with strategy.scope():
        model = BertPreTrainer(CONFIG, seed=1, dtype="mixed_bfloat16")
        loss = dict.fromkeys(("mlm_logits", "nsp_logits"), cross_entropy)
        trainer = Trainer(model, AdamWeightDecay(1e-3), loss=loss, **options)
        batch = drawn_pretraining(1, ROWS, V, T, P)
        iterator = trainer.iterate(tf.data.Dataset.from_tensors(batch).repeat())
        graph = getattr(trainer, step).get_concrete_function(iterator).graph.as_graph_def()
    functions = {f.signature.name: f for f in graph.library.function}

    def operations(nodes):
        total = Counter(node.op for node in nodes)
        for node in nodes:
            for value in node.attr.values():
                if value.func.name in functions:
                    total += operations(functions[value.func.name].node_def)
        return total

    compiled = sum("_XlaMustCompile" in f.attr for f in functions.values())
    return operations(graph.node), compiled


def on(kind, step="_traced_train"):
    return traced(tf.distribute.OneDeviceStrategy(f"{kind}:0"), step)


@pytest.fixture(scope="module")
def under_xla():
    operations, _ = traced(tf.distribute.get_strategy(), "_traced_train", jit_compile=True)
    return operations


@for_each("kind", "GPU", slow("TPU"))
def test_the_step_is_the_one_that_xla_compiles(kind, under_xla):
    """One pass over the whole batch, in the plain operations of keras.ops."""
    operations, compiled = on(kind)
    assert compiled == 0
    different = (operations - under_xla) + (under_xla - operations)
    assert different.keys() <= {*UPDATES.split(), *CALLS.split()}
    assert operations["MatMul"] > 20


def test_a_cpu_computes_halves_and_compiles_parts(under_xla):
    """What the other tests look for is there."""
    operations, compiled = on("CPU")
    assert compiled > 0
    assert operations["MatMul"] > 1.5 * under_xla["MatMul"]


@pytest.mark.slow
@for_each("kind", "GPU", "TPU")
def test_evaluation_computes_no_halves(kind):
    operations, compiled = on(kind, "_traced_test")
    assert compiled == 0
    # The block has 6 dense layers, embeddings, pooler and heads have 5 products.
    assert operations["MatMul"] <= 6 + 5


@for_each("kind", "GPU", "TPU")
def test_the_process_keeps_its_settings(kind, monkeypatch):
    monkeypatch.setattr(startup, "_shares_cores", False)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda k=None: [k] * (k == kind))
    monkeypatch.setattr(startup.ctypes, "CDLL", lambda name: pytest.fail("mallopt"))
    startup.prepare_training()
    assert not startup.shares_cores()
