import warnings
from dataclasses import replace

import numpy as np
import tensorflow as tf
from cases import for_each, slow
from kernel_models import CONFIG, MASK, MODELS, batch, by_keras_ops, randomize
from rounding import half_rounding, rounding

from bert_tf import BertEncoder, BertPreTrainer
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.tensorflow import graphs, kernels, training, vocabulary_loss
from bert_tf.networks.tensorflow.inference import InferenceKernels

# On the way to a gradient are about 40 products, forwards and backwards, of sums of up to 28 terms
# (the tokens of a batch); each addition rounds by half a unit of float32.
ROUNDING = 40 * 28 * 2.0**-24


def loss_and_gradients(model, inputs, *, static=False, is_token=None):
    """A function that gives a loss, which weighs every output otherwise, and its gradients.

    Its argument is a seed of signs for the outputs' weights; 0 changes none. The graph has static
    or unknown shapes.
    """

    def step(inputs, seed):
        with tf.GradientTape() as tape:
            loss = 0.0
            for position, value in enumerate(tf.nest.flatten(model(inputs, training=True))):
                value = tf.cast(value, tf.float32)
                weights = tf.sin(tf.range(tf.size(value), dtype=tf.float32))
                drawn = tf.random.stateless_uniform(tf.shape(weights), [seed, position], -1, 1)
                weights = tf.where(seed > 0, weights * tf.sign(drawn), weights)
                weights = tf.reshape(weights, tf.shape(value))
                if is_token is not None and value.shape.rank == 3:
                    weights *= tf.cast(is_token[:, :, np.newaxis], tf.float32)
                loss += tf.reduce_sum(weights * value)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_weights])
        return loss, [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    shapes = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape if static else [None] * x.shape.rank, x.dtype), inputs
    )
    signature = [shapes, tf.TensorSpec([], tf.int32)]
    graph = tf.function(step, input_signature=signature, autograph=False)
    return lambda seed=0: graph(inputs, seed)


def compare(model, inputs, share, *, static, is_token=None):
    """Holds the model's loss and gradients against those in keras.ops.

    Rounding is a `share` of the terms of a sum, not of what is left when they cancel. With random
    signs the squares of sums are, on average, sums of the squares of their terms.
    """
    start = [variable.numpy() for variable in model.variables]

    def found(seeds):
        step = loss_and_gradients(model, inputs, static=static, is_token=is_token)
        results = []
        for seed in seeds:
            for variable, value in zip(model.variables, start, strict=True):
                variable.assign(value)  # the dropout seeds, too
            results.append(step(seed))
        return results

    with by_keras_ops(model):
        (loss, gradients), *drawn = found(range(9))
    # Halves of a batch draw other dropout than whole batches.
    with kernels_of(model, lambda kernels: kernels.in_halves(False)):
        (ours,) = found([0])
    assert [g is None for g in ours[1]] == [g is None for g in gradients]
    sides = tf.nest.flatten(ours), [loss, *gradients], *map(tf.nest.flatten, drawn)
    found = [row for row in zip(*sides, strict=True) if row[1] is not None]
    sizes = [np.sqrt(np.mean([np.square(x).max() for x in terms])) for _, _, *terms in found]
    pairs = [(*row[:2], size) for row, size in zip(found, sizes, strict=True)]
    # Some are 0 but for rounding: a bias of the keys changes no probability.
    least = 1e-2 * max(size for *_, size in pairs[1:])
    for one, other, size in pairs:
        np.testing.assert_allclose(one, other, rtol=0, atol=share * max(size, least))
    return len(pairs) - 1


def test_dropout_does_not_depend_on_what_the_process_ran_before(monkeypatch):
    """Whether cores are shared, which a process decides by its first operation, changes no bit."""
    outputs = []
    for shared in (True, False):
        monkeypatch.setattr(kernels, "shares_cores", lambda shared=shared: shared)
        model = BertEncoder(replace(CONFIG, num_hidden_layers=1, hidden_dropout_prob=0.5), seed=0)
        step = tf.function(lambda model=model: model(batch(), training=True), autograph=False)
        outputs.append(step()["sequence_output"].numpy())
    np.testing.assert_array_equal(*outputs)


@for_each(
    "kind static compiled",
    ("pre-training", True, True),
    slow("pre-training", False, False),
    slow("classifier", False, False),
    slow("tagger", True, False),
    ("span", False, False),
    slow("choice", False, False),
    slow("bilstm", False, False),
    slow("left-to-right classifier", True, True),
    slow("right-to-left tagger", True, False),
)
def test_gradients_are_those_of_all_places_in_keras_ops(kind, static, compiled, monkeypatch):
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 0 if compiled else 2**30)
    model = randomize(MODELS[kind]())
    is_token = MASK if "tagger" in kind else None
    assert compare(model, batch(kind), ROUNDING, static=static, is_token=is_token) > 30


@for_each("has_amx", False, True)
@for_each("static", False, True)
def test_bias_of_products_in_bfloat16(has_amx, static, monkeypatch):
    """With AMX no bias is added to a product itself: TensorFlow would join the two.

    The sums are the same within rounding of the sum of two numbers, in GELU and its derivative.
    """
    monkeypatch.setattr(training, "_has_amx", lambda: has_amx)
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 0)
    random = np.random.default_rng(3)
    product, bias = (tf.constant(random.normal(size=s), "bfloat16") for s in ([6, 8], [8]))

    @tf.function(autograph=False)
    def computed(product, bias):
        with tf.GradientTape() as tape:
            tape.watch([product, bias])
            rows = training.add_bias(tf.matmul(product, tf.eye(8, dtype="bfloat16")), bias)
            active = training.gelu(tf.matmul(product, tf.eye(8, dtype="bfloat16")), bias)
        return [rows, active, *tape.gradient([rows, active], [product, bias])]

    shapes = [x.shape if static else [None] * x.shape.rank for x in (product, bias)]
    graph = computed.get_concrete_function(*(tf.TensorSpec(x, product.dtype) for x in shapes))
    sources = [op.inputs[0].op for op in graph.graph.get_operations() if op.type == "BiasAdd"]
    while any(op.type.startswith("Identity") for op in sources):
        sources = [op.inputs[0].op if op.type.startswith("Identity") else op for op in sources]
    joined = {op.type == "MatMul" for op in sources}
    # GELU's is within a compiled function where shapes are known, as all are with AMX.
    assert joined == ({True} if not has_amx else set() if static else {False})
    with tf.GradientTape() as tape:
        wide = [tf.cast(x, "float32") for x in (product, bias)]
        tape.watch(wide)
        rows = tf.nn.bias_add(*wide)
        active = tf.nn.gelu(rows)
    wanted = [rows, active, *tape.gradient([rows, active], wide)]
    for ours, theirs in zip(graph(product, bias), wanted, strict=True):
        size = max(1.0, np.abs(theirs).max())  # of what is rounded: the sum, GELU, its derivative
        atol = half_rounding(6, "bfloat16") * size
        np.testing.assert_allclose(tf.cast(ours, "float32"), theirs, rtol=0, atol=atol)


def dropped(seed, shape, rate=0.1):
    drawn = training.draw_dropout(tf.constant(seed), shape, rate)
    return drawn.numbers.numpy() < drawn.threshold


def test_dropout_has_its_rate_and_is_independent(monkeypatch):
    rate, seeds = 6554 / 2**16, [[7, 0], [7, 1], [8, 0]]
    first, *others = (dropped(seed, [997, 1001]) for seed in seeds)
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 2**30)
    np.testing.assert_array_equal(first, dropped(seeds[0], [997, 1001]))
    sigma = np.sqrt(rate * (1 - rate) / first.size)
    assert abs(first.mean() - rate) < 5 * sigma
    # Neither with neighbours, within a draw of 64 bits or beyond, nor from one seed to the next.
    shifted = [np.roll(first, by, axis) for axis in (0, 1) for by in (1, 2, 3, 4, 8)]
    for other in (*shifted, *others):
        assert abs((first & other).mean() - rate**2) < 5 * rate / np.sqrt(first.size)
    assert training.draw_dropout(tf.constant([7, 0]), [2, 2], 0.0) is None


def with_dropout(numbers, threshold, x):
    return tf.where(numbers < threshold, 0.0, x * (2**16 / (2**16 - threshold)))


@for_each("compiled", False, True)
def test_gradients_with_dropout(compiled, monkeypatch):
    """As automatic differentiation of the formulae."""
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 0 if compiled else 2**30)
    random = np.random.default_rng(5)

    def normal(*shape):
        return tf.constant(random.normal(size=shape), tf.float32)

    x, y, gamma, beta, weights = (normal(*s) for s in ([6, 8], [6, 8], [8], [8], [6, 8]))
    heads = [normal(2, 3, 5, 4) for _ in range(4)]
    mask = tf.constant([[0.0, 0, 0, 0, 0], [0, 0, 0, -1e4, -1e4]])[:, None, None]
    of_rows = training.draw_dropout(tf.constant([1, 2]), [6, 8], 0.4)
    of_scores = training.draw_dropout(tf.constant([3, 4]), [2, 3, 5, 5], 0.4)

    def kernels(x, y, gamma, beta, *heads):
        normalized = training.add_and_normalize(x, y, of_rows, gamma, beta, 1e-12, "float32")
        rows = training.drop(x, of_rows) + normalized
        return rows, training.attention(*heads, mask, of_scores)

    def formulae(x, y, gamma, beta, *heads):
        total = x + with_dropout(*of_rows, y)
        mean, variance = tf.nn.moments(total, -1, keepdims=True)
        rows = (total - mean) / tf.sqrt(variance + 1e-12) * gamma + beta
        rows += with_dropout(*of_rows, x)
        probabilities = tf.nn.softmax(tf.matmul(*heads[:2], transpose_b=True) + mask)
        return rows, tf.matmul(with_dropout(*of_scores, probabilities), heads[2])

    @tf.function(autograph=False)
    def gradients(function, *sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            rows, context = function(*sources)
            value = tf.reduce_sum(rows * weights) + tf.reduce_sum(context * heads[3])
        return [value, *tape.gradient(value, sources)]

    sources = [x, y, gamma, beta, *heads[:3]]
    results = [gradients(function, *sources) for function in (kernels, formulae)]
    for ours, theirs in zip(*results, strict=True):  # a dozen sums of up to 48 terms
        atol = rounding(12, 48, np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


@for_each("dtype", "float32", "bfloat16")
def test_cross_entropy_and_argmax(dtype, monkeypatch):
    random = np.random.default_rng(5)
    vectors, table = (tf.cast(random.normal(size=s) * 5, dtype) for s in ([2, 3, 4], [11, 4]))
    bias = tf.constant(random.normal(size=[11]), tf.float32)
    table = tf.concat([table[:10], table[9:10]], 0)
    bias = tf.concat([bias[:10], bias[9:10]], -1)  # a tie, which the first wins
    labels, weights = random.integers(0, 11, [2, 3]), tf.constant(random.normal(size=[2, 3]))

    def step(vectors, table, bias):
        with tf.GradientTape() as tape:
            tape.watch([vectors, table, bias])
            logits = vocabulary_loss.word_logits(vectors, table, bias)
            losses = vocabulary_loss.cross_entropy(labels, logits)
            total = tf.reduce_sum(losses * tf.cast(weights, tf.float32))
        gradients = [tf.cast(g, tf.float32) for g in tape.gradient(total, [vectors, table, bias])]
        largest = tf.cast(vocabulary_loss.argmax(logits), tf.float32)
        return [losses, logits, largest, *gradients]

    results = []
    for least in (0, 2**30):
        monkeypatch.setattr(graphs, "_WORTH_COMPILING", least)
        results.append(tf.function(step, autograph=False)(vectors, table, bias))
    assert np.any(results[0][2] == 9)
    # What a logit is off, of up to 11 terms, is a share of its probability, too.
    of_float32 = rounding(8, 11, np.abs(results[0][1]).max())
    share = of_float32 if dtype == "float32" else 2**-7
    for compiled, plain in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=share, atol=share)
    plain = vocabulary_loss.cross_entropy(labels, results[0][1])
    np.testing.assert_allclose(plain, results[0][0], rtol=of_float32)


def test_only_the_sum_of_products_and_a_bias_is_taken_apart(monkeypatch):
    monkeypatch.setattr(graphs, "_WORTH_COMPILING", 0)
    logits, vector = tf.constant([[3.0, 2.0, 1.0]]), tf.constant([1.0, 4.0, 2.0])
    argmax = vocabulary_loss.argmax
    for combined in (tf.multiply, tf.subtract, tf.add):
        found = tf.function(lambda by=combined: argmax(by(logits, vector)), autograph=False)()
        assert found.numpy() == np.argmax(combined(logits, vector), -1)


def test_dropout_is_hashed_as_its_source_has_it():
    """Hashes by plain integers, as C computes them."""
    keys = [0x9E3779B9, 0x85EBCA6B]

    def hashed(x):
        x ^= keys[0]
        x ^= x >> 16
        x = (x * 0x7FEB352D + keys[1]) % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    found = training._hashed(tf.constant(keys, tf.uint32), 5)
    assert found.numpy().tolist() == [hashed(position) for position in range(5)]


def test_batches_are_computed_in_halves_in_training_and_where_cores_are_shared(monkeypatch):
    in_training, in_inference = training.TrainingKernels(), InferenceKernels()
    whole = in_training.in_halves(False)
    asked = in_inference.in_halves(True)
    for shared in (False, True):
        monkeypatch.setattr(kernels, "shares_cores", lambda shared=shared: shared)
        for each, parts in (in_training, 2), (whole, 1), (in_inference, 1), (asked, 1 + shared):
            sizes = []

            def compute(rows, sizes=sizes):
                sizes.append(rows["x"].shape[0])
                return rows["x"] + 1

            compute_rows = tf.function(each.compute_rows, autograph=False)
            found = compute_rows(compute, {"x": tf.constant([1, 2, 3])})
            assert found.numpy().tolist() == [2, 3, 4]
            assert len(sizes) == parts


def test_attention_probabilities_in_training():
    encoder = randomize(BertEncoder(CONFIG, attention_probabilities=True))
    found = encoder(batch(), training=True)["attention_probabilities"]
    with by_keras_ops(encoder):
        wanted = encoder(batch(), training=True)["attention_probabilities"]
    # A block and its scores, of up to 4.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rounding(25, 16, size=4))


@for_each("change", "lora", slow("int8"))
def test_weights_that_keras_adds_or_quantizes_are_used(change):
    model = randomize(BertPreTrainer(replace(CONFIG, num_hidden_layers=1), seed=0))
    inputs = batch("pre-training")
    before = model(inputs)["mlm_logits"]
    if change == "int8":
        with warnings.catch_warnings(action="ignore"):  # some layers have nothing to quantize
            model.encoder.quantize("int8")
    else:
        block = model.encoder.blocks[0]
        layers = [block.attention.query, block.feed_forward.intermediate]
        for layer in (*layers, model.encoder.embeddings.word_embeddings):
            layer.enable_lora(2)
        for weight in model.encoder.weights:
            weight.assign(weight + 0.5 * ("lora" in weight.path))
    for is_training in (False, True):
        ours = model(inputs, training=is_training)["mlm_logits"]
        with by_keras_ops(model):
            wanted = model(inputs, training=is_training)["mlm_logits"]
        atol = rounding(45, 16, np.abs(wanted).max())
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=atol)
    assert np.abs(wanted - before).max() > 1e-3
