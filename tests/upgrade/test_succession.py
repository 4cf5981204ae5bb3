"""A daemon of one build beside which a daemon of another build is started, as a rolling update with a surge does."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.process.daemon import Argument, Daemon, process
from tests.upgrade.builds import Build
from tests.upgrade.memory import MEMORY

UNITS = {MEMORY: 24}


def daemon(kubelet: EmbeddedKubelet, build: Build, *more: Argument) -> AbstractAsyncContextManager[Daemon]:
    """Run the daemon of a build for a kubelet, with one simulated GPU."""
    gpus = kubelet.plugin_directory.parent / "gpus.yaml"
    gpus.write_text("gpus: [{memory: 24GiB}]\n")
    sockets = ("--device-plugin-path", kubelet.plugin_directory, "--pod-resources-socket", kubelet.pod_resources_socket)
    return process("run", *sockets, "--simulate", gpus, *more, environment=build.environment)


@pytest.mark.parametrize("first", ["old", "new"])
async def test_a_daemon_that_stands_by_follows_one_of_any_build(
    short_path: Path, old: Build, new: Build, first: str
) -> None:
    """Pods keep their units, and others get theirs from the daemon that follows; an old one ends as it always did."""
    build, lost = (old, 1) if first == "old" else (new, 0)
    async with EmbeddedKubelet(short_path, knows_sockets=True) as kubelet, daemon(kubelet, build) as before:
        await before.advertises(kubelet, UNITS)
        await kubelet.admit(Pod("before", [Container("main", {MEMORY: 5})]))
        held = kubelet.held(MEMORY)
        async with daemon(kubelet, new, "--stand-by", "true") as after:
            await after.logged("standing_by")
            assert await before.stop() == 0
            await after.logged("resource_registered", resource=MEMORY)
            await kubelet.wait_for(lambda seen: len(seen.disconnections) >= lost)
            await after.advertises(kubelet, UNITS)
            assert kubelet.held(MEMORY) == held
            await kubelet.admit(Pod("after", [Container("main", {MEMORY: 19})]))
            assert after.events("resource_registered")[0]["count"] == UNITS[MEMORY]
            assert await after.stop() == 0


async def test_an_old_daemon_does_not_disturb_a_new_one(short_path: Path, old: Build, new: Build) -> None:
    """A roll-back with a surge ends the old one again and again, and the new one goes on."""
    async with EmbeddedKubelet(short_path) as kubelet, daemon(kubelet, new, "--stand-by", "true") as serving:
        await serving.advertises(kubelet, UNITS)
        async with daemon(kubelet, old) as other:
            assert await other.ended() == 1
            assert "another gpushare" in str(other)
        await kubelet.admit(Pod("pod", [Container("main", {MEMORY: 5})]))
        assert len(kubelet.registrations) == 1
