"""Tests of `gpushare_plugin.kubelet.device_plugin.succession`, and of the names of sockets while daemons follow."""

import asyncio
import socket
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import is_locked
from gpushare_plugin.kubelet.device_plugin.directory import AlreadyServedError, PluginDirectory
from gpushare_plugin.kubelet.device_plugin.plugin_socket import socket_name
from gpushare_plugin.kubelet.device_plugin.succession import SUCCESSOR_FILE, Succession
from tests.waiting import until

GPU = "nvidia.com/gpu"


async def ended(succession: Succession) -> None:
    """Be a daemon that serves and ends."""
    async with succession.handing_over(lambda: False):
        pass


async def test_a_daemon_leaves_only_when_the_one_that_stands_by_has_registered(short_path: Path) -> None:
    """The one that follows has the directory from the moment in which the first one begins to end."""
    first, second = PluginDirectory(short_path), PluginDirectory(short_path)
    first.claim()
    following, registered = Succession(second), asyncio.Event()
    assert following.is_needed
    await following.line_up()
    waiting = asyncio.create_task(following.follow())
    ending = asyncio.create_task(ended(Succession(first)))
    await waiting
    with pytest.raises(AlreadyServedError, match=r"takes .* over from this one"):
        first.claim()
    finishing = asyncio.create_task(following.finish(registered.is_set))
    await until(lambda: is_locked(short_path / SUCCESSOR_FILE))
    assert not ending.done()
    registered.set()
    await asyncio.gather(finishing, ending)
    assert not following.takes_over
    second.close()


async def test_a_daemon_without_another_one_ends_at_once(short_path: Path) -> None:
    """Nothing is waited for, and the directory stays claimed until it is closed."""
    directory = PluginDirectory(short_path)
    directory.claim()
    await ended(Succession(directory))
    directory.claim()
    directory.close()
    assert not Succession(directory).is_needed


async def test_a_third_daemon_waits_for_the_second_one(short_path: Path) -> None:
    """One at a time stands by; the place is free when the one that had it is given up."""
    first = PluginDirectory(short_path)
    first.claim()
    second, third = Succession(PluginDirectory(short_path)), Succession(PluginDirectory(short_path))
    await second.line_up()
    waiting = asyncio.create_task(second.follow())
    lining_up = asyncio.create_task(third.line_up())
    await asyncio.sleep(0)
    assert not lining_up.done()
    waiting.cancel()
    await lining_up
    assert third.takes_over
    first.close()


async def test_a_link_in_place_of_the_lock_is_named(short_path: Path) -> None:
    """Its target is not touched, and a daemon that ends takes nobody for its successor."""
    (short_path / SUCCESSOR_FILE).symlink_to(short_path / "target")
    directory = PluginDirectory(short_path)
    with pytest.raises(GpushareError, match=f"{short_path / SUCCESSOR_FILE} cannot be locked to stand by: .*remove"):
        await Succession(directory).line_up()
    await ended(Succession(directory))
    assert not (short_path / "target").exists()


def test_sockets_of_a_living_daemon_stay_and_have_other_names(short_path: Path) -> None:
    """Those of a killed daemon are removed; names take turns, so that no two daemons in a row have the same."""
    directory = PluginDirectory(short_path)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(short_path / "gpushare-killed.sock"))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(short_path / socket_name(GPU, directory)))
        living.listen()
        directory.claim()
        assert {path.name for path in short_path.glob("*.sock")} == {"gpushare-nvidia.com_gpu.sock"}
        assert socket_name(GPU, directory) == "gpushare-nvidia.com_gpu~2.sock"
    directory.close()
    third = PluginDirectory(short_path)
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(short_path / socket_name(GPU, directory)))
        living.listen()
        third.claim()
        assert socket_name(GPU, third) == "gpushare-nvidia.com_gpu.sock"
    third.close()
