"""Random Pods, as the API has them: what they ask for, where they are, and what their annotations say of that."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.verdicts.generate.draw import Draw, Json
from tests.verdicts.generate.nodes import CORES, COUNT, GPU, MEMORY, Offer, Place

NAMESPACES = ("team", "other")
OWNERS = ("r1", "r2", "r3")

_ALLOCATION, _PROMISE = "gpushare/allocation", "gpushare/promise"
_INDEX, _OF_POD = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"
_ACK = "scheduler.framework.gpushare.allocation"

_dumped = partial(json.dumps, separators=(",", ":"), sort_keys=True)

Units = dict[str, dict[str, dict[str, int]]]
"""Units by container, resource and GPU."""


@dataclass
class Asked:
    """What the containers of a pod ask for: their names and kinds in the order of start, and amounts by resource."""

    containers: list[tuple[str, str]]
    amounts: dict[str, dict[str, int]] = field(default_factory=dict)

    def ask(self, container: str, resource: str, amount: int) -> None:
        """Have a container ask for more."""
        if amount > 0:
            of_it = self.amounts.setdefault(container, {})
            of_it[resource] = of_it.get(resource, 0) + amount

    def total(self, resource: str) -> int:
        """Return what the pod takes, as Kubernetes counts it."""
        running = most = 0
        for name, kind in self.containers:
            amount = self.amounts.get(name, {}).get(resource, 0)
            most = max(most, running + amount)
            if kind != "init":
                running += amount
        return max(most, running)

    @property
    def resources(self) -> list[str]:
        """The resources that are asked for."""
        return list(dict.fromkeys(name for amounts in self.amounts.values() for name in amounts))


def containers(draw: Draw) -> Asked:
    """Return containers that ask for nothing yet."""
    kinds = [draw.among(("init", "sidecar", "init")) for _ in range(draw.weighted({0: 8, 1: 2, 2: 1}))]
    kinds += ["app"] * draw.weighted({1: 7, 2: 3, 3: 1})
    return Asked([(f"c{number}", kind) for number, kind in enumerate(kinds)])


def share(draw: Draw, asked: Asked, resource: str, amount: int) -> None:
    """Spread an amount of a resource over the containers, so that the pod takes just this much."""
    apps = [name for name, kind in asked.containers if kind != "init"]
    left = amount
    for name in apps[:-1]:
        if draw.chance(0.6):
            part = draw.between(0, left)
            asked.ask(name, resource, part)
            left -= part
    asked.ask(apps[-1], resource, left)
    for name, kind in asked.containers:
        if kind == "init" and draw.chance(0.5):
            asked.ask(name, resource, draw.between(1, max(1, amount)))


def manifest(draw: Draw, uid: str, asked: Asked) -> Json:
    """Return a pod that asks for this, and waits."""
    spec: Json = {"containers": []}
    for name, kind in asked.containers:
        amounts = {resource: str(amount) for resource, amount in asked.amounts.get(name, {}).items()}
        where = draw.weighted({"limits": 8, "both": 2, "requests": 1})
        more = {"cpu": draw.among(("100m", "1"))} if draw.chance(0.2) else {}
        resources = {"limits": amounts} if where == "limits" else {"requests": {**amounts, **more}}
        if where == "both":
            resources["limits"] = amounts
        container: Json = {"name": name, "image": "i", "resources": resources}
        if kind != "app":
            container |= {"restartPolicy": "Always"} if kind == "sidecar" else {}
            spec.setdefault("initContainers", []).append(container)
        else:
            spec["containers"].append(container)
    metadata: Json = {"name": f"p{uid}", "namespace": draw.among(NAMESPACES), "uid": uid, "labels": {}}
    if draw.chance(0.7):
        metadata["labels"]["app"] = draw.among(("a", "b", "c"))
    if draw.chance(0.4):
        owner = {"kind": "ReplicaSet", "name": "r", "uid": draw.among(OWNERS), "controller": True}
        metadata["ownerReferences"] = [owner]
    if draw.chance(0.7):
        spec["priority"] = draw.among((0, 0, 5, 10, 10, -5))
    metadata["creationTimestamp"] = stamp(draw.below(3600))
    return {"metadata": {**metadata, "annotations": {}}, "spec": spec, "status": {"phase": "Pending"}}


def stamp(second: int) -> str:
    """Return a time: seconds after 2026-01-05T10:00:00Z, less than a day."""
    return f"2026-01-05T{10 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"


ONE_GPU = {"memory", "cores"}


def occupant(draw: Draw, uid: str, place: Place) -> Json | None:
    """Return a pod that is on a node and has units there, None where none are left."""
    open_ = [each for each in place.offers if each.kind != "cores" and any(each.free.values())]
    if not open_:
        return None
    asked = containers(draw)
    units: Units = {}
    gpus = 1
    for offer in [draw.among(open_)] if draw.chance(0.85) else draw.mixed(open_)[:2]:
        if offer.kind in ONE_GPU:
            gpus = _on_equal_gpus(draw, asked, units, offer, place.offer(CORES) if offer.resource == MEMORY else None)
        else:
            _on_any_gpus(draw, asked, units, offer)
    if not units:
        return None
    pod = manifest(draw, uid, asked)
    if gpus > 1:
        pod["metadata"]["labels"][COUNT] = str(gpus)
    pod["spec"]["nodeName"] = place.name
    _state(draw, pod)
    _annotate(draw, pod, place, asked, units)
    return pod


def _on_equal_gpus(draw: Draw, asked: Asked, units: Units, offer: Offer, cores: Offer | None) -> int:
    """Take memory of one GPU, or as much of each of several; return of how many."""
    gpu = draw.among([name for name, free in offer.free.items() if free])
    count = 2 if draw.chance(0.12) else 1
    names = [gpu, *(name for name in offer.free if name != gpu)][:count]
    most = min(offer.free[name] for name in names)
    if len(names) < count or not most:
        names, count, most = [gpu], 1, offer.free[gpu]
    each = draw.between(1, max(1, draw.among((most // 3, most // 2, most))))
    if count > 1:
        asked.containers = [asked.containers[-1]]
        asked.ask(asked.containers[0][0], offer.resource, each * count)
    else:
        share(draw, asked, offer.resource, each)
    _place(asked, units, offer, names)
    if cores is not None and draw.chance(0.7) and all(cores.free.get(name) for name in names):
        percent = draw.between(1, min(cores.free[name] for name in names))
        for name, amounts in list(asked.amounts.items()):
            if amounts.get(offer.resource):
                asked.ask(name, CORES, percent * count)
                break
        _place(asked, units, cores, names)
    return count


def _place(asked: Asked, units: Units, offer: Offer, names: Sequence[str]) -> None:
    """Note that containers have what they ask for on these GPUs, as much on each."""
    for container, amounts in asked.amounts.items():
        if amount := amounts.get(offer.resource):
            of_it = units.setdefault(container, {}).setdefault(offer.resource, {})
            of_it |= dict.fromkeys(names, amount // len(names))
    for name in names:
        offer.free[name] = max(0, offer.free[name] - asked.total(offer.resource) // len(names))


def _on_any_gpus(draw: Draw, asked: Asked, units: Units, offer: Offer) -> None:
    """Take units of any GPUs, container by container; slices one each."""
    apps = [name for name, _ in asked.containers]
    for container in draw.some(apps, 0.7) or apps[-1:]:
        left = 1 if offer.kind == "slices" else draw.weighted({1: 6, 2: 3, 3: 1})
        for name in draw.mixed(list(offer.free)):
            take = min(left, offer.free[name])
            if take:
                asked.ask(container, offer.resource, take)
                units.setdefault(container, {}).setdefault(offer.resource, {})[name] = take
                if (container, "init") not in asked.containers:
                    offer.free[name] -= take
                left -= take
            if not left:
                break


def _state(draw: Draw, pod: Json) -> None:
    """Have the pod run, begin, end, or have ended."""
    status, running = pod["status"], {"name": "c0", "state": {"running": {"startedAt": stamp(9)}}}
    match draw.weighted({"runs": 14, "begins": 3, "ends": 3, "ended": 1.5, "ended and runs": 0.5}):
        case "runs":
            status |= {"phase": "Running", "startTime": stamp(draw.below(7200))}
        case "ends":
            pod["metadata"]["deletionTimestamp"] = stamp(7200)
            status |= {"phase": "Running", "startTime": stamp(draw.below(7200)), "containerStatuses": [running]}
        case "ended":
            status |= {"phase": draw.among(("Succeeded", "Failed"))}
        case "ended and runs":
            status |= {"phase": "Failed", "containerStatuses": [running]}


def _annotate(draw: Draw, pod: Json, place: Place, asked: Asked, units: Units) -> None:
    """Have annotations say where the units are; some of them do not, or lie."""
    found = pod["metadata"]["annotations"]
    told = units
    if draw.chance(0.1):
        # pod-resources does not show init containers that have ended.
        told = {name: each for name, each in units.items() if (name, "init") not in asked.containers}
    match draw.weighted({"both": 6, "allocation": 4, "promise": 3, "aliyun": 2, "ack": 1, "none": 1.5, "lies": 2}):
        case "both":
            found |= {_ALLOCATION: written(told), _PROMISE: promise(units, place.name)}
        case "allocation":
            found[_ALLOCATION] = written(told)
        case "promise":
            found[_PROMISE] = promise(units, place.name)
        case "aliyun":
            found |= _aliyun(draw, place, units, asked)
        case "ack":
            found |= _ack(place, units, asked)
        case "lies":
            found |= _lies(draw, place, units, asked)


def written(units: Units) -> str:
    """Return the value of `gpushare/allocation`."""
    return _dumped({"version": 1, "containers": units})


def promise(units: Units, node: str) -> str:
    """Return the value of `gpushare/promise`."""
    return _dumped({"version": 1, "node": node, "time": "2026-01-05T10:00:00+00:00", "containers": units})


def _memory_of(place: Place, units: Units) -> tuple[Offer | None, dict[str, dict[str, int]]]:
    found = {name: each[MEMORY] for name, each in units.items() if MEMORY in each}
    return place.offer(MEMORY), found


def _aliyun(draw: Draw, place: Place, units: Units, asked: Asked) -> dict[str, str]:
    offer, found = _memory_of(place, units)
    if offer is None or not found:
        return {}
    gpus = dict.fromkeys(str(offer.indexes[gpu]) for each in found.values() for gpu in each)
    apps = sum(asked.amounts.get(name, {}).get(MEMORY, 0) for name, kind in asked.containers if kind == "app")
    counted = draw.among((asked.total(MEMORY), apps))
    return {_INDEX: ",".join(gpus), _OF_POD: str(counted), "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}


def _ack(place: Place, units: Units, asked: Asked) -> dict[str, str]:
    offer, found = _memory_of(place, units)
    apps = [name for name, kind in asked.containers if kind == "app"]
    if offer is None or not found:
        return {}
    said = {
        str(apps.index(name)): {str(offer.indexes[gpu]): amount for gpu, amount in each.items()}
        for name, each in found.items()
        if name in apps
    }
    return {_ACK: _dumped(said)}


def _lies(draw: Draw, place: Place, units: Units, asked: Asked) -> dict[str, str]:
    """Return annotations that cannot be true, or not be read; some are of use all the same."""
    container = next(iter(units))
    resource = next(iter(units[container]))
    by_gpu = units[container][resource]
    elsewhere = {"GPU-ffffffff-0000-4000-8000-000000000000": sum(by_gpu.values())}
    truth = {_PROMISE: promise(units, place.name)} if draw.chance(0.4) else {}

    def instead(gpus: dict[str, int]) -> dict[str, str]:
        return {**truth, _ALLOCATION: written({**units, container: {**units[container], resource: gpus}})}

    return draw.among(
        (
            instead({gpu: amount + 1 for gpu, amount in by_gpu.items()}),
            instead({gpu: max(1, amount - 1) for gpu, amount in by_gpu.items()}),
            instead(elsewhere),
            {_PROMISE: promise(units, "n99")},
            {**truth, _ALLOCATION: written(units)[:-3]},
            {**truth, _ALLOCATION: written(units).replace('"version":1', '"version":7')},
            {**truth, _ALLOCATION: written({"nobody": units[container]})},
            {_INDEX: draw.among(("7", "x", "0,0", "0,1", "")), _OF_POD: str(asked.total(MEMORY) + 1)},
            {_ACK: draw.among(('{"0":{"0":1}}', '{"9":{"0":1}}', "{}", '{"0":{"1":99}}'))},
        )
    )


def waiting(draw: Draw, uid: str, places: Sequence[Place]) -> Json:
    """Return a pod that waits, and asks for about as much as some GPU has free."""
    asked, label = containers(draw), ""
    offers = [each for place in places for each in place.offers if each.kind != "cores"]
    chosen = [draw.among(offers)] if offers and draw.chance(0.95) else []
    if len(offers) > 1 and draw.chance(0.1):
        chosen.append(draw.among(offers))
    for offer in chosen:
        if offer.kind in ONE_GPU:
            label = _ask_for_memory(draw, asked, offer, places)
        else:
            _ask_for_units(draw, asked, offer)
    if not chosen:
        _ask_for_something(draw, asked)
    pod = manifest(draw, uid, asked)
    if label:
        pod["metadata"]["labels"][COUNT] = label
    _wish(draw, pod, places)
    _demand(draw, pod)
    return pod


def _ask_for_memory(draw: Draw, asked: Asked, offer: Offer, places: Sequence[Place]) -> str:
    """Ask for memory, and perhaps for compute; return over how many GPUs it is to be split, if that is said."""
    gpu = draw.among(list(offer.units))
    free, most = offer.free[gpu], offer.units[gpu]
    # Near the borders: just what is free, one more or less, and what no GPU has.
    amount = max(
        1, draw.among((free, free, free, free + 1, free - 1, free // 2, free // 3, free // 4, 2, 1, most, most + 1))
    )
    count = draw.weighted({1: 16, 2: 2, 3: 0.5, 4: 0.5})
    if draw.chance(0.03):
        amount *= draw.among((2**30, 10**9, 2**20))
    if count > 1:
        amount *= count
        amount += draw.weighted({0: 5, 1: 1})
        if draw.chance(0.6):
            asked.containers = [asked.containers[-1]]
    share(draw, asked, offer.resource, amount)
    here = next(place for place in places if offer in place.offers)
    cores = here.offer(CORES)
    if (cores is not None and offer.resource == MEMORY and draw.chance(0.5)) or draw.chance(0.02):
        left = cores.free.get(gpu, 50) if cores is not None else 50
        percent = max(1, draw.among((left, left, left + 1, left // 2, 50, 100)))
        holders = [name for name, each in asked.amounts.items() if each.get(offer.resource)]
        name = draw.among(holders) if draw.chance(0.9) else draw.among([each for each, _ in asked.containers])
        asked.ask(name, CORES, percent * count)
        if draw.chance(0.05):
            for amounts in asked.amounts.values():
                amounts.pop(offer.resource, None)
    if draw.chance(0.015):
        return draw.among(("0", "x", "257", "-1", "004", "1"))
    return str(count) if count > 1 else ""


def _ask_for_units(draw: Draw, asked: Asked, offer: Offer) -> None:
    """Ask for replicas, slices or whole GPUs."""
    total = sum(offer.free.values())
    names = [name for name, _ in asked.containers]
    if offer.kind == "slices":
        for name in draw.some(names, 0.6) or names[-1:]:
            asked.ask(name, offer.resource, draw.weighted({1: 20, 2: 1}))
        return
    for name in draw.some(names, 0.5) or names[-1:]:
        asked.ask(name, offer.resource, max(1, draw.among((1, 1, 1, 1, 2, total, total - 1, total + 1, 3))))


def _ask_for_something(draw: Draw, asked: Asked) -> None:
    """Ask for what perhaps nobody offers, or in quantities that make no sense."""
    name = asked.containers[-1][0]
    resource = draw.among((MEMORY, GPU, CORES, "nvidia.com/gpu-10gb", "nvidia.com/mig-7g.80gb", "example.com/nic", ""))
    if resource:
        asked.ask(name, resource, draw.between(1, 4))


def _wish(draw: Draw, pod: Json, places: Sequence[Place]) -> None:
    """Let the pod name a policy, models or GPUs."""
    annotations = pod["metadata"]["annotations"]
    if draw.chance(0.25):
        key = draw.among(("gpushare/placement", "hami.io/gpu-scheduler-policy"))
        annotations[key] = draw.weighted({"binpack": 4, "spread": 6, "closest": 1})
    if draw.chance(0.1):
        key = draw.among(("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"))
        annotations[key] = draw.among(("a100", "A100, t4", "H100", "tesla", "80GB,", ","))
    gpus = [gpu for place in places for offer in place.offers for gpu in offer.units]
    if gpus and draw.chance(0.08):
        key = draw.among(("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"))
        annotations[key] = ",".join(draw.some(gpus, 0.4)) or draw.among(gpus)
    if draw.chance(0.01):
        annotations["nvidia.com/use-gputype"] = draw.among(
            (
                ",".join(f"m{number}" for number in range(65)),
                "x" * 129,
                "y" * 9000,
            )
        )


def _demand(draw: Draw, pod: Json) -> None:
    """Let the pod require something of its node, or be written in a way that nobody understands."""
    spec, containers_ = pod["spec"], pod["spec"]["containers"]
    if draw.chance(0.1):
        spec["nodeSelector"] = {"zone": draw.among(("a", "b"))}
    if draw.chance(0.05):
        values = {"key": "zone", "operator": draw.among(("In", "NotIn")), "values": ["a"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [values]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if draw.chance(0.3):
        spec["tolerations"] = [draw.among(({"operator": "Exists"}, {"key": "gpu", "operator": "Exists"}))]
    if draw.chance(0.02):
        containers_[-1]["resources"].setdefault("limits", {})[draw.among((MEMORY, GPU))] = draw.among(
            (
                "1.5",
                "many",
                "-1",
                "1e30",
                "2k",
                "",
            )
        )
    if draw.chance(0.006):
        beyond: Mapping[str, str] = {f"example.com/r{number:03d}": "1" for number in range(70)}
        containers_[-1]["resources"].setdefault("limits", {}).update(beyond)
    if draw.chance(0.004):
        more = [{"name": f"d{number}", "resources": {"limits": {MEMORY: "1"}}} for number in range(260)]
        containers_.extend(more)
