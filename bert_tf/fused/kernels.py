"""What lies between the matrix products of a training step, and Adam after them.

TensorFlow computes an expression operation by operation, each a pass over the memory, and its
automatic gradient takes twice as many. Here each has its gradient written out, and where shapes are
static XLA compiles forward and backward into few passes each. The products stay outside: on a CPU
TensorFlow's are faster than XLA's.

n is a number of tokens, H the width of their vectors; statistics are computed in float32.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.fused.devices import device_type

_BITS = 16
# Elements of a tensor from which on compiling pays: it takes a tenth of a second for each kernel.
_WORTH_COMPILING = 2**18


class Dropout(NamedTuple):
    """Which elements to drop.

    Attributes:
        numbers: a uniform uint16 for each element.
        threshold: elements with smaller numbers are dropped.
    """

    numbers: tf.Tensor
    threshold: int


def draw_dropout(seed: tf.Tensor, shape: Any, rate: float) -> Dropout | None:
    """Draws what to drop; None at rate 0.

    Stateless: equal seeds give equal numbers. The rate is a multiple of 2^-16, 0.10001 for 0.1:
    half as many random bits as a float32 takes. Two numbers are a hash of their place under keys
    from TensorFlow's generator, which alone would take seven times as long.
    """
    threshold = round(rate * 2**_BITS)
    if not threshold:
        return None
    size = math.prod(shape) if all(isinstance(n, int) for n in shape) else tf.reduce_prod(shape)
    keys = tf.random.stateless_uniform([2], tf.cast(seed, tf.int64), None, None, tf.uint32)
    hashed = _hashed_in_one_pass if _pays(size) else _hashed
    numbers = tf.reshape(tf.bitcast(hashed(keys, (size + 1) // 2), tf.uint16), [-1])[:size]
    return Dropout(tf.reshape(numbers, shape), threshold)


def _hashed(keys: tf.Tensor, number: Any) -> tf.Tensor:
    """Hashes uint32 [number] of the places under two keys uint32 [2].

    lowbias32 (C. Wellons, Prospecting for Hash Functions, 2018) with the second key in its middle.
    """

    def mixed(x: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32)))

    x = tf.bitwise.bitwise_xor(tf.cast(tf.range(number), tf.uint32), keys[0])
    x = mixed(x, 16) * tf.constant(0x7FEB352D, tf.uint32) + keys[1]
    return mixed(mixed(x, 15) * tf.constant(0x846CA68B, tf.uint32), 16)


_hashed_in_one_pass = tf.function(_hashed, jit_compile=True, autograph=False)


def known_shape(x: tf.Tensor) -> list[Any]:
    """The shape in numbers if all are known when the graph is traced, else in tensors."""
    return x.shape.as_list() if x.shape.is_fully_defined() else tf.unstack(tf.shape(x))


def _pays(*sizes: Any) -> bool:
    """Whether to compile what has tensors of these sizes, None if unknown when it is traced.

    On CPUs it does, for a large one. TPUs cannot compile a part of what they compile whole.
    """
    if not all(isinstance(size, int) for size in sizes):
        return False
    if max(sizes, default=0) < _WORTH_COMPILING:
        return False
    return device_type() == "CPU"


def _in_few_passes(function: Callable) -> Callable:
    """Compiles a function where that pays."""
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        sizes = [x.shape.num_elements() for x in arguments if isinstance(x, tf.Tensor)]
        return (compiled if _pays(*sizes) else function)(*arguments)

    return call


def _kept(numbers: tf.Tensor | None, threshold: int, dtype: Any) -> Any:
    """1 for elements to keep, 0 for others; without numbers just 1."""
    return 1 if numbers is None else tf.cast(numbers >= threshold, dtype)


def _scale(threshold: int) -> float:
    """What makes up for the dropped share."""
    return 2**_BITS / (2**_BITS - threshold)


def drop(x: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
    """Dropout."""
    if dropout is None:
        return x

    @tf.custom_gradient
    def dropped(x: tf.Tensor) -> Any:
        return _dropped(x, *dropout), lambda upstream: _dropped(upstream, *dropout)

    return dropped(x)


@_in_few_passes
def _dropped(x: tf.Tensor, numbers: tf.Tensor, threshold: int) -> tf.Tensor:
    return x * (_kept(numbers, threshold, x.dtype) * tf.constant(_scale(threshold), x.dtype))


def fork(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The tensor [n, H] for two readers, whose gradients are added up in one pass."""

    @tf.custom_gradient
    def forked(x: tf.Tensor) -> Any:
        return (tf.identity(x), tf.identity(x)), _sum

    return forked(x)


@_in_few_passes
def _sum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return x + y


def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """The product and sum x W + b of x [n, H], W [H, M] and b [M]."""

    @tf.custom_gradient
    def computed(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return (
                tf.matmul(upstream, kernel, transpose_b=True),
                tf.matmul(x, upstream, transpose_a=True),
                _sum_of_rows(upstream),
            )

        return tf.nn.bias_add(tf.matmul(x, kernel), bias), gradient

    return computed(x, kernel, bias)


def _sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """[n, M] -> [M], as a product, which is faster than a sum."""
    return tf.matmul(tf.ones_like(x[:, :1]), x, transpose_a=True)[0]


def gelu(x: tf.Tensor) -> tf.Tensor:
    """The exact GELU, as `bert_tf.layers.activations.gelu`; keeps its derivative."""

    @tf.custom_gradient
    def activated(x: tf.Tensor) -> Any:
        y, derivative = _gelu(x)
        return y, lambda upstream: _product(upstream, derivative)

    return activated(x)


@_in_few_passes
def _product(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return x * y


@_in_few_passes
def _gelu(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    wide = tf.cast(x, tf.float32)
    phi = 0.5 + 0.5 * tf.math.erf(wide * math.sqrt(0.5))
    density = tf.exp(wide * wide * -0.5) * math.sqrt(0.5 / math.pi)
    return tf.cast(wide * phi, x.dtype), tf.cast(phi + wide * density, x.dtype)


def add_and_normalize(
    x: tf.Tensor,
    y: tf.Tensor,
    dropout: Dropout | None,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    dtype: str,
) -> tf.Tensor:
    """LayerNorm of x + dropout(y).

    Args:
        x: [n, H].
        y: [n, H].
        dropout: elements of `y` to drop; None for none.
        gamma: scale, float32 [H].
        beta: shift, float32 [H].
        epsilon: added to the variance.
        dtype: type of the result.
    """
    numbers, threshold = dropout or (None, 0)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, y: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        result, standard, inverse = _normalized(
            x, y, numbers, gamma, beta, threshold, epsilon, dtype
        )

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return _normalized_gradient(
                upstream, standard, inverse, numbers, gamma, threshold, x.dtype, y.dtype
            )

        return result, gradient

    return normalized(x, y, gamma, beta)


@_in_few_passes
def _normalized(
    x: tf.Tensor, y: tf.Tensor, numbers: tf.Tensor | None, gamma: tf.Tensor, beta: tf.Tensor,
    threshold: int, epsilon: float, dtype: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:  # fmt: skip
    """The result, the vectors of mean 0 and variance 1, and what they were divided by."""
    x, y = tf.cast(x, tf.float32), tf.cast(y, tf.float32)
    if numbers is not None:
        y *= _kept(numbers, threshold, tf.float32) * _scale(threshold)
    total = x + y
    centred = total - tf.reduce_mean(total, -1, keepdims=True)
    variance = tf.reduce_mean(centred * centred, -1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)  # (n, 1)
    standard = centred * inverse
    return tf.cast(standard * gamma + beta, dtype), tf.cast(standard, dtype), inverse


@_in_few_passes
def _normalized_gradient(
    upstream: tf.Tensor, standard: tf.Tensor, inverse: tf.Tensor, numbers: tf.Tensor | None,
    gamma: tf.Tensor, threshold: int, x_dtype: Any, y_dtype: Any,
) -> tuple[tf.Tensor, ...]:  # fmt: skip
    """Gradients of x, y, gamma and beta."""
    upstream, standard = tf.cast(upstream, tf.float32), tf.cast(standard, tf.float32)
    product = upstream * standard
    mean = tf.reduce_mean(upstream * gamma, -1, keepdims=True)
    slope = tf.reduce_mean(product * gamma, -1, keepdims=True)
    total = (upstream * gamma - mean - standard * slope) * inverse
    of_y = total
    if numbers is not None:
        of_y *= _kept(numbers, threshold, tf.float32) * _scale(threshold)
    return (
        tf.cast(total, x_dtype),
        tf.cast(of_y, y_dtype),
        tf.raw_ops.BiasAddGrad(out_backprop=product),  # the sum over n, faster than reduce_sum
        tf.raw_ops.BiasAddGrad(out_backprop=upstream),
    )


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor, dropout: Dropout | None
) -> tf.Tensor:
    """dropout(softmax(Q K^T + mask)) V.

    Args:
        query: scaled, [B, N, Q, D].
        key: [B, N, T, D].
        value: [B, N, T, D].
        mask: float32 [B, 1, 1, T].
        dropout: probabilities [B, N, Q, T] to drop; None for none.

    Returns:
        [B, N, Q, D].
    """
    numbers, threshold = dropout or (None, 0)
    scale = tf.constant(_scale(threshold), value.dtype)

    @tf.custom_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_b=True)  # (B, N, Q, T)
        probabilities, dropped = _probabilities(scores, mask, numbers, threshold)
        context = tf.matmul(dropped, value) * scale

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # The mean of the probabilities' gradients, weighted by them, from narrower tensors.
            products = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
            mean = tf.reduce_sum(products, -1, keepdims=True)  # (B, N, Q, 1)
            upstream *= scale
            of_dropped = tf.matmul(upstream, value, transpose_b=True)
            of_scores = _scores_gradient(of_dropped, probabilities, mean, numbers, threshold)
            return (
                tf.matmul(of_scores, key),
                tf.matmul(of_scores, query, transpose_a=True),
                tf.matmul(dropped, upstream, transpose_a=True),
            )

        return context, gradient

    return attended(query, key, value)


@_in_few_passes
def _probabilities(
    scores: tf.Tensor, mask: tf.Tensor, numbers: tf.Tensor | None, threshold: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Before dropout, and after it without its scale."""
    probabilities = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + mask), scores.dtype)
    return probabilities, probabilities * _kept(numbers, threshold, scores.dtype)


@_in_few_passes
def _scores_gradient(
    of_dropped: tf.Tensor, probabilities: tf.Tensor, mean: tf.Tensor, numbers: tf.Tensor | None,
    threshold: int,
) -> tf.Tensor:  # fmt: skip
    of_probabilities = of_dropped * _kept(numbers, threshold, of_dropped.dtype)
    return probabilities * (of_probabilities - tf.cast(mean, of_dropped.dtype))


def adam(
    handles: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    factor: tf.Tensor | None,
    rate: tf.Tensor,
    decay: tf.Tensor | None,
    beta_1: float,
    beta_2: float,
    epsilon: tf.Tensor,
) -> None:
    """A step of Adam with decoupled weight decay, in place.

    With g for factor * gradient, in this order:

        m += (1 - beta_1) (g - m)
        v += (1 - beta_2) (g^2 - v)
        p -= decay p
        p -= rate m / (sqrt(v) + epsilon)

    Args:
        handles: resources of the parameter p and of its means m and v.
        gradient: shape and dtype as p has them.
        factor: scales the gradient, []; None for 1.
        rate: learning rate, [].
        decay: share of p to take off, []; None for none.
        beta_1: decay rate of m.
        beta_2: decay rate of v.
        epsilon: added to the root, [].
    """
    if _pays(gradient.shape.num_elements()):
        _adam(handles, gradient, factor, rate, decay, beta_1, beta_2, epsilon)
        return
    dtype = gradient.dtype
    p, m, v = handles
    if decay is not None:
        step = decay * tf.raw_ops.ReadVariableOp(resource=p, dtype=dtype)
        tf.raw_ops.AssignSubVariableOp(resource=p, value=step)
    # The op's 1 - beta_2 is float32's, 1e-5 too small for 0.999: the mean of squares is too small
    # by that factor, and its root takes it back.
    rate *= math.sqrt(float(1 - np.float32(beta_2)) / (1 - beta_2))
    none = tf.zeros((), dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=p, m=m, v=v, beta1_power=none, beta2_power=none, lr=rate,
        beta1=tf.constant(beta_1, dtype), beta2=tf.constant(beta_2, dtype), epsilon=epsilon,
        grad=gradient if factor is None else gradient * factor,
    )  # fmt: skip


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _adam(
    handles: Sequence[tf.Tensor], gradient: tf.Tensor, factor: tf.Tensor | None, rate: tf.Tensor,
    decay: tf.Tensor | None, beta_1: float, beta_2: float, epsilon: tf.Tensor,
) -> None:  # fmt: skip
    p, m, v = (tf.raw_ops.ReadVariableOp(resource=x, dtype=gradient.dtype) for x in handles)
    gradient = gradient if factor is None else gradient * factor
    m += (gradient - m) * (1 - beta_1)
    v += (gradient * gradient - v) * (1 - beta_2)
    p = p if decay is None else p - decay * p
    p -= rate * m / (tf.sqrt(v) + epsilon)
    for handle, value in zip(handles, (p, m, v), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


class WordLogits:
    """Logits in two parts, whose float32 sum would be a pass over twice the memory.

    TensorFlow's ops take it for that sum. Not a tuple, which Keras would take apart.

    Attributes:
        products: [..., V] in the compute dtype.
        bias: float32 [V].
    """

    def __init__(self, products: tf.Tensor, bias: tf.Tensor):
        self.products = products
        self.bias = bias

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """The sum [..., V], float32 unless `dtype` says otherwise."""
        return tf.cast(_added(self.products, self.bias), dtype or tf.float32, name)

    @functools.cached_property
    def largest(self) -> tf.Tensor:
        """The largest logit of each row, float32 [..., 1]."""
        return _largest(self.products, self.bias)


def word_logits(x: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> WordLogits | tf.Tensor:
    """Logits of vectors [..., H], a table [V, H] and a float32 bias [V].

    Small ones are a tensor, float32 [..., V].
    """
    # Transposed by the product itself: the gradient of a transposition would be another one.
    products = tf.matmul(tf.reshape(x, [-1, table.shape[1]]), table, transpose_b=True)
    products = tf.reshape(products, [*known_shape(x)[:-1], table.shape[0]])
    return (WordLogits if _pays(products.shape.num_elements()) else _added)(products, bias)


def _added(products: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(products, tf.float32) + bias


def argmax(logits: Any) -> tf.Tensor:
    """The number of the first largest of the logits [..., C], int32 [...]."""
    if isinstance(logits, WordLogits):
        return _argmax(logits.products, logits.bias, logits.largest)
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def cross_entropy(labels: Any, logits: Any) -> tf.Tensor:
    """Losses float32 [...] of int labels [...] and logits [..., C], or `WordLogits`."""
    if not isinstance(logits, WordLogits):
        logits = tf.convert_to_tensor(logits)
        if not _pays(logits.shape.num_elements()):
            return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        logits = WordLogits(logits, tf.zeros(logits.shape[-1]))
    labels, largest = tf.cast(labels, tf.int32)[..., tf.newaxis], logits.largest

    @tf.custom_gradient
    def losses(products: tf.Tensor, bias: tf.Tensor) -> Any:
        values, norms = _cross_entropy(labels, products, bias, largest)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_products = _cross_entropy_gradient(upstream, labels, products, bias, norms)
            of_bias = _sum_of_rows(tf.reshape(of_products, [-1, products.shape[-1]]))
            return of_products, tf.cast(of_bias, bias.dtype)

        return values, gradient

    return losses(logits.products, logits.bias)


@_in_few_passes
def _largest(products: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(_added(products, bias), -1, keepdims=True)


@_in_few_passes
def _argmax(products: tf.Tensor, bias: tf.Tensor, largest: tf.Tensor) -> tf.Tensor:
    logits = _added(products, bias)
    classes = tf.range(logits.shape[-1])
    return tf.reduce_min(tf.where(logits == largest, classes, classes[-1]), -1)


@_in_few_passes
def _cross_entropy(
    labels: tf.Tensor, products: tf.Tensor, bias: tf.Tensor, largest: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Losses, and the logarithms [..., 1] of the sums of exponentials."""
    exponentials = tf.exp(_added(products, bias) - largest)
    norms = largest + tf.math.log(tf.reduce_sum(exponentials, -1, keepdims=True))
    of_label = _added(
        tf.gather(products, labels, axis=-1, batch_dims=labels.shape.rank - 1),
        tf.gather(bias, labels),
    )  # [..., 1]
    return (norms - of_label)[..., 0], norms


@_in_few_passes
def _cross_entropy_gradient(
    upstream: tf.Tensor, labels: tf.Tensor, products: tf.Tensor, bias: tf.Tensor, norms: tf.Tensor
) -> tf.Tensor:
    logits = _added(products, bias)
    is_label = tf.cast(tf.range(logits.shape[-1]) == labels, tf.float32)
    gradient = (tf.exp(logits - norms) - is_label) * upstream[..., tf.newaxis]
    return tf.cast(gradient, products.dtype)
