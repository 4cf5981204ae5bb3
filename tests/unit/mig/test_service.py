"""Tests of `gpushare_plugin.mig.service`; the process as a whole is tested in `tests/process`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.gpus.exchange import AlreadyRunningError, ExchangeError, read_message, write_message
from gpushare_plugin.gpus.nvml.partitions import NvmlPartitions
from gpushare_plugin.mig.exchange import CardStatus, MigOrder, MigRoot, MigStatus, WantedCard
from gpushare_plugin.mig.reconciler import MigPace
from gpushare_plugin.mig.service import serve
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu
from tests.logs import logged
from tests.unit.gpus.conftest import Node
from tests.waiting import until

PACE = MigPace(look=0.01, ask=0.05, first=0.02, most=0.05)
CARD = FakeGpu(mig_enabled=True, mig_profiles="A100-40GB")
UNKNOWN = "GPU-00000000-0000-4000-8000-00000000ffff"


@pytest.fixture
def root(tmp_path: Path) -> MigRoot:
    """Return a root that is not there yet."""
    return MigRoot(tmp_path / "run/mig")


@contextlib.asynccontextmanager
async def serving(root: MigRoot, driver: NvmlPartitions) -> AsyncIterator[list[Any]]:
    """Serve until the end of the block; yield the events of the log."""
    with logged() as told:
        task = asyncio.create_task(serve(root, driver, PACE))
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.wait([task])


def order(root: MigRoot, revision: int, *gpus: WantedCard) -> None:
    """Write an order, as the daemon does."""
    root.path.mkdir(parents=True, exist_ok=True)
    write_message(root.wanted, MigOrder(revision=revision, gpus=gpus))


def status(root: MigRoot) -> MigStatus:
    """Return what is reported now."""
    return read_message(root.status, MigStatus) or MigStatus()


def places(card: CardStatus | None) -> list[str]:
    """Return where a card has instances."""
    return [each.place for each in card.instances] if card else []


async def test_every_card_is_reported_before_orders_are_followed(
    root: MigRoot, driver: NvmlPartitions, describe: Node
) -> None:
    """The service is ready while all is done."""
    node = describe([CARD, CARD])
    first, second = (gpu.uuid for gpu in node.gpus)
    async with serving(root, driver) as told:
        await until(lambda: (card := status(root).card(second)) is not None and card.mig_mode)
        profiles = {each.name: each for each in status(root).gpus[0].profiles}
        assert profiles["3g.20gb"].model_dump() == {
            "name": "3g.20gb", "memory_mib": 19968, "compute": 3, "most": 2, "size": 4, "starts": (0, 4),
        }  # fmt: skip
        order(root, 1, WantedCard(uuid=first, instances=("3g.20gb@4", "1g.5gb@0")))
        await until(lambda: places(status(root).card(first)) == ["1g.5gb@0", "3g.20gb@4"])
        made = status(root).card(first)
        assert made is not None
        assert (status(root).revision, made.created, made.destroyed, made.reason) == (1, 2, 0, None)
        assert root.ready.exists()
        assert root.alive.exists()
        gone = made.instances[1].uuids
        order(root, 2, WantedCard(uuid=first, instances=("1g.5gb@0",), removable=gone), WantedCard(uuid=UNKNOWN))
        await until(lambda: places(status(root).card(first)) == ["1g.5gb@0"])
        await until(lambda: (card := status(root).card(UNKNOWN)) is not None and card.reason)
        await until(lambda: not root.ready.exists())
        assert places(status(root).card(second)) == []
    assert [each["event"] for each in told if each["event"].startswith("mig_instance")] == [
        "mig_instance_created", "mig_instance_created", "mig_instance_destroyed",
    ]  # fmt: skip
    assert not root.status.exists()
    assert not root.ready.exists()
    assert not root.alive.exists()


async def test_a_card_that_fails_stops_no_other(root: MigRoot, driver: NvmlPartitions, describe: Node) -> None:
    """The reason is reported and logged once; the card is tried again, and done as soon as that works."""
    node = describe([CARD, CARD])
    bad, good = (gpu.uuid for gpu in node.gpus)
    node.fail(0, "nvmlDeviceCreateGpuInstanceWithPlacement", ErrorCode.NO_PERMISSION)
    order(root, 1, *(WantedCard(uuid=uuid, instances=("7g.40gb@0",)) for uuid in (bad, good)))
    async with serving(root, driver) as told:
        await until(lambda: places(status(root).card(good)) == ["7g.40gb@0"])
        failing = status(root).card(bad)
        assert failing is not None
        assert "SYS_ADMIN" in (failing.reason or "")
        before = node.calls()["nvmlDeviceCreateGpuInstanceWithPlacement"]
        await until(lambda: node.calls()["nvmlDeviceCreateGpuInstanceWithPlacement"] > before + 1)
        node.recover(0)
        await until(lambda: places(status(root).card(bad)) == ["7g.40gb@0"])
        await until(root.ready.exists)
    assert len([each for each in told if each["event"] == "mig_not_done"]) == 1


async def test_an_order_that_cannot_be_read_changes_nothing(
    root: MigRoot, driver: NvmlPartitions, describe: Node
) -> None:
    """What was wanted last counts on, and the status says what is wrong with the file."""
    node = describe([CARD])
    order(root, 1, WantedCard(uuid=node.gpus[0].uuid, instances=("7g.40gb@0",)))
    async with serving(root, driver):
        await until(lambda: places(status(root).card(node.gpus[0].uuid)) == ["7g.40gb@0"])
        root.wanted.write_text("{}}")
        await until(lambda: status(root).trouble)
        assert status(root).revision == 1
        order(root, 2)
        await until(lambda: status(root).revision == 2)
        assert status(root).trouble is None


async def test_an_order_is_acknowledged_before_it_is_followed(
    root: MigRoot, driver: NvmlPartitions, describe: Node
) -> None:
    """While a driver takes its time for an order, its revision is reported, and no later one."""
    node = describe([CARD])
    node.hang("nvmlDeviceCreateGpuInstanceWithPlacement")
    order(root, 5, WantedCard(uuid=node.gpus[0].uuid, instances=("7g.40gb@0",)))
    async with serving(root, driver):
        await until(lambda: node.calls()["nvmlDeviceCreateGpuInstanceWithPlacement"])
        assert status(root).revision == 5
        order(root, 6)
        looks = node.calls()["nvmlDeviceGetCount_v2"]
        assert status(root).revision == 5
        node.go_on()
        await until(lambda: status(root).revision == 6)
        await until(lambda: node.calls()["nvmlDeviceGetCount_v2"] > looks)
        assert places(status(root).card(node.gpus[0].uuid)) == ["7g.40gb@0"]


async def test_the_service_waits_for_a_driver(root: MigRoot, driver: NvmlPartitions, describe: Node) -> None:
    """The status says what is missing; once the driver is loaded, it goes on."""
    node = describe([CARD], failures={"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED})
    async with serving(root, driver):
        await until(lambda: "NVML cannot be used" in (status(root).trouble or ""))
        assert not root.ready.exists()
        node.recover()
        await until(lambda: status(root).trouble is None and status(root).gpus)


async def test_a_second_process_touches_nothing(root: MigRoot, driver: NvmlPartitions) -> None:
    """One process divides the GPUs of a host; whoever is refused is told who runs."""
    root.path.mkdir(parents=True)
    root.status.write_text("{}")
    with lock(root.lock), pytest.raises(AlreadyRunningError, match=r"another gpushare mig \(process .*MIG root"):
        await serve(root, driver)
    assert root.status.exists()


async def test_a_root_that_cannot_be_used_is_told_in_a_sentence(tmp_path: Path, driver: NvmlPartitions) -> None:
    """With that sentence the process ends."""
    (tmp_path / "file").touch()
    with pytest.raises(ExchangeError, match=r"the MIG root .* cannot be used"):
        await serve(MigRoot(tmp_path / "file/mig"), driver)
