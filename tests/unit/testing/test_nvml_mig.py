"""Tests of how `gpushare_plugin.testing.nvml` creates and destroys MIG instances, through the real `pynvml`."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeMigInstance, FakeNvml, FakeProcess
from tests.waiting import until_blocking

A100, A100_LARGE, H100 = "A100-40GB", "A100-80GB", "H100-80GB"
EIGHT_SLICES = """\
GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 15 Placements: {0,2,4,6}:2
GPU  0 Profile ID 14 Placements: {0,2,4}:2
GPU  0 Profile ID  9 Placements: {0,4}:4
GPU  0 Profile ID  5 Placement : {0}:4
GPU  0 Profile ID  0 Placement : {0}:8
"""
"""What `nvidia-smi mig -lgipp` shows of an A100 and of an H100 (NVIDIA's "MIG User Guide", Getting Started)."""
PUBLISHED = {
    A100: {
        "MIG 1g.5gb": (19, 7, 4.75, 14),
        "MIG 1g.5gb+me": (20, 1, 4.75, 14),
        "MIG 1g.10gb": (15, 4, 9.62, 14),
        "MIG 2g.10gb": (14, 3, 9.62, 28),
        "MIG 3g.20gb": (9, 2, 19.50, 42),
        "MIG 4g.20gb": (5, 1, 19.50, 56),
        "MIG 7g.40gb": (0, 1, 39.25, 98),
    },
    A100_LARGE: {
        "MIG 1g.10gb": (19, 7, 9.50, 14),
        "MIG 1g.10gb+me": (20, 1, 9.50, 14),
        "MIG 1g.20gb": (15, 4, 19.50, 14),
        "MIG 2g.20gb": (14, 3, 19.50, 28),
        "MIG 3g.40gb": (9, 2, 39.25, 42),
        "MIG 4g.40gb": (5, 1, 39.25, 56),
        "MIG 7g.80gb": (0, 1, 79.00, 98),
    },
    H100: {
        "MIG 1g.10gb": (19, 7, 9.75, 16),
        "MIG 1g.10gb+me": (20, 1, 9.75, 16),
        "MIG 1g.20gb": (15, 4, 19.62, 26),
        "MIG 2g.20gb": (14, 3, 19.62, 32),
        "MIG 3g.40gb": (9, 2, 39.50, 60),
        "MIG 4g.40gb": (5, 1, 39.50, 64),
        "MIG 7g.80gb": (0, 1, 79.25, 132),
    },
}
"""Profile ID, how many instances, GiB and multiprocessors: what `nvidia-smi mig -lgip` shows of each card."""

Node = Callable[..., FakeNvml]


@pytest.fixture
def start() -> Iterator[Node]:
    """Make nodes that this process sees, one after the other, and initialise NVML."""
    with contextlib.ExitStack() as stack:

        def make(*gpus: FakeGpu) -> FakeNvml:
            node = stack.enter_context(FakeNvml(gpus))
            node.preload()
            pynvml.nvmlInit()
            return node

        yield make
        with contextlib.suppress(pynvml.NVMLError_Uninitialized):
            while True:
                pynvml.nvmlShutdown()


def a_card(*profiles: str, like: str = A100, **changes: Any) -> FakeGpu:
    """Describe a card in MIG mode with instances of these profiles."""
    instances = tuple(map(FakeMigInstance, profiles))
    return FakeGpu(**{"mig_enabled": True, "mig_profiles": like, "mig_instances": instances, **changes})


def handle(index: int = 0) -> Any:
    """Return NVML's handle of a card."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def error_of(call: Callable[..., object], *arguments: object) -> int:
    """Return the error code that a call of NVML fails with."""
    with pytest.raises(pynvml.NVMLError) as caught:
        call(*arguments)
    code: int = caught.value.value
    return code


def placements(profile: int, card: Any = None) -> list[tuple[int, int]]:
    """Return where instances of a profile can be, as (start, size)."""
    card = card or handle()
    count = pynvml.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, None, pynvml.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, found, pynvml.byref(count))
    return [(each.start, each.size) for each in found]


def listed(ask: Callable[..., object], kind: Any, of: Any, profile: int) -> list[Any]:
    """Return the handles of all instances of a profile."""
    count = pynvml.c_uint(0)
    found = (kind * 8)()
    ask(of, profile, found, pynvml.byref(count))
    return list(found[: count.value])


def gpu_instances(profile: int, card: Any = None) -> list[Any]:
    """Return the GPU instances of a profile."""
    return listed(pynvml.nvmlDeviceGetGpuInstances, pynvml.c_nvmlGpuInstance_t, card or handle(), profile)


def create(profile: int, start: int, size: int) -> Any:
    """Create a GPU instance at a place."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle(), profile, pynvml.byref(place))


def uuids(index: int = 0) -> list[str]:
    """Return the UUIDs of a card's MIG devices."""
    found = []
    for number in range(7):
        with contextlib.suppress(pynvml.NVMLError_NotFound):
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(index), number)
            found.append(pynvml.nvmlDeviceGetUUID(device))
    return found


@pytest.mark.parametrize("card", list(PUBLISHED))
def test_profiles_and_places_are_those_that_nvidia_publishes(start: Node, card: str) -> None:
    """IDs, counts, memory, multiprocessors and places of every profile are the figures of NVIDIA's MIG User Guide."""
    start(a_card(like=card))
    found, places = {}, ""
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(pynvml.NVMLError_NotSupported):
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle(), number)
            old = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle(), number, version=1)
            assert (old.id, old.memorySizeMB, old.sliceCount) == (info.id, info.memorySizeMB, info.sliceCount)
            gib = int(info.memorySizeMB / 1024 * 100) / 100  # nvidia-smi cuts off what is behind two digits
            found[info.name] = (info.id, info.instanceCount, gib, info.multiprocessorCount)
    for profile, *_ in PUBLISHED[card].values():
        where = placements(profile)
        starts, plural = ",".join(str(first) for first, _ in where), "s" if len(where) > 1 else " "
        places += f"GPU  0 Profile ID {profile:>2} Placement{plural}: {{{starts}}}:{where[0][1]}\n"
    assert found == PUBLISHED[card]
    assert places == EIGHT_SLICES


def test_instances_make_a_mig_device_and_are_gone_when_destroyed(start: Node) -> None:
    """A GPU instance and its compute instance make a MIG device like any other; both are gone when destroyed."""
    start(a_card())
    gpu_instance = create(9, 4, 4)
    assert uuids() == []
    info = pynvml.nvmlGpuInstanceGetInfo(gpu_instance)
    assert (info.profileId, info.placement.start, info.placement.size) == (9, 4, 4)
    kind = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, 2, 0, version=1)
    assert (kind.sliceCount, kind.instanceCount, kind.multiprocessorCount) == (3, 1, 42)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, kind.id)
    (uuid,) = uuids()
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert pynvml.nvmlDeviceGetGpuInstanceId(device) == info.id
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 19968 << 20
    attributes = pynvml.nvmlDeviceGetAttributes(device)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    whole = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
    assert (whole.id, whole.profileId, whole.placement.size) == (0, kind.id, 3)
    assert pynvml.nvmlGpuInstanceGetInfo(whole.gpuInstance).id == info.id
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle(), 9) == 1
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle(), 0) == 0
    assert error_of(pynvml.nvmlGpuInstanceDestroy, gpu_instance) == ErrorCode.IN_USE
    pynvml.nvmlComputeInstanceDestroy(compute)
    assert uuids() == []
    pynvml.nvmlGpuInstanceDestroy(gpu_instance)
    assert gpu_instances(9) == []
    assert error_of(pynvml.nvmlGpuInstanceDestroy, gpu_instance) == ErrorCode.NOT_FOUND


def test_an_instance_in_use_stays(start: Node) -> None:
    """The driver destroys no compute instance that a process uses, and no GPU instance that has a compute instance."""
    node = start(a_card("1g.5gb"))
    (gpu_instance,) = gpu_instances(19)
    ask = pynvml.nvmlGpuInstanceGetComputeInstances
    (compute,) = listed(ask, pynvml.c_nvmlComputeInstance_t, gpu_instance, 0)
    node.use(uuids()[0], FakeProcess(4711))
    assert error_of(pynvml.nvmlComputeInstanceDestroy, compute) == ErrorCode.IN_USE
    assert error_of(pynvml.nvmlGpuInstanceDestroy, gpu_instance) == ErrorCode.IN_USE
    device = pynvml.nvmlDeviceGetHandleByUUID(uuids()[0])
    assert [each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(device)] == [4711]
    node.leave(uuids()[0])
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(gpu_instance)


def test_an_instance_that_is_made_again_has_the_same_uuid(start: Node) -> None:
    """Its UUID follows from the card and its IDs, as with the driver: one that was kept may mean another."""
    start(a_card(), a_card())
    first = create(19, 3, 1)
    pynvml.nvmlGpuInstanceCreateComputeInstance(first, 0)
    (before,) = uuids()
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlDeviceGetHandleByUUID(before))
    pynvml.nvmlGpuInstanceDestroy(first)
    pynvml.nvmlGpuInstanceCreateComputeInstance(create(19, 3, 1), 0)
    assert uuids() == [before]
    second = create(19, 2, 1)
    pynvml.nvmlGpuInstanceCreateComputeInstance(second, 0)
    other = pynvml.nvmlDeviceCreateGpuInstance(handle(1), 0)
    pynvml.nvmlGpuInstanceCreateComputeInstance(other, 4)
    assert len({*uuids(), *uuids(1)}) == 3


def test_changes_that_the_driver_does_not_allow_are_refused(start: Node) -> None:
    """The driver's errors: no such profile or place, no room left, MIG mode off, and no permission."""
    node = start(a_card("3g.20gb"), FakeGpu(mig_enabled=False, mig_profiles=A100), FakeGpu(mig_enabled=None))
    assert error_of(placements, 77) == ErrorCode.INVALID_ARGUMENT
    assert error_of(create, 9, 2, 4) == ErrorCode.INVALID_ARGUMENT
    assert error_of(create, 9, 4, 3) == ErrorCode.INVALID_ARGUMENT
    assert error_of(create, 9, 0, 4) == ErrorCode.INSUFFICIENT_RESOURCES
    assert error_of(pynvml.nvmlDeviceCreateGpuInstance, handle(), 0) == ErrorCode.INSUFFICIENT_RESOURCES
    create(20, 4, 1)
    assert error_of(create, 20, 5, 1) == ErrorCode.INSUFFICIENT_RESOURCES  # media engines are there once
    (gpu_instance,) = gpu_instances(9)
    make = pynvml.nvmlGpuInstanceCreateComputeInstance
    assert error_of(make, gpu_instance, 0) == ErrorCode.INSUFFICIENT_RESOURCES
    assert error_of(make, gpu_instance, 4) == ErrorCode.INVALID_ARGUMENT
    assert error_of(pynvml.nvmlDeviceCreateGpuInstance, handle(1), 9) == ErrorCode.NOT_SUPPORTED
    assert placements(9, handle(1)) == [(0, 4), (4, 4)]
    assert error_of(gpu_instances, 9, handle(1)) == ErrorCode.NOT_SUPPORTED
    assert error_of(pynvml.nvmlDeviceSetMigMode, handle(2), 1) == ErrorCode.NOT_SUPPORTED
    node.fail(0, "nvmlDeviceCreateGpuInstanceWithPlacement", ErrorCode.NO_PERMISSION)
    assert error_of(create, 19, 6, 1) == ErrorCode.NO_PERMISSION


def test_the_mode_is_changed_on_an_idle_card_only(start: Node) -> None:
    """The change is pending while the card is in use or has GPU instances, and where it needs a reset."""
    node = start(FakeGpu(mig_profiles=A100), FakeGpu(mig_profiles=A100, mig_needs_reset=True))
    node.use(node.gpus[0].uuid, FakeProcess(1))
    assert pynvml.nvmlDeviceSetMigMode(handle(0), 1) == ErrorCode.IN_USE
    assert pynvml.nvmlDeviceGetMigMode(handle(0)) == [0, 1]
    node.leave(node.gpus[0].uuid)
    assert pynvml.nvmlDeviceSetMigMode(handle(0), 1) == 0
    assert pynvml.nvmlDeviceGetMigMode(handle(0)) == [1, 1]
    create(0, 0, 8)
    assert pynvml.nvmlDeviceSetMigMode(handle(0), 0) == ErrorCode.IN_USE
    assert pynvml.nvmlDeviceSetMigMode(handle(1), 1) == ErrorCode.RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(handle(1)) == [0, 1]
    node.replace_gpu(0, FakeGpu(mig_enabled=True, mig_profiles=A100))
    assert gpu_instances(0) == []  # as after a reset


def test_described_instances_have_places(start: Node) -> None:
    """Those that are described are where there is room, or where they are said to be; what has no room is refused."""
    placed = (FakeMigInstance("3g.20gb", start=4), FakeMigInstance("1g.5gb"), FakeMigInstance("1c.2g.10gb"))
    start(a_card(mig_instances=placed))
    found = [pynvml.nvmlGpuInstanceGetInfo(each) for profile in (9, 19, 14) for each in gpu_instances(profile)]
    assert [(each.placement.start, each.placement.size) for each in found] == [(4, 4), (0, 1), (2, 2)]
    for wrong in (("3g.20gb",) * 3, ("9g.90gb",)):
        with pytest.raises(ValueError, match="MIG profile"):
            FakeNvml([a_card(*wrong)])
    with pytest.raises(ValueError, match="mig_profiles"):
        FakeNvml([a_card(like="V100")])


CHILD = """\
import json, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps(pynvml.nvmlDeviceGetMigMode(card)), flush=True)
pynvml.nvmlGpuInstanceCreateComputeInstance(pynvml.nvmlDeviceCreateGpuInstance(card, 9), 2)
"""


def test_instances_that_one_process_makes_are_seen_by_all(start: Node) -> None:
    """A process that is killed between two calls leaves what it has made; another one goes on from there."""
    node = start(a_card())
    pynvml.nvmlGpuInstanceCreateComputeInstance(create(9, 0, 4), 2)
    (mine,) = uuids()
    node.hang("nvmlGpuInstanceCreateComputeInstance", 1)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], env={**os.environ, **node.environment}, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert json.loads(other.stdout.readline()) == [1, 1]
        until_blocking(lambda: node.calls()["nvmlGpuInstanceCreateComputeInstance"] == 2)
        other.kill()
    node.go_on()
    assert uuids() == [mine]
    left = [each for each in gpu_instances(9) if pynvml.nvmlGpuInstanceGetInfo(each).placement.start == 4]
    pynvml.nvmlGpuInstanceCreateComputeInstance(left[0], 2)
    assert len(uuids()) == 2


def test_a_call_that_hangs_lets_others_go_on(start: Node) -> None:
    """It returns when it is allowed to; meanwhile other threads are answered."""
    node = start(a_card())
    with pytest.raises(ValueError, match="no function"):
        node.hang("nvmlDeviceDream")
    node.hang("nvmlDeviceGetName", 2)
    assert pynvml.nvmlDeviceGetName(handle())
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(handle())))
    thread.start()
    until_blocking(lambda: node.calls()["nvmlDeviceGetName"] == 2)
    assert pynvml.nvmlDeviceGetMigMode(handle()) == [1, 1]
    assert not names
    node.go_on()
    thread.join()
    assert names == ["NVIDIA A100-SXM4-40GB"]


SIZES = {19: 1, 20: 1, 15: 2, 14: 2, 9: 4, 5: 4, 0: 8}
MOST = {19: 7, 20: 1, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}
STARTS = {19: "0123456", 20: "0123456", 15: "0246", 14: "024", 9: "04", 5: "0", 0: "0"}


def allowed(there: dict[tuple[int, int], Any], profile: int, start: int) -> int:
    """Return what the driver answers beside those in `there`, by profile and start: the oracle, in sets of slices."""
    if str(start) not in STARTS[profile]:
        return ErrorCode.INVALID_ARGUMENT
    taken = set(itertools.chain.from_iterable(range(first, first + SIZES[kind]) for kind, first in there))
    alike = sum(kind == profile for kind, _ in there)
    fits = taken.isdisjoint(range(start, start + SIZES[profile])) and alike < MOST[profile]
    return 0 if fits else ErrorCode.INSUFFICIENT_RESOURCES


def room(there: dict[tuple[int, int], Any], profile: int) -> int:
    """Return how many more of a profile there is room for: the most of all ways to choose starts."""
    free = [start for start in map(int, STARTS[profile]) if allowed(there, profile, start) == 0]
    for count in range(len(free), 0, -1):
        for starts in itertools.combinations(free, count):
            apart = all(second - first >= SIZES[profile] for first, second in itertools.pairwise(starts))
            if apart and count + sum(kind == profile for kind, _ in there) <= MOST[profile]:
                return count
    return 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(list(SIZES)), st.integers(0, 7), st.integers(0, 2)), max_size=14))
def test_allowed_places_are_the_drivers(start: Node, steps: list[tuple[int, int, int]]) -> None:
    """Whatever is made and destroyed, in whatever order: the same is allowed as by an oracle of sets."""
    there: dict[tuple[int, int], Any] = {}
    with start(a_card()):
        for profile, first, choice in steps:
            if choice == 0 and there:
                pynvml.nvmlGpuInstanceDestroy(there.pop(sorted(there)[first % len(there)]))
            elif expected := allowed(there, profile, first):
                assert error_of(create, profile, first, SIZES[profile]) == expected
            else:
                there[profile, first] = create(profile, first, SIZES[profile])
            for kind in SIZES:
                assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle(), kind) == room(there, kind)
                found = sorted(pynvml.nvmlGpuInstanceGetInfo(each).placement.start for each in gpu_instances(kind))
                assert found == sorted(where for other, where in there if other == kind)
        pynvml.nvmlShutdown()
