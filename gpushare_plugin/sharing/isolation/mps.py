"""Isolation by CUDA MPS: the grant of a client, the settings of the daemon, and the GPUs that MPS can share.

Sources: mounts and variables in NVIDIA/k8s-device-plugin, internal/plugin/mps.go; the meaning of the variables in
NVIDIA's "Multi-Process Service", appendix on environment variables. CUDA_MPS_PINNED_DEVICE_MEM_LIMIT names GPUs like
CUDA_VISIBLE_DEVICES, by their numbers in the client. A client can tighten the limits of the daemon. A list that names a
GPU that the client does not see lifts the limit of memory, also the default one (seen on an H100 with driver 580).
"""

from collections.abc import Iterable, Mapping, Sequence
from posixpath import join
from typing import ClassVar

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.findings import GPUS_TO_NAME, Findings
from gpushare_plugin.config.schema.sections import Compute
from gpushare_plugin.config.unreported_memory import NO_SIZE
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, LimitRule, has_driver_limits
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import AllocatedGpu, Allocation, Grant, Mount
from gpushare_plugin.core.namespaces import SERVER, WITH_NAMESPACES, ContainerNamespace, MpsProtocol, namespace_name
from gpushare_plugin.sharing.isolation.driver import UnderDriver
from gpushare_plugin.sharing.isolation.layer import (
    IsolatedMode,
    Isolation,
    Layer,
    Layers,
    Limits,
    SharedGpus,
    percentage,
)
from gpushare_plugin.slices.memory import MOST_MPS_CLIENTS, MemoryRoom

PIPE_DIRECTORY = "/mps/pipe"
"""The directory in a container with the pipes of the daemon."""

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - MPS always maps its shared memory from this path, whatever the config
_COMPUTE_LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MOST_CLIENTS_BEFORE_VOLTA = 16
_VOLTA = (7, 0)
_OLDEST = (3, 5)


class UnderMps(IsolatedMode, frozen=True):
    """The mode of a GPU under MPS.

    Another limit is another mode: replicas held by pods keep the size by the old limit.
    """

    memory_limit_mib: int | None
    """The default memory limit of each client in MiB, None if containers set their own limits."""
    driver: UnderDriver | None = None
    """The mode of the driver limits beside MPS, None without driver limits."""
    protocol: MpsProtocol = 2
    """The protocol of the MPS control daemon; containers of one protocol do not find a daemon of the other."""

    @property
    def isolation(self) -> str:
        """The name of the isolation, or of both where the driver limits memory, too."""
        return MpsIsolation.name if self.driver is None else f"{self.driver.isolation}+{MpsIsolation.name}"

    def equal_share_mib(self, gpu_mib: int) -> int | None:
        """Return the share of each container, before the rule of driver limits is applied."""
        return self.memory_limit_mib if self.driver is None else self.driver.equal_share_mib(gpu_mib)


class MpsNeeds(Struct, frozen=True):
    """The settings that the MPS control daemon of a node needs before serving clients."""

    gpus: Mapping[str, UnderMps] = field(default_factory=dict)
    """The mode of every GPU under MPS, by UUID."""
    active_thread_percentage: int | None = None
    """The default compute limit of all clients in percent; None if GPUs differ, or every container sets a limit."""
    protocol: MpsProtocol = 2
    """The protocol of the MPS control daemon."""


class MpsClient(Struct, frozen=True):
    """The layer that makes each process of a container a client of the MPS daemon, limited to the share."""

    root: str
    """The directory of the daemon on the host."""
    compute: Compute = "proportional"
    """The compute limit of the entry."""
    own_memory_limit: bool = True
    """Whether the container sets its own memory limit; otherwise the default limit of the daemon holds."""
    driver: LimitRule | None = None
    """The rule of the driver limits beside MPS, None without driver limits."""

    def add(self, grant: Grant, share: Allocation) -> None:
        """Add the mounts and the variable to reach the daemon, and the limits."""
        grant.environment["CUDA_MPS_PIPE_DIRECTORY"] = PIPE_DIRECTORY
        grant.mounts += [
            # Read-only, or the container could create links for programs of the host to follow. Sockets still work.
            Mount(PIPE_DIRECTORY, join(self.root, "pipe"), read_only=True),
            Mount(_SHARED_MEMORY, join(self.root, "shm")),
        ]
        # A list for several GPUs is dropped by a process that sees fewer; the driver limits each GPU anyway.
        if self.own_memory_limit and not (self.driver and len(share.gpus) > 1):
            limits = (f"{ordinal}={_most_mib(part, self.driver)}M" for ordinal, part in enumerate(share.gpus))
            grant.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        if (percent := percentage(self.compute, share)) is not None:
            grant.environment[_COMPUTE_LIMIT] = str(percent)


class NamespaceClient(Struct, frozen=True):
    """The layer that makes each process of a container a client of the container's own MPS namespace (protocol 3).

    The container sees the socket of its namespace only, and has no limit of memory in its environment: the limits are
    those of the namespace, whichever GPUs a process sees. The percentage of threads is in the environment as well. By
    NVIDIA's documents, the percentage of the namespace overrides the variable, or the smaller one counts: in either
    case a program cannot get more. The variable also tells programs their share.
    """

    root: str
    """The directory of the daemon on the host."""
    compute: Compute = "proportional"
    """The compute limit of the entry."""
    driver: LimitRule | None = None
    """The rule of the driver limits beside MPS, None without driver limits."""

    def add(self, grant: Grant, share: Allocation) -> None:
        """Add the mounts and the variable to reach the namespace, and the namespace itself.

        A namespace has one limit of memory for every GPU. Raises PlacementError for different limits on several GPUs,
        unless the driver limits each GPU: then the largest limit is that of the namespace.
        """
        sizes = {_most_mib(part, self.driver) for part in share.gpus}
        if len(sizes) > 1 and self.driver is None:
            found = ", ".join(f"{part.mib} MiB on {part.gpu.identity}" for part in share.gpus)
            raise PlacementError(
                f"{share.resource}: {found} found, the same on each GPU expected: with MPS protocol 3, a container has "
                "one limit for all its GPUs; request the same amount of each GPU"
            )
        percent, name = percentage(self.compute, share), namespace_name(share.ids)
        grant.environment["CUDA_MPS_PIPE_DIRECTORY"] = PIPE_DIRECTORY
        grant.mounts += [
            Mount(PIPE_DIRECTORY, join(self.root, "pipe", SERVER, name), read_only=True),
            Mount(_SHARED_MEMORY, join(self.root, "shm")),
        ]
        if percent is not None:
            grant.environment[_COMPUTE_LIMIT] = str(percent)
        grant.namespace = ContainerNamespace(name, max(sizes), percent)


def _most_mib(part: AllocatedGpu, driver: LimitRule | None) -> int:
    """Return the limit under MPS: the share, or what the driver limits of `driver` allow beyond the share."""
    return driver.most_mib(part.mib, part.gpu.memory_mib) if driver else part.mib


class MpsIsolation(Struct, Isolation, frozen=True):
    """The isolation of an entry with `isolation: mps`, and of every entry of `sharing.mps`.

    If a GPU has equal parts, the defaults of the daemon limit every client alike. Otherwise each container has a list
    with a limit for each GPU. If the list names a GPU that the client does not see, the client drops all limits
    (measured on r615 and published in the documentation of NVIDIA Dynamo): a program only has to narrow
    CUDA_VISIBLE_DEVICES. Therefore the limits do not hold on several GPUs. With protocol 3, the namespace of a
    container has the limits, and there is no such list.
    """

    name: ClassVar[str] = "mps"

    root: str
    """The directory of the daemon on the host."""
    limits: Limits
    """The limits of the entry."""
    protocol: MpsProtocol
    """The protocol of the daemon."""
    driver_version: str
    """The version of the node's driver; empty where unknown."""

    @property
    def keys_in_force(self) -> frozenset[str]:
        """The key of the compute limit."""
        return self.limits.keys_of_compute

    @property
    def limits_several_gpus(self) -> bool:
        """Whether the limits of a container hold on each of several GPUs, as with namespaces."""
        return self.protocol == WITH_NAMESPACES

    @property
    def layers(self) -> Layers:
        """The layer with the access to the daemon and the limits."""
        return (self.client(),)

    def client(self, driver: LimitRule | None = None) -> Layer:
        """Return the layer with the access to the daemon; `driver` is the rule of driver limits beside MPS."""
        if self.protocol == WITH_NAMESPACES:
            return NamespaceClient(self.root, self.limits.compute, driver)
        own = self.limits.equal_parts is None
        return MpsClient(self.root, self.limits.compute, own_memory_limit=own, driver=driver)

    def mode(self, gpu: Gpu) -> UnderMps:
        """Return the mode of `gpu`, with the default memory limit."""
        parts = self.limits.equal_parts
        return UnderMps(gpu.memory_mib // parts if parts else None, protocol=self.protocol)

    def compute_variable(self, gpu: Gpu) -> str | None:
        """Return the variable of the compute limit, None for GPUs without limits under MPS."""
        return _COMPUTE_LIMIT if enforces_limits(gpu) else None

    def why_not_on(self, gpu: Gpu) -> str:
        """Return why MPS cannot share `gpu`; empty if MPS can."""
        return why_not(gpu)

    def why_not(self, gpus: Iterable[Gpu]) -> str:
        """Return why the driver cannot run MPS, or which GPU MPS cannot share, and why; empty if MPS can share all."""
        return why_not_protocol(self.protocol, self.driver_version) or super().why_not(gpus)

    def check(self, shared: SharedGpus, findings: Findings) -> None:
        """Find the GPUs that MPS cannot share, the GPUs with too many clients, and the GPUs without limits."""
        super().check(shared, findings)
        crowded, unlimited = [], []
        too_many: dict[tuple[str, int, int], list[str]] = {}
        for gpu, clients in shared.containers.items():
            if not why_not(gpu) and clients > (most := room_of(gpu).most):
                if shared.key:
                    too_many.setdefault((shared.key, clients, most), []).append(gpu.description)
                elif gpu not in shared.by_claim:
                    crowded.append(f"GPU {gpu.label} ({most})")
            if not enforces_limits(gpu):
                unlimited.append(gpu.label)
        for (key, clients, most), gpus in too_many.items():
            named = some_of(gpus, GPUS_TO_NAME)
            message = f"{clients} containers could share {named}, but MPS serves {most} clients there"
            findings.problem((*shared.path, key), message)
        if crowded:
            findings.notice(
                f"{shared.title}: more units than MPS serves clients, on {', '.join(crowded)}: processes beyond "
                "that number cannot use the GPU; configure larger units, or request several units for each pod"
            )
        if unlimited:
            findings.notice(
                f"{shared.title}: MPS limits neither memory nor compute before compute capability 7.0, as on GPU "
                f"{', '.join(unlimited)}"
            )


def needs(isolated: Iterable[tuple[Isolation, Sequence[Gpu]]]) -> MpsNeeds:
    """Return the settings of the MPS daemon for all GPUs isolated by MPS; other isolations are skipped."""
    under_mps = [(isolation, gpus) for isolation, gpus in isolated if isinstance(isolation, MpsIsolation) and gpus]
    percentages = {isolation.limits.percentage for isolation, _ in under_mps}
    protocols = {isolation.protocol for isolation, _ in under_mps}  # one, that of the config
    protocol: MpsProtocol = WITH_NAMESPACES if WITH_NAMESPACES in protocols else 2
    return MpsNeeds(
        {gpu.uuid: isolation.mode(gpu) for isolation, gpus in under_mps for gpu in gpus},
        percentages.pop() if len(percentages) == 1 and protocol != WITH_NAMESPACES else None,
        protocol,
    )


def why_not_protocol(protocol: MpsProtocol, driver_version: str) -> str | None:
    """Return why a driver cannot run MPS with a protocol, None where the driver can, or its version is unknown."""
    if protocol != WITH_NAMESPACES or not driver_version or has_driver_limits(driver_version):
        return None
    return f"this node has driver {driver_version}, and MPS has protocol {protocol} from driver {FIRST_DRIVER} on"


def why_not(gpu: Gpu) -> str:
    """Return the reason why MPS cannot share `gpu`; empty if MPS can share the GPU."""
    if gpu.mig_enabled:
        return "is in MIG mode, and MPS shares whole GPUs only"
    if not gpu.memory_mib:
        return NO_SIZE
    if gpu.compute_capability is None:
        return f"does not report its compute capability, and MPS takes {'.'.join(map(str, _OLDEST))} or more"
    if gpu.compute_capability < _OLDEST:
        found, least = (".".join(map(str, version)) for version in (gpu.compute_capability, _OLDEST))
        return f"has compute capability {found}, and MPS takes {least} or more"
    return ""


def room_of(gpu: Gpu) -> MemoryRoom:
    """Return the room of `gpu` under MPS: the usable memory, for as many slices as MPS serves clients at once."""
    return MemoryRoom.of(gpu.memory_mib, MOST_MPS_CLIENTS if enforces_limits(gpu) else _MOST_CLIENTS_BEFORE_VOLTA)


def enforces_limits(gpu: Gpu) -> bool:
    """Return whether MPS enforces the memory and compute limits of clients on `gpu`, which needs Volta or newer."""
    return gpu.compute_capability is not None and gpu.compute_capability >= _VOLTA
