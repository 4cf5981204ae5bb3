"""Tests of `gpushare_plugin.driver_limits.service`; the process as a whole is tested in `tests/process`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.driver_limits.exchange import LimitOrder
from gpushare_plugin.driver_limits.gpu import GpuLimits, LimitsPace
from gpushare_plugin.driver_limits.reservations import ReservationCheck
from gpushare_plugin.driver_limits.service import serve
from gpushare_plugin.driver_limits.work import Report
from gpushare_plugin.gpus.cgroups import Kubepods
from gpushare_plugin.gpus.exchange import AlreadyRunningError, ExchangeError, write_message
from gpushare_plugin.testing.nvml import ErrorCode
from gpushare_plugin.testing.nvml.node import LimitBackend
from tests.logs import logged
from tests.unit.driver_limits.conftest import GPU, OTHER, NodeWithLimits, container_id, wanted
from tests.waiting import until

PACE = LimitsPace(look=0.01, ask=0.05, first=0.02, most=0.05, patience=0.2)
GET, SET = "nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"
TWO = MemoryLimit(2048 * MIB)

both_backends = pytest.mark.parametrize("backend", ["misc", "dmem"])


@contextlib.asynccontextmanager
async def serving(node: NodeWithLimits, pace: LimitsPace = PACE) -> AsyncIterator[list[Any]]:
    """Serve until the end of the block; yield the events of the log."""
    with logged() as told:
        task = asyncio.create_task(serve(node.root, node.limits, node.cgroups.root, pace))
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.wait([task])


def events(told: list[Any], name: str) -> list[Any]:
    """Return the lines of one event."""
    return [each for each in told if each["event"] == name]


@both_backends
async def test_each_container_gets_its_limits_on_each_of_its_gpus(node: NodeWithLimits) -> None:
    """Different containers have different limits, and the agent is ready when all have theirs."""
    one, two = node.container(1), node.container(2)
    node.order(wanted(1, 2048), wanted(2, 4096, 0, GPU, OTHER))
    async with serving(node) as told:
        await until(lambda: node.is_set(1) and node.is_set(2) and node.is_set(2, OTHER))
        await until(node.root.ready.exists)
        assert node.limits.read(GPU, one).limit == TWO
        assert {node.limits.read(uuid, two).limit for uuid in (GPU, OTHER)} == {MemoryLimit(4096 * MIB)}
        assert all(gpu.proven and gpu.reason is None for gpu in node.status.gpus)
        assert node.root.alive.exists()
        late = node.of(1).late
        assert late is not None
        assert 0 <= late < 60
    assert len(events(told, "driver_limit_set")) == 3
    assert not node.root.ready.exists()
    assert not node.root.alive.exists()
    assert node.limits.read(GPU, one).limit == TWO, "running containers keep their limits"


@both_backends
async def test_a_limit_of_the_hook_is_left_and_was_in_effect_at_once(node: NodeWithLimits) -> None:
    """What is there at the first look is not set again."""
    node.limits.set(GPU, node.container(1), TWO)
    before = node.fake.calls()[SET]
    node.order(wanted(1, 2048), gpus=())
    async with serving(node) as told:
        await until(lambda: node.is_set(1))
        assert node.of(1).late == 0
        assert node.fake.calls()[SET] == before
    assert not events(told, "driver_limit_set")


@both_backends
async def test_a_container_without_limit_loses_what_an_earlier_cgroup_left(node: NodeWithLimits) -> None:
    """The kernel may give a new cgroup the address of an old one, whose limits the driver still has."""
    node.limits.set(GPU, node.container(1), TWO)
    node.order(wanted(1))
    async with serving(node):
        await until(lambda: node.is_set(1))
        assert node.limits.read(GPU, node.container(1)).limit == NO_LIMIT


@both_backends
async def test_a_limit_removed_behind_our_back_is_put_right_and_told(node: NodeWithLimits) -> None:
    """The next look finds the difference, says what was found, and counts it."""
    cgroup = node.container(1)
    node.order(wanted(1, 2048))
    async with serving(node) as told:
        await until(lambda: node.is_set(1))
        node.limits.set(GPU, cgroup, NO_LIMIT)
        await until(lambda: node.of(1).corrected == 1)
        assert node.limits.read(GPU, cgroup).limit == TWO
        (line,) = events(told, "driver_limit_changed")
        assert (line["found"], line["limit"]) == ("no limit", "a hard limit of 2048 MiB")
        assert line["container_id"] == container_id(1)


async def test_limits_come_back_after_a_restart_of_the_driver(node: NodeWithLimits) -> None:
    """The driver's own account is empty then; all containers get their limits again."""
    cgroups = [node.container(number) for number in (1, 2)]
    node.order(wanted(1, 2048), wanted(2, 2048))
    async with serving(node):
        await until(lambda: node.is_set(1) and node.is_set(2))
        node.fake.path.with_suffix(node.fake.path.suffix + ".limits").write_bytes(b"")
        await until(lambda: node.of(1).corrected == node.of(2).corrected == 1)
        assert {node.limits.read(GPU, each).limit for each in cgroups} == {TWO}


async def test_the_log_says_why_no_limits_are_wanted(node: NodeWithLimits) -> None:
    """The daemon's own reason, once it has ordered nothing because of it; until then what it needs to order."""
    async with serving(node) as told:
        await until(lambda: events(told, "driver_limits_waiting"))
        node.root.path.mkdir(parents=True, exist_ok=True)
        write_message(node.root.wanted, LimitOrder(missing="there is no /cgroup"))
        await until(lambda: len(events(told, "driver_limits_waiting")) == 2)
    before, after = (each["reason"] for each in events(told, "driver_limits_waiting"))
    assert before.startswith("gpushare run has not ordered limits yet")
    assert after == "gpushare run wants no limits on this node, because it found that there is no /cgroup"


async def test_a_container_that_starts_later_is_set_when_it_appears(node: NodeWithLimits) -> None:
    """A container without a cgroup is no fault: it has not started, or has ended."""
    node.container(1)
    node.order(wanted(1, 2048), wanted(2, 2048))
    async with serving(node):
        await until(lambda: node.is_set(1))
        await until(node.root.ready.exists)
        assert "cgroup of the container is not found" in (node.of(2).reason or "")
        node.container(2)
        await until(lambda: node.is_set(2))


async def test_a_changed_order_changes_the_limit_of_a_running_container(node: NodeWithLimits) -> None:
    """The new limit is no correction."""
    cgroup = node.container(1)
    node.order(wanted(1, 2048))
    async with serving(node) as told:
        await until(lambda: node.is_set(1))
        node.order(wanted(1, 4096))
        await until(lambda: node.of(1).hard_mib == 4096 and node.is_set(1))
        assert node.limits.read(GPU, cgroup).limit == MemoryLimit(4096 * MIB)
        assert node.of(1).corrected == 0
    assert not events(told, "driver_limit_changed")


@pytest.mark.parametrize("code", [ErrorCode.IN_USE, ErrorCode.NO_PERMISSION])
async def test_a_refusal_is_reported_and_tried_again(node: NodeWithLimits, code: ErrorCode) -> None:
    """The reason stays in the status, the log has it once, and other GPUs go on."""
    node.container(1)
    node.order(wanted(1, 2048, 0, GPU, OTHER))
    node.fake.fail(0, SET, code)
    async with serving(node) as told:
        await until(lambda: node.is_set(1, OTHER))
        await until(lambda: "cannot be set to a hard limit of 2048 MiB" in (node.of(1).reason or ""))
        before = node.fake.calls()[SET]
        await until(lambda: node.fake.calls()[SET] > before + 2)
        assert node.of(1).late is None
        assert not node.root.ready.exists()
        node.fake.recover(0)
        await until(lambda: node.is_set(1))
        await until(node.root.ready.exists)
    assert len(events(told, "driver_limit_not_set")) == 1


@pytest.mark.parametrize("backend", ["off"])
async def test_a_driver_that_cannot_limit_is_reported_for_each_gpu(node: NodeWithLimits) -> None:
    """Only a limit that was set and read back counts as proof; nothing is ready without."""
    node.container(1)
    node.order()
    async with serving(node) as told:
        await until(lambda: [gpu.reason for gpu in node.status.gpus].count(None) == 0 and node.status.gpus)
        assert all("limits no memory here" in (gpu.reason or "") for gpu in node.status.gpus)
        assert not node.root.ready.exists()
        assert len(events(told, "driver_limits_impossible")) == 2


@both_backends
async def test_the_proof_changes_no_limit(node: NodeWithLimits) -> None:
    """A limit that people gave to all pods stays."""
    node.container(1)
    top = node.cgroups.root / "kubepods.slice"
    node.limits.set(GPU, top, MemoryLimit(8192 * MIB))
    node.order()
    async with serving(node):
        await until(lambda: node.status.gpus and all(gpu.proven for gpu in node.status.gpus))
        assert node.limits.read(GPU, top).limit == MemoryLimit(8192 * MIB)
        assert node.limits.read(OTHER, top).limit == NO_LIMIT


async def test_an_order_that_cannot_be_read_changes_nothing(node: NodeWithLimits) -> None:
    """The limits of the last readable order are kept, and the status says what is wrong with the file."""
    cgroup = node.container(1)
    node.order(wanted(1, 2048))
    async with serving(node):
        await until(lambda: node.is_set(1))
        node.root.wanted.write_text("{}}")
        await until(lambda: node.status.trouble)
        node.limits.set(GPU, cgroup, NO_LIMIT)
        await until(lambda: node.of(1).corrected == 1)
        node.order(wanted(1, 4096))
        await until(lambda: node.status.trouble is None and node.of(1).hard_mib == 4096)


async def test_a_container_that_is_no_longer_wanted_keeps_its_limit_while_it_runs(node: NodeWithLimits) -> None:
    """A daemon that has just started may not know all containers yet. An ended container leaves nothing behind."""
    cgroup = node.container(1)
    (cgroup / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    node.order(wanted(1, 2048))
    async with serving(node):
        await until(lambda: node.is_set(1))
        node.order()
        await until(lambda: node.status.containers == ())
        looks = node.fake.calls()[GET]
        node.container(2)
        node.order(wanted(2, 1024))
        await until(lambda: node.is_set(2))
        assert node.limits.read(GPU, cgroup).limit == TWO
        assert node.fake.calls()[GET] >= looks
        (cgroup / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        await until(lambda: node.limits.read(GPU, cgroup).limit == NO_LIMIT)


async def test_a_restarted_agent_knows_how_late_limits_were(node: NodeWithLimits) -> None:
    """A limit that is there at the first look of the second process was set by the first, and not by a hook."""
    cgroup = node.container(1)
    node.order(wanted(1, 2048))
    async with serving(node):
        await until(lambda: node.is_set(1))
    told = node.of(1).model_copy(update={"late": 7.5, "corrected": 2})
    before = node.status
    container = before.containers[0].model_copy(update={"gpus": (told,)})
    node.root.status.write_text(before.model_copy(update={"containers": (container,)}).model_dump_json())
    node.limits.set(GPU, cgroup, NO_LIMIT)
    async with serving(node) as log:
        await until(lambda: node.of(1).corrected == 3)
        assert len(events(log, "driver_limit_changed")) == 1
    node.root.status.write_text(before.model_copy(update={"containers": (container,)}).model_dump_json())
    async with serving(node):
        await until(node.root.ready.exists)
        assert (node.of(1).late, node.of(1).corrected) == (7.5, 2)


async def test_a_card_that_does_not_answer_delays_no_other(node: NodeWithLimits) -> None:
    """The status says which GPU waits for the driver, other GPUs go on, and the end does not wait for ever."""
    node.container(1)
    node.limits.set(OTHER, node.container(2), TWO)
    node.fake.hang(SET)
    node.order(wanted(1, 2048), wanted(2, 2048, 0, OTHER), gpus=(GPU,))
    async with serving(node) as told:
        await until(lambda: "has not returned" in (node.status.gpus[0].reason or "") if node.status.gpus else False)
        await until(lambda: node.is_set(2, OTHER))
        assert not node.root.ready.exists()
        node.fake.go_on()
        await until(lambda: node.is_set(1))
        await until(node.root.ready.exists)
    assert [each["uuid"] for each in events(told, "driver_silent")] == [GPU]


async def test_looks_at_other_gpus_go_on_before_a_gpu_counts_as_silent(node: NodeWithLimits) -> None:
    """A call that has not returned yet keeps no other GPU from its next look, however long the patience is."""
    node.container(1)
    node.limits.set(OTHER, node.container(2), TWO)
    set_before = node.fake.calls()[SET]
    node.fake.hang(SET)
    node.order(wanted(1, 2048), gpus=(GPU,))
    async with serving(node, replace(PACE, patience=3600.0)):
        try:
            await until(lambda: node.fake.calls()[SET] > set_before)
            node.order(wanted(1, 2048), wanted(2, 2048, 0, OTHER), gpus=(GPU,))
            await until(lambda: node.is_set(2, OTHER))
            assert node.status.gpus[0].reason is None
        finally:
            node.fake.go_on()


async def test_the_end_does_not_wait_for_a_silent_driver(node: NodeWithLimits) -> None:
    """A call that never returns holds up the end for a limited time."""
    node.container(1)
    node.fake.hang(SET)
    node.order(wanted(1, 2048))
    async with asyncio.timeout(30):
        async with serving(node):
            await until(lambda: any("has not returned" in (gpu.reason or "") for gpu in node.status.gpus))
    node.fake.go_on()


async def test_no_pods_below_the_root_of_cgroups_is_told(node: NodeWithLimits) -> None:
    """A wrong mount is not taken for a node without containers."""
    node.order()
    async with serving(node):
        await until(lambda: "has no cgroups of pods" in (node.status.trouble or ""))
        node.container(1)
        await until(node.root.ready.exists)
        assert node.status.trouble is None


async def test_only_one_process_uses_a_root(node: NodeWithLimits) -> None:
    """The second one says which process has the root; a file in the place of the root is told, too."""
    node.root.path.mkdir(parents=True)
    with lock(node.root.lock), pytest.raises(AlreadyRunningError, match="another gpushare driver-limits"):
        await serve(node.root, node.limits, node.cgroups.root, PACE)
    with lock(node.root.only), pytest.raises(AlreadyRunningError, match="another program of gpushare"):
        await serve(node.root, node.limits, node.cgroups.root, PACE)
    (node.root.path.parent / "file").touch()
    broken = type(node.root)(Path(node.root.path.parent / "file/root"))
    with pytest.raises(ExchangeError, match="root of driver limits"):
        await serve(broken, node.limits, node.cgroups.root, PACE)


# ---------------------------------------------------------------------- burst


def reserved(node: NodeWithLimits, name: str) -> list[int]:
    """Return the MiB that the cgroups of a pod and above reserve, from the pod outwards, on the first GPU."""
    top = node.cgroups.root / "kubepods.slice"
    places = (top / "kubepods-burstable.slice" / name, top / "kubepods-burstable.slice", top)
    return [node.limits.read(GPU, each).limit.soft // MIB for each in places if each.exists()]


@pytest.mark.parametrize("backend", ["dmem"])
async def test_what_an_ended_container_left_reserved_is_given_back(node: NodeWithLimits, backend: LimitBackend) -> None:
    """NVML adds soft limits to the cgroups above, and the end of a container subtracts nothing.

    What the running containers reserve stays.
    """
    assert backend == "dmem"
    node.container(1), node.container(2)
    pod = node.container(2).parent.name
    node.order(wanted(1, 4096, 1024), wanted(2, 8192, 2048))
    async with serving(node) as told:
        await until(lambda: node.is_set(1) and node.is_set(2))
        assert reserved(node, pod) == [2048, 3072, 3072]
        node.remove(1)
        assert reserved(node, pod) == [2048, 3072, 3072], "the stand-in leaves what the driver leaves"
        node.order(wanted(2, 8192, 2048))
        await until(lambda: reserved(node, pod) == [2048, 2048, 2048])
        node.remove(2)
        node.order()
        await until(lambda: reserved(node, pod) == [0, 0])
        looks = node.fake.calls()[GET]
        node.order(gpus=(GPU,))
        await until(lambda: len(node.status.gpus) == 1)
        assert node.fake.calls()[GET] - looks < 100
    assert events(told, "driver_reservation_stale")
    repaired = events(told, "driver_reservation_repaired")
    assert (repaired[0]["found_mib"], repaired[0]["expected_mib"]) == (3072, 2048)


@pytest.mark.parametrize("backend", ["dmem"])
async def test_a_check_that_fails_is_made_again(node: NodeWithLimits, backend: LimitBackend) -> None:
    """No answer about a cgroup, which may be removed at that moment, does not mean that nothing is reserved."""
    assert backend == "dmem"
    pod = node.container(1).parent.name
    node.order(wanted(1, 4096, 1024))
    async with serving(node):
        await until(lambda: node.is_set(1))
        node.fake.fail(0, GET, ErrorCode.UNKNOWN)
        looks = node.fake.calls()[GET]
        node.remove(1)
        node.order()
        await until(lambda: node.fake.calls()[GET] > looks + 2)
        node.fake.recover(0, GET)
        await until(lambda: reserved(node, pod) == [0, 0])


@pytest.mark.parametrize("backend", ["dmem"])
async def test_what_an_agent_that_was_killed_left_reserved_is_given_back(
    node: NodeWithLimits, backend: LimitBackend
) -> None:
    """A container may end while no agent runs; the next agent knows from the status what to look for."""
    assert backend == "dmem"
    node.container(1)
    node.order(wanted(1, 4096, 1024))
    async with serving(node):
        await until(lambda: node.is_set(1))
    node.remove(1)
    node.order()
    async with serving(node):
        await until(lambda: reserved(node, "gone") == [0, 0])


@pytest.mark.parametrize("backend", ["dmem"])
async def test_what_no_agent_ever_saw_is_given_back_on_gpus_with_bursts(
    node: NodeWithLimits, backend: LimitBackend
) -> None:
    """The order tells on which GPUs containers may have had bursts, whatever the config says of the GPU now."""
    assert backend == "dmem"
    for uuid in (GPU, OTHER):
        node.limits.set(uuid, node.container(1), MemoryLimit(4096 * MIB, 1024 * MIB))
    node.remove(1)
    node.order(gpus=(OTHER,), bursts=(GPU,))
    async with serving(node):
        await until(lambda: reserved(node, "gone") == [0, 0])
        assert node.limits.read(OTHER, node.cgroups.root / "kubepods.slice").limit.soft == 1024 * MIB


@pytest.mark.parametrize(("bursts", "expected"), [(True, [0, 15, 30, 45]), (False, [])])
def test_without_a_known_container_reserved_memory_is_checked_at_an_interval(
    tmp_path: Path, *, bursts: bool, expected: list[int]
) -> None:
    """Once every 15 seconds where there may have been bursts, and never on other GPUs."""
    seconds, found = 0, []
    gpu = GpuLimits(GPU, LimitsPace(), lambda: seconds)
    for seconds in range(60):
        gpu.want({}, {}, bursts=bursts)
        due = gpu.job(tmp_path, Kubepods(()), offered=False).reservations is not None
        gpu.take(Report(reservations=ReservationCheck() if due else None))
        found += [seconds] if due else []
    assert found == expected


@pytest.mark.parametrize("backend", ["dmem"])
async def test_reservations_of_others_are_left_alone_without_a_burst(
    node: NodeWithLimits, backend: LimitBackend
) -> None:
    """Where no container ever had a soft limit of ours, what other programs reserve is theirs."""
    assert backend == "dmem"
    node.container(1)
    node.limits.set(GPU, node.cgroups.root / "kubepods.slice", MemoryLimit(None, 1024 * MIB))
    node.order(wanted(1, 4096))
    async with serving(node):
        await until(lambda: node.is_set(1))
        looks = node.fake.calls()[GET]
        await until(lambda: node.fake.calls()[GET] > looks + 20)
        assert reserved(node, "gone")[-1] == 1024
