"""Tests of `gpushare_plugin.node.pods.matching`: whatever the kubelet asks for, the accounts stay right."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base import structs
from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.holding import Slot
from gpushare_plugin.ledger.node import Node, OfferedGpu, OfferedResource
from gpushare_plugin.ledger.occupancy import node_account
from gpushare_plugin.ledger.pod import Drift, Pod, Share, drift
from gpushare_plugin.ledger.request import effective
from gpushare_plugin.node.pods.matching import compared
from gpushare_plugin.node.pods.steering import PodSteering
from tests.nodes import a_gpu
from tests.unit.kubelet.serving import shared_memory
from tests.unit.node.pods import Asked, Seen, a_pod
from tests.unit.sharing.settings import GPU_MEM

UNITS = 12
RESOURCE = shared_memory(UNITS, UNITS, UNITS)


@st.composite
def bound_pods(draw: st.DrawFn) -> list[Pod]:
    """Draw pods that were promised GPUs so that all have room; few sizes, so that many are equal."""
    pods: list[Pod] = []
    free = [UNITS] * 3
    for number in range(draw(st.integers(1, 10))):
        gpus = draw(st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2)]))
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        # Of several GPUs, the kubelet reuses any units of an init container, which nobody can steer.
        init = draw(st.sampled_from([0, 0, 2])) if len(gpus) == 1 else 0
        asked: list[Asked] = [
            ("init" if place < (init > 0) else "app", size * len(gpus), dict.fromkeys(gpus, size))
            for place, size in enumerate([*([init] if init else []), *sizes])
        ]
        needs = max(init, sum(sizes))
        if all(free[gpu] >= needs for gpu in gpus):
            for gpu in gpus:
                free[gpu] -= needs
            pods.append(a_pod(str(number), *asked))
    return pods


class Kubelet:
    """Asks for the containers of one pod after the other, as the real one does, and may fail to be followed."""

    def __init__(self, steering: PodSteering) -> None:
        """Have given nothing yet."""
        self.steering = steering
        self.has: dict[Slot, frozenset[str]] = {}

    @property
    def free(self) -> list[str]:
        """The IDs that no container has."""
        taken = {id_ for ids in self.has.values() for id_ in ids}
        return [id_ for id_ in RESOURCE.units if id_ not in taken]

    def admit(self, pod: Pod) -> None:
        """Give each container its units; those of init containers are used again."""
        reusable: set[str] = set()
        for container in pod.request.containers:
            size = container.amount(GPU_MEM)
            must = sorted(reusable)[:size]
            chosen = must
            if len(must) < size:
                promises = self.steering.promises(RESOURCE, size)
                chosen = RESOURCE.prefer([*self.free, *must], must, size, promises)
            RESOURCE.allocate(chosen, self.steering.recipient(RESOURCE, chosen))
            self.steering.allocated(RESOURCE, chosen)
            self.has[Slot(pod.uid, container.name, GPU_MEM)] = frozenset(chosen)
            reusable = reusable | set(chosen) if container.kind == "init" else reusable - set(chosen)


def totals(pods: Sequence[Pod]) -> Counter[str]:
    """Return the units of each GPU that were promised."""
    found: Counter[str] = Counter()
    for pod in pods:
        for gpu in {share.gpu for share in pod.promise or ()}:
            of_gpu = {share.container: share.units for share in pod.promise or () if share.gpu == gpu}
            found[gpu] += effective((each.kind, of_gpu.get(each.name, 0)) for each in pod.request.containers)
    return found


@given(bound_pods(), st.data())
def test_pods_that_swap_leave_the_accounts_right(pods: list[Pod], data: st.DataObject) -> None:
    """In whatever order pods of one container come, every GPU has in the end what was promised there.

    Pods of equal size are on as many GPUs here: no call tells 4 units of one GPU from 2 of each of two.
    """
    pods = [pod for pod in pods if len(pod.request.containers) == 1]
    gpus = {pod.request.amounts[GPU_MEM]: len(pod.promise or ()) for pod in pods}
    pods = [pod for pod in pods if len(pod.promise or ()) == gpus[pod.request.amounts[GPU_MEM]]]
    kubelet = Kubelet(PodSteering(Seen(*pods), clock=lambda: 0.0))
    for pod in data.draw(st.permutations(pods)):
        kubelet.admit(pod)
        if data.draw(st.booleans()):
            kubelet.steering.learn(dict(kubelet.has), 1.0)
    held = Counter(RESOURCE.units[id_].gpu for ids in kubelet.has.values() for id_ in ids)
    assert held == totals(pods)
    assert drift(compared(pods, kubelet.has, RESOURCE)) == Drift({}, ())


@given(bound_pods(), st.data())
def test_pods_that_come_in_order_get_what_they_were_promised(pods: list[Pod], data: st.DataObject) -> None:
    """Pods of several containers, init containers among them: each gets its own GPUs, also if our process restarts."""
    steering = PodSteering(Seen(*pods), clock=lambda: 0.0)
    kubelet = Kubelet(steering)
    for pod in pods:
        if data.draw(st.booleans()):
            kubelet.steering = PodSteering(Seen(*pods), clock=lambda: 0.0)
            kubelet.steering.learn(dict(kubelet.has), 1.0)
        kubelet.admit(pod)
        for container in pod.request.containers:
            ids = kubelet.has[Slot(pod.uid, container.name, GPU_MEM)]
            expected = {share.gpu for share in pod.promise or () if share.container == container.name}
            assert set(RESOURCE.gpus_of(ids)) <= expected
    assert drift(compared(pods, kubelet.has, RESOURCE)) == Drift({}, ())


@given(bound_pods(), st.data())
def test_a_unit_is_never_given_twice_whatever_comes(pods: list[Pod], data: st.DataObject) -> None:
    """Pods in any order, some of them unknown here, some deleted meanwhile: no call breaks anything but its own pod."""
    seen = Seen(*data.draw(st.permutations([pod for pod in pods if data.draw(st.booleans())])))
    kubelet = Kubelet(PodSteering(seen, clock=lambda: 0.0))
    for pod in data.draw(st.permutations(pods)):
        before = dict(kubelet.has)
        try:
            kubelet.admit(pod)
        except PlacementError:
            kubelet.has = before
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(pods)).uid
            seen.show(*(each for each in seen.in_order if each.uid != gone))
            kubelet.has = {slot: ids for slot, ids in kubelet.has.items() if slot.uid != gone}
            kubelet.steering.learn(dict(kubelet.has), 1.0)
        by_pod: dict[str, set[str]] = {}
        for slot, ids in kubelet.has.items():
            by_pod.setdefault(slot.uid, set()).update(ids)
        assert sum(map(len, by_pod.values())) == len({id_ for ids in by_pod.values() for id_ in ids})


def test_drift_names_the_pod_and_the_gpu_that_has_too_much() -> None:
    """The first pod has what it was promised, the second one is elsewhere."""
    right, wrong = a_pod("right", ("app", 3, {1: 3})), a_pod("wrong", ("app", 3, {2: 3}))
    units = RESOURCE.units.by_gpu
    of = {number: [unit.id for unit in units[RESOURCE.gpus[a_gpu(number).uuid]]] for number in range(3)}
    held = {
        Slot("right", "c0", GPU_MEM): frozenset(of[1][:3]),
        Slot("wrong", "c0", GPU_MEM): frozenset(of[0][:3]),
    }
    excess, found = drift(compared([right, wrong], held, RESOURCE))
    assert [(each.pod.uid, each.promised, each.held) for each in found] == [
        ("wrong", {a_gpu(2).uuid: 3}, {a_gpu(0).uuid: 3})
    ]
    assert excess == {a_gpu(0).uuid: 3}


@given(bound_pods(), st.data())
def test_a_reader_of_the_cluster_finds_the_drift_that_the_daemon_counted(pods: list[Pod], data: st.DataObject) -> None:
    """Wherever containers got their units, the annotations show the drift."""
    free = {gpu: list(units) for gpu, units in RESOURCE.units.by_gpu.items()}
    held: dict[Slot, frozenset[str]] = {}
    for pod in pods:
        gpu = data.draw(st.sampled_from([None, *free]))
        for container in pod.request.containers:
            size = container.amount(GPU_MEM)
            if gpu is not None and len(free[gpu]) >= size:
                held[Slot(pod.uid, container.name, GPU_MEM)] = frozenset(free[gpu].pop().id for _ in range(size))
    counted = drift(compared(pods, held, RESOURCE))

    offer = OfferedResource(
        GPU_MEM, "memory", tuple(OfferedGpu(uuid, gpu.index, UNITS) for uuid, gpu in RESOURCE.gpus.items())
    )
    node = Node("node", offers={GPU_MEM: offer}, recorded=True, gpus=frozenset(RESOURCE.gpus))
    shown = [structs.replace(pod, allocation=written(pod, held)) for pod in pods]
    seen = node_account(node, shown).resources[GPU_MEM].drift if pods else Drift({}, ())
    assert seen.excess == counted.excess
    assert [(each.pod.uid, each.promised, each.held) for each in seen.pods] == [
        (each.pod.uid, each.promised, each.held) for each in counted.pods
    ]


def written(pod: Pod, held: dict[Slot, frozenset[str]]) -> tuple[Share, ...] | None:
    """Return what the daemon writes of a pod."""
    shares = tuple(
        Share(slot.container, GPU_MEM, gpu, units)
        for slot, ids in held.items()
        if slot.uid == pod.uid
        for gpu, units in RESOURCE.gpus_of(ids).items()
    )
    return shares or None
