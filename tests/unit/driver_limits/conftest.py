"""A node whose driver limits the memory of cgroups, for tests."""

from pathlib import Path

import pytest

from gpushare_plugin.driver_limits.exchange import (
    DriverLimitsRoot,
    DriverLimitsStatus,
    LimitOrder,
    LimitStatus,
    WantedContainer,
    WantedLimit,
)
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.cgroups import Cgroups, CgroupTree, PodCgroups
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu, FakeNvml
from gpushare_plugin.testing.nvml.node import LimitBackend
from tests.unit.gpus.conftest import Node, describe

__all__ = ["describe"]

GPU, OTHER = "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000001-0000-4000-8000-000000000001"


def pod_uid(number: int) -> str:
    """Return the UID of a pod."""
    return f"7b0f9c3a-1b2c-4d5e-8f90-{number:012d}"


def container_id(number: int) -> str:
    """Return the ID of a container."""
    return f"{number:064x}"


def wanted(number: int, hard: int | None = None, soft: int = 0, *uuids: str) -> WantedContainer:
    """Return a container that is to have these limits, in MiB, on `uuids` or the first GPU."""
    gpus = tuple(WantedLimit(uuid=uuid, hard_mib=hard, soft_mib=soft) for uuid in uuids or (GPU,))
    return WantedContainer(pod_uid=pod_uid(number), container_id=container_id(number), gpus=gpus)


class NodeWithLimits:
    """A node with two GPUs, cgroups of pods, and the files that both daemons exchange."""

    def __init__(self, fake: FakeNvml, cgroups: Cgroups, root: Path, limits: NvmlMemoryLimits) -> None:
        """Exchange files in `root`."""
        self.fake = fake
        self.cgroups = cgroups
        self.kubepods = PodCgroups(cgroups)
        self.root = DriverLimitsRoot(root)
        self.limits = limits

    def container(self, number: int) -> Path:
        """Make the cgroup of a container."""
        return self.kubepods.container(pod_uid(number), container_id(number))

    def remove(self, number: int) -> None:
        """Remove the cgroups of a container and its pod."""
        self.kubepods.remove_container(pod_uid(number), container_id(number))
        self.kubepods.remove_pod(pod_uid(number))

    def order(
        self, *containers: WantedContainer, gpus: tuple[str, ...] = (GPU, OTHER), bursts: tuple[str, ...] = ()
    ) -> None:
        """Write an order, as the daemon does."""
        self.root.path.mkdir(parents=True, exist_ok=True)
        write_message(self.root.wanted, LimitOrder(gpus=gpus, bursts=bursts, containers=containers))

    @property
    def status(self) -> DriverLimitsStatus:
        """What is reported now."""
        return read_message(self.root.status, DriverLimitsStatus) or DriverLimitsStatus()

    def of(self, number: int, uuid: str = GPU) -> LimitStatus:
        """Return what is reported of a container; nothing while nothing is reported."""
        for each in self.status.containers:
            if each.container_id == container_id(number):
                return next(limit for limit in each.gpus if limit.uuid == uuid)
        return LimitStatus(uuid=uuid, reason="not reported")

    def is_set(self, number: int, uuid: str = GPU) -> bool:
        """Return whether the limits of a container are reported to be in effect."""
        found = self.of(number, uuid)
        return found.reason is None and found.late is not None


@pytest.fixture
def backend() -> LimitBackend:
    """Return the backend of the driver; tests choose another one."""
    return "misc"


@pytest.fixture
def node(tmp_path: Path, describe: Node, backend: LimitBackend) -> NodeWithLimits:
    """Describe a node with two GPUs of 40 GiB."""
    fake = describe([FakeGpu(uuid=GPU), FakeGpu(uuid=OTHER)], driver_version=DRIVER_WITH_LIMITS, limit_backend=backend)
    controllers = ("cpu", "memory", "pids", backend)
    cgroups = CgroupTree(tmp_path / "cgroup", controllers, fake.regions)
    limits = NvmlMemoryLimits(tmp_path / "driver-root", tmp_path / "sys", tmp_path / "proc")
    return NodeWithLimits(fake, cgroups, tmp_path / "run/driver-limits", limits)
