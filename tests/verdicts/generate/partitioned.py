"""Random clusters of partitioned nodes with pods that wait for slices: what the partitioner decides on."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.verdicts.generate.draw import Draw, Json
from tests.verdicts.generate.nodes import plain, recorded
from tests.verdicts.generate.pods import Asked, Units, containers, manifest, promise, stamp, written

NOW = 7200
"""When it is decided, as `stamp` counts seconds."""

WANTED = "gpushare/wanted-slices"

_dumped = partial(json.dumps, separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True)
class Model:
    """A model of cards: its name, MiB, and the MIG profiles, each with starts, size, compute and most."""

    name: str
    mib: int
    profiles: Mapping[str, tuple[tuple[int, ...], int, int, int]] = field(default_factory=dict)


A100 = Model(
    "NVIDIA A100-SXM4-40GB",
    40448,
    {
        "1g.5gb": ((0, 1, 2, 3, 4, 5, 6), 1, 1, 7),
        "1g.5gb+me": ((0, 1, 2, 3, 4, 5, 6), 1, 1, 1),
        "1g.10gb": ((0, 2, 4, 6), 2, 1, 4),
        "2g.10gb": ((0, 2, 4), 2, 2, 3),
        "3g.20gb": ((0, 4), 4, 3, 2),
        "4g.20gb": ((0,), 4, 4, 1),
        "7g.40gb": ((0,), 8, 7, 1),
    },
)
A30 = Model(
    "NVIDIA A30",
    24062,
    {
        "1g.6gb": ((0, 1, 2, 3), 1, 1, 4),
        "2g.12gb": ((0, 2), 2, 2, 2),
        "4g.24gb": ((0,), 4, 4, 1),
    },
)
T4 = Model("Tesla T4", 15109)
H100 = Model("NVIDIA H100 80GB HBM3", 81079)
SIZES = (3, 5, 10, 15, 20, 40)


@dataclass
class Cut:
    """One slice of a GPU: as annotations name it, the resource, and what stands with it."""

    name: str
    resource: str
    state: str = "idle"
    """`idle`, `held`, `kept` for a pod and offered, `coming`: kept and not offered yet, or `going`: not wanted."""


@dataclass
class Card:
    """A GPU of a partitioned node."""

    uuid: str
    index: int
    model: Model
    slices: list[Cut] = field(default_factory=list)

    def listed(self) -> list[Cut]:
        """Return what the node offers."""
        return [each for each in self.slices if each.state != "coming"]

    def wanted(self) -> Json:
        """Return what the annotation says of it."""
        return dict(sorted(Counter(each.name for each in self.slices if each.state != "going").items()))


@dataclass
class Divided:
    """A partitioned node."""

    name: str
    kind: str
    cards: list[Card]
    node: Json

    def of(self, *states: str) -> list[tuple[Card, Cut]]:
        """Return the slices in one of these states."""
        return [(card, each) for card in self.cards for each in card.slices if each.state in states]


def situation(draw: Draw) -> Json:
    """Return a cluster, and how it is when it is decided again."""
    kinds = [draw.weighted({"mps": 6, "mig": 4})]
    if draw.chance(0.15):
        kinds = ["mps", "mig"]
    divided = [_divided(draw, number, draw.among(kinds)) for number in range(draw.weighted({1: 3, 2: 4, 3: 3, 5: 1}))]
    waiting = [_waiting(draw, f"w{number}", divided) for number in range(draw.weighted({1: 3, 2: 4, 3: 3, 5: 2, 8: 1}))]
    if draw.chance(0.15):
        waiting += _rivals(draw, divided)
    pods = [*waiting, *(pod for node in divided for pod in _holders(draw, node))]
    kept = _kept(draw, divided, waiting)
    for node in divided:
        _annotate(draw, node, kept, [pod["metadata"]["uid"] for pod in waiting])
    others = []
    if draw.chance(0.25):
        way = draw.among(("slices", "slices", "mig", "whole"))
        others.append(recorded(draw, len(divided), [way]).node)
    nodes = [*(node.node for node in divided), *others]
    return {
        "nodes": draw.mixed(nodes),
        "pods": draw.mixed(pods),
        "policy": draw.among(("binpack", "binpack", "spread")),
        "patience": draw.among((60.0, 60.0, 30.0, 300.0)),
        "avoided": [node.name for node in divided if draw.chance(0.06)],
        "now": stamp(NOW),
        "again": _again(draw, divided, waiting),
    }


def _divided(draw: Draw, number: int, kind: str) -> Divided:
    models = (A100, A30) if kind == "mig" else (A100, A30, T4, H100)
    model = draw.among(models)
    cards = []
    for index in range(draw.weighted({1: 4, 2: 4, 3: 1, 4: 1})):
        if draw.chance(0.1):
            model = draw.among(models)
        card = Card(f"GPU-{number:04x}{index:04x}-0000-4000-8000-000000000000", index, model)
        card.slices = _mig_slices(draw, model) if kind == "mig" else _mps_slices(draw, model)
        cards.append(card)
    found = Divided(f"n{number}", kind, cards, {})
    _record(draw, number, found)
    return found


def _states(draw: Draw, name: str, resource: str) -> Cut:
    return Cut(name, resource, draw.weighted({"held": 4, "idle": 3, "kept": 2, "coming": 1.5, "going": 0.7}))


def _mps_slices(draw: Draw, model: Model) -> list[Cut]:
    """Return slices of a card, which is full then, or has some room left."""
    room, found = -(-model.mib // 1024) - draw.among((0, 0, 0, 5, 10, 20)), list[Cut]()
    while room > 0 and len(found) < 6 and not draw.chance(0.15):
        size = draw.among(SIZES)
        if size <= room:
            found.append(_states(draw, f"{size}gb", f"nvidia.com/gpu-{size}gb"))
            room -= size
    if draw.chance(0.03):
        found = [Cut("1gb", "nvidia.com/gpu-1gb", draw.among(("held", "idle"))) for _ in range(model.mib // 1024 - 1)]
    return found


def _mig_slices(draw: Draw, model: Model) -> list[Cut]:
    """Return MIG instances at places where they fit beside each other."""
    taken, compute, found, names = set[int](), 0, list[Cut](), Counter[str]()
    full = max(each[2] for each in model.profiles.values())
    for _ in range(draw.between(0, 6)):
        name = draw.among(list(model.profiles))
        starts, size, parts, most = model.profiles[name]
        start = draw.among(starts)
        place = set(range(start, start + size))
        if not (taken & place) and compute + parts <= full and names[name] < most:
            found.append(_states(draw, f"{name}@{start}", f"nvidia.com/mig-{name.replace('+', '.')}"))
            taken |= place
            compute += parts
            names[name] += 1
    return found


def _record(draw: Draw, number: int, node: Divided) -> None:
    """Make the Node, with the record that its daemon publishes."""
    gpus: list[Json] = []
    for card in node.cards:
        alone: Json = {"index": card.index, "uuid": card.uuid, "product": card.model.name, "memoryMiB": card.model.mib}
        of_card = _mig_records if node.kind == "mig" else _mps_records
        gpus += of_card(draw, card, alone, {"healthy": True, **_trouble(draw)})
    names = sorted({each["resource"] for each in gpus if "resource" in each})
    resources = [{"name": name, "kind": "gpus" if "mig" in name else "slices"} for name in names]
    record: Json = {"version": 1, "gpus": gpus, "resources": resources, "notices": [], "partitioning": node.kind}
    offered = Counter[str]()
    for each in gpus:
        if "resource" in each and each.get("healthy"):
            offered[each["resource"]] += each["units"]
    node.node = plain(draw, number, dict(sorted(offered.items())))
    if draw.chance(0.2):
        node.node["status"]["allocatable"] |= {"cpu": draw.among(("1", "2", "500m")), "pods": draw.among(("3", "20"))}
    if draw.chance(0.02):
        record["gpus"] = [{**gpus[0], "units": 2000}, *gpus[1:]]
    if draw.chance(0.01):
        record["gpus"] = [
            {**gpus[0], "index": index, "uuid": f"{gpus[0]['uuid'][:-2]}{index:02d}"} for index in range(65)
        ]
    text = _dumped(record)
    if draw.chance(0.02):
        text = draw.among((text[:-1], text.replace('"version":1', '"version":3'), "{}"))
    node.node["metadata"]["annotations"]["gpushare/gpus"] = text


def _trouble(draw: Draw) -> Json:
    """Return what is wrong with a card, mostly nothing."""
    found: Mapping[str, Sequence[Json]] = {
        "": [{}],
        "sick": [{"healthy": False}, {"healthy": False, "reason": "XID 79"}],
        "unsuitable": [{"unsuitable": True}, {"unsuitable": True, "reason": "MPS cannot share it"}],
        "few": [{"mostSlices": most} for most in (0, 2, 3, 16)],
        "changes": [{"reason": "changes its mode when its pods end: team/p1"}],
    }
    return draw.among(found[draw.weighted({"": 20, "sick": 1, "unsuitable": 0.6, "few": 0.8, "changes": 0.5})])


def _mps_records(draw: Draw, card: Card, alone: Json, trouble: Json) -> list[Json]:
    counts = Counter(each.name for each in card.listed())
    if not counts and draw.chance(0.08):
        other = {"mode": "memory", "resource": "aliyun.com/gpu-mem", "units": card.model.mib // 1024, "unitMiB": 1024}
        return [{**alone, **other, **trouble}]
    found = [
        {
            **alone,
            "mode": "mps",
            "resource": f"nvidia.com/gpu-{name}",
            "units": count,
            "unitMiB": 1024 * int(name.removesuffix("gb")),
            **trouble,
        }
        for name, count in counts.items()
    ]
    return found or [{**alone, "units": 0, "unitMiB": 0, **trouble}]


def _mig_records(draw: Draw, card: Card, alone: Json, trouble: Json) -> list[Json]:
    profiles = [
        {"name": name, "starts": starts, "size": size, "compute": compute, "most": most}
        for name, (starts, size, compute, most) in card.model.profiles.items()
        if name != "1g.5gb+me" or draw.chance(0.9)
    ]
    found = [{**alone, "units": 0, "unitMiB": 0, **trouble, **({} if draw.chance(0.06) else {"profiles": profiles})}]
    for number, each in enumerate(card.listed()):
        profile, _, start = each.name.partition("@")
        uuid = f"MIG-{card.uuid[4:12]}-0000-4000-8000-{number:012x}"
        of_it: Json = {"uuid": uuid, "profile": profile, "product": f"{card.model.name} MIG {profile}"}
        if not draw.chance(0.03):
            of_it["start"] = int(start)
        if draw.chance(0.06):
            of_it["profile"] = f"1c.{profile}"
        offered = {"mode": "exclusive", "resource": each.resource, "units": 1, "unitMiB": 0}
        if each.state == "idle" and draw.chance(0.05):
            offered = {"units": 0, "unitMiB": 0}
        found.append({**alone, "memoryMiB": 4864, **of_it, **offered, **trouble})
    return found


def _asks_for(draw: Draw, uid: str, names: Sequence[str]) -> tuple[Json, Asked]:
    """Return a pod that asks for these slices, one a container."""
    asked = containers(draw)
    apps = [name for name, kind in asked.containers if kind != "init"]
    while len(apps) < len(names):
        apps.append(f"d{len(apps)}")
        asked.containers.append((apps[-1], "app"))
    for container, resource in zip(apps, names, strict=False):
        asked.ask(container, resource, 1)
    for container, kind in asked.containers:
        if kind == "init" and draw.chance(0.3):
            asked.ask(container, names[0], 1)
    return manifest(draw, uid, asked), asked


def _holders(draw: Draw, node: Divided) -> list[Json]:
    """Return pods that hold the slices of a node that are held."""
    pods, left = list[Json](), node.of("held")
    while left:
        count = draw.weighted({1: 6, 2: 1})
        mine, left = left[:count], left[count:]
        uid = f"u{node.name[1:]}{len(pods)}"
        pod, asked = _asks_for(draw, uid, [each.resource for _, each in mine])
        pod["spec"]["nodeName"] = node.name
        pod["status"] = {"phase": "Running"}
        units: Units = {}
        apps = [name for name, kind in asked.containers if kind != "init" and asked.amounts.get(name)]
        for container, (card, each) in zip(apps, mine, strict=True):
            gpu = card.uuid if node.kind == "mps" else _instance(card, each)
            units.setdefault(container, {})[each.resource] = {gpu: 1}
        annotations = pod["metadata"]["annotations"]
        match draw.weighted({"allocation": 8, "promise": 1, "none": 1, "wrong": 0.4}):
            case "allocation":
                annotations["gpushare/allocation"] = written(units)
            case "promise":
                annotations["gpushare/promise"] = promise(units, node.name)
            case "wrong":
                annotations["gpushare/allocation"] = written(units).replace("GPU-", "GPU-f").replace("MIG-", "MIG-f")
            case _:
                pass
        match draw.weighted({"": 12, "ending": 1, "ended": 0.7}):
            case "ending":
                pod["metadata"]["deletionTimestamp"] = stamp(NOW - 5)
            case "ended":
                pod["status"] = {"phase": "Succeeded"}
            case _:
                pass
        pods.append(pod)
    return pods


def _instance(card: Card, cut: Cut) -> str:
    number = next(number for number, each in enumerate(card.listed()) if each is cut)
    return f"MIG-{card.uuid[4:12]}-0000-4000-8000-{number:012x}"


def _waiting(draw: Draw, uid: str, divided: Sequence[Divided]) -> Json:
    """Return a pod that waits for slices, mostly of sizes that some GPU can have."""
    node = draw.among(divided)
    card = draw.among(node.cards)
    if node.kind == "mig":
        names = [f"nvidia.com/mig-{name.replace('+', '.')}" for name in card.model.profiles]
    else:
        names = [f"nvidia.com/gpu-{size}gb" for size in (*SIZES, -(-card.model.mib // 1024))]
    there = [each.resource for _, each in node.of("idle", "kept", "coming", "going")]
    chosen = [draw.among(there) if there and draw.chance(0.5) else draw.among(names)]
    chosen += [draw.among(names) for _ in range(draw.weighted({0: 8, 1: 1.5, 2: 0.5}))]
    strange = (
        "nvidia.com/gpu-100gb",
        "nvidia.com/mig-9g.99gb",
        "nvidia.com/gpu-1.5gb",
        "nvidia.com/mig-1g",
        "nvidia.com/gpu-5gb",
    )
    if draw.chance(0.08):
        chosen = [draw.among(strange)]
    pod, _ = _asks_for(draw, uid, chosen)
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["creationTimestamp"] = stamp(NOW - draw.among((1, 20, 59, 60, 61, 200, 600)))
    if draw.chance(0.4):
        spec["priority"] = draw.among((-10, 20, 20))
    if draw.chance(0.02):
        limits = spec["containers"][-1]["resources"].setdefault("limits", {})
        limits[chosen[0]] = draw.among(("2", "3", "x", "70"))
    if draw.chance(0.2):
        spec["nodeSelector"] = {"zone": draw.among(("a", "b"))}
    if draw.chance(0.25):
        spec["tolerations"] = [draw.among(({"operator": "Exists"}, {"key": "gpu", "operator": "Exists"}))]
    if draw.chance(0.15):
        spec["containers"][-1]["resources"].setdefault("requests", {})["cpu"] = draw.among(("1", "1500m", "17"))
    if draw.chance(0.05):
        spec["schedulingGates"] = [{"name": "wait"}]
    if draw.chance(0.03):
        metadata["deletionTimestamp"] = stamp(NOW - 3)
    _wish(draw, metadata["annotations"], card)
    return pod


def _rivals(draw: Draw, divided: Sequence[Divided]) -> list[Json]:
    """Return pods for which slices may be kept, less important than another that wants as much."""
    found: list[Json] = []
    for _, each in [each for node in divided for each in node.of("idle", "kept", "coming")][:6]:
        each.state = "coming"
        pod, _ = _asks_for(draw, f"r{len(found)}", [each.resource])
        pod["spec"]["priority"] = draw.among((-10, -10, -20))
        found.append(pod)
    if found:
        pod, _ = _asks_for(draw, "r9", _resources(draw.among(found))[:1])
        pod["spec"] |= {"priority": 30, "tolerations": [{"operator": "Exists"}]}
        found.append(pod)
    return found


def _wish(draw: Draw, annotations: dict[str, str], card: Card) -> None:
    """Let a pod name a policy, models, or this card."""
    if draw.chance(0.2):
        annotations["gpushare/placement"] = draw.among(("binpack", "spread"))
    if draw.chance(0.08):
        key = draw.among(("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"))
        annotations[key] = draw.among(("a100", "a30,h100", "t4"))
    if draw.chance(0.04):
        key = draw.among(("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"))
        annotations[key] = card.uuid


def _resources(pod: Json) -> list[str]:
    found = []
    sidecars = [each for each in pod["spec"].get("initContainers", ()) if "restartPolicy" in each]
    for container in (*sidecars, *pod["spec"]["containers"]):
        amounts = {**container["resources"].get("requests", {}), **container["resources"].get("limits", {})}
        found += [name for name in amounts if name.startswith("nvidia.com/")]
    return found


def _kept(draw: Draw, divided: Sequence[Divided], waiting: Sequence[Json]) -> dict[str, dict[str, list[Json]]]:
    """Return which slices are kept for which pod, by node and UID: for those that ask for them, or not."""
    found: dict[str, dict[str, list[Json]]] = {node.name: {} for node in divided}
    for node in divided:
        for card, each in node.of("kept", "coming"):
            mine = [pod for pod in waiting if each.resource in _resources(pod)]
            pod = draw.among(mine) if mine and draw.chance(0.9) else None
            uid = (
                pod["metadata"]["uid"]
                if pod
                else draw.among(("z1", "z2", "u00", *(["w0"] if draw.chance(0.2) else [])))
            )
            since = NOW - draw.among((0, 3, 9, 10, 11, 29, 30, 31, 59, 60, 61, 300, -20))
            kept = {"gpu": card.uuid, "slice": each.name, "since": stamp(since), "pod": f"team/p{uid}"}
            so_far = found[node.name].setdefault(uid, [])
            if len(so_far) < (len(_resources(pod)) if pod else 1):
                so_far.append(kept)
    return found


def _annotate(draw: Draw, node: Divided, kept: Mapping[str, Mapping[str, list[Json]]], uids: Sequence[str]) -> None:
    """Write what is wanted of a node into its annotation, more or less as a partitioner did."""
    annotations = node.node["metadata"]["annotations"]
    if draw.chance(0.07):
        return
    gpus = {card.uuid: card.wanted() for card in node.cards if not draw.chance(0.1)}
    if draw.chance(0.04):
        gpus["GPU-gone"] = {"5gb": 1}
    if draw.chance(0.05) and gpus:
        other = draw.among(list(gpus))
        gpus[other] = dict(list(gpus[other].items())[1:])
    pods = {uid: each[0] if len(each) == 1 else each for uid, each in kept[node.name].items()}
    failed = {
        uid: {
            "at": stamp(NOW - draw.among((0, 5, 11, 59, 119, 120, 121, 500, 1000, -30))),
            "times": draw.weighted({1: 6, 2: 2, 3: 1, 7: 0.5, 1000: 0.2}),
        }
        for uid in (*uids, "z3")
        if draw.chance(0.12)
    }
    text = _dumped({"version": 1, "gpus": gpus, "pods": pods, "failed": failed})
    if draw.chance(0.03):
        text = draw.among(
            (text[1:], text.replace('"version":1', '"version":2'), '{"version":1,"gpus":{"g":{"0gb":1}}}')
        )
    annotations[WANTED] = text


def _again(draw: Draw, divided: Sequence[Divided], waiting: Sequence[Json]) -> Json:
    """Return what has happened when it is decided again, and when that is."""
    changes: list[Json] = []
    for pod in draw.some(waiting, 0.15):
        if draw.chance(0.3):
            changes.append({"gone pod": pod["metadata"]["uid"]})
        else:
            bound = {**pod, "spec": {**pod["spec"], "nodeName": draw.among(divided).name}}
            changes.append({"pod": bound})
    node = draw.among(divided)
    if draw.chance(0.05):
        changes.append({"gone node": node.name})
    elif draw.chance(0.08):
        lost = draw.among(("gpushare/gpus", WANTED))
        metadata = node.node["metadata"]
        annotations = {key: text for key, text in metadata["annotations"].items() if key != lost}
        changes.append({"node": {**node.node, "metadata": {**metadata, "annotations": annotations}}})
    return {"now": stamp(NOW + draw.among((1, 12, 31, 61, 200))), "changes": changes}
