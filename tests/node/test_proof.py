"""Tests of `gpushare_plugin.node.pods.proof`: an embedded kubelet, real processes, and made-up looks at GPUs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import DriverLimits, MemoryLimit
from gpushare_plugin.core.effect import IN_EFFECT, Effect
from gpushare_plugin.core.grant import Recipient
from gpushare_plugin.core.namespaces import namespace_name
from gpushare_plugin.core.resource import Resource, UnitsOf
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import Process
from gpushare_plugin.gpus.memory_limits import LimitReading
from gpushare_plugin.kubelet.device_plugin.steering import Unsteered
from gpushare_plugin.mps.exchange import ListedClient, MpsStatus
from gpushare_plugin.node.news.news import LimitInEffect, LimitNotInEffect
from gpushare_plugin.testing.cgroups import CgroupTree, PodCgroups
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.node.proven import GIB, a_pod, proven
from tests.shown import ShownProcesses
from tests.snapshots import snapshot
from tests.unit.sharing.settings import GPU_MEM, memory

LIST, PIPE, VISIBLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"
TRAP = f"has a {LIST} that names a GPU which it does not see by {VISIBLE}, so CUDA drops all limits"

MPS = snapshot(memory(isolation="mps", allowMultiGPUShares=True), 8192, 8192)
NAMESPACES = snapshot(memory(isolation="mps"), 8192, 8192, flags={"mpsProtocol": 3})
REPLICAS = snapshot({"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}, 8192, 8192)
HAMI = snapshot(memory(isolation="hami-core"), 8192, 8192)
NONE = snapshot(memory(), 8192, 8192)


class OnBothGpus(Unsteered):
    """Every pod was promised half of its units on each of two GPUs."""

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:
        """Return the promise."""
        return [dict.fromkeys(resource.gpus, size // 2)]

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:  # noqa: ARG002 - as in `Steering`
        """Return a pod with a promise."""
        return Recipient(len(ids), promised=True)


def client(process: Process, doubt: str | None = None) -> ListedClient:
    """Return a process as the MPS control daemon lists it."""
    return ListedClient(pid=process.pid, server="17", doubt=doubt)


async def with_namespace(kubelet: EmbeddedKubelet, pod: Pod) -> tuple[Mapping[str, str], str]:
    """Start a pod, and return what its only container was given, and the namespace of its units."""
    (started,) = (await kubelet.admit(pod)).containers.values()
    return started.environment, namespace_name(started.device_ids[GPU_MEM])


def in_namespace(process: Process, name: str, memory_limit_mib: int = 3072) -> ListedClient:
    """Return a process as the MPS control daemon lists it in a namespace of protocol 3."""
    return ListedClient(pid=process.pid, server="gpushare", namespace=name, memory_limit_mib=memory_limit_mib)


async def test_a_client_with_what_it_was_given_is_limited(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """The control daemon lists the process, and its environment has what the kubelet gave to the container."""
    async with proven(kubelet, shown, MPS) as node:
        pod = a_pod()
        process = node.start(pod, await node.admit(pod))
        node.list_clients(client(process))
        assert await node.look(process) == IN_EFFECT
        assert node.heard == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({LIST: "0=80G"}, f"has another {LIST} than its container was given"),
        ({LIST: None}, f"has no {LIST}, which its container was given"),
        ({LIST: "0=2048M,1=2048M"}, TRAP),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, "has another CUDA_MPS_ACTIVE_THREAD_PERCENTAGE than"),
        ({PIPE: "/own"}, f"has another {PIPE} than its container was given"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "has another NVIDIA_VISIBLE_DEVICES than its container was given"),
    ],
)
async def test_variables_of_the_pod_or_the_image_are_named(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, changes: dict[str, str | None], words: str
) -> None:
    """Whoever set a variable that lifts the limit, such as `envFrom` or an image, the process shows it."""
    async with proven(kubelet, shown, MPS) as node:
        pod = a_pod()
        process = node.start(pod, {**await node.admit(pod), **changes})
        node.list_clients(client(process))
        effect = await node.look(process)
        assert effect is not None
        assert (effect.state, words in effect.reason) == ("not in effect", True)
        (told,) = node.heard
        assert isinstance(told, LimitNotInEffect)
        assert await node.look(process) == effect
        assert node.heard == []


async def test_a_worker_that_narrows_its_gpus_is_found(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """Under MPS protocol 2, a worker of a share on two GPUs that sees one has no limit: the share says so."""
    async with proven(kubelet, shown, MPS, OnBothGpus()) as node:
        pod = a_pod(6)
        given = await node.admit(pod)
        assert given[LIST] == "0=3072M,1=3072M"
        worker = node.start(pod, {**given, VISIBLE: "1"})
        node.list_clients(client(worker))
        effect = await node.look(worker)
        assert effect == Effect("not in effect", f"process {worker.pid} {TRAP}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({VISIBLE: "1"}, ""),
        ({LIST: "0=1G"}, ""),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, ""),
        ({LIST: "0=1G,2=1G"}, TRAP),
        ({VISIBLE: "1", LIST: "0=1G,1=1G"}, TRAP),
    ],
)
async def test_a_namespace_holds_but_for_a_deliberate_list(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, changes: dict[str, str], words: str
) -> None:
    """With MPS protocol 3, a worker that narrows its GPUs is limited; a list that it made itself is found."""
    async with proven(kubelet, shown, NAMESPACES, OnBothGpus()) as node:
        pod = a_pod(6)
        given, own = await with_namespace(kubelet, pod)
        assert LIST not in given
        worker = node.start(pod, {**given, **changes})
        node.list_clients(in_namespace(worker, own))
        effect = await node.look(worker)
        assert effect == (Effect("not in effect", f"process {worker.pid} {words}") if words else IN_EFFECT)


async def test_a_client_in_another_namespace_is_found(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """With MPS protocol 3, a process has to use the namespace of its container, with no more than was promised."""
    async with proven(kubelet, shown, NAMESPACES, OnBothGpus()) as node:
        pod = a_pod(6)
        given, own = await with_namespace(kubelet, pod)
        process = node.start(pod, given)
        uses = f"process {process.pid} uses the MPS namespace"
        node.list_clients(in_namespace(process, "c_other"))
        words = f"{uses} c_other, which has the limits of others, instead of {own}"
        assert await node.look(process) == Effect("not in effect", words)
        node.list_clients(in_namespace(process, own, 4096))
        words = f"{uses} {own}, where MPS allows 4096 MiB of each GPU, instead of 3072 MiB"
        assert await node.look(process) == Effect("not in effect", words)
        node.list_clients(in_namespace(process, own))
        assert await node.look(process) == IN_EFFECT


async def test_an_init_container_uses_a_namespace_of_its_own(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """With MPS protocol 3, an init container may have more than the container that waits for it.

    Without the API server, nobody knows which of the two a process is in. With the ID of the init container, its own
    share and its own namespace count.
    """
    async with proven(kubelet, shown, NAMESPACES) as node:
        pod = Pod("pod", [Container("main", {GPU_MEM: 2})], [Container("init", {GPU_MEM: 4})])
        started = (await kubelet.admit(pod)).containers["init"]
        process, own = node.start(pod, started.environment), namespace_name(started.device_ids[GPU_MEM])
        node.list_clients(in_namespace(process, own, 4096))
        assert await node.look(process) == IN_EFFECT
        node.container_ids = {("default", "pod", "init"): process.owner.container_id}
        assert await node.look(process) == IN_EFFECT
        assert [(each.container, each.units, each.limit) for each in await node.usages()] == [("init", 4, 4 * GIB)]
        node.list_clients(in_namespace(process, own, 5120))
        effect = await node.look(process)
        assert effect is not None
        assert (effect.state, "instead of 4096 MiB" in effect.reason) == ("not in effect", True)
        node.container_ids |= {("default", "pod", "main"): "f" * 64}
        assert [(each.container, each.units, each.limit) for each in await node.usages()] == [("main", 2, 2 * GIB)]


async def test_a_process_that_is_no_client_is_found(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """A process on the GPU that the control daemon does not list, asked after the process was seen, has no limit."""
    async with proven(kubelet, shown, MPS) as node:
        pod = a_pod()
        process = node.start(pod, await node.admit(pod))
        effect = await node.look(process)
        assert effect is not None
        assert (effect.state, "gpushare mps does not say" in effect.reason) == ("unknown", True)
        node.listed = MpsStatus(clients=(), clients_asked_at=1.0)
        effect = await node.look(process)
        assert effect is not None
        assert (effect.state, "has not asked for the clients since" in effect.reason) == ("unknown", True)
        node.list_clients()
        assert await node.look(process) == Effect("not in effect", f"process {process.pid} is not a client of MPS")
        node.list_clients(client(process))
        assert await node.look(process) == IN_EFFECT
        assert [type(each) for each in node.heard] == [LimitInEffect]


@pytest.mark.parametrize(
    ("listed", "by_driver", "words"),
    [
        (ListedClient(pid=0, server="17"), False, "does not see all processes of the node"),
        (ListedClient(pid=1, server="17"), True, "by the driver's word, and not by the word of the MPS control daemon"),
    ],
)
async def test_answers_that_do_not_name_a_process_prove_nothing(
    kubelet: EmbeddedKubelet,
    shown: ShownProcesses,
    listed: ListedClient,
    by_driver: bool | None,  # noqa: FBT001 - a case
    words: str,
) -> None:
    """Without the numbers of the host, or against the driver's word, it is unknown whether a process is a client."""
    async with proven(kubelet, shown, MPS) as node:
        pod = a_pod()
        started = node.start(pod, await node.admit(pod))
        process = Process(started.pid, "python", GIB, 0.5, started.owner, by_driver)
        await node.look(process)
        node.list_clients(listed)
        effect = await node.look(process)
        assert effect is not None
        assert (effect.state, words in effect.reason) == ("unknown", True)


@pytest.mark.parametrize(
    ("changes", "doubt", "state"),
    [
        ({}, None, "in effect"),
        ({LIST: "0=80G"}, None, "in effect"),
        ({LIST: "0=1G,1=1G"}, None, "not in effect"),
        ({}, "limits were changed", "not in effect"),
    ],
)
async def test_default_limits_hold_but_for_a_deliberate_list(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, changes: dict[str, str], doubt: str | None, state: str
) -> None:
    """A replica's limit is the control daemon's: its own list cannot raise the limit, but can drop all limits."""
    async with proven(kubelet, shown, REPLICAS) as node:
        pod = a_pod(1, "nvidia.com/gpu")
        process = node.start(pod, {**await node.admit(pod), **changes})
        node.list_clients(client(process, doubt))
        assert (effect := await node.look(process))
        assert effect.state == state


@pytest.mark.parametrize(
    ("library", "changes", "expected"),
    [
        ("libvgpu.so", {}, "in effect"),
        ("libvgpu.so", {VISIBLE: "0"}, "in effect"),
        ("other.so", {}, "not in effect: process {pid} does not have HAMi's library, libvgpu.so"),
        (
            "libvgpu.so",
            {"CUDA_DISABLE_CONTROL": "true"},
            "not in effect: process {pid} has a CUDA_DISABLE_CONTROL of its own",
        ),
        (
            "libvgpu.so",
            {"CUDA_DEVICE_MEMORY_LIMIT_0": "80g"},
            "not in effect: process {pid} has another CUDA_DEVICE_MEMORY_LIMIT_0 than its container was given",
        ),
    ],
)
async def test_hamis_library_has_to_be_in_the_process(  # noqa: PLR0913, PLR0917 - cases
    kubelet: EmbeddedKubelet,
    shown: ShownProcesses,
    tmp_path: Path,
    library: str,
    changes: dict[str, str],
    expected: str,
) -> None:
    """HAMi's limit holds with the library and the variables of the container, also where a program narrows its GPUs."""
    (tmp_path / library).write_bytes(b"library")
    async with proven(kubelet, shown, HAMI) as node:
        pod = a_pod()
        process = node.start(pod, {**await node.admit(pod), **changes}, mapped=tmp_path / library)
        assert (effect := await node.look(process))
        assert effect.words == expected.format(pid=process.pid)


@pytest.mark.parametrize(("made", "words"), [(MPS, "for each process"), (HAMI, "the processes of the container")])
async def test_use_far_beyond_the_limit_is_proof_enough(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, made: Snapshot, words: str
) -> None:
    """Whatever else is known: memory clearly beyond the limit shows that nothing enforces it."""
    async with proven(kubelet, shown, made) as node:
        pod = a_pod()
        started = node.start(pod, await node.admit(pod))
        effect = await node.look(Process(started.pid, "python", 3 * GIB, 0.5, started.owner))
        assert effect is not None
        assert (effect.state, words in effect.reason) == ("not in effect", True)


async def test_two_clients_within_their_limits_are_limited(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """A limit by MPS is for each process: what two of them use together says nothing about the limit."""
    async with proven(kubelet, shown, MPS) as node:
        pod = a_pod(1)
        given = await node.admit(pod)
        processes = [node.start(pod, given), node.start(pod, given)]
        node.list_clients(*map(client, processes))
        assert await node.look(*processes) == IN_EFFECT


async def test_what_is_missing_is_said(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """Without processes, without the host's processes and without the kubelet's record, the effect is unknown."""
    async with proven(kubelet, shown, MPS) as node:
        pod = a_pod()
        given = await node.admit(pod)
        assert await node.look() == Effect("unknown", "no process of the container uses the GPU")
        node.unknown = "it needs hostPID"
        assert await node.look() == Effect("unknown", "it needs hostPID")
        node.unknown = None
        process = node.start(pod, given)
        (kubelet.plugin_directory / "kubelet_internal_checkpoint").write_text("broken")
        effect = await node.look(process)
        assert effect is not None
        assert (effect.state, "the kubelet's checkpoint" in effect.reason) == ("unknown", True)


@pytest.mark.parametrize("isolation", ["driver", "driver+mps"])
@pytest.mark.parametrize("trick", [{LIST: "0=1G,1=1G"}, {VISIBLE: "1"}])
@pytest.mark.parametrize("hard", [2048, 6144])
async def test_a_program_that_drops_its_list_keeps_a_limit_by_the_driver(  # noqa: PLR0913, PLR0917 - all the cases
    kubelet: EmbeddedKubelet, shown: ShownProcesses, tmp_path: Path, isolation: str, trick: dict[str, str], hard: int
) -> None:
    """A deliberate list, or fewer visible GPUs, drop no limit of the driver; a hook's other limit is named."""
    made = snapshot(memory(isolation=isolation), 8192, 8192, driver_limits=DriverLimits(agent=True))
    kubepods = PodCgroups(CgroupTree(tmp_path / "cgroup"))
    async with proven(kubelet, shown, made, cgroups=tmp_path / "cgroup") as node:
        pod = a_pod()
        process = node.start(pod, {**await node.admit(pod), **trick, "NVIDIA_GPU_MEMORY_LIMIT": str(hard)})
        node.container_ids = {("default", "pod", "main"): process.owner.container_id}
        asked = made.inventory.gpus[0].uuid, kubepods.container(pod.uid, process.owner.container_id)
        node.cards.limits[asked] = LimitReading(MemoryLimit(hard * MIB), GIB)
        effect = await node.look(process)
        assert effect is not None
        if hard == 2048:
            assert effect == IN_EFFECT
        else:
            assert effect.state == "not in effect"
            assert "a process has another NVIDIA_GPU_MEMORY_LIMIT than its container was given" in effect.reason


async def test_without_an_isolation_nothing_is_read(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """On a node without an isolation, the proof reads no process and says nothing."""
    async with proven(kubelet, shown, NONE) as node:
        pod = a_pod()
        process = node.start(pod, {**await node.admit(pod), LIST: "0=80G"})
        (shown.procfs / str(process.pid) / "stat").unlink()
        assert await node.look(process) is None
        assert node.heard == []
