"""Tests of `gpushare_plugin.programs.node.daemon` that need no process of their own; `test_daemon` has the others."""

import asyncio
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.programs.node import daemon as app
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.nodes import Cards, a_node
from tests.unit.sharing.settings import GPU_MEM

SETTINGS = """\
health: {rescanSeconds: 0.05, probeSeconds: 0.05}
sharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}
"""


class BreaksOnce(Cards):
    """GPUs whose second look returns what nobody thought of, and whose later looks are fine."""

    looks = 0

    def read(self) -> Inventory:
        """Return something that is no inventory, the second time."""
        self.looks += 1
        return cast("Inventory", "nonsense") if self.looks == 2 else self.inventory


@pytest.fixture
def settings(tmp_path: Path) -> Configs:
    """Return settings under which the second look comes soon."""
    file = tmp_path / "config.yaml"
    file.write_text(SETTINGS)
    return Configs(file=file)


@pytest.fixture
def log() -> Iterator[list[MutableMapping[str, Any]]]:
    """Record what is logged, of every level."""
    before = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as events:
        yield events
    structlog.configure(**before)


async def test_a_task_that_breaks_is_loud_and_begins_again(
    kubelet: EmbeddedKubelet, settings: Configs, log: list[MutableMapping[str, Any]]
) -> None:
    """A defect in one place is told with its stack, ends nothing else, and does not stay for ever."""
    cards = BreaksOnce(a_node(8192))
    daemon = asyncio.create_task(app.serve(app.Daemon(settings, lambda _: cards, kubelet.plugin_directory)))
    await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
    cards.inventory = a_node(8192, 8192)
    await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 16})
    daemon.cancel()
    await asyncio.wait([daemon])
    (broken,) = [each for each in log if "this is a defect" in each["event"]]
    assert (broken["task"], broken["log_level"]) == ("rescan", "error")
    assert broken["exc_info"]


async def test_probes_that_cannot_be_served_do_not_keep_the_node_from_it(
    kubelet: EmbeddedKubelet, settings: Configs
) -> None:
    """Somebody else has the port: pods get their GPUs all the same."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = asyncio.create_task(
            app.serve(
                app.Daemon(settings, lambda _: Cards(a_node(8192)), kubelet.plugin_directory, http_address=address)
            )
        )
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
        assert not daemon.done()
        daemon.cancel()
        await asyncio.wait([daemon])
