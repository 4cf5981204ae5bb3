"""Tests of `sockets`: names that fit, and those that do not."""

import re
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.socket_path import LONGEST_SOCKET_PATH
from gpushare_plugin.kubelet.dra_plugin.sockets import SocketPaths
from tests.unit.kubelet.dra_plugin.serving import Claims, plugin_node
from tests.unit.testing.dra.driver import DRIVER


def test_no_process_has_the_names_of_another() -> None:
    """Below the usual root of a kubelet."""
    first, second = (SocketPaths(Path("/var/lib/kubelet"), "gpu.gpushare.io") for _ in range(2))
    registry = r"/var/lib/kubelet/plugins_registry/gpu\.gpushare\.io~[0-9a-f]{4}-reg\.sock"
    assert re.fullmatch(registry, str(first.registration))
    assert re.fullmatch(r"/var/lib/kubelet/plugins/gpu\.gpushare\.io/dra~[0-9a-f]{4}\.sock", str(first.endpoint))
    assert (first.registration, first.endpoint) != (second.registration, second.endpoint)


@pytest.mark.parametrize(("root", "driver"), [("/r" * 31, DRIVER), ("/r" * 18, "d" * 41)])
def test_a_path_too_long_is_refused_with_its_directory(root: str, driver: str) -> None:
    """And with what to change."""
    with pytest.raises(GpushareError, match=rf"{root}/plugins_registry, has \d+ bytes.*`dra\.driver`"):
        SocketPaths(Path(root), driver)


async def test_the_longest_path_that_is_not_refused_is_served(short_path: Path) -> None:
    """The kernel takes it, and the kubelet reaches it."""
    rest = len(f"/plugins_registry/{DRIVER}~0000-reg.sock")
    root = short_path / ("r" * (LONGEST_SOCKET_PATH - rest - len(f"{short_path}/")))
    root.mkdir()
    async with plugin_node(root) as its, its.plugin(Claims()) as plugin:
        assert len(bytes(its.registration)) == LONGEST_SOCKET_PATH
        await its.until_registered(plugin)
