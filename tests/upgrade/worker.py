"""A node: a kubelet that takes its pods from the API server, and the programs of either build that share its GPUs."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import AdmissionError, AdmittedPod, Container, EmbeddedKubelet, Pod
from tests.process.daemon import Argument, Daemon, running
from tests.upgrade.builds import Build
from tests.upgrade.programs import Program
from tests.waiting import until

Json = dict[str, Any]

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"

PAUSE = 0.03
"""Seconds between two looks of a kubelet, or of the scheduler, at the objects."""

GIVEN_UP_AFTER = 0.25
"""Seconds for which the daemon waits for the API server to tell it of the pod that the kubelet asks for."""

ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}


class Pods:
    """The pods of an API server, decoded once for each version of its objects, and not to be changed."""

    def __init__(self, server: ApiServer) -> None:
        """Know none yet."""
        self._server = server
        self._version = -1
        self._found: list[Json] = []

    def __call__(self) -> list[Json]:
        """Return all pods, the oldest first."""
        if self._version != (version := self._server.store.version.value):
            self._version = version
            self._found = sorted(
                self._server.store.find(PODS), key=lambda each: int(each["metadata"]["name"].split("-")[1])
            )
        return self._found


class Worker:
    """A node with `gpushare run`, and with `others` beside it, such as `gpushare mps`; pods on it run until deleted."""

    partitioned = False
    """Whether the daemon itself writes into the Node what there is of its slices; a kubelet does so every 10 s."""

    def __init__(self, name: str, server: ApiServer, folder: Path, *arguments: Argument) -> None:
        """Have a folder of its own; `arguments` are those of the daemon besides its surroundings."""
        folder.mkdir()
        self.name = name
        self.server = server
        self.pods = Pods(server)
        """The pods of all nodes; those of a cluster share this."""
        self.kubelet = EmbeddedKubelet(folder)
        self.admitted: dict[str, AdmittedPod] = {}
        """The pods that run, by UID."""
        self.steered: set[str] = set()
        """The pods that the daemon certainly knew when it gave them their units."""
        self.disturbances = 0
        """How often an exchange of a program of this node began or ended; odd while one goes on."""
        self.bound: dict[str, int] = {}
        """How many disturbances there were when a pod was bound to this node, by UID."""
        self.refused: Counter[str] = Counter()
        """Why pods were not admitted while a program was exchanged."""
        self.environment = {"NODE_NAME": name, "POD_NAMESPACE": "kube-system", "POD_NAME": "gpushare"}
        self.arguments: tuple[Argument, ...] = (
            *("--kubeconfig", server.kubeconfig(folder / "kubeconfig")),
            *("--pod-resources-socket", self.kubelet.pod_resources_socket),
            *("--follow-pods", "true"),
            *arguments,
        )
        self.daemon = Program(self._run)
        self._taken: set[str] = set()
        self._written: dict[str, int] = {}

    def _run(self, build: Build) -> AbstractAsyncContextManager[Daemon]:
        return running(self.kubelet, *self.arguments, environment={**self.environment, **build.environment})

    async def start(self, build: Build) -> None:
        """Create the Node, start the kubelet, and the daemon of a build."""
        self.server.store.create(
            NODES, {"metadata": {"name": self.name, **self.labels()}, "status": {"allocatable": ROOM}}
        )
        await self.kubelet.start()
        await self.kubelet.admit(Pod("gpushare", [Container("gpushare", {})], namespace="kube-system"))
        await self.daemon.start(build)
        await until(lambda: any(self.kubelet.allocatable().values()) or self.partitioned)
        await self.ready()

    def labels(self) -> Json:
        """Return more of the metadata of the Node."""
        return {}

    async def ready(self) -> None:
        """Wait until the daemon offers again what pods hold, and is told of pods."""
        await until(lambda: (self._offers_what_is_held(), self._is_told_of_pods()) == (True, True))

    def _offers_what_is_held(self) -> bool:
        return all(id_ in self.kubelet.healthy(resource) for _, resource, id_ in self.ids())

    def _is_told_of_pods(self) -> bool:
        selector = f"spec.nodeName={self.name}"
        watches = self.server.watches.open
        return any(each.request.query.get("fieldSelector") == selector for each in watches)

    async def stop(self) -> None:
        """End everything."""
        try:
            await self.daemon.stop()
        finally:
            await self.kubelet.stop()

    async def exchange(self, program: Program, build: Build, end: signal.Signals = signal.SIGTERM) -> None:
        """Let the program of a build follow one that runs here; what pods hold stays theirs, and is offered again."""
        self.disturbances += 1
        await program.exchange(build, end)
        await self.ready()
        self.disturbances += 1
        self.check()

    async def work(self) -> None:
        """Do what a kubelet does, until cancelled."""
        while True:
            self._publish()
            for pod in self.pods():
                if pod["spec"].get("nodeName") == self.name:
                    await self._take(pod)
            await asyncio.sleep(PAUSE)

    def _publish(self) -> None:
        """Write into the Node what the device manager counts."""
        counts = self.kubelet.allocatable()
        if self.partitioned or counts == self._written:
            return
        self._written = counts
        found = {resource: str(count) for resource, count in counts.items()}
        status = {"status": {"capacity": found, "allocatable": found}}
        self.server.store.patch(NODES, self.name, status)

    async def _take(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            if (gone := self.admitted.pop(uid, None)) is not None:
                self.kubelet.delete(gone.pod)
            self.server.store.delete(PODS, pod["metadata"]["name"])
        elif uid not in self._taken:
            self._taken.add(uid)
            self.server.store.patch(PODS, pod["metadata"]["name"], {"status": await self._status(pod)})

    async def _status(self, pod: Json) -> Json:
        """Admit a pod, and return its status."""
        uid, asked_at = pod["metadata"]["uid"], time.monotonic()
        try:
            self.admitted[uid] = await self.kubelet.admit(_kubelet_pod(pod))
        except AdmissionError as error:
            if not (self.is_explained(str(error)) or self._was_disturbed(uid)):
                raise AssertionError((self.name, str(error))) from error
            self.refused[str(error)] += 1
            return {"phase": "Failed", "reason": error.reason, "message": str(error)}
        if not self._was_disturbed(uid) and time.monotonic() - asked_at < GIVEN_UP_AFTER:
            self.steered.add(uid)
        running = [{"name": each["name"], "state": {"running": {}}} for each in pod["spec"]["containers"]]
        return {"phase": "Running", "containerStatuses": running}

    def _was_disturbed(self, uid: str) -> bool:
        """Return whether a program of this node is being exchanged, or was since a pod was bound to it."""
        return self.disturbances % 2 == 1 or self.disturbances != self.bound[uid]

    def is_explained(self, message: str) -> bool:  # noqa: ARG002 - there is another kind of node
        """Return whether a pod may be refused for this reason, although no program was exchanged."""
        return False

    def ids(self) -> Iterator[tuple[str, str, str]]:
        """Yield UID of the pod, resource and ID of each unit that a container was started with."""
        for uid, pod in self.admitted.items():
            for container in pod.containers.values():
                for resource, ids in container.device_ids.items():
                    for id_ in ids:
                        yield uid, resource, id_

    def check(self) -> None:
        """See that no unit was given twice, and that the daemon has all that pods hold."""
        held = [(resource, id_) for _, resource, id_ in self.ids()]
        assert len(held) == len(set(held)), (self.name, held)
        lost = [id_ for resource, id_ in held if id_ not in self.kubelet.devices(resource)]
        assert lost == [], (self.name, lost)


def _kubelet_pod(found: Json) -> Pod:
    """Return a pod as the kubelet takes it from the API."""
    metadata = found["metadata"]
    containers = [
        Container(each["name"], {name: int(units) for name, units in each["resources"]["limits"].items()})
        for each in found["spec"]["containers"]
    ]
    return Pod(metadata["name"], containers, namespace=metadata["namespace"], uid=metadata["uid"])


def leases(server: ApiServer) -> set[str]:
    """Return the names of all Leases: those who share one do not work at the same time."""
    found = server.store.find("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
    return {each["metadata"]["name"] for each in found}
