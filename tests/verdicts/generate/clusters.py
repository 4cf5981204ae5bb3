"""Random clusters with a pod that kube-scheduler asks about: what the extender decides on."""

from collections.abc import Sequence

from tests.verdicts.generate.draw import Draw, Json
from tests.verdicts.generate.nodes import SOME, Place, aliyun, foreign, recorded
from tests.verdicts.generate.pods import NAMESPACES, occupant, waiting


def question(draw: Draw) -> Json:
    """Return a cluster, what was bound a moment ago, and what is asked about one pod, and about another one then."""
    places = _places(draw)
    full = draw.among((0.1, 0.2, 0.4, 0.6, 1.0))
    pods = _occupants(draw, places, full)
    seen = [*pods, *_nominated(draw, places)]
    asked = [waiting(draw, f"w{number}", places) for number in range(draw.weighted({2: 5, 3: 2, 4: 1}))]
    if draw.chance(0.4):
        asked[-1]["spec"] = asked[0]["spec"]  # a replica
    names = [place.name for place in places]
    earlier = [[number, draw.among(names)] for number in range(1, len(asked) - 1)]
    if draw.chance(0.04):
        earlier.append([0, draw.among(names)])
    if draw.chance(0.04):
        asked[0] = draw.among(pods) if pods else asked[0]
    _strange(draw, asked[0])
    return {
        "nodes": [place.node for place in places],
        "cordons": {draw.among(names): draw.among(("0", "1", "0 1"))} if draw.chance(0.1) else {},
        "pods": draw.mixed(seen),
        "budgets": _budgets(draw) if draw.chance(0.8) else None,
        "policy": draw.among(("binpack", "binpack", "spread")),
        "schedulers": draw.weighted({(): 8, ("gpushare-scheduler", "default-scheduler"): 2, ("mine",): 0.15}),
        "asked": asked,
        "earlier": earlier,
        "about": draw.mixed([*names, "n99"] if draw.chance(0.05) else names),
        "as_objects": draw.chance(0.15),
        "bind": draw.mixed([*names, "n99"] if draw.chance(0.05) else names),
        "proposed": _proposed(draw, asked[0], places, pods),
        "proposed_as_objects": draw.chance(0.2),
        "changes": _changes(draw, places, pods),
        "gone": draw.weighted({"": 40, "pod": 1, "other pod": 1, "node": 1}),
    }


def _places(draw: Draw) -> list[Place]:
    """Return nodes, most of which share their GPUs in the same one or two ways."""
    theme = [draw.weighted(SOME)] if draw.chance(0.7) else [draw.weighted(SOME), draw.weighted(SOME)]
    places = []
    for number in range(draw.weighted({1: 2, 2: 3, 3: 4, 4: 3, 6: 2})):
        match draw.weighted({"theme": 14, "any": 1.5, "aliyun": 5 if "memory" in theme else 0.5, "foreign": 0.5}):
            case "theme":
                places.append(recorded(draw, number, theme))
            case "any":
                places.append(recorded(draw, number, [draw.weighted(SOME) for _ in range(draw.between(1, 2))]))
            case "aliyun":
                places.append(aliyun(draw, number))
            case _:
                places.append(foreign(draw, number))
    return places


def _occupants(draw: Draw, places: Sequence[Place], full: float) -> list[Json]:
    """Return pods on the nodes, which are so full then, more or less."""
    pods: list[Json] = []
    for place in places:
        whole = sum(sum(offer.units.values()) for offer in place.offers) or 1
        for _ in range(8):
            free = sum(sum(offer.free.values()) for offer in place.offers)
            if 1 - free / whole >= full or not draw.chance(0.85):
                break
            if (pod := occupant(draw, f"u{len(pods)}", place)) is not None:
                pods.append(pod)
    return pods


def _nominated(draw: Draw, places: Sequence[Place]) -> list[Json]:
    """Return other pods that wait, some for a node where pods are being evicted for them."""
    pods = []
    for number in range(draw.weighted({0: 6, 1: 2, 2: 1})):
        pod = waiting(draw, f"x{number}", places)
        if draw.chance(0.8):
            pod["status"]["nominatedNodeName"] = draw.among(places).name
            pod["spec"]["priority"] = draw.among((0, 10, 20))
        pods.append(pod)
    return pods


def _changes(draw: Draw, places: Sequence[Place], pods: Sequence[Json]) -> list[Json]:
    """Return what changes in the cluster before another pod is asked about."""
    found: list[Json] = []
    for pod in draw.some(pods, 0.15):
        match draw.below(3):
            case 0:
                found.append({"gone pod": pod["metadata"]["uid"]})
            case 1:
                found.append({"pod": {**pod, "status": {"phase": "Succeeded"}}})
            case _:
                found.append({"pod": {**pod, "metadata": {**pod["metadata"], "annotations": {}}}})
    for place in draw.some(places, 0.07):
        number = int(place.name.removeprefix("n"))
        other = recorded(draw, number, [draw.weighted(SOME)]).node
        found.append({"gone node": place.name} if draw.chance(0.3) else {"node": other})
    return found


def _strange(draw: Draw, pod: Json) -> None:
    """Make the pod one that may not be bound."""
    match draw.weighted({"": 50, "gated": 1, "ending": 0.7, "scheduler": 2}):
        case "gated":
            pod["spec"]["schedulingGates"] = [{"name": "wait"}]
        case "ending":
            pod["metadata"]["deletionTimestamp"] = "2026-01-05T10:00:00Z"
        case "scheduler":
            pod["spec"]["schedulerName"] = draw.among(("mine", "gpushare-scheduler"))
        case _:
            pass


def _budgets(draw: Draw) -> list[Json]:
    found = []
    for number in range(draw.weighted({0: 1, 1: 3, 2: 3, 3: 1})):
        selector: Json | None = draw.among(
            (
                {"matchLabels": {"app": "a"}},
                {"matchLabels": {"app": "b"}},
                {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "c"]}]},
                {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
                {},
                None,
            )
        )
        disrupted = {"pu1": "2026-01-05T10:00:00Z"} if draw.chance(0.15) else {}
        found.append(
            {
                "metadata": {"name": f"b{number}", "namespace": draw.among(NAMESPACES)},
                "spec": {} if selector is None else {"selector": selector},
                "status": {"disruptionsAllowed": draw.below(3), "disruptedPods": disrupted},
            }
        )
    return found


def _proposed(draw: Draw, pod: Json, places: Sequence[Place], pods: Sequence[Json]) -> Json:
    """Return whom kube-scheduler would evict on each node: some of the less important pods there."""
    priority = pod["spec"].get("priority", 0)
    found: Json = {}
    for place in places:
        there = [each for each in pods if each["spec"]["nodeName"] == place.name]
        lower = [each["metadata"]["uid"] for each in there if each["spec"].get("priority", 0) < priority]
        chosen = draw.mixed(draw.some(lower, draw.among((0.0, 0.3, 0.6, 1.0))))
        if draw.chance(0.05):
            chosen.append(draw.among(("u99", *(each["metadata"]["uid"] for each in pods))))
        if (lower and draw.chance(0.9)) or draw.chance(0.2):
            found[place.name] = {"uids": chosen, "violations": draw.below(3)}
    if draw.chance(0.03):
        found["n99"] = {"uids": [], "violations": 0}
    return found
