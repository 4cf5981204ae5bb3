"""Whether the limit of a container is in effect: the rules that compare what was promised with what was found.

A program can forge what a node finds out about MPS and HAMi's library, for example by changing its environment after
its start: these isolations are no security boundary, and neither is a proof of their limits.
"""

from collections.abc import Collection, Sequence

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.driver_limits import MemoryLimit
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect, unknown, worst
from gpushare_plugin.core.escapes import (
    LIST,
    Escapes,
    Variables,
    hami_escapes,
    holds_threads,
    mps_escapes,
    namespace_escapes,
)


def together(by_driver: Effect | None, others: Sequence[Effect]) -> Effect:
    """Return the effect of several isolations of one container; `by_driver` is None without limits by the driver.

    The memory of a container that the driver limits is limited, whatever its processes do about other limits.
    """
    if by_driver is not None and by_driver.state in {"in effect", "in effect since"}:
        return by_driver
    return worst([*([] if by_driver is None else [by_driver]), *others])


# ---------------------------------------------------------------------- limits by the driver


class DriverAnswer(Struct, frozen=True):
    """What the driver answers about the cgroup of a container on a GPU."""

    limit: MemoryLimit | None = None
    """The limits that the driver reports; None without an answer."""
    used: int | None = None
    """The bytes that the driver counts for these limits; None where unknown."""
    reason: str = ""
    """Why there is no answer, for people."""
    unlimited: bool = False
    """Whether the reason is that the driver knows no limits of the cgroup, or limits no memory on this GPU."""
    unenforced: bool = False
    """Whether the reason is that the driver cannot enforce limits of the cgroup."""


def by_driver(promised: Collection[MemoryLimit], answer: DriverAnswer, *, others: bool, late: float = 0.0) -> Effect:
    """Return whether a limit by the driver is in effect; `promised` are limits that each would be right.

    With the driver's own account (`misc`), the driver has one answer for a cgroup without limits and for a GPU without
    this feature. `others` is whether the driver reports limits of another container on the GPU: then it has the
    feature. `late` are the seconds from the start of the container to its limits.
    """
    if answer.limit is not None and answer.limit in promised:
        return Effect("in effect since", seconds=late) if late else IN_EFFECT
    if answer.limit is not None:
        right = " or ".join(dict.fromkeys(each.words for each in promised))
        return not_in_effect(f"the driver reports {answer.limit.words} for the container, instead of {right}")
    if answer.unlimited and others:
        return not_in_effect("the driver knows no limit of the container, and knows limits of others on the GPU")
    return not_in_effect(answer.reason) if answer.unenforced else unknown(answer.reason)


# ---------------------------------------------------------------------- limits for processes


class PromisedLimit(Struct, frozen=True):
    """The limit that a container was promised on a GPU."""

    isolation: str
    """The name of the isolation."""
    gpus: tuple[str, ...]
    """The UUIDs of all GPUs of the container."""
    grants: tuple[Variables, ...] = ()
    """The watched variables that each container of the pod was given; empty where unknown."""
    memory: int | None = None
    """The most bytes that a process may use of any of these GPUs; None where unknown."""
    namespaces: frozenset[str] = frozenset()
    """The namespaces of MPS protocol 3 by the units of the container, or of the pod; empty where unknown."""
    threads: int | None = None
    """The percentage of threads to which MPS itself holds every client; None without one, and where unknown."""


class ClientNamespace(Struct, frozen=True):
    """The namespace of MPS protocol 3 that a client uses; a namespace also holds the percentage of threads."""

    name: str
    """The name."""
    memory: int | None = None
    """The limit of memory in bytes that the MPS control daemon tells; None without a limit."""


class ProcessFacts(Struct, frozen=True):
    """The facts about a process of a container on a GPU."""

    pid: int
    """The number of the process on the host."""
    environment: Variables | None = None
    """The watched variables with which the process began; None where they cannot be read."""
    unread: str = ""
    """Why something about the process cannot be read, for people."""
    library: bool | None = None
    """Whether HAMi's library is mapped into the process; None where unknown."""
    client: bool | None = None
    """Whether the process is a client of the node's MPS control daemon; None where unknown."""
    unlisted: str = ""
    """Why it is unknown whether the process is a client, for people."""
    doubt: str | None = None
    """Why the limits that MPS itself holds may not limit the client, for people; None without a doubt."""
    namespace: ClientNamespace | None = None
    """The namespace that the client uses; None under MPS protocol 2."""
    over: bool = False
    """Whether the process alone uses clearly more memory than the limit."""


def of_processes(promise: PromisedLimit, processes: Sequence[ProcessFacts]) -> Effect:
    """Return whether a limit by MPS or by HAMi's library is in effect, by the facts about all processes on the GPU."""
    if not processes:
        return unknown("no process of the container uses the GPU")
    if not promise.grants:
        return unknown("the kubelet's checkpoint does not show which variables the container was given")
    judge = _under_mps if promise.isolation == "mps" else _with_library
    return worst(judge(promise, process) for process in processes)


def _under_mps(promise: PromisedLimit, process: ProcessFacts) -> Effect:
    if process.over:
        return _escaped(process, "uses more memory than the limit, which is for each process")
    if process.client is False:
        return _escaped(process, "is not a client of MPS")
    if process.namespace is not None and (way := _other_namespace(promise, process.namespace)):
        return _escaped(process, way)
    held = process.namespace is not None or holds_threads(promise.threads, promise.grants)
    found = _by_environment(promise, process, namespace_escapes if held else mps_escapes)
    if found.state == "in effect" and process.client is None:
        return _not_known(process, process.unlisted)
    if found.state == "in effect" and process.doubt and not any(LIST in grant for grant in promise.grants):
        return _escaped(process, f"may have another limit: {process.doubt}")
    return found


def _other_namespace(promise: PromisedLimit, used: ClientNamespace) -> str | None:
    """Return how the namespace of a client differs from the one promised, None if the limits are not wider."""
    if promise.namespaces and used.name not in promise.namespaces:
        own = " or ".join(sorted(promise.namespaces))
        return f"uses the MPS namespace {used.name}, which has the limits of others, instead of {own}"
    if promise.memory is not None and used.memory is not None and used.memory > promise.memory:
        return (
            f"uses the MPS namespace {used.name}, where MPS allows {used.memory // MIB} MiB of each GPU, instead of "
            f"{promise.memory // MIB} MiB"
        )
    return None


def _with_library(promise: PromisedLimit, process: ProcessFacts) -> Effect:
    if process.library is False:
        return _escaped(process, "does not have HAMi's library, libvgpu.so")
    found = _by_environment(promise, process, hami_escapes)
    return _not_known(process, process.unread) if found.state == "in effect" and process.library is None else found


def _by_environment(promise: PromisedLimit, process: ProcessFacts, escapes: Escapes) -> Effect:
    if (found := process.environment) is None:
        return _not_known(process, process.unread)
    if not any(grant.keys() & found.keys() for grant in promise.grants):
        return _not_known(process, "shows none of the variables of its container, as a program that overwrites them")
    # Which container of the pod it is, is not always known: the process has to fit one of them.
    ways = min((list(escapes(promise.gpus, grant, found)) for grant in promise.grants), key=len)
    return _escaped(process, f"has {' and '.join(ways)}") if ways else IN_EFFECT


def _escaped(process: ProcessFacts, what: str) -> Effect:
    return not_in_effect(f"process {process.pid} {what}")


def _not_known(process: ProcessFacts, why: str) -> Effect:
    return unknown(f"process {process.pid} {why}")
