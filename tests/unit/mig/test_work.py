"""Tests of `gpushare_plugin.mig.work`, with the real `pynvml` and a stand-in for the library."""

from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare_plugin.gpus.mig_driver import MigPart
from gpushare_plugin.gpus.nvml.partitions import NvmlPartitions
from gpushare_plugin.mig.exchange import WantedCard
from gpushare_plugin.mig.work import divide
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeMigInstance, FakeNvml, FakeProcess
from tests.unit.gpus.conftest import Node

STEPS = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
"""Every call that changes anything."""


def a_card(*profiles: str, enabled: bool = True, **changes: bool) -> FakeGpu:
    """Describe an A100 with instances of these profiles."""
    instances = tuple(map(FakeMigInstance, profiles))
    return FakeGpu(mig_enabled=enabled, mig_profiles="A100-40GB", mig_instances=instances, **changes)  # type: ignore[arg-type] # the mode's reset alone


def wants(node: FakeNvml, *places: str, removable: tuple[str, ...] = (), mode: bool | None = None) -> WantedCard:
    """Want the first card divided like that."""
    return WantedCard(uuid=node.gpus[0].uuid, instances=places, removable=removable, mig_mode=mode)


def parts(driver: NvmlPartitions, node: FakeNvml) -> dict[str, MigPart]:
    """Return what the first card is divided into, by place."""
    return {str(part.place): part for part in driver.read(node.gpus[0].uuid).parts}


def test_instances_that_may_go_make_room_for_missing_ones(describe: Node, driver: NvmlPartitions) -> None:
    """An instance that may be destroyed makes room; one that is wanted already, or is not named, stays as it is."""
    node = describe([a_card("3g.20gb", "1g.5gb", "1g.5gb")])
    before = parts(driver, node)
    (removed,) = before["3g.20gb@0"].uuids
    outcome = divide(driver, wants(node, "4g.20gb@0", "1g.5gb@4", removable=(removed,)))
    assert (outcome.reason, outcome.created, outcome.destroyed) == (None, 1, 1)
    after = parts(driver, node)
    assert list(after) == ["1g.5gb@4", "1g.5gb@5", "4g.20gb@0"]
    assert {place: after[place] for place in ("1g.5gb@4", "1g.5gb@5")} == {
        place: before[place] for place in ("1g.5gb@4", "1g.5gb@5")
    }
    assert outcome.card is not None
    assert sorted(outcome.card.parts, key=str) == sorted(after.values(), key=str)
    assert divide(driver, wants(node, "4g.20gb@0", "1g.5gb@4")).created == 0


def test_instances_that_must_stay_are_not_destroyed(describe: Node, driver: NvmlPartitions) -> None:
    """An instance stays if no order lets it go, if it is wanted, or if a program uses it; each with its reason."""
    node = describe([a_card("3g.20gb", "2g.10gb", "1g.10gb")])
    before = parts(driver, node)
    kept, used, wanted = (before[place].uuids[0] for place in ("3g.20gb@0", "2g.10gb@4", "1g.10gb@6"))
    node.use(used, FakeProcess(4711))
    outcome = divide(driver, wants(node, "4g.20gb@0", "1g.10gb@6", "1g.5gb@4", removable=(used, wanted)))
    assert parts(driver, node).keys() == before.keys()
    assert kept in parts(driver, node)["3g.20gb@0"].uuids
    assert outcome.reasons == [
        "2g.10gb@4 is not destroyed, because programs use it (processes 4711)",
        "4g.20gb@0 has no room: 3g.20gb@0 has memory slices of it, and may not be destroyed now",
        "1g.5gb@4 has no room: 2g.10gb@4 has memory slices of it, and may not be destroyed now",
    ]
    node.leave(used)
    assert divide(driver, wants(node, "1g.5gb@4", removable=(used,))).reason is None


def test_an_instance_of_which_only_a_part_may_go_stays(describe: Node, driver: NvmlPartitions) -> None:
    """A GPU instance with several MIG instances is destroyed when all of them may be."""
    both = (
        FakeMigInstance("1c.2g.10gb", gpu_instance=3),
        FakeMigInstance("1c.2g.10gb", gpu_instance=3, compute_instance=1),
    )
    node = describe([FakeGpu(mig_enabled=True, mig_profiles="A100-40GB", mig_instances=both)])
    first, second = parts(driver, node)["2g.10gb@0"].uuids
    assert divide(driver, wants(node, removable=(first,))).destroyed == 0
    assert divide(driver, wants(node, removable=(first, second))).destroyed == 1


@pytest.mark.parametrize("step", STEPS)
def test_the_next_attempt_goes_on_after_any_failed_step(describe: Node, driver: NvmlPartitions, step: str) -> None:
    """Pieces left between two steps are seen, and completed or destroyed: also one without a MIG instance."""
    node = describe([a_card("3g.20gb", "2g.10gb")])
    (removed,) = parts(driver, node)["3g.20gb@0"].uuids
    wanted = wants(node, "2g.10gb@0", "1g.5gb@2", removable=(removed,))
    node.fail(0, step, ErrorCode.UNKNOWN)
    outcome = divide(driver, wanted)
    assert outcome.reason is not None
    node.recover()
    node.recover(0)
    assert divide(driver, wanted).reason is None
    after = parts(driver, node)
    assert sorted(after) == ["1g.5gb@2", "2g.10gb@0", "2g.10gb@4"]
    assert all(len(part.uuids) == 1 for part in after.values())


def test_an_incomplete_instance_that_is_not_wanted_goes(describe: Node, driver: NvmlPartitions) -> None:
    """Nobody can use a GPU instance without a MIG instance, and it takes room."""
    node = describe([a_card()])
    node.fail(0, "nvmlGpuInstanceCreateComputeInstance", ErrorCode.UNKNOWN)
    divide(driver, wants(node, "7g.40gb@0"))
    assert parts(driver, node)["7g.40gb@0"].uuids == ()
    node.recover(0)
    outcome = divide(driver, wants(node, "1g.5gb@3"))
    assert (outcome.reason, list(parts(driver, node))) == (None, ["1g.5gb@3"])


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("9g.90gb@0", "9g.90gb@0 is not possible: the driver lists these profiles for the GPU: 1g.5gb, "),
        ("2g.10gb@1", "2g.10gb@1 is not possible: 2g.10gb can start at memory slice 0, 2, 4"),
    ],
)
def test_an_impossible_instance_keeps_no_other_from_being_made(
    describe: Node, driver: NvmlPartitions, place: str, words: str
) -> None:
    """The reason names what is possible."""
    node = describe([a_card()])
    outcome = divide(driver, wants(node, place, "1g.5gb@6"))
    assert (outcome.reason or "").startswith(words)
    assert list(parts(driver, node)) == ["1g.5gb@6"]


def test_the_mode_is_switched_only_where_it_is_wanted(describe: Node, driver: NvmlPartitions) -> None:
    """On for instances, off for a card without any; never while a program uses the card or it has instances."""
    node = describe([a_card(enabled=False)])
    uuid = node.gpus[0].uuid
    assert "partitioning.migMode" in (divide(driver, wants(node, "7g.40gb@0")).reason or "")
    node.use(uuid, FakeProcess(12))
    outcome = divide(driver, wants(node, "7g.40gb@0", mode=True))
    assert outcome.reason == "MIG mode is not switched on while programs use the GPU (processes 12)"
    assert node.calls()["nvmlDeviceSetMigMode"] == 0
    node.leave(uuid)
    outcome = divide(driver, wants(node, "7g.40gb@0", mode=True))
    assert (outcome.reason, list(parts(driver, node))) == (None, ["7g.40gb@0"])
    assert outcome.card is not None
    outcome = divide(driver, wants(node, mode=False))
    assert outcome.reason == "MIG mode is not switched off while the GPU has MIG instances (7g.40gb@0)"
    (made,) = parts(driver, node)["7g.40gb@0"].uuids
    divide(driver, wants(node, removable=(made,), mode=None))
    assert divide(driver, wants(node, mode=False)).reason is None
    assert not driver.read(uuid).enabled


def test_a_needed_reset_is_told(describe: Node, driver: NvmlPartitions) -> None:
    """The mode is pending then, and the reason stays until somebody resets the GPU."""
    node = describe([a_card(enabled=False, mig_needs_reset=True)])
    assert "reset it (nvidia-smi --gpu-reset)" in (divide(driver, wants(node, "1g.5gb@0", mode=True)).reason or "")
    outcome = divide(driver, wants(node, "1g.5gb@0"))
    assert "MIG mode is on only after a reset" in (outcome.reason or "")
    node.replace_gpu(0, a_card())
    assert divide(driver, wants(node, "1g.5gb@0", mode=True)).reason is None


PLACES = [f"{profile}@{start}" for profile in ("1g.5gb", "1g.10gb", "3g.20gb", "7g.40gb") for start in (0, 2, 4, 6)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(PLACES), max_size=4),
            st.sets(st.sampled_from(PLACES), max_size=4),
            st.none() | st.sampled_from(STEPS),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_held_instances_stay_whatever_is_wanted(
    describe: Node, tmp_path: Path, orders: list[tuple[set[str], set[str], str | None]]
) -> None:
    """Whatever is wanted, and whatever fails: what may not be destroyed or is in use stays, and nothing overlaps.

    Once nothing fails, what is wanted and has room is there.
    """
    driver = NvmlPartitions(tmp_path / "driver-root", tmp_path / "sys", tmp_path / "proc")
    with describe([a_card()]) as node:
        for wanted, held, failing in orders:
            before = parts(driver, node)
            removable = {uuid for place, part in before.items() if place not in held for uuid in part.uuids}
            if failing:
                node.fail(0, failing, ErrorCode.UNKNOWN)
            order = wants(node, *sorted(wanted), removable=tuple(sorted(removable)))
            divide(driver, order)
            node.recover(0)
            divide(driver, order)
            after = parts(driver, node)
            assert all(after.get(place) == part for place, part in before.items() if place in held and part.uuids)
            slices = [
                slice_ for part in after.values() for slice_ in range(part.place.start, part.place.start + part.size)
            ]
            assert len(slices) == len(set(slices))
            assert all(part.uuids for part in after.values())
            missing = sorted(wanted - after.keys())
            profiles = {profile.name: profile for profile in driver.read(node.gpus[0].uuid).profiles}
            for place in missing:
                name, _, start = place.partition("@")
                known = profiles[name]
                free = not any(part.overlaps(int(start), known.size) for part in after.values())
                assert not free or int(start) not in known.starts
        pynvml.nvmlShutdown()
