"""Fixtures for tests that need sockets or an embedded kubelet."""

import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from structlog.testing import capture_logs

from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.shown import ShownProcesses, shown_processes
from tests.workers import workers

# What the daemon logs is tested on daemons of their own; here it would only bury what failed.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

# Whether a test passes must depend neither on how fast the machine is nor on chance: examples are few, and the same in
# each run.
settings.register_profile(
    "any machine", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# For many others in each run: pytest --hypothesis-profile=explore
settings.register_profile("explore", settings.get_profile("any machine"), max_examples=400, derandomize=False)
settings.load_profile("any machine")

# A run that was started with nohup, or in the background of a script, ignores signals, and so would every program that
# tests start. What handles a signal, if only by doing nothing, hands down its default instead.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


def pytest_xdist_auto_num_workers() -> int:
    """Answer `pytest -n auto`."""
    return workers()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests marked `long`: at the end of a run, most workers would wait for the last of them."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """See that a test leaves the variables and the working directory of this process to the next one as they were."""
    before = _process()
    yield
    assert _process() == before


def _process() -> tuple[dict[str, str], str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return variables, os.getcwd()  # noqa: PTH109 - to be compared


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Make a directory with a short path: Unix socket paths end at 107 characters."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
        yield Path(folder)


@pytest.fixture
async def kubelet(short_path: Path) -> AsyncIterator[EmbeddedKubelet]:
    """Run a kubelet."""
    async with EmbeddedKubelet(short_path) as running:
        yield running


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[ShownProcesses]:
    """Show processes of this machine as those of containers."""
    with shown_processes(tmp_path / "proc") as processes:
        yield processes


@pytest.fixture
def log() -> Iterator[list[MutableMapping[str, Any]]]:
    """Record what is logged, of every level."""
    before = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as events:
        yield events
    structlog.configure(**before)
