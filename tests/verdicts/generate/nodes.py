"""Random Nodes, as the API has them: with the record of their daemon, with Aliyun's plugin, or with neither."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.verdicts.generate.draw import Draw, Json

MEMORY, CORES, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"
VRAM = "example.com/vram"
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"

MODELS: Mapping[str, int] = {
    "NVIDIA A100-SXM4-40GB": 40448,
    "NVIDIA H100 80GB HBM3": 81079,
    "Tesla T4": 15109,
    "Tesla V100-SXM2-16GB": 16151,
}
"""Models of cards, with the MiB that containers can use."""

REASONS = ("XID 79", "cordoned by annotation gpushare/unhealthy-gpus", "it does not answer", None)


@dataclass
class Offer:
    """One resource of a node, as whoever fills it with pods sees it: `units` and `free` of each GPU, by its name."""

    resource: str
    kind: str
    units: dict[str, int]
    indexes: dict[str, int]
    free: dict[str, int] = field(default_factory=dict)
    unit_mib: int = 0

    def __post_init__(self) -> None:
        """Begin with everything free."""
        self.free = self.free or dict(self.units)


@dataclass
class Place:
    """A Node, and what it offers."""

    node: Json
    offers: list[Offer] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.node["metadata"]["name"])

    def offer(self, resource: str) -> Offer | None:
        """Return what it offers of a resource."""
        return next((each for each in self.offers if each.resource == resource), None)


@dataclass
class Cards:
    """Cards of one node that are shared in one way: their numbers and their UUIDs."""

    draw: Draw
    node: int
    indexes: Sequence[int]
    model: str

    def uuid(self, index: int) -> str:
        """Return the UUID of a card."""
        return f"GPU-{self.node:04x}{index:04x}-0000-4000-8000-000000000000"

    def alone(self, index: int, **more: object) -> Json:
        """Return the record of a card."""
        numa = {} if self.node % 3 else {"numaNode": index % 2}
        return {"index": index, "uuid": self.uuid(index), "product": self.model, **numa, **more}

    @property
    def mib(self) -> int:
        """The memory of each."""
        return MODELS[self.model]


Shared = tuple[list[Json], list[Json], list[Offer]]
"""The records of GPUs, those of resources, and what is offered."""


def _offer(resource: str, kind: str, records: Sequence[Json]) -> Offer:
    mine = [each for each in records if each["resource"] == resource]
    units = {each["uuid"]: each["units"] for each in mine}
    indexes = {each["uuid"]: each["index"] for each in mine}
    return Offer(resource, kind, units, indexes, unit_mib=mine[0]["unitMiB"] if mine else 0)


def memory(cards: Cards) -> Shared:
    """Share memory, now and then with compute beside it, or under MPS on one GPU only."""
    draw = cards.draw
    name = draw.weighted({MEMORY: 9, VRAM: 1})
    unit = draw.weighted({1024: 8, 2048: 1, 512: 1})
    placement, under_mps = draw.among(("binpack", "spread")), draw.chance(0.2)
    mode = "mps" if under_mps else "memory"
    cut = draw.chance(0.5)
    records = [
        cards.alone(
            index,
            memoryMiB=cards.mib,
            mode=mode,
            resource=name,
            # Small GPUs fill up soon, and sizes of pods repeat.
            units=draw.between(6, 16) if cut else cards.mib // unit,
            unitMiB=unit,
            healthy=True,
        )
        for index in cards.indexes
    ]
    single = {"singleGpu": True} if under_mps else {}
    resources: list[Json] = [{"name": name, "kind": "memory", "placement": placement, **single}]
    offers = [_offer(name, "memory", records)]
    if name == MEMORY and draw.chance(0.35):
        cores = [{**each, "resource": CORES, "units": 100, "unitMiB": 0} for each in records]
        if draw.chance(0.15):
            cores = cores[1:]  # one GPU without
        if cores:
            records = [each for pair in zip(records, [*cores, None], strict=False) for each in pair if each]
            resources.append({"name": CORES, "kind": "cores", "placement": placement, **single})
            offers.append(_offer(CORES, "cores", cores))
    return records, resources, offers


def replicas(cards: Cards) -> Shared:
    """Share each GPU as replicas."""
    draw = cards.draw
    name, count = draw.weighted({GPU: 3, SHARED: 1}), draw.between(2, 8)
    records = [
        cards.alone(
            index,
            memoryMiB=cards.mib,
            mode="time-slicing",
            resource=name,
            units=count,
            unitMiB=0,
            healthy=True,
        )
        for index in cards.indexes
    ]
    placement = draw.among(("distributed", "packed", "spread"))
    return records, [{"name": name, "kind": "replicas", "placement": placement}], [_offer(name, "replicas", records)]


def slices(cards: Cards) -> Shared:
    """Cut the memory of each GPU into slices of one size or two."""
    draw, sizes = cards.draw, (5, 10, 20)
    chosen = draw.some(sizes, 0.7) or [10]
    records: list[Json] = []
    for index in cards.indexes:
        for size in chosen:
            if count := draw.below(1 + cards.mib // 1024 // size):
                of_slices = {"mode": "mps", "resource": f"nvidia.com/gpu-{size}gb", "units": count}
                more = {"unitMiB": size * 1024, "healthy": True}
                records.append(cards.alone(index, memoryMiB=cards.mib, **of_slices, **more))
        if all(each["index"] != index for each in records):
            records.append(cards.alone(index, memoryMiB=cards.mib, units=0, unitMiB=0, healthy=True))
    names = sorted({each["resource"] for each in records if "resource" in each})
    offered = [each for each in records if "resource" in each]
    return records, [{"name": name, "kind": "slices"} for name in names], [_offer(n, "slices", offered) for n in names]


def mig(cards: Cards) -> Shared:
    """Divide each card into MIG instances."""
    draw, records, offers = cards.draw, list[Json](), list[Offer]()
    for index in cards.indexes:
        profiles = draw.among((("3g.20gb", "1g.5gb", "1g.5gb"), ("2g.10gb",) * 3, ("1g.5gb",) * 4, ("3g.20gb",) * 2))
        for number, profile in enumerate(profiles):
            instance = {"uuid": f"MIG-{cards.node:04x}{index:04x}-0000-4000-8000-{number:012x}", "profile": profile}
            memory_mib = int(profile.partition(".")[2].removesuffix("gb")) * 1000 - 136
            of_it = {"mode": "exclusive", "resource": f"nvidia.com/mig-{profile}", "units": 1, "unitMiB": 0}
            product = f"{cards.model} MIG {profile}"
            more = {**instance, "product": product, "memoryMiB": memory_mib, **of_it, "healthy": True}
            records.append({**cards.alone(index), **more})
    names = sorted({each["resource"] for each in records})
    offers = [_offer(name, "gpus", records) for name in names]
    return records, [{"name": name, "kind": "gpus"} for name in names], offers


def whole(cards: Cards) -> Shared:
    """Offer each GPU whole."""
    records = [
        cards.alone(index, memoryMiB=cards.mib, mode="exclusive", resource=GPU, units=1, unitMiB=0, healthy=True)
        for index in cards.indexes
    ]
    return records, [{"name": GPU, "kind": "gpus"}], [_offer(GPU, "gpus", records)]


def idle(cards: Cards) -> Shared:
    """Offer nothing, as while a GPU waits for the pods of another way."""
    records = [cards.alone(index, memoryMiB=cards.mib, units=0, unitMiB=0, healthy=True) for index in cards.indexes]
    return records, [], []


def later(cards: Cards) -> Shared:
    """Offer a kind that only a later version knows."""
    records, resources, offers = replicas(cards)
    return records, [{"name": each["name"], "kind": "quanta"} for each in resources], offers


WAYS: Mapping[str, Callable[[Cards], Shared]] = {
    "memory": memory,
    "replicas": replicas,
    "slices": slices,
    "mig": mig,
    "whole": whole,
    "idle": idle,
    "later": later,
}

SOME: Mapping[str, float] = {
    "memory": 10, "replicas": 5, "slices": 5, "mig": 3, "whole": 5, "idle": 0.5, "later": 0.5
}  # fmt: skip
"""How often GPUs are shared in each way."""


def recorded(draw: Draw, number: int, ways: Sequence[str]) -> Place:
    """Return a Node whose daemon shares its GPUs in these ways, one after the other."""
    counts = [draw.weighted({1: 3, 2: 5, 3: 2, 4: 2, 8: 0.5}) for _ in ways]
    gpus: list[Json] = []
    resources: dict[str, Json] = {}
    offers: dict[str, Offer] = {}
    model = draw.among(tuple(MODELS))
    first = 0
    for way, count in zip(ways, counts, strict=True):
        cards = Cards(draw, number, range(first, first + count), model)
        found, named, offered = WAYS[way](cards)
        if resources.keys() & {each["name"] for each in named}:
            continue  # one name stands for one thing
        gpus += found
        resources |= {each["name"]: each for each in named}
        offers |= {each.resource: each for each in offered}
        first += count
        if draw.chance(0.3):
            model = draw.among(tuple(MODELS))
    _trouble(draw, gpus, offers)
    record: Json = {"version": 1, "gpus": gpus, "resources": list(resources.values()), "notices": []}
    if any(each["kind"] == "gpus" for each in resources.values()) and draw.chance(0.8):
        _closeness(draw, record)
    if draw.chance(0.2):
        record["placement"] = draw.among(("binpack", "spread"))
    place = Place(plain(draw, number, {each.resource: sum(each.units.values()) for each in offers.values()}))
    place.offers = list(offers.values())
    place.node["metadata"]["annotations"]["gpushare/gpus"] = _written(record)
    if draw.chance(0.03):
        _damage(draw, place, record)
    return place


def _written(record: Json) -> str:
    return json.dumps(record, separators=(",", ":"))


def _trouble(draw: Draw, gpus: Sequence[Json], offers: Mapping[str, Offer]) -> None:
    """Make some GPUs unhealthy, some wait, and two have one index."""
    for each in gpus:
        if draw.chance(0.06):
            reason = draw.among(REASONS)
            each.update({"healthy": False}, **({"reason": reason} if reason else {}))
        elif draw.chance(0.03):
            each["reason"] = "changes its mode when its pods end: team/p1"
    if len(gpus) > 1 and draw.chance(0.01):
        gpus[1]["index"] = gpus[0]["index"]
        for offer in offers.values():
            if gpus[1]["uuid"] in offer.indexes:
                offer.indexes[gpus[1]["uuid"]] = gpus[0]["index"]


def _closeness(draw: Draw, record: Json) -> None:
    """Put cards into groups on one switch, with some links between them."""
    cards = list(dict.fromkeys(each["uuid"] for each in record["gpus"] if "profile" not in each))
    groups = [draw.below(2) for _ in cards]
    near, far = draw.among(((230, 10), (60, 30), (20, 10)))
    rows = [
        [near if groups[one] == groups[other] else draw.among((far, far, 0)) for other in range(one)]
        for one in range(1, len(cards))
    ]
    if rows:
        record["closeness"] = rows


def _damage(draw: Draw, place: Place, record: Json) -> None:
    """Have a record that cannot be read, or that says something else than it should."""
    annotations = place.node["metadata"]["annotations"]
    match draw.below(8):
        case 0:
            annotations["gpushare/gpus"] = _written(record)[:-2]
        case 1:
            annotations["gpushare/gpus"] = _written({**record, "version": 2})
        case 2:
            record["gpus"][0].pop("memoryMiB")
            annotations["gpushare/gpus"] = _written(record)
        case 3:
            annotations["gpushare/gpus"] = _written({**record, "gpus": [{**record["gpus"][0], "units": -1}]})
        case 4:
            annotations["gpushare/gpus"] = _written(
                {**record, "later": {"a": 1}, "resources": record["resources"][:-1]}
            )
        case 5:
            annotations["gpushare/gpus"] = _written({**record, "placement": "fastest"})
        case 6:
            del annotations["gpushare/gpus"]
        case _:
            annotations["gpushare/gpus"] = "[]"


def plain(draw: Draw, number: int, extended: Mapping[str, int]) -> Json:
    """Return a Node without a record, with these amounts of extended resources."""
    labels = {"kubernetes.io/hostname": f"n{number}", "zone": draw.among(("a", "b"))}
    if draw.chance(0.2):
        labels["ack.node.gpu.placement"] = draw.weighted({"binpack": 4, "spread": 4, "nearest": 1})
    allocatable = {"cpu": "16", "memory": "64Gi", "pods": "20"} | {name: str(n) for name, n in extended.items()}
    spec: Json = {}
    if draw.chance(0.06):
        spec["unschedulable"] = True
    if draw.chance(0.1):
        spec["taints"] = [{"key": "gpu", "value": "yes", "effect": draw.among(("NoSchedule", "PreferNoSchedule"))}]
    metadata = {"name": f"n{number}", "uid": f"node-{number}", "resourceVersion": "1", "labels": labels}
    status = {"capacity": dict(allocatable), "allocatable": allocatable}
    return {"metadata": {**metadata, "annotations": {}}, "spec": spec, "status": status}


def aliyun(draw: Draw, number: int) -> Place:
    """Return a Node of Aliyun's own plugin."""
    count, each = draw.among((1, 2, 4)), draw.between(6, 16)
    total = count * each + draw.among((0, 0, 0, 1))
    node = plain(draw, number, {MEMORY: total, COUNT: count})
    if draw.chance(0.3):
        node["metadata"]["annotations"]["gpushare/unhealthy-gpus"] = draw.among(("0", "1", "0,1", " 0\n2 ", "GPU-x"))
    if draw.chance(0.05):
        node["status"]["capacity"] |= draw.among(({COUNT: "0"}, {COUNT: "300"}, {MEMORY: "1.5"}, {COUNT: "x"}))
    names = {str(index): index for index in range(count)}
    return Place(node, [Offer(MEMORY, "memory", dict.fromkeys(names, total // count), names)])


def foreign(draw: Draw, number: int) -> Place:
    """Return a Node with another plugin, or without any GPU."""
    extended = draw.among(({}, {GPU: 4}, {"nvidia.com/gpu-10gb": 2}, {"example.com/nic": 2}))
    return Place(plain(draw, number, extended))
