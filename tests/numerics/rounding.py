"""How much floating point rounds: tolerances that follow from arithmetic, not from one machine."""

from typing import Any

import keras
import numpy as np
import pytest

# Half of the distance from 1 to the next number.
_HALF_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounding(sums: int, terms: int, size: float = 1.0) -> float:
    """The most by which a float32 is off that `sums` sums led to, one after another.

    Each has up to `terms` terms of up to `size`. An addition rounds by half a unit at most, up as
    often as down, so the error of a sum grows with the root of its terms. Errors of the sums are
    added as if they all had one sign: a margin of the root of their number.

    An encoder's block is about 20 sums: products with weights, scores, softmax, residuals and the
    means and variances of both normalizations. Embeddings and a head add a few; a gradient doubles
    them.
    """
    return sums * terms**0.5 * _HALF_UNIT["float32"] * size


def half_rounding(sums: int, dtype: str) -> float:
    """The most by which float16 or bfloat16 is off after so many sums, as a share of the values.

    Terms are added in float32, but each sum's factors and result are rounded: two errors, spread
    evenly within half a unit and independent of the others. Five deviations of all together.
    """
    return 5 * (2 * sums / 3) ** 0.5 * _HALF_UNIT[dtype]


def assert_equal_but_for_rounding(
    found: Any, expected: Any, sums: int, terms: int, more: float = 0.0
) -> None:
    """Arrays are equal within `more` and `rounding` of their largest number, or of 1."""
    atol = more + rounding(sums, terms, max(1.0, np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def rounded(answers: Any, sums: int, terms: int) -> Any:
    """Answers as JSON values, of which those that are equal but for `rounding` compare as equal.

    A SavedModel in a session and the model in Python are the same graph, but for what TensorFlow
    joins, folds and runs side by side in it.
    """
    atol = rounding(sums, terms)

    def within(x: Any) -> Any:
        return pytest.approx(x, rel=0, abs=atol) if isinstance(x, float) else x

    return keras.tree.map_structure(within, answers)
