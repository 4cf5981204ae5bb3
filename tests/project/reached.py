"""Unit tests that run for `mutants`: all, to learn which mutants each reaches, or a few, to see if one fails.

`python reached.py FILE ARGUMENTS…` runs pytest in the working directory. FILE has a list of the IDs of tests to run,
in their order. Where there is no FILE, all tests run, and it is written: ID, seconds, outcome and mutants of each test.
"""

import json
import resource
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

REACHED = "_reached"
"""The set of `sys` to which statements in front of mutants add the numbers of these."""


MEMORY = 8 << 30
"""Bytes of addresses that a run of tests may have: a mutant may fill the memory without end."""


class Chosen:
    """Runs these tests alone, in this order."""

    def __init__(self, ids: list[str]) -> None:
        """Choose tests by their IDs."""
        self._ids = {each: number for number, each in enumerate(ids)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the others out."""
        items[:] = sorted((each for each in items if each.nodeid in self._ids), key=lambda each: self._ids[each.nodeid])


class Reaching:
    """Notes what each test reaches."""

    def __init__(self) -> None:
        """Have seen no test yet."""
        self.tests: list[tuple[str, float, bool, list[int]]] = []
        self._passed = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test did not pass."""
        self._passed &= report.passed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what one test reaches, its fixtures included."""
        reached: set[int] = sys.__dict__.setdefault(REACHED, set())
        reached.clear()
        self._passed, began = True, time.monotonic()
        result = yield
        self.tests.append((item.nodeid, time.monotonic() - began, self._passed, sorted(reached)))
        return result


def main() -> int:
    """Run pytest and return its exit status."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    file, *arguments = sys.argv[1:]
    sys.path[0] = str(Path.cwd())
    path = Path(file)
    if path.exists():
        return pytest.main(arguments, [Chosen(json.loads(path.read_text()))])
    reaching = Reaching()
    status = pytest.main(arguments, [reaching])
    path.write_text(json.dumps(reaching.tests))
    return status


if __name__ == "__main__":
    sys.exit(main())
