"""Random calls of a kubelet to a node: what it prefers, what it allocates, and what pods held before."""

from tests.verdicts.generate.draw import Draw, Json
from tests.verdicts.generate.hosts import cards, closeness, instance, sharing


def kubelet(draw: Draw) -> Json:
    """Return a host, its config, and one call after the other; units are named by their place, from 0 to 1."""
    count = draw.weighted({1: 2, 2: 4, 3: 3, 4: 3, 8: 2})
    host = cards(draw, count)
    if draw.chance(0.2):
        _mig(draw, host)
    full = draw.among((0.0, 0.2, 0.5, 0.8, 0.95))
    return {
        "cards": host,
        "closeness": closeness(draw, count) if draw.chance(0.8) else [],
        "config": sharing(draw, host),
        "unhealthy": {
            str(card["index"]): draw.among(("XID 79", "it does not answer")) for card in draw.some(host, 0.07)
        },
        "full": [draw.among((0.0, full, full, 1.0)) for _ in host],
        "gaps": [draw.below(1000) / 1000 for _ in range(4)],
        "calls": [_call(draw) for _ in range(draw.between(2, 5))],
    }


def _mig(draw: Draw, host: list[Json]) -> None:
    """Bring some cards into MIG mode."""
    for card in host:
        if card["migCapable"] and draw.chance(0.7):
            card["mig"] = True
            profiles = draw.among((("3g.20gb", "1g.5gb", "1g.5gb"), ("2g.10gb",) * 3, ("1g.5gb",) * 5))
            card["instances"] = [instance(card["index"], number, each, None) for number, each in enumerate(profiles)]


def _places(draw: Draw, most: int) -> list[float]:
    return [draw.below(1000) / 1000 for _ in range(draw.below(most + 1))]


def _call(draw: Draw) -> Json:
    """Return what one container asks for, of one resource or of two, and what the kubelet gives it."""
    found: Json = {
        "resource": draw.below(6),
        "size": draw.weighted({1: 8, 2: 4, 3: 2, 4: 2, 6: 1, 8: 1, 12: 1, 20: 1}),
        "must": _places(draw, 2) if draw.chance(0.2) else [],
        "hidden": _places(draw, 8) if draw.chance(0.3) else [],
        "takes": draw.weighted({"preferred": 8, "any": 2, "one GPU": 1, "strange": 0.7}),
        "any": _places(draw, 4),
        "beside": draw.between(1, 60) if draw.chance(0.6) else 0,
        "written": draw.chance(0.8),
        "ends": _places(draw, 3) if draw.chance(0.4) else [],
    }
    if draw.chance(0.04):
        found["size"] = 0
    if draw.chance(0.25):
        shares = [[draw.below(4), draw.between(1, 4)] for _ in range(draw.between(1, 2))]
        found["promises"] = [shares, *([[[draw.below(4), found["size"]]]] if draw.chance(0.6) else [])]
        found["pod"] = draw.between(1, 20)
    if found["beside"] and draw.chance(0.25):
        # A scheduler has promised parts of two GPUs, and means both resources, or says so of one only.
        half, part = draw.between(1, 4), draw.between(1, 20)
        found |= {"size": 2 * half, "promises": [[[0, half], [1, half]]], "takes": "preferred"}
        both = [[0, part], [1, part]]
        found |= {
            "beside": 2 * part,
            "promises beside": draw.among(([both], [[[0, 2 * part]], both], [[[1, 2 * part]]])),
        }
    if draw.chance(0.05):
        found["strange"] = draw.among(("GPU-x", "000000a0-1Gi-999", "0", ""))
    if draw.chance(0.1):
        found["withdrawn"] = _places(draw, 3)
    return found
