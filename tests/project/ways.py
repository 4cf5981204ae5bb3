"""The ways of requests: which modules of ours execute a function between what is asked and what comes of it.

`python -m tests.project.ways` takes two minutes and prints three ways, each through programs as the chart runs them: of
a pod that waits for a slice until the node is cut and has the pod, of one `Allocate` (both also where the daemon does
not follow pods), and of one pod through the extender. What runs while nothing is asked, such as the periodic look at
the GPUs, runs in the time of a way, too: a module that runs no other function has a mark, and is counted apart.
"""

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.kubelet.plugin import Plugin, allocation
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import Argument, comes_to_answer, process
from tests.project.traced import START, STOP
from tests.unit.extender.extenders import node
from tests.waiting import until

ROOT = Path(__file__).parents[2]
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
NODE = "node"
SLICE, MEMORY = "nvidia.com/gpu-10gb", "aliyun.com/gpu-mem"
IDLE = 12.0
"""Seconds in which nothing is asked: as many as periodic work needs to come round."""
SETTLE = 1.0
"""Seconds in which the watches show that a pod is bound."""

Json = dict[str, Any]
Functions = frozenset[tuple[str, str, str]]
"""Functions that ran: the program, the module, the name in the module."""


@dataclass(frozen=True, slots=True)
class Way:
    """The functions of a way, and the functions that run while nothing is asked."""

    title: str
    functions: Functions
    idle: Functions

    def __str__(self) -> str:
        """Count the modules, and list each with its programs and, if all its functions also run unasked, a mark."""
        modules = _programs_by_module(self.functions)
        asked = _programs_by_module(self.functions - self.idle)
        lines = (
            f"  {module} ({', '.join(sorted(programs))}){' *' * (module not in asked)}"
            for module, programs in sorted(modules.items())
        )
        programs = sorted({program for program, _, _ in self.functions})
        counts = (f"{each} {sum(each in among for among in modules.values())}" for each in programs)
        others = len(modules) - len(asked)
        head = f"{self.title}: {len(modules)} modules ({', '.join(counts)}); {others} * run unasked functions alone"
        return "\n".join([head, *lines])


def _programs_by_module(functions: Functions) -> Mapping[str, set[str]]:
    """Return which programs run functions of each module."""
    found = defaultdict[str, set[str]](set)
    for program, module, _ in functions:
        found[module].add(program)
    return found


class Programs:
    """Programs of ours that run, each with a recorder of its functions."""

    def __init__(self, folder: Path) -> None:
        """Have no program yet; the sockets of the recorders will be in this folder."""
        self._folder = folder
        self._recorders: dict[str, socket.socket] = {}

    @contextlib.asynccontextmanager
    async def running(self, command: str, *arguments: Argument, environment: Mapping[str, str]) -> AsyncIterator[None]:
        """Run a command of ours as long as the context lasts."""
        path = self._folder / f"{command}.recorder"
        through = (sys.executable, "-m", "tests.project.traced", path)
        async with process(command, *arguments, environment=environment, through=through):
            await until(path.exists)
            with socket.socket(socket.AF_UNIX) as recorder:
                recorder.connect(str(path))
                self._recorders[command] = recorder
                yield

    def start(self) -> None:
        """Record the functions that run from now on."""
        for each in self._recorders.values():
            asked(each, START)

    def stop(self) -> Functions:
        """Return the functions that ran since the start."""
        return frozenset(
            (program, module, name)
            for program, recorder in self._recorders.items()
            for module, name in json.loads(asked(recorder, STOP))
        )

    async def idle(self) -> Functions:
        """Return the functions that run while nothing is asked."""
        self.start()
        await asyncio.sleep(IDLE)
        return self.stop()


def asked(recorder: socket.socket, command: bytes) -> bytes:
    """Return the line that a recorder answers."""
    recorder.sendall(command)
    with recorder.makefile("rb") as answer:
        return answer.readline()


def pod(name: str, resource: str, amount: int) -> Json:
    """Return a pod that waits, and asks for so much of a resource."""
    limits = {resource: str(amount)}
    container = {"name": "main", "image": "i", "resources": {"limits": limits, "requests": limits}}
    metadata = {"name": name, "namespace": "default"}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}


def is_cut(server: ApiServer) -> bool:
    """Return whether the Node has the slice in its record and in its status, by which kube-scheduler binds the pod."""
    (found,) = server.store.find(NODES, NODE)
    record = found["metadata"]["annotations"]["gpushare/gpus"]
    return f'"{SLICE}"' in record and found["status"]["allocatable"].get(SLICE) == "1"


async def node_ways(folder: Path, *, follow_pods: bool) -> list[Way]:
    """Return the way of a waiting pod to the node that is cut for the pod, and the way of the pod's `Allocate`."""
    programs, probes, root, config = Programs(folder), claim_port(), folder / "mps", folder / "config.yaml"
    config.write_text(f"flags: {{mpsRoot: {root}}}\n")
    async with ApiServer() as server, EmbeddedKubelet(folder) as kubelet, contextlib.AsyncExitStack() as stack:
        nvml = stack.enter_context(FakeNvml([FakeGpu(memory_mib=40960, reserved_mib=0)]))
        environment = {**nvml.environment, **stack.enter_context(FakeMps()).environment}
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        labels, room = {"nos.nebuly.com/gpu-partitioning": "mps"}, {"cpu": "64", "memory": "512Gi", "pods": "110"}
        server.store.create(NODES, {"metadata": {"name": NODE, "labels": labels}, "status": {"allocatable": room}})
        daemon = (
            *("run", "--config-file", config, "--device-plugin-path", kubelet.plugin_directory),
            *("--pod-resources-socket", kubelet.pod_resources_socket, "--pod-namespace", "default"),
            *("--pod-name", "gpushare", "--kubeconfig", kubeconfig, "--node-name", NODE),
            *("--partitioning", "true", "--follow-pods", str(follow_pods)),
        )
        partitioner = ("partition", "--kubeconfig", kubeconfig, "--probe-address", f"127.0.0.1:{probes}")
        for command in (("mps", "--mps-root", root), daemon, partitioner):
            await stack.enter_async_context(programs.running(*map(str, command), environment=environment))
        await until(lambda: "partitioning" in str(server.store.find(NODES, NODE)[0]["metadata"].get("annotations")))
        await comes_to_answer(probes, "/readyz", (200, "ok\n"))
        idle = await programs.idle()

        programs.start()
        server.store.create(PODS, pod("pod", SLICE, 1))
        await until(lambda: is_cut(server))
        server.store.update(PODS, "pod", {("spec", "nodeName"): NODE})
        await asyncio.sleep(SETTLE)
        where = "the daemon follows pods" if follow_pods else "the daemon does not follow pods"
        cut = Way(f"{SLICE}, from the waiting pod to the node that is cut, {where}", programs.stop(), idle)

        idle = await programs.idle()
        (endpoint,) = {each.endpoint for each in kubelet.registrations if each.resource == SLICE}
        async with Plugin(kubelet.plugin_directory / endpoint) as plugin:
            programs.start()
            answer = await plugin.calls.Allocate(allocation([*kubelet.devices(SLICE)]), wait_for_ready=True)
            allocated = Way(f"one Allocate, until it is answered, {where}", programs.stop(), idle)
        assert answer.container_responses[0].envs
    return [cut, allocated]


async def extender_way(folder: Path) -> list[Way]:
    """Return the way of one pod through filter, prioritize and bind."""
    programs, port, probes = Programs(folder), claim_port(), claim_port()
    async with ApiServer() as server, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as scheduler:

        async def called(verb: str, body: Json) -> Any:
            async with scheduler.post(f"/{verb}", json=body) as response:
                return json.loads(await response.read())

        names = ["n0", "n1", "n2"]
        for name in names:
            server.store.create(NODES, node(name, 16, 16))
        addresses = ("--listen-address", f"127.0.0.1:{port}", "--probe-address", f"127.0.0.1:{probes}")
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        async with programs.running("extender", "--kubeconfig", kubeconfig, *addresses, environment={}):
            await comes_to_answer(probes, "/readyz", (200, "ok\n"))
            idle = await programs.idle()
            programs.start()
            waiting = server.store.create(PODS, pod("pod", MEMORY, 5))
            fitting = await called("filter", {"Pod": waiting, "NodeNames": names})
            scores = await called("prioritize", {"Pod": waiting, "NodeNames": fitting["NodeNames"]})
            best = max(scores, key=lambda each: each["Score"])["Host"]
            uid = waiting["metadata"]["uid"]
            bound = {"PodName": "pod", "PodNamespace": "default", "PodUID": uid, "Node": best}
            answer = await called("bind", bound)
            await asyncio.sleep(SETTLE)
            way = Way("one pod through the extender: filter, prioritize and bind", programs.stop(), idle)
        assert not answer.get("Error"), answer
    return [way]


async def main() -> None:
    """Print all ways."""
    for measured in (partial(node_ways, follow_pods=True), partial(node_ways, follow_pods=False), extender_way):
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
            for each in await measured(Path(folder)):
                print(each, end="\n\n")  # noqa: T201 - a program for people


if __name__ == "__main__":
    asyncio.run(main())
