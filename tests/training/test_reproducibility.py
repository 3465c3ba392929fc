"""Equal runs end with equal bits, with TensorFlow's graph optimizer on, as for users."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from tensorflow.python.eager import context
from tiny import tiny_config

from bert_tf import BertClassifier, BertPreTrainer
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.training.optimizer import AdamWeightDecay, Lamb
from bert_tf.training.trainer import Trainer

V, T, P, ROWS, STEPS = 50, 24, 3, 12, 6
HALF = STEPS // 2

# Their outputs may be the memory of their first input: a sum over no axis is one, too.
VIEWS = {
    *("ExpandDims", "Identity", "Reshape", "Slice", "Split"),
    *("SplitV", "Squeeze", "StridedSlice", "Sum", "Unpack"),
}
HELD_ELSEWHERE = {"Const", "Switch"}


@pytest.fixture(autouse=True)
def optimized_graphs(graphs_as_traced):
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def make_trainer(
    *,
    pieces=3,
    optimizer=AdamWeightDecay,
    policy="float32",
    freeze=None,
    rematerialize=False,
    packed=False,
    **settings,
):
    config = tiny_config(V, "2x16x2", max_position_embeddings=T, **settings)
    if packed:
        model = BertPreTrainer(config, seed=3, dtype=policy)
    else:
        model = BertClassifier(config, 2, seed=3, dtype=policy)
    if freeze is not None:
        model.encoder.freeze_layers(freeze)
    model.encoder.rematerialize = rematerialize
    loss = dict.fromkeys(model.output, cross_entropy) if packed else cross_entropy
    return Trainer(model, optimizer(1e-3), loss=loss, gradient_accumulation_steps=pieces)


def batch(step, late=False, packed=False):
    """Batches of other lengths; the last one has fewer rows, which divide unevenly."""
    draw = np.random.default_rng(step)
    length = draw.integers(T // 2, T + 1)
    rows = (ROWS - (step == STEPS - 1)) * (2 if late and step >= HALF else 1)
    places, lengths = np.arange(length), draw.integers(3, length + 1, size=(rows, 1))
    ids, segments = (draw.integers(most, size=(rows, length)) for most in (V, 2))
    inputs = {"token_ids": ids, "segment_ids": segments, "padding_mask": places < lengths}
    labels = draw.integers(2, size=rows)
    if packed:  # two instances in a row
        second = places >= lengths
        inputs |= {"padding_mask": 1 + second, "position_ids": places - second * lengths}
        inputs["mask_positions"] = draw.integers(length, size=(rows, P))
        inputs["first_positions"] = np.hstack([0 * lengths, lengths])
        words, pairs = draw.integers(V, size=(rows, P)), draw.integers(2, size=(rows, 2))
        labels = {"mlm_logits": words, "nsp_logits": pairs}
    return tf.nest.map_structure(lambda values: values.astype("int32"), (inputs, labels))


def batches(first=0, until=STEPS, **how):
    one = batch(0, **how)
    signature = tf.nest.map_structure(lambda x: tf.TensorSpec([None] * x.ndim, tf.int32), one)
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_generator(
        lambda: (batch(step, **how) for step in range(first, until)), output_signature=signature
    )
    counted = tf.data.experimental.assert_cardinality(until - first)
    return data.apply(counted).with_options(options)


def fit(trainer, half, late=False, packed=False):
    """Trains on a half of the steps; the second may have twice as many rows and micro-batches."""
    first = half * HALF
    if late and trainer.gradient_accumulation_steps != 3 * (1 + half):
        trainer.accumulate_gradients(3 * (1 + half))
    iterator = trainer.iterate(batches(first, first + HALF, late=late, packed=packed))
    for _ in range(HALF):
        trainer.train(iterator)
    return trainer.model.get_weights()


MORE = [slow({x: True}) for x in ("packed", "rematerialize")]


@for_each("options", {}, *MORE, ids=str)
def test_no_sum_depends_on_what_shares_memory(options):
    """`AddN` begins with the first input whose memory is its own at that moment.

    Only if that is one of the first two, whatever the moment, is the order of the sum always the
    same.
    """
    trainer = make_trainer(**options)
    context.enable_graph_collection()
    try:
        fit(trainer, 0, packed=options.get("packed", False))
        graphs = context.context().export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    steps = [graph.post_optimization_graph.node for graph in graphs]
    nodes = max(steps, key=len)
    assert any("while" in node.name for node in nodes)  # the micro-batches
    by_name = {node.name: node for node in nodes}
    own = {node.name: [x for x in node.input if not x.startswith("^")] for node in nodes}
    inputs = {name: [x.removesuffix(":0") for x in names] for name, names in own.items()}
    readers = Counter(name for names in inputs.values() for name in names)

    def has_own_memory(name):
        node = by_name[name.split(":")[0]]
        if readers[name] > 1 or node.op in HELD_ELSEWHERE:
            return False
        return node.op not in VIEWS or has_own_memory(inputs[node.name][0])

    sums = [n.name for n in nodes if n.op == "AddN" and len(inputs[n.name]) > 2]
    assert not [name for name in sums if not any(map(has_own_memory, inputs[name][:2]))]


@pytest.mark.slow
@for_each(
    "options",
    {"feature_lstm_layers": 1, "policy": "mixed_bfloat16"},
    {"optimizer": Lamb, "pieces": 1},
    {"packed": True, "freeze": 1, "rematerialize": True},
    {"late": True, "policy": "mixed_float16"},
    ids=str,
)
def test_equal_runs_end_equal(options):
    """Each half of a run, five times, and for a run that resumes in its middle."""
    options = dict(options)
    how = {"late": options.pop("late", False), "packed": options.get("packed", False)}
    trainer = make_trainer(**options)

    def repeat(half):
        start = [variable.numpy() for variable in trainer.variables]
        ends = [fit(trainer, half, **how)]
        for _ in range(4):
            set_state(trainer, start)
            ends.append(fit(trainer, half, **how))
        for end in ends[1:]:
            np.testing.assert_equal(end, ends[0])
        return ends[0]

    repeat(0)
    middle = [variable.numpy() for variable in trainer.variables]
    end = repeat(1)
    resumed = make_trainer(**options)
    set_state(resumed, middle)
    np.testing.assert_equal(fit(resumed, 1, **how), end)


def set_state(trainer, values):
    for variable, value in zip(trainer.variables, values, strict=True):
        variable.assign(value)
