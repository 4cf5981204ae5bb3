"""A node to attack: the daemon and `gpushare mps` as processes, and all that they read in the hands of a test.

The accounts kept here know only what the kubelet and the containers were told.
"""

import asyncio
import contextlib
import os
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import aiohttp

from gpushare_plugin.kubelet.device_plugin.directory import SOCKET_PREFIX
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import LOOK_EVERY, Daemon, process, running
from tests.unit.kube.cluster import NODE, a_node
from tests.waiting import PATIENCE

MEMORY, SLICE, MPS, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu.shared", "nvidia.com/gpu.mps", "nvidia.com/gpu"
CARD_MIB = 16384
OFFERED = {MEMORY: 32, SLICE: 4, MPS: 4, WHOLE: 1}
"""Units of the five cards when nothing is wrong: two by memory, one in slices, one under MPS, one whole."""
MPS_LIMIT = "4G"
"""What each client of MPS may have: a quarter of the card."""
LOG_IN_A_STEP = 2000
"""Lines that may be logged for each step: as many as requests are sent in one, and a few."""
MOST_PODS = 8

_CONFIG = """\
version: v1
flags: {{mpsRoot: {root}, failOnInitError: false}}
health: {{goodProbes: 1, probeSeconds: 0.2, rescanSeconds: 0.5}}
sharing:
  memory: {{resources: [{{name: aliyun.com/gpu-mem, unit: {unit}, devices: [{0}, {1}]}}]}}
  timeSlicing: {{resources: [{{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, devices: [{2}], replicas: 4}}]}}
  mps: {{resources: [{{name: nvidia.com/gpu, rename: nvidia.com/gpu.mps, devices: [{3}], replicas: 4}}]}}
"""
_OWN_POD = Pod("gpushare", [Container("gpushare")])
_SETTLED_WITHIN = 150.0
"""Seconds until all must be as before: after several deaths of MPS it is started with pauses of up to a minute."""


_LAST_LINES = 40
"""Lines of the log that a failure shows."""


class Size(NamedTuple):
    """What a process takes: memory of its own in MiB, open descriptors and threads."""

    memory: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a pod was given: units of one resource, on GPUs of which it may use so many MiB (0: not limited)."""

    pod: Pod
    resource: str
    ids: frozenset[str]
    gpus: frozenset[str]
    memory_mib: int

    @property
    def way(self) -> str:
        """In which way the GPU is shared: units of another size are another way."""
        return f"{self.resource} {next(iter(self.ids)).split('-')[1]}" if self.resource == MEMORY else self.resource


@dataclass
class Target:
    """A node under attack, and an account of its own of what pods hold."""

    folder: Path
    nvml: FakeNvml
    mps: FakeMps
    kubelet: EmbeddedKubelet
    api: ApiServer
    root: MpsRoot
    port: int
    pods: list[Held] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    daemon: Daemon = field(init=False)
    keeper: Daemon = field(init=False)

    # ------------------------------------------------------------------ the places that attacks are made on

    @property
    def config(self) -> Path:
        """The config file that is in force, in a directory of such files."""
        return self.folder / "configs" / "default"

    @property
    def plugin_directory(self) -> Path:
        """Where the kubelet and the daemon have their sockets."""
        return self.kubelet.plugin_directory

    @property
    def sockets(self) -> list[Path]:
        """The sockets of the daemon that are there now."""
        return sorted(path for path in self.plugin_directory.glob(f"{SOCKET_PREFIX}*.sock") if path.is_socket())

    async def all_served(self) -> None:
        """Wait until the daemon has a socket for each of its resources, and no other."""
        names = sorted(f"{SOCKET_PREFIX}{resource.replace('/', '_')}.sock" for resource in OFFERED)
        await self.until(lambda: [path.name for path in self.sockets] == names, lambda: self.sockets)

    def settings(self, unit: str = "GiB") -> str:
        """Return the config file; with another unit, every GPU that is shared by memory has to change over."""
        return _CONFIG.format(*(gpu.uuid for gpu in self.nvml.gpus), root=self.root.path, unit=unit)

    def reload(self) -> None:
        """Have the daemon read its config file."""
        self.daemon.process.send_signal(signal.SIGHUP)

    # ------------------------------------------------------------------ ordinary life

    async def live(self, draw: Random) -> None:
        """Let pods come and go; one that comes while something is wrong may be refused."""
        if self.pods and (len(self.pods) >= MOST_PODS or draw.random() < 0.5):
            self.kubelet.delete(self.pods.pop(draw.randrange(len(self.pods))).pod)
        resource = draw.choice([MEMORY, MEMORY, SLICE, MPS, WHOLE])
        with contextlib.suppress(AdmissionError):
            await self.admit(resource, draw.randint(1, 6) if resource == MEMORY else 1)

    async def admit(self, resource: str, units: int) -> None:
        """Let a pod in, and note what it was given; raises AdmissionError."""
        pod = Pod(f"pod-{next(self._numbers)}", [Container("main", {resource: units})])
        async with asyncio.timeout(PATIENCE):
            started = (await self.kubelet.admit(pod)).containers["main"]
        ids = started.device_ids.get(resource, frozenset())
        if not ids:  # the kubelet has not heard of the resource yet, and so the pod asks for nothing
            self.kubelet.delete(pod)
            return
        gpus = frozenset(started.environment["NVIDIA_VISIBLE_DEVICES"].split(","))
        limit = int(started.environment.get("GPUSHARE_MEMORY_LIMIT_MIB", "0").split(",")[0])
        self.pods.append(Held(pod, resource, ids, gpus, limit))
        self.check()

    async def hold(self, resource: str) -> None:
        """See that some pod holds a unit of a resource, where one can."""
        if all(held.resource != resource for held in self.pods):
            with contextlib.suppress(AdmissionError):
                await self.admit(resource, 1)

    def end_pods(self) -> None:
        """Let every pod end."""
        while self.pods:
            self.kubelet.delete(self.pods.pop().pod)

    # ------------------------------------------------------------------ what must be true at any time

    def check(self) -> None:
        """Compare the accounts: no unit twice, no GPU in two ways or beyond its memory, nothing taken from a pod."""
        assert self.daemon.process.returncode is None, f"the daemon ended: {self.daemon}"
        holders = Counter(id_ for held in self.pods for id_ in held.ids)
        assert all(times == 1 for times in holders.values()), f"units were given to two pods: {holders}"
        ways, memory = defaultdict(set), Counter[str]()
        for held in self.pods:
            listed = self.kubelet.devices(held.resource)
            missing = held.ids - listed.keys()
            assert not listed or not missing, f"{held.pod.name} holds {sorted(missing)}, which is listed no more"
            for gpu in held.gpus:
                ways[gpu].add(held.way)
                memory[gpu] += held.memory_mib
        assert all(len(each) == 1 for each in ways.values()), f"a GPU is in use in two ways: {dict(ways)}"
        assert all(each <= CARD_MIB for each in memory.values()), f"more memory was given than there is: {memory}"

    async def healthy(self) -> None:
        """See that the process says that it is well, for it is."""
        status, said = await self.probe("/healthz")
        assert (status, said) == (200, "ok\n"), f"/healthz says {status}: {said}"

    async def probe(self, path: str) -> tuple[int, str]:
        """Return what is answered, however often the connection is cut before."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with _told(f"{path} was not answered"):
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        async with aiohttp.ClientSession() as session, session.get(url) as response:
                            return response.status, await response.text()
                    except (aiohttp.ClientError, OSError):
                        assert self.daemon.process.returncode is None, f"the daemon ended: {self.daemon}"
                        await asyncio.sleep(LOOK_EVERY)

    async def until_ready(self, *, ready: bool) -> None:
        """Wait until the node says that all is registered with the kubelet, or that something is not."""
        with _told(f"/readyz does not say that ready is {ready}"):
            async with asyncio.timeout(PATIENCE):
                while (await self.probe("/readyz") == (200, "ok\n")) != ready:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(LOOK_EVERY)

    # ------------------------------------------------------------------ what must be true once attacks have ended

    async def settled(self) -> Size:
        """Wait until everything is as it was before any attack, but for pods; return what the daemon takes then.

        Pods that hold units of other settings end, for their GPUs rightly wait for that.
        """
        for held in [each for each in self.pods if each.resource == MEMORY and each.way != f"{MEMORY} 1Gi"]:
            self.kubelet.delete(held.pod)
            self.pods.remove(held)
        await self.until(lambda: self._offered() == OFFERED, self._offered)
        self.check()
        await self.until_ready(ready=True)
        await self.healthy()
        await self.until(lambda: self._mps_limit() == MPS_LIMIT, self._mps_limit)
        for held in self.pods:
            assert held.ids <= self.kubelet.allocated(held.resource)
        return size(self.daemon.process.pid)

    async def until(self, condition: Callable[[], object], state: Callable[[], object]) -> None:
        """Wait for what the end of all attacks makes true."""
        try:
            async with asyncio.timeout(_SETTLED_WITHIN):
                while not condition():
                    assert self.daemon.process.returncode is None, f"the daemon ended: {self.daemon}"
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError as error:
            last = "\n".join(map(str, self.daemon.log[-_LAST_LINES:]))
            raise AssertionError(f"not as before within {_SETTLED_WITHIN:g} s: {state()}; last:\n{last}") from error

    async def full(self) -> None:
        """See that every unit can be given, each once, and that the node is full then."""
        for resource, units in {MEMORY: CARD_MIB // 1024, SLICE: 1, MPS: 1, WHOLE: 1}.items():
            for _ in range(OFFERED[resource] // units):
                await self._give(resource, units)
            with contextlib.suppress(AdmissionError):
                await self.admit(resource, 1)
                raise AssertionError(f"{resource}: more was given than there is")

    async def _give(self, resource: str, units: int) -> None:
        """Let a pod in, as soon as it is: MPS may have died of an attack that was the last, and nobody know it yet."""
        before = len(self.pods)
        with _told(f"no pod was given {units} of {resource}", _SETTLED_WITHIN):
            async with asyncio.timeout(_SETTLED_WITHIN):
                while True:
                    with contextlib.suppress(AdmissionError):
                        await self.admit(resource, units)
                    if len(self.pods) > before:
                        return
                    await asyncio.sleep(LOOK_EVERY)

    def _offered(self) -> dict[str, int]:
        return {resource: units for resource, units in self.kubelet.allocatable().items() if units}

    def _mps_limit(self) -> str:
        try:
            return self.mps.ask(self.root.pipe, "get_default_device_pinned_mem_limit 0")
        except Exception as error:  # noqa: BLE001 - whatever the stand-in is at
            return f"not known: {error}"


@contextlib.contextmanager
def _told(what: str, within: float = PATIENCE) -> Iterator[None]:
    """Say what did not happen in time."""
    try:
        yield
    except TimeoutError as error:
        raise AssertionError(f"{what} within {within:g} s") from error


def size(process: int) -> Size:
    """Return what a process takes now."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    descriptors = len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208 - a count is all that is wanted
    return Size(int(status["RssAnon"].split()[0]) >> 10, descriptors, int(status["Threads"]))


@contextlib.asynccontextmanager
async def a_target(folder: Path, draw: Random) -> AsyncIterator[Target]:
    """Run a node; the kubelet draws at random from `draw`."""
    card = FakeGpu(memory_mib=CARD_MIB)
    kubelet = EmbeddedKubelet(folder, rng=draw)
    async with contextlib.AsyncExitStack() as stack:
        nvml = stack.enter_context(FakeNvml([card] * 5))
        mps = stack.enter_context(FakeMps())
        api = await stack.enter_async_context(ApiServer())
        a_node(api)
        await stack.enter_async_context(kubelet)
        await kubelet.admit(_OWN_POD)
        node = Target(folder, nvml, mps, kubelet, api, MpsRoot(folder / "mps"), claim_port())
        node.config.parent.mkdir()
        node.config.write_text(node.settings())
        environment = {**nvml.environment, **mps.environment}
        keeping = process("mps", "--mps-root", node.root.path, environment=environment)
        node.keeper = await stack.enter_async_context(keeping)
        node.daemon = await stack.enter_async_context(
            running(
                kubelet,
                *("--config-directory", node.config.parent, "--default-config", node.config.name),
                *("--pod-resources-socket", kubelet.pod_resources_socket),
                *("--http-address", f"127.0.0.1:{node.port}"),
                *("--pod-namespace", _OWN_POD.namespace, "--pod-name", _OWN_POD.name),
                *("--node-name", NODE, "--kubeconfig", api.kubeconfig(folder / "kubeconfig")),
                environment=environment,
            )
        )
        yield node
