"""The Prometheus that has scraped a simulated cluster."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from generators.recorded import costs
from tests.monitoring.simulated_cluster import EVERY, SCRAPES, samples
from tests.monitoring.tools import Simulated, prometheus, with_recorded, with_samples


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def simulated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Simulated]:
    """Run one Prometheus for all tests here."""
    folder = tmp_path_factory.mktemp("prometheus")
    end = float(time.time() // 60 * 60)  # Prometheus keeps nothing that is old, and looks at full minutes for sums
    await asyncio.to_thread(with_samples, folder, samples(end))
    await with_recorded(folder, dict(costs()), end - EVERY * (SCRAPES - 1), end, EVERY)
    async with prometheus(folder) as ask:
        yield Simulated(ask, end)
