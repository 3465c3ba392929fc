"""Plugins for pytest: which tests run which functions, and a run of some tests in some order."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import pytest


class Reach:
    """Records what each test that passes takes, and which functions of some files it runs.

    What a fixture runs counts for all tests that use it. A function is "path:qualified name".
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.result: dict[str, tuple[float, list[str]]] = {}  # test: processor seconds, functions
        self._paths = paths
        self._calls: set[tuple[str, str]] = set()
        self._of_fixtures: dict[int, set[tuple[str, str]]] = {}
        self._failed: set[str] = set()

    def pytest_configure(self) -> None:
        self._root = f"{Path.cwd()}/"
        self._prefixes = tuple(self._root + path for path in self._paths)

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(self._prefixes):
            self._calls.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Iterator[None]:
        outer, self._calls = self._calls, set()
        try:
            return (yield)
        finally:
            self._of_fixtures[id(fixturedef)] = self._calls
            self._calls = outer | self._calls

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Iterator[None]:
        self._calls, start = set(), time.process_time()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            calls = set(self._calls)
            for definitions in item._fixtureinfo.name2fixturedefs.values():
                for definition in definitions:
                    calls |= self._of_fixtures.get(id(definition), set())
            functions = {
                f"{path.removeprefix(self._root)}:{name.split('.<locals>')[0]}"
                for path, name in calls
            }
            if item.nodeid not in self._failed:
                self.result[item.nodeid] = (time.process_time() - start, sorted(functions))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._failed.add(report.nodeid)


class Chosen:
    def __init__(self, tests: Sequence[str]) -> None:
        self.result: list[str] = []  # the tests that failed
        self._order = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: self._order[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes failures."""
        if report.failed:
            self.result.append(report.nodeid)
