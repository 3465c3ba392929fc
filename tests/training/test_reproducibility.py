"""Equal runs end with equal bits, with TensorFlow's graph optimizer on, as for users."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from bert_tf.config import BertConfig
from bert_tf.fused.training import fuse
from bert_tf.models.task_models import BertClassifier
from bert_tf.training.lamb import Lamb
from bert_tf.training.means import cross_entropy
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.trainer import Trainer

V, T, ROWS, STEPS = 50, 24, 12, 6

# Their outputs may share memory with other tensors.
VIEWS = {
    *("ExpandDims", "Identity", "Reshape", "Slice", "Split"),
    *("SplitV", "Squeeze", "StridedSlice", "Unpack"),
}


@pytest.fixture(autouse=True)
def optimized_graphs(graphs_as_traced):
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def classifier(
    *, pieces=3, optimizer=AdamWeightDecay, policy="float32", freeze=None, rematerialize=False,
    fused=True, **settings,
):  # fmt: skip
    config = BertConfig(
        vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=T, **settings,
    )  # fmt: skip
    model = BertClassifier(config, 2, seed=3, dtype=policy)
    if freeze is not None:
        model.encoder.freeze_layers(freeze)
    model.encoder.rematerialize = rematerialize
    if fused:
        fuse(model)
    return Trainer(model, optimizer(1e-3), loss=cross_entropy, gradient_accumulation_steps=pieces)


def batches(first=0):
    """Batches of other lengths; the last one has fewer rows, which divide unevenly."""

    def make():
        for step in range(first, STEPS):
            draw = np.random.default_rng(step)
            length, rows = draw.integers(T // 2, T + 1), ROWS - (step == STEPS - 1)
            lengths = draw.integers(3, length + 1, size=(rows, 1))
            inputs = {
                "token_ids": draw.integers(V, size=(rows, length)),
                "segment_ids": draw.integers(2, size=(rows, length)),
                "padding_mask": np.arange(length) < lengths,
            }
            inputs = {name: values.astype("int32") for name, values in inputs.items()}
            yield inputs, draw.integers(2, size=rows).astype("int32")

    many = tf.TensorSpec((None, None), tf.int32)
    inputs = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), many)
    signature = (inputs, tf.TensorSpec((None,), tf.int32))
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_generator(make, output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(STEPS - first)).with_options(options)


def fit(trainer, data):
    trainer.fit(data, shuffle=False, verbose=0)
    return trainer.model.get_weights()


def state(trainer):
    return [*trainer.variables, *trainer.optimizer.variables]


def assert_equal(ours, theirs):
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, two)


def test_no_sum_depends_on_what_shares_memory():
    """`AddN` adds in another order if an input's memory happens to be its own already."""
    trainer = classifier()
    context.enable_graph_collection()
    try:
        fit(trainer, batches().take(1))
        graphs = context.context().export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    steps = [graph.post_optimization_graph.node for graph in graphs]
    nodes = max(steps, key=len)
    assert any("while" in node.name for node in nodes)  # the micro-batches
    ops = {node.name: node.op for node in nodes}
    sums = [node for node in nodes if node.op == "AddN"]
    doubtful = {}
    for node in sums:
        inputs = [name.split(":")[0] for name in node.input if not name.startswith("^")]
        views = [name for name in inputs if ops[name] in VIEWS]
        if len(inputs) > 2 and views:
            doubtful[node.name] = views
    assert not doubtful


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pieces": 1},
        {"fused": False},
        {"feature_lstm_layers": 1},
        {"optimizer": Lamb},
        {"freeze": 1},
        {"rematerialize": True},
        {"policy": "mixed_bfloat16"},
        {"policy": "mixed_float16"},
    ],
    ids=str,
)
def test_equal_runs_end_equal(options):
    """Ten times, and for a run that resumes in its middle."""
    trainer = classifier(**options)
    start = [variable.numpy() for variable in state(trainer)]
    ends = []
    for _ in range(10):
        for variable, value in zip(state(trainer), start, strict=True):
            variable.assign(value)
        ends.append(fit(trainer, batches()))
    for end in ends[1:]:
        assert_equal(end, ends[0])
    for variable, value in zip(state(trainer), start, strict=True):
        variable.assign(value)
    fit(trainer, batches().take(STEPS // 2))
    resumed = classifier(**options)
    for variable, value in zip(state(resumed), state(trainer), strict=True):
        variable.assign(value.numpy())
    assert_equal(fit(resumed, batches(first=STEPS // 2)), ends[0])
