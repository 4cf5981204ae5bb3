"""Isolation by CUDA MPS: what a client needs, what the daemon needs to know, and which GPUs MPS can share.

Facts: mounts and variables as in NVIDIA/k8s-device-plugin, internal/plugin/mps.go; the variables' meaning from NVIDIA's
"Multi-Process Service", appendix on environment variables. CUDA_MPS_PINNED_DEVICE_MEM_LIMIT names devices as
CUDA_VISIBLE_DEVICES does, as the client counts them; a client's own limits can only tighten those of the daemon.
"""

from collections.abc import Iterable, Mapping, Sequence
from posixpath import join
from typing import ClassVar

from gpushare_plugin.config.schema.sections import Compute
from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant, Mount
from gpushare_plugin.model.slices.memory import MOST_MPS_CLIENTS, MemoryRoom
from gpushare_plugin.sharing.findings import GPUS_TO_NAME, Findings
from gpushare_plugin.sharing.isolation.layer import ContainerShare, Isolation, Layers, Limits, SharedGpus, percentage

PIPE_DIRECTORY = "/mps/pipe"
"""Where a container finds the pipes of the daemon."""

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - MPS maps its shared memory from there, whatever is configured
_COMPUTE_LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MOST_CLIENTS_BEFORE_VOLTA = 16
_VOLTA = (7, 0)
_OLDEST = (3, 5)


class UnderMps(Struct, frozen=True):
    """The mode of a GPU under MPS: the default memory limit of each client in MiB, None where containers set their own.

    Replicas under another limit are another way to share: those that pods hold have the old size.
    """

    memory_limit_mib: int | None


class MpsNeeds(Struct, frozen=True):
    """What the MPS control daemon of a node needs to know before it serves.

    `gpus` holds every GPU under MPS by its UUID. `active_thread_percentage` is the default of all clients, or None
    where the GPUs differ or every container brings its own.
    """

    gpus: Mapping[str, UnderMps] = field(default_factory=dict)
    active_thread_percentage: int | None = None


class MpsClient(Struct, frozen=True):
    """Makes the processes of a container clients of the MPS daemon, each held to the container's share.

    `root` is the daemon's directory on the host. Without `own_memory_limit` the daemon's default holds.
    """

    root: str
    compute: Compute = "proportional"
    own_memory_limit: bool = True

    def add(self, grant: Grant, share: ContainerShare) -> None:
        """Add the way to the daemon and the limits."""
        grant.environment["CUDA_MPS_PIPE_DIRECTORY"] = PIPE_DIRECTORY
        grant.mounts += [
            # Read-only, or the container could leave links there for programs of the host to follow; sockets work.
            Mount(PIPE_DIRECTORY, join(self.root, "pipe"), read_only=True),
            Mount(_SHARED_MEMORY, join(self.root, "shm")),
        ]
        if self.own_memory_limit:
            limits = (f"{ordinal}={part.mib}M" for ordinal, part in enumerate(share.parts))
            grant.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        if (percent := percentage(self.compute, share)) is not None:
            grant.environment[_COMPUTE_LIMIT] = str(percent)


class MpsIsolation(Struct, Isolation, frozen=True):
    """`isolation: mps` of an entry, and all of `sharing.mps`; `root` is the daemon's directory on the host.

    Where a GPU has equal parts, the daemon's defaults limit every client alike. Else each container has a list of its
    own limits, and a client whose list names a GPU that the client does not see drops all limits (measured on r615 and
    published in the documentation of NVIDIA Dynamo): a program only has to narrow CUDA_VISIBLE_DEVICES.
    """

    name: ClassVar[str] = "mps"
    limits_several_gpus: ClassVar[bool] = False

    root: str
    limits: Limits

    @property
    def layers(self) -> Layers:
        """The way to the daemon and the limits."""
        return (MpsClient(self.root, self.limits.compute, own_memory_limit=self.limits.equal_parts is None),)

    def mode(self, gpu: Gpu) -> UnderMps:
        """Return the default limit of memory on `gpu`."""
        parts = self.limits.equal_parts
        return UnderMps(gpu.memory_mib // parts if parts else None)

    def compute_variable(self, gpu: Gpu) -> str | None:
        """Return the limit that clients read, None on GPUs on which MPS has no limits."""
        return _COMPUTE_LIMIT if enforces_limits(gpu) else None

    def check(self, shared: SharedGpus, findings: Findings) -> None:
        """Find the GPUs that MPS cannot share, or not among so many, and those on which it limits nothing."""
        crowded, unlimited = [], []
        too_many: dict[tuple[str, int, int], list[str]] = {}
        for gpu, clients in shared.containers.items():
            if reason := why_not(gpu):
                remedy = (
                    "leave it out of devices, or disable MIG on it" if gpu.mig_enabled else "leave it out of devices"
                )
                findings.problem((*shared.path, "devices"), f"{gpu.description} {reason}: {remedy}")
            elif clients > (most := room_of(gpu).most) and shared.key:
                too_many.setdefault((shared.key, clients, most), []).append(gpu.description)
            elif clients > most:
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
    """Return what MPS needs to know of those of the GPUs that it isolates."""
    under_mps = [(isolation, gpus) for isolation, gpus in isolated if isinstance(isolation, MpsIsolation) and gpus]
    percentages = {isolation.limits.percentage for isolation, _ in under_mps}
    return MpsNeeds(
        {gpu.uuid: isolation.mode(gpu) for isolation, gpus in under_mps for gpu in gpus},
        percentages.pop() if len(percentages) == 1 else None,
    )


def why_not(gpu: Gpu) -> str | None:
    """Return why MPS cannot share `gpu`, None where it can."""
    if gpu.mig_enabled:
        return "is in MIG mode, and MPS shares whole GPUs only"
    if gpu.compute_capability < _OLDEST:
        found, least = (".".join(map(str, version)) for version in (gpu.compute_capability, _OLDEST))
        return f"has compute capability {found}, and MPS takes {least} or more"
    return None


def room_of(gpu: Gpu) -> MemoryRoom:
    """Return the room of `gpu` under MPS: its usable memory, for as many slices as MPS serves clients at once."""
    return MemoryRoom.of(gpu.memory_mib, MOST_MPS_CLIENTS if enforces_limits(gpu) else _MOST_CLIENTS_BEFORE_VOLTA)


def enforces_limits(gpu: Gpu) -> bool:
    """Return whether MPS holds its clients to limits of memory and compute on `gpu`, which needs Volta or newer."""
    return gpu.compute_capability >= _VOLTA
