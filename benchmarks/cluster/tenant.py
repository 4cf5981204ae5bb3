"""The worst pods that an API server takes from a tenant who may create pods: no two of them are alike.

As a process, it is the tenant: `python -m benchmarks.cluster.tenant`. Arguments: the kubeconfig, the port of the
extender, the number of nodes, of pods, in how many seconds they come, and the collection in which they are created. As
kube-scheduler does, it asks the extender about each of those that ask for memory.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cluster.extender import caller
from benchmarks.cluster.objects import MEMORY, node_name
from benchmarks.cluster.requests import question
from gpushare_plugin.kube.client import Client
from gpushare_plugin.ledger.annotations import HAMI_MODELS, LONGEST_WISH
from gpushare_plugin.ledger.constraints import MOST_RULES
from gpushare_plugin.ledger.request import MOST_RESOURCES, MOST_WISHES

Object = dict[str, Any]

PODS = "/api/v1/namespaces/tenant/pods"
UNFOLLOWED = "/api/v1/namespaces/tenant/configmaps"
"""Where the same objects are none that gpushare follows."""
RESOURCES = 8000
TERMS = 8000
CONTAINERS = 4000
LETTERS = 200 * 1024
"""As much as fits into an object: etcd takes 1.5 MiB, annotations have 256 KiB together."""


def hostile_pods(count: int, asked: Mapping[str, str]) -> list[Object]:
    """Return so many pods, each of which asks for some GPU (`asked`) beside what is bad about it."""
    return [make(number, asked) for number, make in enumerate(islice(cycle(KINDS), count))]


def many_resources(number: int, asked: Mapping[str, str], count: int = RESOURCES) -> Object:
    """Return a pod that asks for thousands of resources."""
    names = {f"r{each}.tenant-{number}.example/x": "1" for each in range(count - len(asked))}
    return _pod(number, [_container("main", {**asked, **names})])


def many_terms(number: int, asked: Mapping[str, str], count: int = TERMS) -> Object:
    """Return a pod whose node affinity has thousands of terms."""
    terms = [
        {"matchExpressions": [{"key": f"tenant-{number}.example/{each}", "operator": "In", "values": ["yes"]}]}
        for each in range(count)
    ]
    return _pod(number, [_container("main", asked)], affinity=_affinity(terms))


def many_values(number: int, asked: Mapping[str, str], count: int = TERMS) -> Object:
    """Return a pod whose node affinity names thousands of nodes."""
    values = [f"node-{each}.tenant-{number}.example" for each in range(count)]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": values}]}
    return _pod(number, [_container("main", asked)], affinity=_affinity([term]))


def many_containers(number: int, asked: Mapping[str, str], count: int = CONTAINERS) -> Object:
    """Return a pod of thousands of containers, each of which asks for what no other one does."""
    return _pod(
        number,
        [
            _container("main", asked),
            *(_container(f"c-{each}", {f"c{each}.tenant-{number}.example/x": "1"}) for each in range(count - 1)),
        ],
    )


def many_tolerations(number: int, asked: Mapping[str, str], count: int = TERMS) -> Object:
    """Return a pod that tolerates thousands of taints that no node has."""
    tolerations = [{"key": f"tenant-{number}.example/{each}", "operator": "Exists"} for each in range(count)]
    return _pod(number, [_container("main", asked)], tolerations=tolerations)


def many_ports(number: int, asked: Mapping[str, str], count: int = TERMS) -> Object:
    """Return a pod that takes thousands of ports of its node."""
    ports = [{"containerPort": 1024 + each, "hostPort": 1024 + each} for each in range(count)]
    return _pod(number, [{**_container("main", asked), "ports": ports}])


def long_wish(number: int, asked: Mapping[str, str], letters: int = LETTERS) -> Object:
    """Return a pod that wants GPUs of a model with a name of 200 KiB."""
    return _pod(number, [_container("main", asked)], annotations={HAMI_MODELS: f"{number}-{'x' * letters}"})


def long_claims(number: int, asked: Mapping[str, str], letters: int = LETTERS) -> Object:
    """Return a pod that says of itself that it has units of thousands of GPUs."""
    gpus = {f"GPU-{number}-{each:06d}": 1 for each in range(letters // 24)}
    said = json.dumps({"version": 1, "containers": {"main": dict.fromkeys(asked, gpus)}}, separators=(",", ":"))
    return _pod(number, [_container("main", asked)], annotations={"gpushare/allocation": said})


def long_value(number: int, asked: Mapping[str, str], letters: int = LETTERS) -> Object:
    """Return a pod whose node affinity has a number of 200,000 digits, which API servers took for a long time."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Gt", "values": ["9" * letters]}]}
    return _pod(number, [_container("main", asked)], affinity=_affinity([term]))


def long_scheduler(number: int, asked: Mapping[str, str], letters: int = LETTERS) -> Object:
    """Return a pod for a scheduler with a name of 200 KiB."""
    return _pod(number, [_container("main", asked)], schedulerName=f"{number}-{'x' * letters}")


def within_bounds(number: int, asked: Mapping[str, str]) -> Object:
    """Return a pod that has just as much of everything as is kept."""
    names = {f"r{each}.tenant-{number}.example/x": "1" for each in range(MOST_RESOURCES - 4 - len(asked))}
    rules = [
        {"key": f"tenant-{number}.example/{each}", "operator": "NotIn", "values": ["yes", "no"]}
        for each in range(MOST_RULES - 2)
    ]
    wishes = ",".join(f"{number}-{each}-".ljust(LONGEST_WISH, "x") for each in range(MOST_WISHES))
    return _pod(
        number,
        [_container("main", {**asked, **names})],
        annotations={HAMI_MODELS: wishes},
        affinity=_affinity([{"matchExpressions": rules}]),
    )


KINDS: tuple[Callable[[int, Mapping[str, str]], Object], ...] = (
    many_resources,
    many_terms,
    many_values,
    many_containers,
    many_tolerations,
    many_ports,
    long_wish,
    long_claims,
    long_value,
    long_scheduler,
    within_bounds,
)


def name_of(number: int) -> str:
    """Return the name of a pod."""
    return f"hostile-{number}"


class Attack(NamedTuple):
    """So many pods in so many seconds, half of which ask for memory and half for slices."""

    kubeconfig: Path
    port: int
    nodes: int
    pods: int
    seconds: float
    where: str

    async def run(self) -> None:
        """Create them."""
        names = [node_name(number) for number in range(self.nodes)]
        async with Client(self.kubeconfig) as client, caller(self.port) as calls:
            for number, make in enumerate(islice(cycle(KINDS), self.pods)):
                pause = asyncio.create_task(asyncio.sleep(self.seconds / self.pods))
                wants_memory = number % 2 == 0
                pod = make(number, {MEMORY: "1"} if wants_memory else {"nvidia.com/gpu-10gb": "1"})
                created = json.loads(await client.request("POST", self.where, body=pod))
                if wants_memory and self.where == PODS:
                    await calls.post("filter", question(created, names))
                await pause


def _pod(number: int, containers: list[Object], annotations: Mapping[str, str] | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name_of(number), "namespace": "tenant", "annotations": dict(annotations or {})},
        "spec": {"containers": containers, **spec},
        "status": {"phase": "Pending"},
    }


def _container(name: str, asked: Mapping[str, str]) -> Object:
    return {"name": name, "image": "i", "resources": {"limits": dict(asked), "requests": dict(asked)}}


def _affinity(terms: list[Object]) -> Object:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


if __name__ == "__main__":
    _kubeconfig, _port, _nodes, _count, _seconds, _where = sys.argv[1:]
    asyncio.run(Attack(Path(_kubeconfig), int(_port), int(_nodes), int(_count), float(_seconds), _where).run())
