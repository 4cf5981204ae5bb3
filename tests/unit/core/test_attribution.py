"""Tests of `gpushare_plugin.core.attribution`: which container uses what."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.attribution import NO_HOLDINGS, attribute, driver_limits
from gpushare_plugin.core.driver_limits import DriverLimits, MemoryLimit
from gpushare_plugin.core.holding import Holding
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import HOST, TOLERANCE, ContainerUsage, GpuUsage, Owner, Process, Stowaway
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_mig_node, a_node
from tests.snapshots import snapshot
from tests.unit.core.claimed import claim, device, shown, with_claims
from tests.unit.sharing.settings import memory, time_slicing
from tests.unit.sharing.settings import settings as config_of

GIB = 1024 * MIB
MEMORY = "aliyun.com/gpu-mem"
REPLICAS: dict[str, object] = {"name": "nvidia.com/gpu", "replicas": 4}


def held(  # noqa: PLR0913 - what a holding is made of
    made: Snapshot, pod: str, units: int, *, container: str = "main", gpu: int = 0, first: int = 0
) -> Holding:
    """Let a container hold `units` of a GPU, from the unit numbered `first` on; its pod's UID is `uid-<pod>`."""
    (resource,) = made.resources
    found = resource.units.by_gpu[made.inventory.gpus[gpu]][first : first + units]
    assert len(found) == units
    ids = frozenset(unit.id for unit in found)
    return Holding("default", pod, container, resource.name, ids, uid=f"uid-{pod}", container_id=f"{pod}-{container}")


def process(pid: int, pod: str | None, mib: int | None = 100, *, container: str = "main", busy: float = 0.0) -> Process:
    """Return a process of a container of a pod, or of the host."""
    owner = HOST if pod is None else Owner(f"uid-{pod}", f"{pod}-{container}")
    return Process(pid, "python", None if mib is None else mib * MIB, busy, owner)


def on(made: Snapshot, *processes: Process, gpu: int = 0, unknown: str | None = None) -> GpuUsage:
    """Return a sample of a GPU with these processes."""
    found = made.inventory.gpus[gpu]
    return GpuUsage(found.uuid, found.memory_mib * MIB, GIB, 0.5, None if unknown else processes, unknown)


class TestLimits:
    """How much memory a container may use."""

    @pytest.mark.parametrize(
        ("sharing", "units", "limit"),
        [
            (memory(), 3, 3 * GIB),
            (memory(unit="512MiB"), 3, 3 * GIB // 2),
            (time_slicing(REPLICAS), 1, None),
            (time_slicing({**REPLICAS, "isolation": "hami-core"}), 1, 2 * GIB),
            ({"mps": {"resources": [REPLICAS]}}, 1, 2 * GIB),
            ({"mps": {"sizes": [{"slices": [{"size": "2gb", "count": 2}]}]}}, 2, 4 * GIB),
            ({}, 1, 8 * GIB),
        ],
        ids=["memory", "half GiB", "time slicing", "HAMi-core", "MPS replicas", "MPS slices", "whole"],
    )
    def test_the_way_of_sharing_decides_the_limit_of_a_container(
        self, sharing: Mapping[str, Any], units: int, limit: int | None
    ) -> None:
        """Memory is that of the units, of an equal part, or of the whole GPU; time slicing alone limits nothing."""
        made = snapshot(sharing, 8192)
        (container,) = attribute([on(made)], made, [held(made, "a", units)]).containers
        assert (container.limit, container.units, container.used) == (limit, units, 0)

    @pytest.mark.parametrize(
        ("sharing", "limit"),
        [
            (memory(isolation="driver"), 2 * GIB + 512 * MIB),
            (memory(isolation="driver", burst=2), 5 * GIB),
            (memory(isolation="driver+mps", burst="20GiB"), 8 * GIB),
            (time_slicing({**REPLICAS, "isolation": "driver"}), 2 * GIB + 512 * MIB),
        ],
    )
    def test_the_hard_limit_of_the_driver_is_the_limit_of_a_container(
        self, sharing: dict[str, Any], limit: int
    ) -> None:
        """With what the config adds, and with burst, up to the memory of the GPU; only then is it used too much."""
        config = config_of(sharing=sharing, driverLimits={"additionalMemory": "512MiB"})
        node = a_node(8192)
        decided = plan(EffectiveConfig(config), node, driver_limits=DriverLimits(agent=True))
        made = planned_snapshot(config, node, decided)
        units = 1 if "timeSlicing" in sharing else 2
        (container,) = attribute([on(made)], made, [held(made, "a", units)]).containers
        assert container.limit == limit

    def test_an_instance_has_its_own_memory(self) -> None:
        """A container with a MIG instance may use all of that, and no more."""
        made = snapshot({}, inventory=a_mig_node(("1g.5gb",)), flags={"migStrategy": "mixed"})
        usage = attribute([on(made), on(made, process(1, "a"), gpu=1)], made, [held(made, "a", 1, gpu=1)])
        (container,) = usage.containers
        assert (container.limit, container.used, container.gpu) == (4864 * MIB, 100 * MIB, made.inventory.gpus[1].uuid)
        assert usage.stowaways == ()

    def test_units_of_compute_do_not_count_as_memory(self) -> None:
        """Units of compute are not counted: the memory of the same container has the limit."""
        sharing = memory(isolation="hami-core", compute="requested")
        made = snapshot(sharing, 8192)
        cores = next(resource for resource in made.resources if resource.role == "cores")
        of_memory = next(resource for resource in made.resources if resource.role == "memory")
        holdings = [
            Holding("default", "a", "main", resource.name, frozenset(list(resource.units.by_id)[:2]), uid="uid-a")
            for resource in (cores, of_memory)
        ]
        (container,) = attribute([on(made)], made, holdings).containers
        assert (container.resource, container.units, container.limit) == (MEMORY, 2, 2 * GIB)

    def test_a_whole_gpu_of_unknown_memory_sets_no_limit(self) -> None:
        """What the container uses is known, and it is never over a limit that nobody knows."""
        made = snapshot({}, 0)
        sample = replace(on(made, process(1, "a", 90_000)), memory_total=None, memory_used=None)
        (container,) = attribute([sample], made, [held(made, "a", 1)]).containers
        assert (container.limit, container.used, container.over) == (None, 90_000 * MIB, False)

    def test_units_that_are_listed_no_more_keep_their_meaning(self) -> None:
        """After a change of the config, an old ID still says how much memory it stands for."""
        made = snapshot(time_slicing(REPLICAS), 8192)
        short = made.inventory.gpus[0].uuid.removeprefix("GPU-")[:8]
        old = Holding("default", "a", "main", MEMORY, frozenset({f"{short}-1Gi-0", f"{short}-1Gi-1"}), uid="uid-a")
        (container,) = attribute([on(made)], made, [old]).containers
        assert (container.resource, container.limit) == (MEMORY, 2 * GIB)

    def test_a_container_is_over_its_limit_only_beyond_the_tolerance(self) -> None:
        """The context of CUDA counts in no request, so a container is over its limit only beyond the tolerance."""
        usage = ContainerUsage("default", "a", "main", "uid-a", "GPU", MEMORY, 1, limit=GIB, used=GIB + TOLERANCE)
        assert not usage.over
        assert replace(usage, used=GIB + TOLERANCE + 1).over
        assert not replace(usage, limit=None).over
        assert not replace(usage, used=None).over


class TestContainers:
    """Whose a process is."""

    def test_a_container_uses_what_all_processes_of_its_pod_use(self) -> None:
        """Memory and computing of all processes of a pod on the GPU are the container's."""
        made = snapshot(memory(), 8192, 8192)
        samples = [
            on(made, process(1, "a", 700, busy=0.25), process(2, "b", 20), process(3, "a", 300, busy=0.5)),
            on(made, gpu=1),
        ]
        holdings = [held(made, "a", 2), held(made, "b", 1, first=2), held(made, "c", 1, gpu=1)]
        usage = attribute(samples, made, holdings)
        found = {each.pod: (each.used, each.utilization, each.processes) for each in usage.containers}
        assert found == {"a": (1000 * MIB, 0.75, 2), "b": (20 * MIB, 0.0, 1), "c": (0, 0.0, 0)}
        assert [gpu.processes for gpu in usage.gpus] == [sample.processes for sample in samples]

    def test_containers_of_a_pod_are_told_apart_by_their_ids(self) -> None:
        """Where the IDs of containers are known, each has its own processes."""
        made = snapshot(memory(), 8192)
        holdings = [held(made, "a", 2, container="one"), held(made, "a", 1, container="two", first=2)]
        sample = on(made, process(1, "a", container="one"), process(2, "a", 50, container="two"))
        found = {each.container: each.used for each in attribute([sample], made, holdings).containers}
        assert found == {"one": 100 * MIB, "two": 50 * MIB}

    def test_containers_that_cannot_be_told_apart_are_summed(self) -> None:
        """Where the IDs are not known, the pod has the sum of both, of limits and of memory."""
        made = snapshot(memory(), 8192)
        holdings = [
            held(made, "a", 2, container="one")._replace(container_id=""),
            held(made, "a", 1, container="two", first=2)._replace(container_id=""),
        ]
        sample = on(made, process(1, "a", container="one"), process(2, "a", 50, container="two"))
        (pod,) = attribute([sample], made, holdings).containers
        assert (pod.container, pod.limit, pod.units, pod.used) == ("", 3 * GIB, 3, 150 * MIB)

    def test_a_card_that_is_held_whole_has_the_processes_of_its_instances(self) -> None:
        """Without a MIG strategy a container gets the card, and what runs on its instances is that container's."""
        made = snapshot({}, inventory=a_mig_node(("1g.5gb", "1g.5gb")), flags={"migStrategy": "none"})
        samples = [on(made), on(made, process(1, "a"), gpu=1), on(made, process(2, "a"), gpu=2)]
        usage = attribute(samples, made, [held(made, "a", 1)])
        assert [each.used for each in usage.containers] == [200 * MIB]
        assert usage.stowaways == ()

    def test_the_memory_of_a_container_is_unknown_if_that_of_a_process_is(self) -> None:
        """Where the driver does not say what one process uses, it is not known what its container uses."""
        made = snapshot(memory(), 8192)
        sample = on(made, process(1, "a"), process(2, "a", None))
        (container,) = attribute([sample], made, [held(made, "a", 1)]).containers
        assert (container.used, container.processes, container.over) == (None, 2, False)

    def test_simulated_processes_name_their_pod(self) -> None:
        """A process that names its pod instead of a UID is that pod's."""
        made = snapshot(memory(), 8192)
        mine = Process(1, "python", GIB, owner=Owner(pod="default/a", container="main"))
        usage = attribute([on(made, mine)], made, [held(made, "a", 1)._replace(uid="")])
        assert [(each.pod, each.used) for each in usage.containers] == [("a", GIB)]
        assert usage.gpus[0].unknown is None


class TestStowaways:
    """Processes that should not be there."""

    def test_a_process_of_no_pod_with_units_is_a_stowaway(self) -> None:
        """A process of the host, of a pod without units, and of a pod with units of another GPU do not belong."""
        made = snapshot(time_slicing(REPLICAS), 8192, 8192)
        sample = on(made, process(1, None), process(2, "x"), process(3, "b"), process(4, "a"))
        usage = attribute([sample, on(made, gpu=1)], made, [held(made, "a", 1), held(made, "b", 1, gpu=1)])
        gpu = made.inventory.gpus[0].uuid
        assert usage.stowaways == (
            Stowaway(gpu, 1, "python", memory=100 * MIB),
            Stowaway(gpu, 2, "python", "", "uid-x", "x-main", 100 * MIB),
            Stowaway(gpu, 3, "python", "default/b", "uid-b", "b-main", 100 * MIB),
        )
        assert [each.whose for each in usage.stowaways] == ["the host", "pod uid-x", "pod default/b"]

    def test_the_mps_server_is_no_stowaway_on_a_gpu_under_mps(self) -> None:
        """The server is there for all clients; elsewhere a process of that name is a stowaway like any other."""
        server = Process(1, "nvidia-cuda-mps", 30 * MIB)
        under_mps, time_sliced = snapshot(memory(isolation="mps"), 8192), snapshot(time_slicing(REPLICAS), 8192)
        assert attribute([on(under_mps, server)], under_mps, []).stowaways == ()
        assert len(attribute([on(time_sliced, server)], time_sliced, []).stowaways) == 1
        leaving = replace(time_sliced, isolations_in_use=under_mps.isolations_in_use)
        assert attribute([on(leaving, server)], leaving, []).stowaways == ()

    def test_a_gpu_that_is_not_offered_has_no_stowaways(self) -> None:
        """A GPU that gpushare leaves to others is theirs."""
        made = snapshot({}, 8192)
        empty = Snapshot(made.inventory)
        assert attribute([on(made, process(1, None))], empty, []).stowaways == ()


class TestUnknown:
    """What is not known is not guessed."""

    def test_containers_have_no_usage_without_process_ids_of_the_host(self) -> None:
        """Where processes cannot be told, containers have limits and no usage, and the reason is there."""
        made = snapshot(memory(), 8192)
        usage = attribute([on(made, unknown="no host PIDs")], made, [held(made, "a", 1)])
        (gpu,), (container,) = usage.gpus, usage.containers
        assert (gpu.memory_used, gpu.processes, gpu.unknown) == (GIB, None, "no host PIDs")
        assert (container.limit, container.used, container.processes) == (GIB, None, None)

    def test_a_process_is_no_stowaway_while_holdings_are_unknown(self) -> None:
        """Where it is not known what pods hold, no process is said to be in the wrong place."""
        made = snapshot(memory(), 8192)
        sample = on(made, process(1, "x"))
        usage = attribute([sample], made, None)
        assert (usage.containers, usage.stowaways) == ((), ())
        assert (usage.gpus[0].processes, usage.gpus[0].unknown) == (sample.processes, NO_HOLDINGS)

    def test_a_process_of_an_unknown_pod_is_no_stowaway_while_a_uid_is_unknown(self) -> None:
        """While the UID of a pod with units is not known, an unknown pod's process may be its own."""
        made = snapshot(memory(), 8192)
        nameless = held(made, "a", 1)._replace(uid="")
        usage = attribute([on(made, process(1, "x"))], made, [nameless])
        assert usage.stowaways == ()
        assert usage.gpus[0].unknown == "the UID of pod default/a is not known"
        assert usage.containers[0].used is None

    def test_containers_have_no_usage_of_a_gpu_that_did_not_answer(self) -> None:
        """Where there is no sample of a GPU, its containers have limits and no usage."""
        made = snapshot(memory(), 8192, 8192)
        usage = attribute([on(made, gpu=1)], made, [held(made, "a", 1)])
        assert usage.of_gpu(made.inventory.gpus[0].uuid) is None
        assert usage.containers[0].used is None


PODS = ("a", "b", "c", None)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(PODS), st.sampled_from([0, 1]), st.integers(0, 9)), max_size=12))
def test_every_process_is_counted_once(placed: list[tuple[str | None, int, int]]) -> None:
    """Whatever runs where: the memory of containers and stowaways together is that of all processes."""
    made = snapshot(memory(), 8192, 8192)
    samples = [
        on(made, *(process(pid, pod, mib) for pid, (pod, at, mib) in enumerate(placed, 1) if at == gpu), gpu=gpu)
        for gpu in (0, 1)
    ]
    holdings = [held(made, "a", 2), held(made, "b", 1, first=2), held(made, "b", 1, gpu=1)]
    usage = attribute(samples, made, holdings)
    counted = sum(each.used or 0 for each in usage.containers) + sum(each.memory or 0 for each in usage.stowaways)
    assert counted == sum(mib for _, _, mib in placed) * MIB
    assert sum(each.processes or 0 for each in usage.containers) + len(usage.stowaways) == len(placed)


class TestClaims:
    """Containers that have a share of a GPU by a claim."""

    BY_CLAIM: Mapping[str, Any] = {"dra": {}}

    def seen(self, made: Snapshot, holdings: list[Holding], *processes: Process) -> list[ContainerUsage]:
        """Look at the first GPU, and return who uses the GPU."""
        assert made.claims is not None
        usage = attribute([on(made, *processes)], made, made.claims.holdings(holdings))
        assert usage.stowaways == ()
        return list(usage.containers)

    @pytest.mark.parametrize(
        ("share", "limit"),
        [
            ({"mib": 2048}, 2 * GIB),
            ({"mib": 8192, "way": "whole"}, 8 * GIB),
            ({"mib": 0, "way": "replicas"}, None),
            ({"mib": 0, "admin_access": True}, None),
        ],
        ids=["share", "whole", "time slices", "administration"],
    )
    def test_the_limit_of_a_container_is_that_of_its_claim(self, share: dict[str, Any], limit: int | None) -> None:
        """The memory of the share or of the whole GPU; time slices and access for administration have no limit."""
        made = snapshot(memory(), 8192, **self.BY_CLAIM)
        prepared = device(made, **share)
        made = with_claims(made, claim("mine", prepared, users=("a",)))
        (container,) = self.seen(made, [shown(made, "a", "mine")], process(1, "a", 300))
        assert (container.label, container.container, container.uid) == ("default/a", "main", "uid-a")
        assert (container.resource, container.units, container.claimed) == ("claim:mine", 1, (prepared,))
        assert (container.limit, container.used) == (limit, 300 * MIB)

    def test_the_hard_limit_of_the_driver_is_the_limit_of_a_share(self) -> None:
        """With what the config adds, and with burst, as for units."""
        sections = {"driverLimits": {"additionalMemory": "512MiB"}, **self.BY_CLAIM}
        config = config_of(sharing=memory(isolation="driver", burst=2), **sections)
        decided = plan(EffectiveConfig(config), a_node(8192), driver_limits=DriverLimits(agent=True))
        made = planned_snapshot(config, a_node(8192), decided)
        made = with_claims(made, claim("mine", device(made, 2048), users=("a",)))
        (container,) = self.seen(made, [shown(made, "a", "mine")])
        assert (container.limit, container.guaranteed) == (5 * GIB, 2 * GIB)

    def test_what_a_claim_was_given_is_its_limit_by_the_driver(self) -> None:
        """Whatever the config adds now; a container with two shares of a GPU has both, up to the memory of the GPU."""
        sections = {"driverLimits": {"additionalMemory": "512MiB"}, **self.BY_CLAIM}
        config = config_of(sharing=memory(isolation="driver"), **sections)
        decided = plan(EffectiveConfig(config), a_node(8192), driver_limits=DriverLimits(agent=True))
        made = planned_snapshot(config, a_node(8192), decided)
        given = {"small": (2 * GIB, 0), "large": (3 * GIB, 1 * GIB), "larger": (7 * GIB, 0)}
        variables = {name: MemoryLimit(hard, soft).variables for name, (hard, soft) in given.items()}
        shares = {name: device(made, 1024, request=name, environment=each) for name, each in variables.items()}
        for names, limit in ((["small"], (2, 0)), (["small", "large"], (5, 1)), (["small", "larger"], (8, 0))):
            claimed = with_claims(made, claim("mine", *(shares[name] for name in names), users=("a",)))
            (container,) = self.seen(claimed, [shown(claimed, "a", "mine")])
            assert (container.limit, container.guaranteed) == (limit[0] * GIB, limit[1] * GIB)
        together = with_claims(made, claim("mine", shares["large"], replace(shares["large"], share_id="second")))
        (container,) = self.seen(together, [shown(together, "a", "mine")])
        assert (container.limit, container.guaranteed) == (3 * GIB, 1 * GIB)

    def test_a_claim_keeps_the_limit_by_the_driver_that_an_earlier_config_gave_it(self) -> None:
        """Its containers can start again under a config without limits, and have the variables still."""
        made, limit = snapshot(memory(), 8192, **self.BY_CLAIM), MemoryLimit(2 * GIB)
        made = with_claims(made, claim("mine", device(made, 2048, environment=limit.variables), users=("a",)))
        assert [each for _, _, each in driver_limits(made, [shown(made, "a", "mine")])] == [limit]

    def test_a_pod_that_the_kubelet_does_not_show_is_known_by_the_reservation(self) -> None:
        """While an init container runs, or where the kubelet shows no claims, the processes are those of the pod."""
        made = snapshot(memory(), 8192, **self.BY_CLAIM)
        made = with_claims(made, claim("mine", device(made, 2048), users=("a",)))
        (container,) = self.seen(made, [], process(1, "a", 300, container="init"))
        assert (container.label, container.container, container.used) == ("default/a", "", 300 * MIB)

    def test_containers_of_an_unknown_pod_with_a_request_each_are_known_together(self) -> None:
        """The kubelet does not show which request a container names: the limit is that of both shares."""
        made = snapshot(memory(), 8192, **self.BY_CLAIM)
        shares = device(made, 1024, request="small"), device(made, 2048, request="large")
        made = with_claims(made, claim("mine", *shares, users=("a",)))
        holdings = [shown(made, "a", "mine", "one"), shown(made, "a", "mine", "two")]
        processes = [process(1, "a", 300, container="one"), process(2, "a", 400, container="two")]
        (container,) = self.seen(made, holdings, *processes)
        assert (container.container, container.units) == ("", 2)
        assert (container.limit, container.used) == (3 * GIB, 700 * MIB)

    def test_containers_with_one_share_together_do_not_have_the_share_twice(self) -> None:
        """Each has the limit of the share; together they have no more."""
        made = snapshot(memory(), 8192, **self.BY_CLAIM)
        made = with_claims(made, claim("mine", device(made, 2048), users=("a",)))
        holdings = [shown(made, "a", "mine", "one"), shown(made, "a", "mine", "two")]
        both = [process(1, "a", 300, container="one"), process(2, "a", 400, container="two")]
        assert [(each.container, each.limit) for each in self.seen(made, holdings, *both)] == [
            ("one", 2 * GIB),
            ("two", 2 * GIB),
        ]
        strange = process(3, "a", 500, container="unknown")
        (pod,) = self.seen(made, holdings, *both, strange)
        assert (pod.container, pod.units, pod.limit) == ("", 1, 2 * GIB)

    def test_a_claim_of_another_dra_driver_is_none_of_ours(self) -> None:
        """Also where the claim has the name and the device of a claim of ours."""
        made = snapshot(memory(), 8192, **self.BY_CLAIM)
        made = with_claims(made, claim("mine", device(made, 2048), users=("a",)))
        foreign = shown(made, "b", "mine")._replace(ids=frozenset({"net.example.com/node/eth0/"}))
        assert [each.pod for each in self.seen(made, [foreign])] == ["a"]
