"""Tests of `sockets`: names that fit, and those that do not."""

import re
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.socket_path import LONGEST_SOCKET_PATH
from gpushare_plugin.kubelet.dra_plugin.sockets import SocketPaths
from tests.unit.kubelet.dra_plugin.serving import Claims, plugin_node
from tests.unit.testing.dra.driver import DRIVER

UID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


def test_the_usual_root_of_a_kubelet_has_room_for_the_uid_of_a_pod() -> None:
    """Both names carry the UID, so that people find the pod; no process has names that another one had."""
    first, second = (SocketPaths(Path("/var/lib/kubelet"), "gpu.gpushare.io", UID) for _ in range(2))
    registry = rf"/var/lib/kubelet/plugins_registry/gpu\.gpushare\.io-{UID}~[0-9a-f]{{4}}-reg\.sock"
    assert re.fullmatch(registry, str(first.registration))
    assert re.fullmatch(
        rf"/var/lib/kubelet/plugins/gpu\.gpushare\.io/dra-{UID}~[0-9a-f]{{4}}\.sock", str(first.endpoint)
    )
    assert (first.registration, first.endpoint) != (second.registration, second.endpoint)


def test_without_an_instance_the_names_are_shorter() -> None:
    """As where a daemon has no pod."""
    paths = SocketPaths(Path("/k"), DRIVER, "")
    assert re.fullmatch(rf"{re.escape(DRIVER)}~[0-9a-f]{{4}}-reg\.sock", paths.registration.name)
    assert re.fullmatch(r"dra~[0-9a-f]{4}\.sock", paths.endpoint.name)


@pytest.mark.parametrize(("root", "driver"), [("/r" * 30, DRIVER), ("/r" * 12, "d" * 40)])
def test_a_path_too_long_is_refused_with_its_directory(root: str, driver: str) -> None:
    """And with what to change."""
    with pytest.raises(GpushareError, match=rf"{root}/plugins_registry, has \d+ bytes.*`dra\.driver`"):
        SocketPaths(Path(root), driver, UID)


async def test_the_longest_path_that_is_not_refused_is_served(short_path: Path) -> None:
    """The kernel takes it, and the kubelet reaches it."""
    rest = len(f"/plugins_registry/{DRIVER}-{UID}~0000-reg.sock")
    root = short_path / ("r" * (LONGEST_SOCKET_PATH - rest - len(f"{short_path}/")))
    root.mkdir()
    async with plugin_node(root) as its, its.plugin(Claims(), UID) as plugin:
        assert len(bytes(its.registration)) == LONGEST_SOCKET_PATH
        await its.until_registered(plugin)
