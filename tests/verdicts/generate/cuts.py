"""Random lives of a node whose GPUs are cut as annotations want, or shared as one config after the other says."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tests.verdicts.generate.draw import Draw, Json
from tests.verdicts.generate.hosts import cards, instance, sharing, uuid
from tests.verdicts.generate.partitioned import A30, A100, H100, T4, WANTED, Model

_MODELS: Mapping[str, Model] = {model.name: model for model in (A100, A30, H100, T4)}
_SIZES = ("3gb", "5gb", "10gb", "20gb", "40gb")

_dumped = partial(json.dumps, separators=(",", ":"), sort_keys=True)


def life(draw: Draw) -> Json:
    """Return a node, and what is wanted and what pods do, step by step."""
    kind = draw.weighted({"mps": 4, "mig": 3, "": 3})
    if kind == "mig":
        host = cards(draw, draw.weighted({1: 3, 2: 3, 3: 1}), (A100, A30, A100, T4))
        for card in host:
            if card["migCapable"] and draw.chance(0.75):
                card["mig"] = True
                places = _places(draw, _MODELS[card["name"]])
                card["instances"] = [instance(card["index"], number, *each) for number, each in enumerate(places)]
    else:
        host = cards(draw, draw.weighted({1: 3, 2: 3, 3: 1}))
        for card in host:
            if draw.chance(0.03 if kind else 0.2) and card["migCapable"]:
                card["mig"] = True
                names = draw.among((("1g.5gb",) * 2, ("3g.20gb", "1g.5gb"), ()))
                card["instances"] = [instance(card["index"], number, name, None) for number, name in enumerate(names)]
    steps = [_step(draw, kind, host, number) for number in range(draw.between(3, 6))]
    return {
        "kind": kind,
        "manage": draw.chance(0.4),
        "cards": host,
        "profiles": {} if kind != "mig" else {card["uuid"]: profiles(card) for card in host if card["migCapable"]},
        "held before": [_held(draw, kind) for _ in range(draw.weighted({0: 4, 1: 2, 2: 1}))],
        "steps": steps,
    }


def profiles(card: Json) -> list[Json]:
    """Return the MIG profiles of a card, as its driver describes them."""
    return [
        {"name": name, "starts": starts, "size": size, "compute": compute, "most": most}
        for name, (starts, size, compute, most) in _MODELS[card["name"]].profiles.items()
    ]


def _places(draw: Draw, model: Model) -> list[tuple[str, int | None]]:
    """Return the profiles and places of instances that a card has already."""
    found, taken = list[tuple[str, int | None]](), set[int]()
    for _ in range(draw.between(0, 5)):
        name = draw.among(list(model.profiles))
        starts, size, *_ = model.profiles[name]
        start = draw.among(starts)
        if not taken & set(range(start, start + size)):
            taken |= set(range(start, start + size))
            found.append((f"1c.{name}" if draw.chance(0.05) else name, None if draw.chance(0.04) else start))
    return found


def _held(draw: Draw, kind: str) -> list[str]:
    """Return what a pod held when the daemon began: a resource, and the ID of a unit."""
    short = f"{draw.below(2) + 160:08x}"
    if kind == "mig":
        instance_ = ["nvidia.com/mig-1g.5gb", f"MIG-{short}-0000-4000-8000-{draw.below(3):012x}"]
        return draw.among((instance_, ["nvidia.com/gpu", uuid(draw.below(2))]))
    size = draw.among((5, 10, 20))
    return draw.among(
        (
            [f"nvidia.com/gpu-{size}gb", f"{short}-{size}gb-{draw.below(4)}"],
            [f"nvidia.com/gpu-{size}gb", f"{short}-{size}gb-{draw.below(4)}"],
            ["aliyun.com/gpu-mem", f"{short}-1Gi-{draw.below(14)}"],
            ["nvidia.com/gpu", f"{uuid(0)}::{draw.below(4)}"],
            ["nvidia.com/gpu", uuid(draw.below(2))],
            ["nvidia.com/gone", "what is that"],
        )
    )


def _at(draw: Draw, most: int) -> list[float]:
    return [draw.below(1000) / 1000 for _ in range(draw.below(most + 1))]


def _step(draw: Draw, kind: str, host: Sequence[Json], number: int) -> Json:
    """Return what happens next."""
    found: Json = {
        "after": draw.among((0.5, 1.0, 1.9, 2.0, 2.5, 5.0, 10.0, 12.0)),
        "asked": not draw.chance(0.1),
        "takes": _at(draw, 3),
        "ends": _at(draw, 3) if draw.chance(0.6) else [],
        "shown": draw.chance(0.75),
        "exceeded": draw.chance(0.06),
        "unwritable": draw.chance(0.04),
        "waits for": draw.chance(0.2),
        "driver": draw.chance(0.8),
    }
    if number == 0 or draw.chance(0.6):
        if kind:
            found["annotations"] = _annotations(draw, kind, host)
        else:
            found["config"] = sharing(draw, host)
    if draw.chance(0.04) and len(host) > 1:
        found["gone"] = draw.below(len(host))
    return found


def _annotations(draw: Draw, kind: str, host: Sequence[Json]) -> dict[str, str]:
    """Return what annotations want of the GPUs: ours, those of people, or both."""
    found: dict[str, str] = {}
    gpus = {card["uuid"]: _wanted(draw, kind, card) for card in host if draw.chance(0.85)}
    if draw.chance(0.04):
        gpus["GPU-another"] = {"5gb": 1}
    if draw.chance(0.85):
        text = _dumped({"version": 1, "gpus": gpus})
        if draw.chance(0.04):
            text = draw.among((text[:-1], text.replace('"version":1', '"version":2'), "[]"))
        found[WANTED] = text
    for card in host:
        if draw.chance(0.25):
            names = list(_MODELS[card["name"]].profiles) if kind == "mig" and card["name"] in _MODELS else list(_SIZES)
            for name in draw.some(names, 0.4):
                count = draw.weighted({"1": 4, "2": 4, "0": 2, "4": 2, "x": 0.2, "2000": 0.2})
                found[f"nos.nebuly.com/spec-gpu-{card['index']}-{name}"] = count
    if draw.chance(0.03):
        found["nos.nebuly.com/spec-gpu-9-5gb"] = "1"
    return found


def _wanted(draw: Draw, kind: str, card: Json) -> Json:
    """Return slices of a card, of which now and then not all fit."""
    if draw.chance(0.03):
        return draw.among(({"5gb": 0}, {"x": 1}, {"3g.20gb@4": 1, "5gb": 1}, {"1gb": 1024, "2gb": 1}, {"1g.5gb@0": 2}))
    if kind == "mig":
        model = _MODELS[card["name"]]
        places = _places(draw, model) if model.profiles else [("1g.5gb", 0)]
        names = [f"{name}@{start}" for name, start in places if start is not None and not name.startswith("1c.")]
        if draw.chance(0.05):
            names.append(draw.among(("9g.99gb@0", "3g.20gb@1", "1g.5gb@7")))
        return dict(Counter(dict.fromkeys(names, 1)))
    room = int(card["memoryMiB"]) // 1024 + draw.among((0, 0, 0, 5, -5, 20))
    counts = Counter[str]()
    while room > 0 and not draw.chance(0.2):
        size = draw.among(_SIZES)
        counts[size] += 1
        room -= int(size.removesuffix("gb"))
    if draw.chance(0.03):
        counts["1gb"] = 60
    return dict(counts)


def driven(card: Json, described: Iterable[Json], wanted: Iterable[str], kept: Iterable[str]) -> list[Json]:
    """Return the MIG instances of a card after its driver has done what is wanted, as far as there is room.

    Of those that are there, `kept` stay, by UUID, and those at places that are wanted.
    """
    sizes = {each["name"]: each["size"] for each in described}
    names, keep = list(wanted), set(kept)
    found = [
        each for each in card["instances"] if each["uuid"] in keep or f"{each['profile']}@{each['start']}" in names
    ]
    there = {f"{each['profile']}@{each['start']}" for each in found}
    number = max((each["number"] for each in card["instances"]), default=-1) + 1
    for name in names:
        profile, _, text = name.partition("@")
        if name not in there and profile in sizes and not _taken(found, sizes, int(text), sizes[profile]):
            found.append(instance(card["index"], number, profile, int(text)))
            number += 1
    return found


def _taken(there: Sequence[Json], sizes: Mapping[str, int], start: int, size: int) -> bool:
    """Return whether a place overlaps an instance."""
    for each in there:
        if each["start"] is None:
            return True
        end = each["start"] + sizes.get(each["profile"].rpartition("c.")[2], 1)
        if each["start"] < start + size and start < end:
            return True
    return False
