from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from cases import for_each, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, hints_of, identity, option, option_helps, parse


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


@for_each(
    "values message",
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
)
def test_a_value_out_of_range_is_refused(values, message):
    assert refused("", Options, model="m", **values) == message


SCALARS = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (Literal["auto", True, False], st.sampled_from(["auto", True, False])),
    (Literal["a", "b"] | None, st.sampled_from(["a", "b"])),
    (int | None, st.integers()),
]


def spelled(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@for_each("hint values", *SCALARS, ids=[str(hint) for hint, _ in SCALARS])
def test_a_value_reads_the_same_from_python_yaml_and_the_command_line(hint, values):
    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(value=values)
    def check(value):
        assert parse(hint, value, "x") == value
        assert parse(hint, value, "x", written=True) == value
        assert parse(hint, spelled(value), "x", written=True) == value
        assert parse(list[hint], [spelled(value)], "x", written=True) == [value]

    check()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    hint=st.sampled_from([*(hint for hint, _ in SCALARS), str, str | None, list[str], list[int]]),
    value=st.none() | st.text() | st.integers() | st.floats() | st.lists(st.text()),
    written=st.booleans(),
)
def test_what_is_parsed_is_parsed_again_to_the_same(hint, value, written):
    try:
        parsed = parse(hint, value, "x", written=written)
    except InputError as error:
        assert str(error).startswith("x")
    else:
        assert repr(parse(hint, parsed, "x")) == repr(parsed)


@for_each(
    "hint value message",
    (int, "8", "x is '8': give a whole number"),
    (int, True, "x is True: give a whole number"),
    (float | None, "half", "x is 'half': give a number"),
    (str, 3, "x is 3: give a text"),
    (bool, 1, "x is 1: give true or false"),
    (int, None, "x is null: give a value, or leave it out"),
    (Literal["mean", "max"], "maen", "x is 'maen': did you mean mean? There are mean, max"),
    (list[int], ["a"], "x 0 is 'a': give a whole number"),
)
def test_a_value_of_another_type_is_refused(hint, value, message):
    assert refused("", parse, hint, value, "x") == message


def test_python_gives_paths_numpys_numbers_and_mappings():
    assert parse(str, Path("a/b"), "x") == "a/b"
    assert parse(list[str], {"LABEL_0": "no"}, "x") == ["LABEL_0=no"]
    assert parse(list[float], np.arange(2), "x") == [0.0, 1.0]
    assert type(parse(int, np.int64(3), "x")) is int
    assert parse(list[int], 8, "x") == [8]


@dataclass(kw_only=True)
class Base(CheckedOptions):
    seed: int = 1
    """random
    seed."""


@dataclass(kw_only=True)
class Extended(Base):
    train: Any = option(data=True)
    """examples."""
    seed: int = 2


def test_helps_are_the_strings_below_the_fields():
    assert option_helps(Extended) == {"seed": "random seed.", "train": "examples."}
    assert hints_of(Extended)["seed"] is int
    assert identity(Options(model="m")) == {"model": "m", "steps": 10, "kind": None}

    # Data in memory stays as it is.
    rows = [{"text": "a"}]
    assert Extended(train=rows).train is rows
    assert Extended(train=Path("a.tsv")).train == "a.tsv"
