import contextlib
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from kernel_models import CONFIG, LABELS, MASK, MODELS, batch, by_keras_ops, randomize
from rounding import assert_equal_but_for_rounding

from bert_tf import BertClassifier, BertConfig, BertEncoder, BertTokenizer
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.tensorflow.inference import CopiedWeights
from bert_tf.tasks.task_table import find_task
from bert_tf.text.answerer import Answerer


def graph_of(model, **options):
    return tf.function(lambda inputs: model(inputs, training=False, **options), autograph=False)


def copied(model):
    """Functions that are traced within it have weights of their own."""
    kernels = CopiedWeights()
    return kernels_of(model, lambda _: kernels)


def both(model, inputs, copies=False, **options):
    """Outputs by keras.ops at all positions, and of a graph that is traced for TensorFlow."""
    with by_keras_ops(model):
        wanted = model(inputs, training=False, **options)
    with copied(model) if copies else contextlib.nullcontext():
        return wanted, graph_of(model, **options)(inputs)


def assert_close(found, wanted):
    """Equal but for rounding in two blocks and a head, in sums of up to 16 terms."""
    assert_equal_but_for_rounding(found, wanted, 45, 16)


COPIED = ["tagger", "frozen features", "left-to-right classifier"]


@for_each("kind", *COPIED, "classifier", "span", "choice", "pre-training")
def test_models_give_what_keras_ops_give(kind):
    model = randomize(MODELS[kind]())
    wanted, found = both(model, batch(kind), copies=kind in COPIED)
    kept = MASK.astype(bool) if kind in ("tagger", "span", "frozen features") else slice(None)
    for one, other in zip(*map(tf.nest.flatten, (found, wanted)), strict=True):
        assert_close(one.numpy()[kept], other.numpy()[kept])


@for_each("activation", "gelu", "gelu_new", "relu")
def test_all_outputs_of_the_encoder(activation):
    config = BertConfig.from_dict({**CONFIG.to_dict(), "hidden_act": activation})
    encoder = randomize(BertEncoder(config, attention_probabilities=True))
    wanted, found = both(encoder, batch(), padding="zeros")
    assert found.keys() == wanted.keys()
    is_token = MASK.astype(bool)
    assert_close(found["pooled_output"], wanted["pooled_output"])
    for one, other in zip(found["hidden_states"], wanted["hidden_states"], strict=True):
        assert_close(one.numpy()[is_token], other.numpy()[is_token])
        assert not one.numpy()[~is_token].any()
    np.testing.assert_array_equal(found["sequence_output"], found["hidden_states"][-1])
    for one, other in zip(*(x["attention_probabilities"] for x in (found, wanted)), strict=True):
        tokens = np.broadcast_to(is_token[:, np.newaxis, :], (4, 2, 7))
        assert_close(one.numpy()[tokens], other.numpy()[tokens])


def test_unpacked_weights_are_those_of_packed_ones_in_other_products():
    encoder = randomize(BertEncoder(CONFIG))
    kernels = CopiedWeights()
    outputs = []
    packed = []
    copies = []
    for used in (kernels, kernels.unpacked()):
        with kernels_of(encoder, lambda _, used=used: used):
            function = graph_of(encoder).get_concrete_function(batch())
        outputs.append(function(batch())["sequence_output"])
        packed.append(sum(x.type == "MatMul" for x in function.graph.get_operations()))
        copies.append(len(kernels._copies))
    assert_close(*outputs)
    # TensorFlow packs the weights of these products alone: four of each block, and the pooler's.
    segments = 1  # one-hot, times their table
    assert packed == [4 * CONFIG.num_hidden_layers + 1 + segments, segments]
    assert copies[0] == copies[1]


MORE = [slow("both", 1), slow("left_to_right", 2), slow("right_to_left", 9)]


@for_each("direction rows", ("both", 9), *MORE)
def test_rows_in_groups_of_like_length_see_their_own_tokens_alone(direction, rows):
    random = np.random.default_rng(7)
    encoder = randomize(BertEncoder(replace(CONFIG, attention_direction=direction)))
    mask = (np.arange(7) < random.integers(1, 8, rows)[:, np.newaxis]).astype(np.int32)
    mask[0, :2] = 0, 1  # padding at the start, which is computed, but not seen
    inputs = batch(mask=mask)
    of_tokens, pooled = {"padding": "zeros"}, {"only": "pooled_output"}
    for options, kept in ((of_tokens, mask.astype(bool)), (pooled, slice(None))):
        wanted, found = both(encoder, inputs, **options)
        name = options.get("only", "sequence_output")
        assert_close(found[name].numpy()[kept], wanted[name].numpy()[kept])


def test_rows_without_tokens_and_empty_batches_have_an_answer():
    model, inputs = randomize(MODELS["classifier"]()), batch()
    empty = {**inputs, "padding_mask": tf.zeros_like(inputs["padding_mask"])}
    _, found = both(model, empty)
    assert found.shape == (4, 3)
    assert np.isfinite(found).all()
    _, found = both(model, {name: x[:0] for name, x in inputs.items()})
    assert found.shape == (0, 3)


@for_each("dtype", "mixed_bfloat16", slow("mixed_float16"))
def test_half_precision(dtype):
    model = randomize(BertClassifier(CONFIG, dtype=dtype, **LABELS))
    exact = BertClassifier(CONFIG, dtype="float32", **LABELS)
    exact.set_weights(model.get_weights())
    inputs = batch()
    wanted = exact(inputs, training=False)
    layers, found = both(model, inputs, copies=True)
    assert found.dtype == tf.float32
    # As near to float32 as the layers in half precision are.
    error, usual = (np.abs(x - wanted).max() for x in (found, layers))
    assert error < 3 * usual < 0.3


@pytest.mark.slow
def test_an_export_in_bfloat16_holds_its_weights_once(tmp_path, exports_of):
    """That it answers as before is tested in tests/frozen."""
    model = randomize(BertClassifier(CONFIG, dtype="mixed_bfloat16", **LABELS))
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])
    task = find_task("classification").with_settings({"max_length": 10})
    tuned = Answerer(task, model, tokenizer, LABELS["labels"])
    with exports_of("serving_default", "embed"):
        folder = tuned.export("letters", root=tmp_path)
    reader = tf.train.load_checkpoint(str(folder / "variables/variables"))
    dtypes = reader.get_variable_to_dtype_map()
    saved = [(dtypes[name], shape) for name, shape in reader.get_variable_to_shape_map().items()]
    # Queries, keys and values as one kernel, once for all signatures; none in float32.
    assert saved.count((tf.bfloat16, [8, 24])) == CONFIG.num_hidden_layers
    assert (tf.float32, [8, 8]) not in saved
    assert (folder / "saved_model.pb").stat().st_size < 3e6
