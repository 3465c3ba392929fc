"""`make mutants`, on a project of two functions."""

import sys
from pathlib import Path

import pytest
from command_line import finished

pytest.importorskip("mutmut")

PROGRAM = Path(__file__).with_name("run.py")
CODE = """
def larger(a: int, b: int = 0) -> int:
    '''The larger of 2.'''
    if a is None:
        raise ValueError("none of " + "2")
    return a if a > b else b


def untested(a):
    return a - 1
"""
TESTS = """
from small import larger, untested

ran = []

def test_larger():
    ran.append(1)
    assert larger(2, 1) == larger(1, 2) == 2

def test_alone_it_fails():
    assert untested(1) == 0 and ran
"""
TABLE = """
packages: {small: [small.py]}
environment: {PYTEST_DISABLE_PLUGIN_AUTOLOAD: "1"}
imported: []
equivalent:
  small.py:
    return a if a >= b else b: equal numbers are one number
"""


def test_seen_equivalent_and_new_mutants_are_told_apart(tmp_path):
    (tmp_path / "tests").mkdir()
    for name, text in [("small.py", CODE), ("tests/test_small.py", TESTS), ("table.yaml", TABLE)]:
        (tmp_path / name).write_text(text)
    finished("git", "init", "--quiet", cwd=tmp_path)
    command = [sys.executable, PROGRAM, "--sample", "100", "--table", "table.yaml"]
    done = finished(*command, cwd=tmp_path, timeout=120)
    # Texts, types and errors are not changed: 7 changes of numbers and comparisons are left.
    assert "| small | 7 | 3 | 1 | 50% |" in done.stdout
    equivalent, new = done.stdout.split("Equivalent: 1")[1].split("New survivors: 3")
    assert equivalent.split("\n")[1:] == [
        "small.py:6 larger",
        "  - return a if a > b else b",
        "  + return a if a >= b else b",
        "  = equal numbers are one number",
        "",
        "",
    ]
    assert sorted(line for line in new.split("\n") if line.startswith("  + ")) == [
        "  + def larger(a: int, b: int = 1) -> int:",
        "  + return a + 1",
        "  + return a - 2",
    ]
    assert done.stdout.count("test_alone_it_fails fails without a mutant, too") == 2
    assert (tmp_path / "small.py").read_text() == CODE
