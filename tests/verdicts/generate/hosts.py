"""Random hosts: their cards and MIG instances, and configs that share them."""

from collections.abc import Sequence

from tests.verdicts.generate.draw import Draw, Json
from tests.verdicts.generate.partitioned import A30, A100, H100, T4, Model

_OLD = Model("Tesla P100-PCIE-16GB", 16276)
_COMPUTE = {A100.name: [8, 0], A30.name: [8, 0], H100.name: [9, 0], T4.name: [7, 5], _OLD.name: [6, 0]}


def uuid(index: int) -> str:
    """Return the UUID of a card."""
    return f"GPU-{index + 160:08x}-0000-4000-8000-{index:012x}"


def instance(index: int, number: int, profile: str, start: int | None) -> Json:
    """Return a MIG instance of a card."""
    found = {"uuid": f"MIG-{index + 160:08x}-0000-4000-8000-{number:012x}", "number": number, "profile": profile}
    return {**found, "start": start, "memoryMiB": int(profile.rpartition(".")[2].partition("gb")[0]) * 1000 - 136}


def cards(draw: Draw, count: int, models: Sequence[Model] = (A100, A30, H100, T4, _OLD)) -> list[Json]:
    """Return cards without MIG."""
    model, found = draw.among(models), list[Json]()
    for index in range(count):
        if draw.chance(0.15):
            model = draw.among(models)
        card = {"index": index, "uuid": uuid(index), "name": model.name, "memoryMiB": model.mib}
        more = {"compute": _COMPUTE[model.name], "numa": index % 2 if draw.chance(0.7) else None}
        found.append({**card, **more, "mig": False, "migCapable": bool(model.profiles), "instances": []})
    return found


def closeness(draw: Draw, count: int) -> list[list[int]]:
    """Return how close each card is to each before it: on one switch, beside it, or with links between some."""
    groups = [index * 2 // max(1, count) if draw.chance(0.8) else draw.below(3) for index in range(count)]
    near, far = draw.among(((230, 10), (60, 30), (20, 10), (10, 10)))
    rows = []
    for one in range(count):
        row = [near if groups[one] == groups[other] else far for other in range(one)]
        rows.append([draw.among((40, 90, 0)) if draw.chance(0.1) else each for each in row])
    return rows


def sharing(draw: Draw, host: Sequence[Json]) -> Json:
    """Return a config that shares cards in one way, or in several."""
    config: Json = {"flags": {"plugin": {}}, "sharing": {}}
    if any(card["mig"] for card in host):
        config["flags"]["migStrategy"] = draw.weighted({"mixed": 4, "none": 2, "single": 1})
    elif draw.chance(0.1):
        config["flags"]["migStrategy"] = draw.among(("mixed", "single"))
    if draw.chance(0.3):
        config["flags"]["plugin"]["sharedDevicesAllocationPolicy"] = draw.among(("packed", "spread", "distributed"))
    if draw.chance(0.2):
        config["flags"]["plugin"] |= draw.among(
            (
                {"passDeviceSpecs": True},
                {"deviceIDStrategy": "index"},
                {"deviceListStrategy": ["volume-mounts"]},
                {"deviceListStrategy": ["cdi-cri"]},
            )
        )
    plain = [card["index"] for card in host if not card["mig"]]
    ways = [draw.weighted({"memory": 8, "replicas": 4, "mps replicas": 2, "sizes": 3, "whole": 4})]
    if len(plain) > 1 and draw.chance(0.3):
        ways.append(draw.among([way for way in ("memory", "replicas", "sizes", "whole") if way not in ways]))
    middle = draw.between(1, len(plain) - 1) if len(ways) > 1 else len(plain)
    for way, devices in zip(ways, (plain[:middle], plain[middle:]), strict=False):
        chosen: object = devices if len(ways) > 1 or draw.chance(0.1) else "all"
        if devices:
            _share(draw, config["sharing"], way, chosen)
    return config


def _share(draw: Draw, config: Json, way: str, devices: object) -> None:
    """Share devices in one way."""
    match way:
        case "memory":
            entry: Json = {"name": draw.weighted({"aliyun.com/gpu-mem": 5, "example.com/vram": 1}), "devices": devices}
            entry["unit"] = draw.weighted({"1GiB": 6, "2GiB": 2, "512MiB": 1, "4GiB": 2})
            if draw.chance(0.7):
                entry["placement"] = draw.among(("binpack", "spread"))
            entry["isolation"] = draw.weighted({"none": 4, "hami-core": 4, "mps": 3})
            if entry["isolation"] != "none" and draw.chance(0.7):
                entry["compute"] = draw.among(("requested", "requested", "proportional", 30, "unlimited"))
            if entry["isolation"] == "mps" and draw.chance(0.3):
                entry["allowMultiGPUShares"] = True
            config["memory"] = {"resources": [entry]}
        case "replicas":
            slicing: Json = {"name": "nvidia.com/gpu", "replicas": draw.between(2, 6), "devices": devices}
            if draw.chance(0.4):
                slicing["rename"] = "nvidia.com/gpu.shared"
            once = {"failRequestsGreaterThanOne": True} if draw.chance(0.2) else {}
            config["timeSlicing"] = {"resources": [slicing], **once}
        case "mps replicas":
            shared = {"name": "nvidia.com/gpu", "replicas": draw.between(2, 6), "devices": devices}
            config["mps"] = {"resources": [shared]}
        case "sizes":
            sizes = draw.some(("2gb", "5gb", "7gb"), 0.6) or ["5gb"]
            slices = [{"size": size, "count": draw.between(1, 2)} for size in sizes]
            config["mps"] = {"sizes": [{"devices": devices, "slices": slices}]}
        case _:
            pass
