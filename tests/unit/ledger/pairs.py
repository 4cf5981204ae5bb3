"""Random nodes and pods, as manifests, near the borders at which kube-scheduler decides otherwise."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import needs_of

Json = dict[str, Any]

OVERHEADS = {"small": {"cpu": "250m", "memory": "64Mi"}, "large": {"cpu": "1", "memory": "1Gi"}}
"""What the RuntimeClass of each name adds to the pods that use it."""

GPU, NATIVE, HUGE = "nvidia.com/gpu", "nvidia.com/gpu-10gb", "hugepages-2Mi"
_CPUS = ["100m", "250m", "0.5", "1", "1500m", "2", "1.001", "100u"]
_BYTES = ["64Mi", "100M", "1Gi", "1.5Gi", "500m", "1", "123456789", "1e9"]
_KEYS = ["zone", "disk", "example.com/generation", "tier"]
_VALUES = ["a", "b", "", "1", "7", "007", "10", "99999999999999999999"]
_NUMBERS = ["0", "5", "7", "007", "10", "9223372036854775807", "9223372036854775808", "x"]
_TAINT_KEYS = ["dedicated", "example.com/speed", "node.kubernetes.io/unschedulable", "node.kubernetes.io/disk-pressure"]
_TAINT_VALUES = ["", "gpu", "5", "10", "05"]
_EFFECTS = ["NoSchedule", "NoExecute", "PreferNoSchedule"]


def pairs(seed: int, count: int) -> Iterator[Json]:
    """Yield that many pairs: a node, the pods that are on it, and a pod that waits."""
    random = Random(seed)  # noqa: S311 - no secret
    for number in range(count):
        pair = _plain(f"node-{number}")
        for theme in random.sample(_THEMES, k=random.choice((1, 1, 1, 2))):
            theme(random, pair)
        yield pair


def _plain(name: str) -> Json:
    allocatable = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "20Gi", "pods": "10"}
    node = {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {"allocatable": allocatable}}
    return {"node": node, "occupants": [], "pod": {"spec": {"containers": [_container("main")]}}}


def _container(name: str, **more: Any) -> Json:
    return {"name": name, **more}


def _labels(random: Random, pair: Json) -> None:
    keys = random.sample(_KEYS, k=random.randint(0, 3))
    pair["node"]["metadata"]["labels"] = {key: random.choice(_VALUES) for key in keys}


def _selector(random: Random, pair: Json) -> None:
    """Give the pod a node selector, most often of labels that the node has."""
    _labels(random, pair)
    labels = pair["node"]["metadata"]["labels"]
    wanted = {key: value for key, value in labels.items() if random.random() < 0.8}
    if random.random() < 0.4:
        wanted[random.choice(_KEYS)] = random.choice(_VALUES)
    pair["pod"]["spec"]["nodeSelector"] = wanted


def _affinity(random: Random, pair: Json) -> None:
    """Require one of several terms."""
    _labels(random, pair)
    terms = [_term(random, pair["node"]) for _ in range(random.choice((1, 1, 2, 3)))]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pair["pod"]["spec"]["affinity"] = {"nodeAffinity": required}


def _term(random: Random, node: Json) -> Json:
    term: Json = {}
    if expressions := [_expression(random, node) for _ in range(random.choice((0, 1, 1, 2)))]:
        term["matchExpressions"] = expressions
    if random.random() < 0.25:
        names = [random.choice((node["metadata"]["name"], "another")) for _ in range(random.choice((1, 1, 2)))]
        term["matchFields"] = [
            {"key": "metadata.name", "operator": random.choice(("In", "In", "NotIn")), "values": [name]}
            for name in names
        ]
    return term


def _expression(random: Random, node: Json) -> Json:
    labels = node["metadata"]["labels"]
    key = random.choice([*labels, random.choice(_KEYS)])
    operator = random.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in {"Exists", "DoesNotExist"}:
        return {"key": key, "operator": operator}
    if operator in {"Gt", "Lt"}:
        return {"key": key, "operator": operator, "values": [random.choice((*_NUMBERS, labels.get(key) or "5"))]}
    values = random.sample(_VALUES, k=random.randint(1, 3))
    if key in labels and random.random() < 0.5:
        values.append(labels[key])
    return {"key": key, "operator": operator, "values": values}


def _taints(random: Random, pair: Json) -> None:
    """Taint the node, cordon it now and then, and give the pod tolerations, most often for those taints."""
    spec = pair["node"]["spec"]
    keys = random.sample(_TAINT_KEYS, k=random.randint(0, 2))
    spec["taints"] = [
        {"key": key, "value": random.choice(_TAINT_VALUES), "effect": random.choice(_EFFECTS)} for key in keys
    ]
    if random.random() < 0.25:
        spec["unschedulable"] = True
        keys.append("node.kubernetes.io/unschedulable")
    tolerated = [key for key in keys if random.random() < 0.8]
    pair["pod"]["spec"]["tolerations"] = [_toleration(random, key, spec["taints"]) for key in tolerated]


def _toleration(random: Random, key: str, taints: list[Json]) -> Json:
    effect = random.choice(("", "", "NoSchedule", "NoExecute"))
    more = {"effect": effect} if effect else {}
    operator = random.choice(("", "Equal", "Equal", "Exists", "Exists", "Lt", "Gt", "all"))
    if operator == "all":
        return {"operator": "Exists", **more}
    if operator == "Exists":
        return {"key": key, "operator": operator, **more}
    if operator in {"Lt", "Gt"}:
        return {"key": key, "operator": operator, "value": random.choice(("0", "5", "7", "-3", "10")), **more}
    value = next((taint["value"] for taint in taints if taint["key"] == key), "")
    if random.random() < 0.2:
        value = random.choice(_TAINT_VALUES)
    return {"key": key, "value": value, **({"operator": operator} if operator else {}), **more}


def _resources(random: Random, pair: Json) -> None:
    """Give the pod containers of all kinds, and the node just as much as they need, a little more, or a little less."""
    pair["pod"]["spec"] |= _busy(random)
    pair["occupants"] = [{"spec": _busy(random)} for _ in range(random.choice((0, 0, 1, 2)))]
    for occupant in pair["occupants"]:
        if random.random() < 0.4:
            _resize(random, occupant)
    needed: dict[str, int] = {}
    for pod in (pair["pod"], *pair["occupants"]):
        for name, amount in needs_of(msgspec.convert(pod, ApiPod)).demand.resources.items():
            needed[name] = needed.get(name, 0) + amount
    allocatable = pair["node"]["status"]["allocatable"]
    for name, amount in needed.items():
        most = amount + random.choice((-1, 0, 0, 0, 0, 0, 0, 1, 5))
        allocatable[name] = f"{max(most, 0)}m" if name == "cpu" else str(max(most, 0))
    if random.random() < 0.15:
        allocatable.pop(random.choice(sorted(needed)))


def _busy(random: Random) -> Json:
    """Return the part of a pod's spec that says what it requests."""
    spec: Json = {
        "containers": [_container(f"app-{number}", **_asked(random)) for number in range(random.choice((1, 1, 2, 3)))]
    }
    inits = [_container(f"init-{number}", **_asked(random)) for number in range(random.choice((0, 0, 1, 2, 3)))]
    for init in inits:
        if random.random() < 0.5:
            init["restartPolicy"] = "Always"
    if inits:
        spec["initContainers"] = inits
    if random.random() < 0.2:
        name = random.choice(sorted(OVERHEADS))
        spec |= {"runtimeClassName": name, "overhead": OVERHEADS[name]}
    if random.random() < 0.2:
        spec["resources"] = {
            "requests": {"cpu": random.choice(("20", "30")), "memory": random.choice(("20Gi", "21Gi"))}
        }
    return spec


def _asked(random: Random) -> Json:
    requests = {"cpu": random.choice(_CPUS), "memory": random.choice(_BYTES)}
    if random.random() < 0.3:
        requests["ephemeral-storage"] = random.choice(_BYTES)
    requests = {name: amount for name, amount in requests.items() if random.random() < 0.8}
    limits: Json = {}
    if random.random() < 0.3:
        name = random.choice((GPU, NATIVE))
        limits[name] = random.choice(("1", "2", "1k"))
    if random.random() < 0.2 and "cpu" not in requests:
        limits["cpu"] = "2"
    if random.random() < 0.15:
        limits[HUGE] = random.choice(("2Mi", "4Mi"))
        requests |= {"cpu": "1"}
        limits.pop("cpu", None)
    return {"resources": {name: some for name, some in (("requests", requests), ("limits", limits)) if some}}


def _resize(random: Random, pod: Json) -> None:
    """Let the pod be resized in place: all of its containers, or the pod as a whole where that has requests."""
    spec = pod["spec"]
    status: Json = {
        kind: [{"name": container["name"], **_sizes(random)} for container in spec[containers]]
        for kind, containers in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers"))
        if containers in spec
    }
    if "resources" in spec:
        status |= _sizes(random, 20)
    if random.random() < 0.5:
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    pod["status"] = status


def _sizes(random: Random, least: int = 0) -> Json:
    """Return what is used and what is reserved."""
    used, reserved = (
        {"cpu": str(least + random.randint(0, 3)), "memory": f"{least + random.randint(0, 3)}Gi"} for _ in range(2)
    )
    return {"resources": {"requests": used}, "allocatedResources": reserved}


def _pods(random: Random, pair: Json) -> None:
    """Fill the node with as many pods as it takes, or nearly."""
    most = random.choice((0, 1, 2, 3))
    pair["node"]["status"]["allocatable"]["pods"] = str(most)
    pair["occupants"] = [
        {"spec": {"containers": [_container("main")]}} for _ in range(max(0, most - random.choice((0, 1))))
    ]


def _ports(random: Random, pair: Json) -> None:
    """Let pods take host ports, of containers of all kinds."""
    pair["occupants"] = [{"spec": _listening(random, 1)} for _ in range(1)]
    pair["pod"]["spec"] |= _listening(random, 2)


def _listening(random: Random, count: int) -> Json:
    ports = [
        {
            "containerPort": 80 + number,
            "hostPort": port,
            "hostIP": random.choice(("", "127.0.0.1", "0.0.0.0", "10.0.0.1")),  # noqa: S104 - not bound to
            "protocol": random.choice(("TCP", "TCP", "UDP")),
        }
        for number, port in enumerate(random.sample((8000, 8001), k=count))
    ]
    kind = random.choice(("app", "app", "sidecar", "init"))
    if kind == "app":
        return {"containers": [_container("main", ports=ports)]}
    policy = {"restartPolicy": "Always"} if kind == "sidecar" else {}
    return {"containers": [_container("main")], "initContainers": [_container("first", ports=ports, **policy)]}


_THEMES: list[Callable[[Random, Json], None]] = [
    _selector,
    _affinity,
    _affinity,
    _affinity,
    _taints,
    _taints,
    _taints,
    _resources,
    _resources,
    _resources,
    _resources,
    _pods,
    _ports,
    _ports,
]
