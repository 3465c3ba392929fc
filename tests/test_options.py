"""Options check themselves: ranges, choices, identity."""

from dataclasses import dataclass
from typing import Literal

import pytest

from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, identity, option


@dataclass(kw_only=True)
class Options(CheckedOptions):
    model: str = option(positional=True)
    steps: int = option(10, at_least=1)
    share: float | None = option(None, above=0, below=1, identity=False)
    rate: float = option(1.0, above=0, identity=False)
    place: float = option(0.0, identity=False)
    kind: Literal["a", "b"] | None = None
    sizes: list[int] = option(factory=list, at_least=5, at_most=8, identity=False)
    data: str | None = option(None, path=True)
    output: str | None = option(None, writes="file")
    override: bool = option(False, saved=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "--steps is 0: give at least 1"),
        ({"share": 0.0}, "--share is 0.0: give above 0 and below 1"),
        ({"share": float("nan")}, "--share is nan: give above 0 and below 1"),
        ({"rate": 1e30}, "--rate is 1e+30: give at most 9,007,199,254,740,992"),
        ({"rate": float("inf")}, "--rate is inf: give at most 9,007,199,254,740,992"),
        ({"rate": 0.0}, "--rate is 0.0: give above 0"),
        ({"place": -1e30}, "--place is -1e+30: give at least -9,007,199,254,740,992"),
        ({"place": float("nan")}, "--place is nan: give a finite number"),
        ({"kind": "c"}, "--kind is 'c': give one of a, b"),
        ({"sizes": [5, 9]}, "--sizes is 9: give at least 5 and at most 8"),
    ],
)
def test_a_value_out_of_range_is_refused(given, message):
    with pytest.raises(InputError) as refused:
        Options(model="m", **given)
    assert str(refused.value) == message


def test_what_is_in_range_is_taken():
    options = Options(model="m", steps=1, share=0.5, kind="a", sizes=[5, 8])
    assert options.sizes == [5, 8]


def test_identity_leaves_out_marked_fields_and_files():
    assert identity(Options(model="m")) == {"model": "m", "steps": 10, "kind": None}
