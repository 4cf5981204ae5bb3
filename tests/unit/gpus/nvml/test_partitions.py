"""Tests of `gpushare_plugin.gpus.nvml.partitions`, with the real `pynvml` and a stand-in for the library."""

from pathlib import Path

import pytest

from gpushare_plugin.base.errors import DriverChangedError
from gpushare_plugin.gpus.mig_driver import MigError, MigPart
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.gpus.nvml.partitions import NvmlPartitions
from gpushare_plugin.slices.mig import MigProfile
from gpushare_plugin.slices.slice import MigPlace, mig_place
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeMigInstance, FakeProcess, mig_profiles
from tests.unit.gpus.conftest import Node

A100 = FakeGpu(mig_enabled=True, mig_profiles="A100-40GB")
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
COMPLETE = "nvmlGpuInstanceCreateComputeInstance"


@pytest.fixture
def driver(tmp_path: Path) -> NvmlPartitions:
    """Make a driver whose files of the kernel are below the test's own directory."""
    return NvmlPartitions(tmp_path / "driver-root", tmp_path / "sys", tmp_path / "proc")


@pytest.mark.parametrize(("card", "memory_mib"), [("A100-40GB", 40960), ("A100-80GB", 81920), ("H100-80GB", 81559)])
def test_profiles_and_places_come_from_the_driver(
    describe: Node, driver: NvmlPartitions, card: str, memory_mib: int
) -> None:
    """They have the names of the driver, and its figures."""
    node = describe([FakeGpu(mig_enabled=True, mig_profiles=card, memory_mib=memory_mib)])
    found = {each.name: each for each in driver.read(node.gpus[0].uuid).profiles}
    assert found == {
        name: MigProfile(
            name=name,
            memory_mib=known.memory,
            compute=known.slices,
            most=known.count,
            size=known.size,
            starts=known.starts,
        )
        for name, known in mig_profiles()[card].items()
    }


def test_cards_that_know_mig_mode_are_listed(describe: Node, driver: NvmlPartitions) -> None:
    """A card without MIG mode is left out, and so is one that does not answer; one with the mode off is read."""
    node = describe([A100, FakeGpu(mig_enabled=None), FakeGpu(), FakeGpu(failures={"*": ErrorCode.GPU_IS_LOST})])
    assert driver.cards() == (node.gpus[0].uuid, node.gpus[2].uuid)
    card = driver.read(node.gpus[2].uuid)
    assert (card.enabled, card.pending, card.parts) == (False, False, ())


def test_a_card_without_mig_mode_is_read_also_without_its_places(describe: Node, driver: NvmlPartitions) -> None:
    """A driver need not have profiles and places of a card before MIG mode; the card is switched on all the same."""
    node = describe([FakeGpu(mig_profiles="A100-40GB")])
    uuid = node.gpus[0].uuid
    node.fail(0, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", ErrorCode.NOT_SUPPORTED)
    assert driver.read(uuid).profiles == ()
    driver.set_mode(uuid, enabled=True)
    node.recover(0)
    assert driver.read(uuid).profiles


def test_a_created_instance_is_one_that_the_daemon_reads(
    describe: Node, driver: NvmlPartitions, tmp_path: Path
) -> None:
    """Every profile, at its first place: created whole, named alike by both readers, and gone once destroyed."""
    node = describe([A100])
    uuid = node.gpus[0].uuid
    source = NvmlSource(tmp_path / "driver-root", tmp_path / "sys", tmp_path / "proc")
    for profile in driver.read(uuid).profiles:
        place = MigPlace(profile.name, profile.starts[-1])
        driver.create(uuid, place)
        (instance,) = source.read().instances
        assert instance.mig is not None
        assert instance.mig.profile == profile.name
        (part,) = driver.read(uuid).parts
        assert part == MigPart(instance.mig.gpu_instance, place, profile.size, (instance.uuid,))
        driver.destroy(uuid, part.number)
        assert driver.read(uuid).parts == ()


def test_an_incomplete_gpu_instance_is_seen_and_completed(describe: Node, driver: NvmlPartitions) -> None:
    """Between its two halves an instance is a GPU instance that has no MIG instance."""
    node = describe([A100])
    uuid = node.gpus[0].uuid
    node.fail(0, COMPLETE, ErrorCode.UNKNOWN)
    with pytest.raises(MigError, match=r"3g\.20gb@4 of GPU-.* cannot be created: Unknown"):
        driver.create(uuid, mig_place("3g.20gb@4"))
    (part,) = driver.read(uuid).parts
    assert (part.place, part.uuids) == (mig_place("3g.20gb@4"), ())
    node.recover(0)
    driver.complete(uuid, part.number)
    (part,) = driver.read(uuid).parts
    assert len(part.uuids) == 1


def test_an_instance_in_use_is_not_destroyed(describe: Node, driver: NvmlPartitions) -> None:
    """The processes are named, on the instance and on its card; the driver refuses to destroy it."""
    node = describe(
        [FakeGpu(mig_enabled=True, mig_profiles="A100-40GB", mig_instances=(FakeMigInstance("1c.3g.20gb"),))]
    )
    uuid = node.gpus[0].uuid
    (part,) = driver.read(uuid).parts
    node.use(part.uuids[0], FakeProcess(4711, kind="mps"))
    card = driver.read(uuid)
    assert (card.users, card.parts[0].users) == ((4711,), (4711,))
    with pytest.raises(MigError, match="In use by another client"):
        driver.destroy(uuid, part.number)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("1g.10gb@1", "1g.10gb can start at 0, 2, 4, 6"),
        ("9g.90gb@0", "has no MIG profile 9g.90gb: it has 1g.5gb, "),
        ("3g.20gb@0", "Other instances have its memory slices"),
    ],
)
def test_an_instance_that_the_driver_refuses_is_explained(
    describe: Node, driver: NvmlPartitions, place: str, words: str
) -> None:
    """The error says what was to be made, why that is not possible, and what is."""
    node = describe([FakeGpu(mig_enabled=True, mig_profiles="A100-40GB", mig_instances=(FakeMigInstance("2g.10gb"),))])
    with pytest.raises(MigError) as caught:
        driver.create(node.gpus[0].uuid, mig_place(place))
    assert words in str(caught.value)


def test_missing_rights_to_divide_cards_are_named(describe: Node, driver: NvmlPartitions) -> None:
    """NVML divides cards for root with SYS_ADMIN only, and in containers with access to the MIG configuration."""
    node = describe([A100])
    node.fail(0, CREATE, ErrorCode.NO_PERMISSION)
    with pytest.raises(MigError, match="NVIDIA_MIG_CONFIG_DEVICES=all"):
        driver.create(node.gpus[0].uuid, mig_place("7g.40gb@0"))
    node.fail(0, "nvmlDeviceGetMigMode", ErrorCode.LIB_RM_VERSION_MISMATCH)
    with pytest.raises(DriverChangedError):
        driver.read(node.gpus[0].uuid)


def test_the_mode_is_switched_if_nothing_has_the_card_open(describe: Node, driver: NvmlPartitions) -> None:
    """Else the error says what to stop, or that a reset is needed; the mode is pending then."""
    off = FakeGpu(mig_profiles="A100-40GB")
    node = describe([off, off, FakeGpu(mig_profiles="A100-40GB", mig_needs_reset=True)])
    idle, busy, slow = (gpu.uuid for gpu in node.gpus)
    driver.set_mode(idle, enabled=True)
    assert driver.read(idle).enabled
    node.use(busy, FakeProcess(1))
    with pytest.raises(MigError, match="such as DCGM"):
        driver.set_mode(busy, enabled=True)
    with pytest.raises(MigError, match="only with a reset"):
        driver.set_mode(slow, enabled=True)
    card = driver.read(slow)
    assert (card.enabled, card.pending) == (False, True)


def test_a_missing_library_is_an_error_that_says_so(describe: Node, driver: NvmlPartitions) -> None:
    """A node whose driver is not loaded is no reason to end."""
    node = describe([A100], failures={"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED})
    with pytest.raises(MigError, match="NVML cannot be used"):
        driver.cards()
    node.recover()
    assert len(driver.cards()) == 1
