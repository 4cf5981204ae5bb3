"""Fixtures for tests that need sockets or an embedded kubelet."""

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from structlog.testing import capture_logs

from gpushare_plugin.testing.kubelet import EmbeddedKubelet

# What the daemon logs is tested on daemons of their own; here it would only bury what failed.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

# Whether a test passes must depend neither on how fast the machine is nor on chance: examples are the same in each run.
settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
# For others in each run: pytest --hypothesis-profile=explore
settings.register_profile("explore", settings.get_profile("any machine"), derandomize=False)
settings.load_profile("any machine")


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
def log() -> Iterator[list[MutableMapping[str, Any]]]:
    """Record what is logged, of every level."""
    before = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as events:
        yield events
    structlog.configure(**before)
