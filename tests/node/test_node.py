"""Tests of `node.node`: health, live configs and changing GPUs, seen by an embedded kubelet."""

import asyncio
import gc
import json
import os
import threading
from collections.abc import MutableMapping
from typing import Any

import grpc
import pytest

from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.core.health import CardHealth, Cordon, GpuEvent
from gpushare_plugin.core.holding import ONLY_RECORDED
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.kubelet.allocations.checkpoint import CHECKPOINT
from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.node.gpus.state import MOST_ABSENT
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from tests.node.living import QUICK, Life, living
from tests.node.refusals import refused_allocation, refused_preference
from tests.nodes import Cards, a_gpu, a_node
from tests.unit.kubelet.serving import read_held
from tests.unit.sharing.settings import GPU_MEM, memory, time_slicing
from tests.waiting import PATIENCE, until

TWO = a_node(8192, 8192)
FOR_EVER = TrustDelays(own_pod_shown=1e9, unknown=1e9)
"""No kubelet gets old enough for this."""
SLICED = {"name": "nvidia.com/gpu", "replicas": 4}
PATIENT = {**QUICK, "probeSeconds": 3600, "rescanSeconds": 3600}
"""Settings of `health` under which nothing recovers during a test."""


def xid(number: int, gpu: int | None = 0) -> GpuEvent:
    """Return the event of a GPU, or one that names no GPU."""
    return GpuEvent(None if gpu is None else a_gpu(gpu).uuid, number, f"XID {number}")


def pod(count: int, resource: str = GPU_MEM, name: str = "pod") -> Pod:
    """Return a pod of one container."""
    return Pod(name, [Container("main", {resource: count})])


def cards_remembered() -> list[CardHealth]:
    """Return what this process remembers of the health of cards, of this node and of those of earlier tests."""
    return [each for each in gc.get_objects() if isinstance(each, CardHealth)]


# ---------------------------------------------------------------------- health


async def test_an_xid_marks_every_unit_of_its_gpu_in_one_list(kubelet: EmbeddedKubelet) -> None:
    """Eight GPUs of 1,000 replicas: 1,000 are unhealthy with one list, the other 7,000 untouched."""
    node = a_node(*[40960] * 8)
    async with living(kubelet, Cards(node), health=PATIENT, sharing=time_slicing({**SLICED, "replicas": 1000})) as life:
        await life.healthy({"nvidia.com/gpu": 8000})
        life.node.event(xid(56, gpu=3))
        await kubelet.wait_for(lambda seen: seen.allocatable()["nvidia.com/gpu"] != 8000)
        assert kubelet.allocatable() == {"nvidia.com/gpu": 7000}
        sick = {id_ for id_, device in kubelet.devices("nvidia.com/gpu").items() if device.health == "Unhealthy"}
        assert sick == {f"{a_gpu(3).uuid}::{number}" for number in range(1000)}
        assert len(kubelet.registrations) == 1


async def test_a_list_as_long_as_the_kubelet_takes_is_taken_when_all_gpus_but_one_fail(
    kubelet: EmbeddedKubelet,
) -> None:
    """71,200 replicas, of which 62,300 fail: the kubelet hears it over the same stream, and forgets no holder."""
    node, gpu = a_node(*[40960] * 8), "nvidia.com/gpu"
    sharing = time_slicing({**SLICED, "replicas": 8900})
    async with living(kubelet, Cards(node), health=PATIENT, sharing=sharing) as life:
        await life.healthy({gpu: 71_200})
        (held,) = (await kubelet.admit(pod(1, gpu))).containers["main"].device_ids[gpu]
        for index in range(7):
            life.node.event(xid(56, gpu=index))
        await life.healthy({gpu: 8900})
        assert {id_.partition("::")[0] for id_ in kubelet.healthy(gpu)} == {a_gpu(7).uuid}
        assert len(kubelet.devices(gpu)) == 71_200
        assert held in kubelet.devices(gpu)
        assert (len(kubelet.registrations), kubelet.disconnections) == (1, ())


async def test_a_flood_of_events_is_one_change(kubelet: EmbeddedKubelet) -> None:
    """Thousands of XIDs of one card send one list, and the kubelet is answered in between."""
    async with living(kubelet, Cards(TWO), health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        for number in range(5000):
            life.node.event(xid(56 if number % 2 else 13))
        await life.healthy({GPU_MEM: 8})
        await kubelet.admit(pod(5))
        assert kubelet.capacity() == {GPU_MEM: 16}


async def test_an_applications_error_is_no_fault(kubelet: EmbeddedKubelet) -> None:
    """XID 13 is the program's own; XID 56 on the other card is seen, so the first was seen before."""
    async with living(kubelet, Cards(TWO), health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.node.event(xid(13, gpu=0))
        life.node.event(xid(56, gpu=1))
        await life.healthy({GPU_MEM: 8})
        assert all(device.health == "Healthy" for id_, device in kubelet.devices(GPU_MEM).items() if "00000000" in id_)


async def test_an_event_that_names_no_gpu_concerns_all_gpus(kubelet: EmbeddedKubelet) -> None:
    """When the driver does not say which card it was, none can be trusted."""
    async with living(kubelet, Cards(TWO), health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.node.event(xid(56, gpu=None))
        await life.healthy({})


async def test_a_gpu_that_is_well_again_is_offered_again(kubelet: EmbeddedKubelet) -> None:
    """After good probes in a row its units are healthy, over the same stream."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.cards.inventory = replace(TWO, cards=TWO.cards[1:], failed=(FailedGpu(0, "GPU is lost", None, lost=True),))
        await life.healthy({GPU_MEM: 8})
        assert kubelet.capacity() == {GPU_MEM: 16}, "a card that fails stays listed"
        life.cards.inventory = TWO
        await life.healthy({GPU_MEM: 16})
        assert len(kubelet.registrations) == 1


async def test_a_gpu_lost_at_the_start_is_looked_at_as_often_as_any_at_fault(kubelet: EmbeddedKubelet) -> None:
    """A GPU that never answered is offered as soon after it does as one that was lost later."""
    lost = replace(TWO, cards=TWO.cards[:1], failed=(FailedGpu(1, "GPU is lost", a_gpu(1).uuid, lost=True),))
    cards = Cards(lost)
    async with living(kubelet, cards, health={**QUICK, "rescanSeconds": 3600}, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        cards.inventory = TWO
        await life.healthy({GPU_MEM: 16})


async def test_a_gpu_that_is_left_out_is_reported(
    kubelet: EmbeddedKubelet, log: list[MutableMapping[str, Any]]
) -> None:
    """A GPU that cannot be used and never could is a notice while it is so; one that comes later is logged, once."""
    twin, other = (FailedGpu(index, "GPU 1 has the same UUID", a_gpu(2).uuid) for index in (1, 2))
    cards = Cards(replace(TWO, failed=(twin,)))
    async with living(kubelet, cards, health=QUICK, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        notice = f"GPU 1 ({a_gpu(2).uuid}) is left out: GPU 1 has the same UUID"
        assert list(life.node.snapshot.value.notices) == [notice]
        cards.inventory = replace(TWO, failed=(twin, other))
        for _ in range(3):
            await life.node.look()
        assert len(life.node.snapshot.value.notices) == 2
        (event,) = [each for each in log if each["event"] == "gpu_left_out"]
        assert (event["index"], event["uuid"], event["log_level"]) == (2, a_gpu(2).uuid, "error")
        cards.inventory = TWO
        await life.node.look()
        assert list(life.node.snapshot.value.notices) == []


async def test_gpus_that_a_driver_makes_up_take_no_more_room(kubelet: EmbeddedKubelet) -> None:
    """A driver that names another GPU at each look, and in each event, costs the room of a few hundred, not more."""
    of_other_tests = cards_remembered()
    cards = Cards(TWO)
    async with living(kubelet, cards, health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        for number in range(2, 500):
            cards.inventory = replace(TWO, cards=(TWO.cards[0], replace(TWO.cards[1], uuid=a_gpu(number).uuid)))
            await life.node.look()
            life.node.event(xid(56, gpu=10_000 + number))
        assert len(life.node.snapshot.value.inventory.failed) <= MOST_ABSENT
        remembered = [each for each in cards_remembered() if not any(each is other for other in of_other_tests)]
        assert len(TWO.cards) <= len(remembered) <= MOST_ABSENT + len(TWO.cards)


async def test_a_driver_that_fails_is_a_fault_of_the_cards(kubelet: EmbeddedKubelet) -> None:
    """NVML that errs ends nothing: all units are unhealthy until it answers again."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.cards.trouble = NoGpuLibraryError("Unknown Error")
        await life.healthy({})
        life.cards.trouble = None
        await life.healthy({GPU_MEM: 16})


async def test_a_gpu_whose_events_cannot_be_watched_is_not_healthy(kubelet: EmbeddedKubelet) -> None:
    """Good looks do not end the fault of an event API that errs: the card is healthy when its events are watched."""
    deaf = replace(TWO, unwatched={a_gpu(0).uuid: "events of this GPU cannot be watched"})
    async with living(kubelet, Cards(deaf), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        for _ in range(10):
            await life.node.look()
        assert life.node.sessions[GPU_MEM].resource.unhealthy.keys() == {a_gpu(0).uuid}
        life.cards.inventory = TWO
        await life.healthy({GPU_MEM: 16})


async def test_a_gpu_of_which_no_event_counts_need_not_be_watched(kubelet: EmbeddedKubelet) -> None:
    """`DP_DISABLE_HEALTHCHECKS=all` also means that an event API which errs is no fault."""
    deaf = replace(TWO, unwatched={gpu.uuid: "events cannot be watched" for gpu in TWO.cards})
    async with living(kubelet, Cards(deaf), health={**QUICK, "ignoredXids": "all"}, sharing=memory()) as life:
        life.node.event(GpuEvent(None, None, "events cannot be watched"))
        await life.node.look()
        await life.healthy({GPU_MEM: 16})


class UsedCards(Cards):
    """GPUs whose use can be read whatever the trouble of a look: the look at the use may come at any time."""

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return the `samples` that the test has set."""
        return self.samples


async def test_a_defect_of_a_look_is_a_fault_of_the_cards(kubelet: EmbeddedKubelet) -> None:
    """When a look breaks by a defect, the health of the GPUs is unknown, so none is allocated."""
    async with living(kubelet, UsedCards(TWO), health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.cards.trouble = ZeroDivisionError("defect")
        with pytest.raises(ZeroDivisionError):
            await life.node.look()
        await life.healthy({})


async def test_a_fault_survives_kubelet_restarts_and_reloads(kubelet: EmbeddedKubelet) -> None:
    """Neither a new registration nor a new config ends the fault of a GPU, and none of its units is allocated."""
    async with living(kubelet, Cards(TWO), health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.node.event(xid(79))
        await life.healthy({GPU_MEM: 8})
        for graceful in (True, False):
            await kubelet.restart(graceful=graceful)
            await life.healthy({GPU_MEM: 8})
        await life.reload(health=PATIENT, sharing=memory(placement="spread"))
        await life.reload(health=PATIENT, sharing=memory(unit="512MiB"))
        await life.healthy({GPU_MEM: 16})
        admitted = await kubelet.admit(pod(16))
        assert admitted.containers["main"].environment["NVIDIA_VISIBLE_DEVICES"] == a_gpu(1).uuid
        with pytest.raises(AdmissionError):
            await kubelet.admit(pod(1))


# ---------------------------------------------------------------------- cordons


async def test_cordoned_gpus_come_back_by_the_end_of_the_cordon_alone(kubelet: EmbeddedKubelet) -> None:
    """A cordoned GPU stays out over looks, reloads and a fault that passes, and is back when it is named no more."""
    async with living(kubelet, Cards(TWO), health=QUICK, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.node.cordon(Cordon({a_gpu(0).uuid: "cordoned by annotation"}, ("there is no GPU 7",)))
        await life.healthy({GPU_MEM: 8})
        life.node.event(xid(56, gpu=0))
        life.node.event(xid(56, gpu=1))
        await life.healthy({})
        await life.healthy({GPU_MEM: 8})  # the other card is well again, by looks
        await life.reload(sharing=time_slicing(SLICED))
        await life.healthy({"nvidia.com/gpu": 4})
        assert life.node.snapshot.value.cordoned == {a_gpu(0).uuid: "cordoned by annotation"}
        assert life.node.snapshot.value.unhealthy == {}
        assert list(life.node.snapshot.value.notices) == ["there is no GPU 7"]
        life.node.cordon(Cordon())
        await life.healthy({"nvidia.com/gpu": 8})
        assert life.node.snapshot.value.cordoned == {}
        assert list(life.node.snapshot.value.notices) == []


async def test_a_refused_request_names_why_its_gpu_is_out(kubelet: EmbeddedKubelet) -> None:
    """A kubelet that has not seen the newest list gets the reason, which the pod then shows: cordon or XID."""
    async with living(kubelet, Cards(TWO), health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        socket = kubelet.plugin_directory / life.node.sessions[GPU_MEM].socket_name
        life.node.cordon(Cordon({a_gpu(0).uuid: "cordoned by annotation gpushare/unhealthy-gpus"}))
        out = f"{a_gpu(0).identity} cannot be allocated: "
        assert await refused_allocation(socket) == f"{GPU_MEM}: {out}cordoned by annotation gpushare/unhealthy-gpus"
        life.node.event(xid(79))
        assert await refused_allocation(socket) == f"{GPU_MEM}: {out}XID 79"
        life.node.event(xid(56, gpu=1))
        preferred = await refused_preference(socket, 3)
        assert preferred.endswith(f"; {out}XID 79; {a_gpu(1).identity} cannot be allocated: XID 56")


async def test_a_cordon_is_no_error(kubelet: EmbeddedKubelet, log: list[MutableMapping[str, Any]]) -> None:
    """A cordon is a warning, and its end is not; a fault meanwhile is an error."""
    async with living(kubelet, Cards(TWO), health=PATIENT, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        life.node.cordon(Cordon({a_gpu(0).uuid: "cordoned by annotation"}))
        assert logged(log, a_gpu(0).uuid) == [("gpu_cordoned", "warning", "cordoned by annotation")]
        life.node.event(xid(56, gpu=0))
        life.node.apply()
        assert logged(log, a_gpu(0).uuid)[2:] == [("gpu_unhealthy", "error", "XID 56")]
        life.node.cordon(Cordon())
        assert logged(log, a_gpu(0).uuid)[3:] == [("gpu_uncordoned", "info", None)]


def logged(log: list[MutableMapping[str, Any]], uuid: str) -> list[tuple[str, str, object]]:
    """Return what was logged of a GPU: the event, its level and the reason."""
    return [(each["event"], each["log_level"], each.get("reason")) for each in log if each.get("uuid") == uuid]


async def test_a_gpu_cordoned_before_the_start_is_never_offered(kubelet: EmbeddedKubelet) -> None:
    """What is known before the first list is in it, also of a card that comes later."""
    cards = Cards(a_node(8192))
    async with living(kubelet, cards, health=QUICK, sharing=memory()) as life:
        life.node.cordon(Cordon({a_gpu(1).uuid: "cordoned by annotation"}))
        cards.inventory = TWO
        await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 16})
        assert kubelet.allocatable() == {GPU_MEM: 8}


async def test_a_snapshot_shows_the_gpus_and_the_rejected_config(kubelet: EmbeddedKubelet) -> None:
    """A follower of the node sees what they are offered as."""
    async with living(kubelet, Cards(TWO), health=QUICK, sharing=memory()) as life:
        seen = life.node.snapshot.value
        assert seen.inventory == TWO
        assert [resource.name for resource in seen.resources] == [GPU_MEM]
        assert seen.notices == ()
        await life.reload(sharing=memory(devices=[7]))
        (notice,) = life.node.snapshot.value.notices
        assert notice.startswith("configuration rejected: ")
        assert life.node.snapshot.value.resources == seen.resources
        await life.reload(sharing=memory())
        assert list(life.node.snapshot.value.notices) == []


# ---------------------------------------------------------------------- GPUs that come and go


async def test_a_new_card_is_offered_without_a_new_registration(kubelet: EmbeddedKubelet) -> None:
    """The units of a card that appears come over the stream that is open."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        life.cards.inventory = TWO
        await life.healthy({GPU_MEM: 16})
        assert len(kubelet.registrations) == 1


async def test_a_card_that_is_gone_keeps_what_pods_hold_listed(kubelet: EmbeddedKubelet) -> None:
    """Free units go, units in use stay, unhealthy, until their pods end."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        held = pod(3)
        admitted = await kubelet.admit(held)
        ids = admitted.containers["main"].device_ids[GPU_MEM]
        life.cards.inventory = Inventory(TWO.cards[1:])
        await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 11})
        assert ids <= set(kubelet.devices(GPU_MEM))
        kubelet.delete(held)
        await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 8})


async def test_a_card_that_was_swapped_is_another_card(kubelet: EmbeddedKubelet) -> None:
    """A new UUID in the same place: the old units go, the new ones come."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        life.cards.inventory = Inventory((a_gpu(0, 8192, uuid=a_gpu(7).uuid),))
        await kubelet.wait_for(lambda seen: all(id_.startswith("00000007") for id_ in seen.devices(GPU_MEM)))
        assert kubelet.allocatable() == {GPU_MEM: 8}


async def test_reserved_memory_that_drifts_changes_no_unit(kubelet: EmbeddedKubelet) -> None:
    """A few MiB more or less of reserved memory make no unit come and go; half the memory is another card."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        life.cards.inventory = a_node(8180)
        await life.node.look()
        assert life.node.sessions[GPU_MEM].resource.units_of == {a_gpu(0).uuid: 8}
        life.cards.inventory = a_node(4096)
        await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 4})


async def test_memory_that_is_not_reported_any_more_changes_no_unit(kubelet: EmbeddedKubelet) -> None:
    """A GPU that was shared by memory is not offered whole, because the driver leaves one question unanswered."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        life.cards.inventory = a_node(0)
        await life.node.look()
        assert life.node.sessions.keys() == {GPU_MEM}
        assert life.node.sessions[GPU_MEM].resource.units_of == {a_gpu(0).uuid: 8}


async def test_a_gpu_that_the_config_names_may_vanish(kubelet: EmbeddedKubelet) -> None:
    """A config that was right stays in effect for the GPUs that are left."""
    sharing = memory(devices=[a_gpu(0).uuid, a_gpu(1).uuid])
    async with living(kubelet, Cards(TWO), sharing=sharing) as life:
        await life.healthy({GPU_MEM: 16})
        life.cards.inventory = Inventory(TWO.cards[:1])
        await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 8})
        life.cards.inventory = TWO
        await life.healthy({GPU_MEM: 16})


# ---------------------------------------------------------------------- live configs


async def test_a_changed_count_comes_over_the_open_stream(kubelet: EmbeddedKubelet) -> None:
    """More replicas need no new registration."""
    async with living(kubelet, Cards(TWO), sharing=time_slicing(SLICED)) as life:
        await life.healthy({"nvidia.com/gpu": 8})
        await life.reload(sharing=time_slicing({**SLICED, "replicas": 6}))
        await life.healthy({"nvidia.com/gpu": 12})
        assert len(kubelet.registrations) == 1


async def test_a_bad_edit_changes_nothing(kubelet: EmbeddedKubelet) -> None:
    """The current config stays in effect, whatever is wrong with the new one, and a good edit is accepted again."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        await life.reload(sharing=memory(unit="GB"))
        await life.reload(sharing=memory(unit="64GiB"))
        await life.reload(sharing=memory(devices=[9]))
        await kubelet.admit(pod(5))
        assert life.node.config.sharing.memory is not None
        assert str(life.node.config.sharing.memory.resources[0].unit) == "GiB"
        await life.reload(sharing=memory(placement="spread"))
        assert life.node.config.sharing.memory.resources[0].placement == "spread"


async def test_an_edit_beside_a_young_kubelet_waits_for_its_record_only(kubelet: EmbeddedKubelet) -> None:
    """A checkpoint written since shows that no pod holds anything: that needs no delay."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        life.trust_delays = FOR_EVER
        await life.restart(sharing=memory())
        await life.healthy({GPU_MEM: 16})
        await life.reload(sharing=time_slicing(SLICED))
        await life.healthy({"nvidia.com/gpu": 8})


async def test_resources_appear_and_vanish(kubelet: EmbeddedKubelet) -> None:
    """A resource that is no longer configured is retired with its socket, another registers; back and forth."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        for _ in range(2):
            await life.healthy({GPU_MEM: 16})
            await life.reload(sharing=time_slicing(SLICED))
            await life.healthy({"nvidia.com/gpu": 8})
            await until(lambda: sockets(kubelet) == {"gpushare-nvidia.com_gpu.sock"})
            await life.reload(sharing=memory())


def sockets(kubelet: EmbeddedKubelet) -> set[str]:
    """Return the names of the sockets that resources are served at."""
    return {path.name for path in kubelet.plugin_directory.glob("gpushare-*.sock")}


async def test_a_gpu_in_use_changes_over_when_its_pods_end(kubelet: EmbeddedKubelet) -> None:
    """What the pod holds stays listed; the free GPU changes over at once, the other when the pod ends."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        held = pod(3)
        await kubelet.admit(held)
        await life.reload(sharing=time_slicing(SLICED))
        await life.healthy({"nvidia.com/gpu": 4})
        await kubelet.wait_for(lambda seen: len(seen.devices(GPU_MEM)) == 3)
        assert kubelet.allocated(GPU_MEM) == set(kubelet.devices(GPU_MEM))
        kubelet.delete(held)
        await life.healthy({"nvidia.com/gpu": 8})


async def test_our_restart_with_another_config_waits_for_the_pods_of_the_old(kubelet: EmbeddedKubelet) -> None:
    """A GPU that a pod holds from our earlier life is not offered in the new way until it ends.

    What it holds is listed where its resource is still ours: another plugin may serve it otherwise.
    """
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        held = pod(3)
        await kubelet.admit(held)
        await life.restart(sharing=time_slicing(SLICED))
        await life.healthy({"nvidia.com/gpu": 4})
        await life.restart(sharing=memory(devices=[1]) | time_slicing({**SLICED, "devices": [0]}))
        await life.healthy({GPU_MEM: 8})
        assert kubelet.allocated(GPU_MEM) <= set(kubelet.devices(GPU_MEM))
        await life.restart(sharing=time_slicing(SLICED))
        await life.healthy({"nvidia.com/gpu": 4})
        kubelet.delete(held)
        await life.healthy({"nvidia.com/gpu": 8})


async def test_our_restart_beside_a_restarting_kubelet_forgets_nobody(kubelet: EmbeddedKubelet) -> None:
    """After a reboot with new settings the kubelet's checkpoint shows who held what, before it answers."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        await kubelet.admit(pod(3))
        await life.stop()
        await kubelet.stop(graceful=False)
        await life.start(sharing=memory(unit="2GiB"))
        await kubelet.start()
        await life.healthy({GPU_MEM: 4})
        assert kubelet.allocated(GPU_MEM) <= set(kubelet.devices(GPU_MEM))


async def test_a_little_less_memory_is_no_other_limit(kubelet: EmbeddedKubelet) -> None:
    """Replicas under MPS that pods hold do not block their GPU after a restart with a driver that keeps 4 MiB more."""
    sharing = {"mps": {"resources": [SLICED]}}
    async with living(kubelet, Cards(a_node(8192)), sharing=sharing) as life:
        await kubelet.wait_for(lambda seen: seen.capacity() == {"nvidia.com/gpu": 4})
        await life.stop()
        await kubelet.stop()
        held = {"ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": [f"{a_gpu(0).uuid}::0"]}}
        (kubelet.plugin_directory / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": [held]}}))
        life.cards.inventory = a_node(8188)
        await life.start(sharing=sharing)
        assert len(life.node.sessions["nvidia.com/gpu"].resource.units) == 4
        assert life.node.mps.wanted_before().gpus[0].memory_limit_mib == 2047


async def test_the_mps_root_counts_at_start_only(kubelet: EmbeddedKubelet) -> None:
    """Containers and `gpushare mps` have the directory for life, so an edit of it changes nothing."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        before = life.node.config.flags.mps_root
        await life.reload(flags={"mpsRoot": "/elsewhere"}, sharing=memory(placement="spread"))
        assert life.node.config.flags.mps_root == before
        assert life.node.config.sharing.memory is not None
        assert life.node.config.sharing.memory.resources[0].placement == "spread"


async def test_init_containers_keep_what_they_hold(kubelet: EmbeddedKubelet) -> None:
    """Units that only an init container holds, which pod-resources never shows, are not given to anybody else."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        held = Pod("pod", [Container("main")], [Container("init", {GPU_MEM: 5})])
        await kubelet.admit(held)
        await life.reload(sharing=time_slicing(SLICED))
        for _ in range(5):
            await life.node.ask_kubelet()
        await kubelet.wait_for(lambda seen: len(seen.devices(GPU_MEM)) == 5)
        assert life.node.sessions["nvidia.com/gpu"].resource.units == {}
        kubelet.delete(held)
        await life.healthy({"nvidia.com/gpu": 4})


async def test_a_single_gpu_changes_over_across_our_restart(kubelet: EmbeddedKubelet) -> None:
    """Nothing else is offered meanwhile, and yet the kubelet comes to write down that the pod is over."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        held = pod(3)
        await kubelet.admit(held)
        await life.restart(sharing=time_slicing(SLICED))
        await life.node.ask_kubelet()
        assert life.node.sessions["nvidia.com/gpu"].resource.units == {}
        kubelet.delete(held)
        await life.healthy({"nvidia.com/gpu": 4})


async def test_a_stale_record_holds_nothing_back_for_long(kubelet: EmbeddedKubelet) -> None:
    """A pod that ended while we were away is still in the record: the kubelet need not be old to be asked about it."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        over = pod(3)
        await kubelet.admit(over)
        await life.stop()
        kubelet.delete(over)
        assert len(read_held(kubelet.plugin_directory)) == 3
        life.trust_delays = FOR_EVER
        await life.start(sharing=time_slicing(SLICED))
        await life.healthy({"nvidia.com/gpu": 4})


async def test_the_kubelet_is_made_to_write_a_record_without_the_pods_that_are_over(kubelet: EmbeddedKubelet) -> None:
    """Where nothing else would be sent to it, it is sent a list for that: a GPU waits no longer than for its pods."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        await kubelet.admit(held := pod(3))
        life.trust_delays = FOR_EVER
        await life.restart(sharing=time_slicing(SLICED))
        its_pods = ["changes its mode when its pods end: default/pod"]
        await until(lambda: [*life.node.snapshot.value.waiting.values()] == its_pods)
        kubelet.delete(held)
        await life.healthy({"nvidia.com/gpu": 4})


async def test_a_kubelet_that_does_not_know_its_pods_takes_nothing_from_them(kubelet: EmbeddedKubelet) -> None:
    """It shows no pod, and writes its record at each list; what pods hold stays theirs until they are over."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        life.trust_delays = FOR_EVER
        await life.healthy({GPU_MEM: 8})
        await kubelet.admit(held := pod(3))
        await kubelet.restart(knows_pods=False)
        await life.restart(sharing=time_slicing(SLICED))
        believed = 0
        async with asyncio.timeout(PATIENCE):
            while believed < 5:
                await life.node.ask_kubelet()
                assert life.node.sessions["nvidia.com/gpu"].resource.units == {}
                (reason,) = life.node.snapshot.value.waiting.values()
                believed += reason == f"changes its mode when its pods end: {ONLY_RECORDED}"
                await asyncio.sleep(0.02)  # the kubelet writes its record meanwhile
        kubelet.learn_pods()
        kubelet.delete(held)
        await life.healthy({"nvidia.com/gpu": 4})


async def test_units_are_not_offered_before_it_is_known_what_pods_hold(kubelet: EmbeddedKubelet) -> None:
    """The plugin directory is not mounted yet when we begin: once it is, what pods hold there still counts."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        await kubelet.admit(pod(3))
        await life.stop()
        away = kubelet.plugin_directory.with_name("away")
        kubelet.plugin_directory.rename(away)
        await life.start(sharing=time_slicing(SLICED))
        assert (life.node.allocations_known, life.node.sessions) == (False, {})
        away.rename(kubelet.plugin_directory)
        await life.healthy({"nvidia.com/gpu": 4})


async def test_mps_is_needed_until_no_pod_uses_a_gpu_under_it(kubelet: EmbeddedKubelet) -> None:
    """A config without MPS does not end it under running pods, also not while a new daemon does not know them yet."""
    async with living(kubelet, Cards(TWO), sharing=memory(isolation="mps")) as life:
        await kubelet.wait_for(lambda node: node.capacity().get(GPU_MEM) == 16)
        assert life.node.snapshot.value.needs_mps
        await life.stop()
        held = {"PodUID": "a", "ContainerName": "main", "ResourceName": GPU_MEM, "AllocResp": ""}
        held["DeviceIDs"] = {"-1": [next(iter(life.node.sessions[GPU_MEM].resource.units))]}  # type: ignore[assignment]
        (kubelet.plugin_directory / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": [held]}}))
        away = kubelet.plugin_directory.with_name("away")
        kubelet.plugin_directory.rename(away)
        await life.start(sharing=memory())
        assert not life.node.allocations_known
        before = life.node.snapshot.value
        assert (before.needs_mps, before.resources, len(before.inventory.cards)) == (True, (), 2)
        away.rename(kubelet.plugin_directory)
        await until(lambda: bool(life.node.snapshot.value.waiting))
        assert life.node.snapshot.value.needs_mps
        (kubelet.plugin_directory / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": []}}))
        await until(lambda: not life.node.snapshot.value.needs_mps)


async def test_another_plugins_resource_is_left_alone(kubelet: EmbeddedKubelet) -> None:
    """What a pod holds of cards that are not ours makes the node list nothing, and wait for nothing."""
    async with living(kubelet, Cards(Inventory((a_gpu(7, 8192),))), sharing={}) as other:
        await other.healthy({"nvidia.com/gpu": 1})
        await kubelet.admit(pod(1, "nvidia.com/gpu"))
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        assert life.node.sessions.keys() == {GPU_MEM}


async def test_a_config_that_was_rejected_is_tried_again_when_the_gpus_change(kubelet: EmbeddedKubelet) -> None:
    """A config for a GPU that is not present yet comes into effect when it is."""
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        await life.reload(sharing=time_slicing({**SLICED, "devices": [0, 1]}))
        life.cards.inventory = TWO
        await life.healthy({"nvidia.com/gpu": 8})


async def test_a_gpu_that_another_plugin_allocated_is_not_allocated_again(kubelet: EmbeddedKubelet) -> None:
    """Coming from NVIDIA's plugin, a GPU that a pod still holds whole is not cut into memory units."""
    async with living(kubelet, Cards(TWO), sharing={}) as life:  # whole GPUs have the IDs NVIDIA's plugin gives them
        await life.healthy({"nvidia.com/gpu": 2})
        await kubelet.admit(pod(1, "nvidia.com/gpu"))
        await life.restart(sharing=memory())
        await life.healthy({GPU_MEM: 8})
        # Whoever looks at the node sees why one GPU of two is not there.
        async with asyncio.timeout(PATIENCE):
            async for seen in life.node.snapshot.follow():
                if [*seen.waiting.values()] == ["changes its mode when its pods end: default/pod"]:
                    break


async def test_cards_with_the_same_first_digits_are_never_offered_twice(kubelet: EmbeddedKubelet) -> None:
    """A second card whose short name clashes renames the units of the first; those pods hold keep it waiting."""
    twin = a_gpu(1, 8192, uuid=a_gpu(0).uuid.replace("-0000-", "-1111-"))
    async with living(kubelet, Cards(a_node(8192)), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        await kubelet.admit(pod(3))
        life.cards.inventory = Inventory((a_gpu(0, 8192), twin))
        await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 3 + 8})
        await life.healthy({GPU_MEM: 8})
        assert kubelet.allocated(GPU_MEM) <= set(kubelet.devices(GPU_MEM))


async def test_resources_that_come_and_go_are_not_kept_for_ever(kubelet: EmbeddedKubelet) -> None:
    """Renaming resources again and again leaves nothing behind, and two sessions never share a socket."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        for number in range(30):
            name = f"nvidia.com/gpu-{number % 3}"
            await life.reload(sharing=time_slicing({**SLICED, "rename": name}))
            if number % 5 == 0:  # also in a hurry
                await life.healthy({name: 8})
        await life.healthy({"nvidia.com/gpu-2": 8})
        if ending := [task for task in life.node.tasks if task.cancelling()]:
            await asyncio.wait(ending)
        assert len(life.node.tasks) == len(life.node.sessions) == 1
        assert [path.name for path in kubelet.plugin_directory.glob("gpushare-*.sock")] == [
            life.node.sessions["nvidia.com/gpu-2"].socket_name
        ]


# ---------------------------------------------------------------------- bounds


async def _open_files_and_threads() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - a count is all that is wanted


async def test_restarts_and_reloads_leave_nothing_behind(kubelet: EmbeddedKubelet) -> None:
    """A hundred kubelet restarts and reloads leave files, threads and tasks where they began."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await _churn(life, 20)
        before = await _open_files_and_threads()
        await _churn(life, 100)
        after = await _open_files_and_threads()
        assert [now - then <= 3 for then, now in zip(before, after, strict=True)] == [True, True], (before, after)
        assert len(life.node.tasks) == len(life.node.sessions) == 1


async def _churn(life: Life, times: int) -> None:
    for number in range(times):
        await life.kubelet.restart()
        await life.reload(sharing=memory(placement="spread" if number % 2 else "binpack"))
        await life.healthy({GPU_MEM: 16})


async def test_a_client_that_never_reads_delays_nobody(kubelet: EmbeddedKubelet) -> None:
    """A stream that is not read fills up; the other stream goes on, and Allocate answers."""
    sharing = time_slicing({**SLICED, "replicas": 4000})
    async with living(kubelet, Cards(TWO), health=PATIENT, sharing=sharing) as life:
        await life.healthy({"nvidia.com/gpu": 8000})
        (session,) = life.node.sessions.values()
        address = f"unix:{kubelet.plugin_directory / session.socket_name}"
        async with grpc.aio.insecure_channel(address, options=[("grpc.http2.lookahead_bytes", 1024)]) as channel:
            silent = rpc.DevicePluginStub(channel).ListAndWatch(api.Empty())
            await silent.wait_for_connection()
            for number in range(20):
                life.node.event(xid(56, gpu=number % 2))
                await life.reload(health=PATIENT, sharing=time_slicing({**SLICED, "replicas": 4001 + number}))
            await kubelet.wait_for(lambda seen: seen.capacity() == {"nvidia.com/gpu": 2 * 4020})
            silent.cancel()
