"""Attacks on the files and directories that the daemon reads."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from gpushare_plugin.kubelet.allocations.checkpoint import CHECKPOINT
from gpushare_plugin.kubelet.device_plugin.directory import LOCK_FILE
from tests.process.attack import junk
from tests.process.attack.table import attack
from tests.process.attack.target import MEMORY, Target
from tests.process.daemon import gpushare

_A_LOOK = 2.5
"""Seconds in which the daemon looks at files, and asks the kubelet who holds what, at least once."""
_BELIEVED = 9.0
"""Seconds after which the kubelet would be believed that nobody holds a unit, however new it is."""

_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def _configs(draw: Random) -> bytes:
    """Return the content of a config file that nobody can use."""
    entry = "    - {name: example.com/mem, unit: 3XB, devises: [all], placement: binpak}\n"
    return draw.choice(
        [
            draw.randbytes(1000),
            b"\xff\xfe\x00version: v1",
            b"version: v1\nsharing:\n  memory:\n    resources:\n" + entry.encode() * 2000,
            b"x" * junk.MANY_BYTES,
            b"[" * 5000,
            _BOMB.encode(),
            b"version: v2\n",
            b"version: v1\nversion: v1\n",
            b"- 1\n- 2\n",
            b"version: v1\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem, devices: [99]}]}}\n",
            b"version: !!python/object/apply:os.abort []\n",
            b"? {}\n: &x [*x]\n",
            b"\t",
        ]
    )


@contextlib.asynccontextmanager
async def changing_over(node: Target) -> AsyncIterator[None]:
    """Have GPUs wait for the pods that hold them, so that the kubelet is asked again and again who holds what."""
    node.config.write_text(node.settings(unit="2GiB"))
    node.reload()
    try:
        yield
    finally:
        node.config.write_text(node.settings())
        node.reload()


@attack("config", "kubelet")
async def other_settings(node: Target, draw: Random) -> AsyncIterator[None]:
    """Change the settings again and again, while pods hold what earlier ones offered."""
    await node.hold(MEMORY)
    for unit in (*draw.choices(["512MiB", "GiB", "3GiB"], k=4), "2GiB"):
        node.config.write_text(node.settings(unit))
        node.reload()
        await node.live(draw)
    await asyncio.sleep(_BELIEVED)
    yield
    node.config.write_text(node.settings())
    node.reload()


@attack("config")
async def a_config_nobody_can_use(node: Target, draw: Random) -> AsyncIterator[None]:
    """Put junk, thousands of mistakes or too much into the config: what was offered is offered still."""
    node.config.write_bytes(_configs(draw))
    node.reload()
    await asyncio.sleep(_A_LOOK)
    yield
    node.config.write_text(node.settings())
    node.reload()


@attack("config")
async def no_config_file(node: Target, draw: Random) -> AsyncIterator[None]:
    """Something that is no file in place of the config."""
    with junk.in_place_of(node.config, draw):
        node.reload()
        await asyncio.sleep(_A_LOOK)
        yield
    node.config.write_text(node.settings())
    node.reload()


@attack("config")
async def neighbours_of_the_config(node: Target, draw: Random) -> AsyncIterator[None]:
    """Strange things beside the config in its directory."""
    with contextlib.ExitStack() as stack:
        for number in range(10):
            stack.enter_context(junk.in_place_of(node.config.with_name(f"neighbour {number}\n"), draw))
        node.reload()
        await asyncio.sleep(_A_LOOK)
        yield


@attack("plugin directory")
async def strange_things_in_the_plugin_directory(node: Target, draw: Random) -> AsyncIterator[None]:
    """Pipes, links, directories and sockets of any name, some of them names that look like ours."""
    with contextlib.ExitStack() as stack:
        for number in range(20):
            name = draw.choice([f"gpushare-{number}.sock", f"{number}\n.sock", f"nvidia-{number}.sock", f"{number}"])
            stack.enter_context(junk.in_place_of(node.plugin_directory / name, draw))
        nameless = node.plugin_directory / os.fsdecode(b"\xff\xfe.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(bytes(nameless))
        yield
        nameless.unlink(missing_ok=True)  # a kubelet that starts removes sockets


@attack("plugin directory", "plugin sockets", "nvml", "config")
async def our_sockets_are_removed(node: Target, draw: Random) -> AsyncIterator[None]:
    """Somebody removes the daemon's sockets, or has another one in their place; they are made again."""
    await node.all_served()
    for path in node.sockets:
        if draw.random() < 0.3:
            # In one step: the daemon makes a socket that is missing again at once.
            other = node.folder / "another.sock"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(other))
            other.replace(path)
        else:
            path.unlink(missing_ok=True)
    yield
    await node.all_served()


@attack("plugin directory", "plugin sockets", "nvml", "config", "kubelet")
async def a_directory_in_place_of_our_socket(node: Target, draw: Random) -> AsyncIterator[None]:
    """Nothing can be served where a directory lies: the node is not ready, and says so, until it is gone."""
    await node.all_served()
    path = draw.choice(node.sockets)
    while not path.is_dir():
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # the daemon was quicker
            path.mkdir()
    await node.until_ready(ready=False)
    yield
    path.rmdir()


@attack("plugin directory", "plugin sockets", "nvml", "config")
async def another_lock_file(node: Target, draw: Random) -> AsyncIterator[None]:
    """Have something else in place of the lock of the plugin directory, or a link to a file that must stay as it is."""
    victim = node.folder / "victim"
    victim.write_text("precious")
    lock = node.plugin_directory / LOCK_FILE
    await node.all_served()
    with junk.in_place_of(lock, draw):
        if draw.random() < 0.5:
            junk.remove(lock)
            lock.symlink_to(victim)
        for path in node.sockets:
            path.unlink(missing_ok=True)
        await asyncio.sleep(_A_LOOK)
        yield
        junk.remove(lock)
    for path in node.sockets:
        path.unlink(missing_ok=True)
    await node.all_served()
    assert victim.read_text() == "precious"


@attack("plugin directory", "nvml")
async def a_second_daemon(node: Target, draw: Random) -> AsyncIterator[None]:  # noqa: ARG001 - as all attacks
    """Another daemon for the same kubelet ends at once, and harms nothing."""
    second = await gpushare(*("run", "--device-plugin-path", node.plugin_directory), environment=node.nvml.environment)
    assert second.status == 1
    assert "another gpushare" in second.errors, second.errors
    yield


@attack("kubelet", "config")
async def a_checkpoint_nobody_can_read(node: Target, draw: Random) -> AsyncIterator[None]:
    """Something else in place of the kubelet's checkpoint, just when it has to be read."""
    await node.hold(MEMORY)
    async with changing_over(node):
        with junk.in_place_of(node.plugin_directory / CHECKPOINT, draw):
            await asyncio.sleep(_A_LOOK)
            yield


@attack("mps files")
async def junk_between_the_halves(node: Target, draw: Random) -> AsyncIterator[None]:
    """Something else in place of the files by which the daemon and `gpushare mps` tell each other."""
    with junk.in_place_of(draw.choice([node.root.wanted, node.root.status, node.root.modes]), draw):
        await asyncio.sleep(_A_LOOK)
        yield


@attack("mps files")
async def another_lock_of_mps(node: Target, draw: Random) -> AsyncIterator[None]:
    """Something else in place of the file that `gpushare mps` has locked."""
    with junk.in_place_of(node.root.lock, draw):
        await asyncio.sleep(_A_LOOK)
        yield


@attack("mps files")
async def files_among_the_pipes(node: Target, draw: Random) -> AsyncIterator[None]:
    """Links from the directory of the pipes to somebody's file, which keeps what it holds."""
    victim = node.folder / "victim of MPS"
    victim.write_text("precious")
    paths = [node.root.pipe / name for name in ("log", "nvidia-cuda-mps-control.log", junk.label(draw))]
    for path in paths:
        with contextlib.suppress(FileExistsError):
            path.symlink_to(victim)
    yield
    assert victim.read_text() == "precious"
    for path in paths:
        _unlink_link(path)


def _unlink_link(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
