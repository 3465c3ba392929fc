"""What a student's layers learn from its teacher's, beside the outputs."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder
from bert_tf.networks.kernels import Positions

_FAR = -1e9  # added to scores of padding


class _Observed(NamedTuple):
    """The outputs of an encoder's embeddings and of each block, [n, H]."""

    states: list[Any]  # without the last block's if that computed one token of each row
    positions: Positions


class LayerLoss:
    """Calls a student and its teacher, and compares their layers.

    Args:
        of: "hidden_states": the mean squared difference of hidden states, summed over the
            embeddings and the student's M layers, the m-th beside the teacher's m N / M-th of N
            (Jiao et al. 2020, "TinyBERT", equations 8 and 9); a narrower or wider student's states
            are brought to the teacher's width by one learned matrix. "attention_relations": the
            mean over queries, keys and values of the last layers of KL(teacher, student) of their
            scaled products with themselves, in as many heads as the teacher's, or fewer that divide
            both widths (Wang et al. 2021, "MiniLMv2", equations 4 to 6).
        student, teacher: models with an `encoder`. InputError if one is no Transformer.

    `variables` has the matrix, if there is one. It is trained with the student, and not kept.
    """

    def __init__(self, of: str, student: Any, teacher: Any):
        encoders = student.encoder, teacher.encoder
        if not all(isinstance(encoder, BertEncoder) for encoder in encoders):
            raise InputError(
                "--teacher_layers is for student and teacher of one Transformer each, without "
                "LSTMs or a second encoder: leave it out"
            )
        self._student, self._teacher = encoders
        width, teacher_width = (encoder.config.hidden_size for encoder in encoders)
        self.variables: list[keras.Variable] = []
        self._to_width: Any = lambda states: states
        if of == "hidden_states" and width != teacher_width:
            spread = self._student.config.initializer_range
            self._to_width = keras.layers.Dense(
                teacher_width,
                use_bias=False,
                dtype="float32",
                name="teacher_width",
                kernel_initializer=keras.initializers.TruncatedNormal(stddev=spread, seed=0),
            )
            self._to_width.build((None, width))
            self.variables = self._to_width.variables
        heads = self._teacher.config.num_attention_heads
        self._heads = next(
            n for n in range(heads, 0, -1) if math.gcd(width, teacher_width) % n == 0
        )
        self._compare: Any = self._states if of == "hidden_states" else self._relations

    def __call__(
        self, student: Callable[[], Any], teacher: Callable[[], Any], padding_mask: Any
    ) -> tuple[Any, Any, Any]:
        """Outputs of both, and the loss of each row of the padding mask [..., T], float32 [R]."""
        outputs, student_layers = _observe(self._student, student)
        soft, teacher_layers = _observe(self._teacher, teacher)
        mask = ops.not_equal(ops.reshape(padding_mask, (-1, ops.shape(padding_mask)[-1])), 0)
        weights = ops.cast(mask, "float32")  # (R, T)
        values = self._compare(student_layers, teacher_layers, mask) * weights
        return outputs, soft, ops.sum(values, 1) / ops.maximum(ops.sum(weights, 1), 1)

    def _states(self, student: _Observed, teacher: _Observed, mask: Any) -> Any:
        ratio = len(self._teacher.blocks) / len(self._student.blocks)
        total: Any = 0.0
        # Where the last block computes one token of each row, it has none to compare.
        for number, states in enumerate(student.states):
            others = teacher.states[round(number * ratio)]
            pair = (student.positions.spread(states), teacher.positions.spread(others))
            one, other = (ops.cast(x, "float32") for x in pair)
            total += ops.mean(ops.square(self._to_width(one) - ops.stop_gradient(other)), -1)
        return total  # (R, T)

    def _relations(self, student: _Observed, teacher: _Observed, mask: Any) -> Any:
        total: Any = 0.0
        for name in ("query", "key", "value"):
            logs = self._relation(self._student, student, name, mask)
            others = ops.stop_gradient(self._relation(self._teacher, teacher, name, mask))
            total += ops.mean(ops.sum(ops.exp(others) * (others - logs), -1), 1)
        return total / 3  # (R, T)

    def _relation(self, encoder: BertEncoder, observed: Any, name: str, mask: Any) -> Any:
        """Logarithms of how each token relates to each other one, float32 [R, heads, T, T]."""
        last = len(encoder.blocks) - 1
        layer = getattr(encoder.blocks[last].attention, name)
        x = ops.cast(observed.positions.spread(layer(observed.states[last])), "float32")
        rows, length, width = ops.shape(x)
        heads = ops.reshape(x, (rows, length, self._heads, width // self._heads))
        heads = ops.transpose(heads, (0, 2, 1, 3))
        scores = ops.matmul(heads, ops.transpose(heads, (0, 1, 3, 2)))
        scores /= math.sqrt(width // self._heads)
        return ops.log_softmax(ops.where(mask[:, None, None, :], scores, _FAR))


def _observe(encoder: BertEncoder, call: Callable[[], Any]) -> tuple[Any, _Observed]:
    """The outputs of a call of a model, and what its encoder computes for them."""
    calls: list[_Observed] = []
    encoder.observer = lambda states, positions: calls.append(_Observed(states, positions))
    try:
        outputs = call()
    finally:
        encoder.observer = None
    (observed,) = calls
    return outputs, observed
