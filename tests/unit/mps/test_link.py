"""Tests of `gpushare_plugin.mps.link`."""

import asyncio
from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.core.namespaces import ContainerNamespace
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.mps.exchange import MpsGpu, MpsNamespace, MpsRoot, MpsSettings, MpsStatus
from gpushare_plugin.mps.link import MADE_FOR_CLAIM_WITHIN, MADE_WITHIN, MpsLink, MpsView
from gpushare_plugin.node.claims.preparation import WAIT_FOR_ROOM
from gpushare_plugin.testing.kubelet.dra_manager.driver import CALL_SECONDS
from tests.logs import logged
from tests.skipping import SkippingLoop
from tests.unit.mps.roots import UUIDS
from tests.waiting import until

ONE = MpsGpu(uuid=UUIDS[0], memory_limit_mib=4096)
OTHER = MpsGpu(uuid=UUIDS[1], memory_limit_mib=500)
WANTED = MpsSettings(gpus=(ONE, OTHER), active_thread_percentage=25)


def nothing() -> None:
    """Take no notice."""


def test_wanted_settings_are_written_only_if_they_changed(root: MpsRoot) -> None:
    """The file says what is wanted."""
    MpsLink(root, nothing).want(WANTED)
    assert read_message(root.wanted, MpsSettings) == WANTED
    before = root.wanted.stat().st_ino
    MpsLink(root, nothing).want(WANTED)
    assert root.wanted.stat().st_ino == before
    MpsLink(root, nothing).want(MpsSettings())
    assert read_message(root.wanted, MpsSettings) == MpsSettings()


def test_a_node_without_mps_gets_no_file(short_path: Path) -> None:
    """Where nothing is wanted and nothing ever was, not even the root is made."""
    link = MpsLink(MpsRoot(short_path / "mps"), nothing)
    link.want(MpsSettings())
    assert link.view == MpsView()
    assert list(short_path.iterdir()) == []


def test_garbage_is_written_over(root: MpsRoot) -> None:
    """What another process wrote does not keep the plugin from saying what it wants."""
    root.wanted.write_text("garbage")
    MpsLink(root, nothing).want(WANTED)
    assert read_message(root.wanted, MpsSettings) == WANTED


@pytest.mark.parametrize("there", [False, True])
def test_a_status_without_a_supervisor_serves_nothing(root: MpsRoot, *, there: bool) -> None:
    """A status counts only while the lock is held: one that a dead process left says nothing."""
    write_message(root.status, MpsStatus(in_force=WANTED))
    if there:
        root.lock.touch()
    link = MpsLink(root, nothing)
    link.want(WANTED)
    assert set(link.view.unserved) == {ONE.uuid, OTHER.uuid}
    assert f"does not run on this node, or uses another MPS root than {root.path}" in link.view.unserved[ONE.uuid]


def test_a_gpu_that_is_not_served_has_a_reason(root: MpsRoot) -> None:
    """A GPU is served once its very limits are in force; until then the reason is that of gpushare mps, or ours."""
    link = MpsLink(root, nothing)
    with lock(root.lock):
        link.want(WANTED)
        assert link.view.unserved[ONE.uuid] == "gpushare mps has not started to serve this GPU yet"
        write_message(root.status, MpsStatus(in_force=WANTED, not_served={OTHER.uuid: "busy"}))
        link.want(WANTED)
        assert link.view.unserved == {OTHER.uuid: "busy"}
        write_message(root.status, MpsStatus(in_force=WANTED))
        link.want(WANTED)
        assert link.view == MpsView()
        link.want(WANTED.model_copy(update={"active_thread_percentage": 50}))
        assert link.view.unserved[ONE.uuid] == "gpushare mps has not set the limits of this GPU yet"
        write_message(root.status, MpsStatus(trouble="I cannot read"))
        link.want(WANTED)
        assert link.view.unserved[ONE.uuid] == "I cannot read"


def test_gpus_that_linger_are_named(root: MpsRoot) -> None:
    """A GPU that is wanted no more, but not free yet, must not be given out otherwise."""
    link = MpsLink(root, nothing)
    with lock(root.lock):
        write_message(root.status, MpsStatus(in_force=WANTED))
        link.want(WANTED.without([OTHER.uuid]))
        assert link.view == MpsView(lingering=frozenset({OTHER.uuid}))


@pytest.mark.parametrize("content", [b"garbage", b'{"version": 3}', b"\0" * (1 << 20)])
def test_a_status_that_makes_no_sense_is_no_service(root: MpsRoot, content: bytes) -> None:
    """Garbage is reported in words, with the file, and serves nothing."""
    root.status.write_bytes(content)
    link = MpsLink(root, nothing)
    with lock(root.lock):
        link.want(WANTED)
    assert "cannot be read" in link.view.unserved[ONE.uuid]
    assert str(root.status) in link.view.unserved[ONE.uuid]


async def test_a_change_of_the_status_is_told_once(root: MpsRoot) -> None:
    """A watcher hears of each change; nobody looks before anything was wanted."""
    told: list[MpsView] = []
    link = MpsLink(root, lambda: told.append(link.view), every=0.01)
    watching = asyncio.create_task(link.watch())
    try:
        with lock(root.lock):
            link.want(WANTED)
            write_message(root.status, MpsStatus(in_force=WANTED))
            await until(lambda: told == [MpsView()])
        await until(lambda: len(told) == 2)
        assert set(told[1].unserved) == {ONE.uuid, OTHER.uuid}
        link.want(MpsSettings())
        await until(lambda: len(told) == 2 and link.view == MpsView())
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def test_settings_that_cannot_be_written_are_written_later(short_path: Path) -> None:
    """A root that cannot be made is a reason in words, and is tried again."""
    (short_path / "run").touch()
    root = MpsRoot(short_path / "run" / "mps")
    link = MpsLink(root, nothing, every=0.01)
    link.want(WANTED)
    assert "gpushare mps" in link.view.unserved[ONE.uuid]
    watching = asyncio.create_task(link.watch())
    try:
        (short_path / "run").unlink()
        await until(root.wanted.exists)
        assert read_message(root.wanted, MpsSettings) == WANTED
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def test_two_files_that_make_no_sense_are_warned_of_once_each(root: MpsRoot) -> None:
    """However often they are read in turn."""
    root.wanted.write_text("garbage")
    root.modes.write_text("garbage")
    with logged() as events:
        link = MpsLink(root, nothing)
        for _ in range(3):
            link.wanted_before()
    assert len(events) == 2


SMALL = ContainerNamespace("c_small", 500)
MADE = MpsNamespace(name="c_small", memory_limit_mib=500)
WITH_NAMESPACE = MpsSettings(gpus=(ONE,), protocol=3, namespaces=(MADE,), revision=4)


@pytest.mark.parametrize(
    ("in_force", "words"),
    [
        (WITH_NAMESPACE, ""),
        (WITH_NAMESPACE.model_copy(update={"revision": 5}), ""),
        (WITH_NAMESPACE.model_copy(update={"revision": 3}), "it must wait"),
        (WITH_NAMESPACE.model_copy(update={"namespaces": ()}), "it must wait"),
        (
            WITH_NAMESPACE.model_copy(update={"namespaces": (MADE.model_copy(update={"memory_limit_mib": 501}),)}),
            "it must wait",
        ),
    ],
)
async def test_a_namespace_is_made_once_it_has_its_limits(root: MpsRoot, in_force: MpsSettings, words: str) -> None:
    """What an older revision made may have been deleted since: only a status that knows the request counts."""
    link = MpsLink(root, nothing)
    link.want(WITH_NAMESPACE)
    write_message(root.status, MpsStatus(in_force=in_force, problem="it must wait"))
    with lock(root.lock):
        missing = await link.until_made([SMALL], 0.01)
    assert missing == (words and f"the MPS namespace c_small does not exist with its limits: {words}")
    assert "gpushare mps does not run" in await link.until_made([SMALL], 0.01)


async def test_another_daemon_can_request_a_namespace(root: MpsRoot) -> None:
    """As the daemon that serves the node does for a claim which the daemon that stands by prepares."""
    link = MpsLink(root, nothing)
    write_message(root.status, MpsStatus(in_force=WITH_NAMESPACE))
    with lock(root.lock):
        assert "has not requested it yet" in await link.until_made([SMALL], 0.01)
        MpsLink(root, nothing).want(WITH_NAMESPACE)
        assert not await link.until_made([SMALL], 0.01)


def test_namespaces_are_waited_for_in_all_as_long_as_for_one(root: MpsRoot) -> None:
    """A claim with namespaces for many containers is answered before the kubelet gives up."""
    many = [ContainerNamespace(f"c_{number}", 500) for number in range(32)]

    async def wait() -> float:
        link = MpsLink(root, nothing)
        link.want(WITH_NAMESPACE)
        assert "the MPS namespace c_0 does not exist" in await link.until_made(many)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        assert runner.run(wait()) == pytest.approx(MADE_FOR_CLAIM_WITHIN, abs=0.2)


def test_a_claim_waits_for_a_slow_mps(root: MpsRoot) -> None:
    """A refusal would cost a minute, and the kubelet waits 45 s: longer than before the start of a container."""

    async def wait() -> str:
        link = MpsLink(root, nothing)
        link.want(WITH_NAMESPACE)
        made = MpsStatus(in_force=WITH_NAMESPACE)
        asyncio.get_running_loop().call_later(2 * MADE_WITHIN, write_message, root.status, made)
        return await link.until_made([SMALL])

    with lock(root.lock), asyncio.Runner(loop_factory=SkippingLoop) as runner:
        assert not runner.run(wait())
    assert WAIT_FOR_ROOM + MADE_FOR_CLAIM_WITHIN < CALL_SECONDS


def test_gpus_by_another_protocol_are_not_served(root: MpsRoot) -> None:
    """An older `gpushare mps`, or a daemon that still has clients, serves no container that needs a namespace."""
    link = MpsLink(root, nothing)
    write_message(root.status, MpsStatus(in_force=MpsSettings(gpus=(ONE,))))
    with lock(root.lock):
        link.want(WITH_NAMESPACE)
    assert link.view.unserved == {ONE.uuid: "gpushare mps runs MPS with protocol 2, not with protocol 3 yet"}
