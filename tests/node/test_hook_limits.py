"""Tests of limits that NVIDIA's hook sets: what a share promises is what the processes of a container can allocate."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.grant import Grant, Recipient
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.gpus.cdi.reading import SpecReader
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.testing.cgroups import CgroupTree, PodCgroups
from gpushare_plugin.testing.hosts import GPUS, specification
from gpushare_plugin.testing.kubelet import Container, Mount, Pod, StartedContainer
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeNvml, LimitBackend
from gpushare_plugin.testing.runtime import HookVersion, Mode, RunningContainer, Runtime
from tests.hosts import two_gpus
from tests.unit.sharing.settings import memory, settings, time_slicing

ALL = GPUS[0].memory_mib
STEPS = int(os.environ.get("GPUSHARE_LIMIT_STEPS", "200"))
"""Steps of the test that starts and ends containers at random."""
BACKENDS: tuple[LimitBackend, ...] = ("misc", "dmem")
WITH_HOOK = [each for each in HookVersion if each is not HookVersion.NONE]
REPLICAS = {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4, "isolation": "driver"}]}}
SHARES: Mapping[str, tuple[Mapping[str, object], int, int]] = {
    "memory": ({"sharing": memory(isolation="driver")}, 5, 5 * 1024),
    "memory under MPS": ({"sharing": memory(isolation="driver+mps")}, 5, 5 * 1024),
    "contexts": (
        {"sharing": memory(isolation="driver"), "driverLimits": {"additionalMemory": "512MiB"}}, 5, 5 * 1024 + 512,
    ),
    "time slices": (
        {"sharing": time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "driver"})}, 1, ALL // 4,
    ),
    "replicas under MPS": ({"sharing": REPLICAS}, 1, ALL // 4),
    "all memory": ({"sharing": memory(isolation="driver")}, ALL // 1024, ALL),
}  # fmt: skip
"""What is shared, how many units a container gets, and the MiB that these promise."""
Prepare = Callable[..., "Machine"]


class Machine:
    """A node of which the hook limits the memory of containers."""

    def __init__(self, nvml: FakeNvml, folder: Path, backend: LimitBackend, hook: HookVersion, mode: Mode) -> None:
        """Describe cgroups and specifications in `folder`."""
        controllers = ("cpu", "misc", "dmem") if backend == "dmem" else ("cpu", "misc")
        self.cgroups = CgroupTree(folder / "cgroup", controllers, nvml.regions, reuses_addresses=True)
        self.spec_dir = folder / "cdi"
        self.spec_dir.mkdir()
        (self.spec_dir / "nvidia.json").write_text(specification(driver=DRIVER_WITH_LIMITS, limits=True))
        self.nvml, self.mode = nvml, mode
        self.runtime = Runtime(folder, PodCgroups(self.cgroups), nvml, hook=hook, mode=mode, cdi=[self.spec_dir])

    def resource(self, **sections: object) -> Resource:
        """Return the one resource of a config."""
        named = SpecReader([self.spec_dir]).devices(DRIVER_WITH_LIMITS) if self.mode == "cdi" else None
        flags = {"flags": {"plugin": {"deviceListStrategy": "cdi-cri"}}} if self.mode == "cdi" else {}
        effective = EffectiveConfig(settings(**flags, **sections))
        found = plan(effective, two_gpus(ALL), cdi_devices=named, driver_limits=DriverLimits())
        assert found.problems == ()
        (resource,) = found.resources
        return resource

    def start(self, grant: Grant, pod: Pod | None = None, name: str = "main") -> RunningContainer:
        """Start a container with what it was granted, as the kubelet passes it on."""
        mounts = tuple(Mount(each.container_path, each.host_path, each.read_only) for each in grant.mounts)
        started = StartedContainer(name, grant.environment, mounts, (), grant.annotations, tuple(grant.cdi_devices), {})
        return self.runtime.start(pod or Pod("pod", [Container(name)]), started)

    def traces(self) -> list[str]:
        """Return what is left of limits and of use in the kernel's files of the cgroups that there are."""
        untouched = {"0", "max", str(ALL * 1024 * 1024)}
        lines = [line for file in self.cgroups.root.rglob("dmem.*") for line in file.read_text().splitlines()]
        return [line for line in lines if line.split()[1] not in untouched]


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Prepare]:
    """Return a function that makes a node."""
    with ExitStack() as nodes:

        def make(
            backend: LimitBackend = "misc", hook: HookVersion = HookVersion.LENIENT, mode: Mode = "jit-cdi"
        ) -> Machine:
            nvml = nodes.enter_context(FakeNvml(GPUS, driver_version=DRIVER_WITH_LIMITS, limit_backend=backend))
            return Machine(nvml, tmp_path, backend, hook, mode)

        yield make


def units_of(resource: Resource, gpu: int, count: int | None = None) -> list[str]:
    """Return units of a card, all of them without a `count`."""
    of_card = {card.index: units for card, units in resource.units.by_gpu.items()}
    return [unit.id for unit in of_card[gpu]][:count]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("hook", WITH_HOOK)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_container_can_allocate_its_share_and_no_more(
    prepare: Prepare, backend: LimitBackend, hook: HookVersion, share: str
) -> None:
    """With each way to share, each version of the hook and each backend of the driver."""
    machine = prepare(backend, hook)
    sections, count, promised = SHARES[share]
    resource = machine.resource(**sections)
    container = machine.start(resource.allocate(units_of(resource, 0, count)))
    assert machine.runtime.room(container, 0) == promised
    assert machine.runtime.allocate(container, 0, promised)
    assert machine.runtime.allocate(container, 0, 1) is None
    machine.runtime.stop(container)
    assert machine.traces() == []


@pytest.mark.parametrize("mode", ["jit-cdi", "cdi"])
def test_equal_shares_of_several_cards_hold_on_each(prepare: Prepare, mode: Mode) -> None:
    """Whether the kubelet names CDI devices, or the nvidia runtime makes its specification from a variable."""
    machine = prepare(mode=mode)
    resource = machine.resource(sharing=memory(isolation="driver"))
    both = [*units_of(resource, 0, 2), *units_of(resource, 1, 2)]
    container = machine.start(resource.allocate(both, Recipient(promised=True)))
    assert [machine.runtime.room(container, gpu) for gpu in (0, 1)] == [2048, 2048]


@pytest.mark.parametrize("backend", BACKENDS)
def test_containers_of_a_pod_have_limits_of_their_own(prepare: Prepare, backend: LimitBackend) -> None:
    """Also an init container, whose units the main container gets after it, and one that is started again."""
    machine = prepare(backend)
    resource = machine.resource(sharing=memory(isolation="driver"))
    pod = Pod("pod", [Container("main"), Container("side")], [Container("init")])
    first = machine.start(resource.allocate(units_of(resource, 0, 6)), pod, "init")
    assert machine.runtime.room(first, 0) == 6144
    machine.runtime.stop(first)
    main = machine.start(resource.allocate(units_of(resource, 0, 4)), pod, "main")
    side = machine.start(resource.allocate(units_of(resource, 0, 6)[4:]), pod, "side")
    assert [machine.runtime.room(each, 0) for each in (main, side)] == [4096, 2048]
    machine.runtime.stop(main)
    again = machine.start(resource.allocate(units_of(resource, 0, 4)), pod, "main")
    assert again.id != main.id
    assert [machine.runtime.room(each, 0) for each in (again, side)] == [4096, 2048]
    machine.runtime.remove_pod(pod)
    assert machine.traces() == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_whatever_starts_and_ends_each_container_has_what_it_was_promised(
    prepare: Prepare, backend: LimitBackend
) -> None:
    """Over many random steps, with addresses of cgroups that are used again; and nothing is left behind at the end."""
    machine, draw = prepare(backend), random.Random(24)  # noqa: S311 - the same in each run
    resource = machine.resource(sharing=memory(isolation="driver"))
    free = {gpu: units_of(resource, gpu) for gpu in (0, 1)}
    running: list[tuple[RunningContainer, int, list[str]]] = []
    for _ in range(STEPS):
        gpu = draw.randrange(2)
        if free[gpu] and (not running or draw.random() < 0.55):
            count = draw.randint(1, min(12, len(free[gpu])))
            held, free[gpu] = free[gpu][:count], free[gpu][count:]
            running.append((machine.start(resource.allocate(held)), gpu, held))
        elif running:
            container, gpu, held = running.pop(draw.randrange(len(running)))
            machine.runtime.stop(container)
            free[gpu] += held
        if running:
            container, gpu, held = draw.choice(running)
            used = sum(each.mib for each in container.allocations)
            size = draw.randint(1, 8192)
            assert bool(machine.runtime.allocate(container, gpu, size)) is (used + size <= len(held) * 1024)
    for container, gpu, held in running:
        used = sum(each.mib for each in container.allocations)
        assert machine.runtime.room(container, gpu) == len(held) * 1024 - used
        machine.runtime.stop(container)
    assert machine.traces() == []
