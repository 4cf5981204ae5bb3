"""The environment variables by which a process escapes the limits of its container, under MPS and HAMi's library.

Pods, `envFrom`, images and programs can set the variables. Sources: NVIDIA, "Multi-Process Service", appendix on
environment variables; NVIDIA, "CUDA Programming Guide", CUDA_VISIBLE_DEVICES (GPUs after an invalid one are not
visible); Project-HAMi/HAMi-core, src/multiprocess and src/libvgpu.c. A list in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT that
names a GPU which the process does not see lifts all limits of memory: measured with driver 615 and MPS protocol 3,
published in the documentation of NVIDIA Dynamo; seen with driver 580.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite

Variables = Mapping[str, str]
"""Watched environment variables by name."""

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The variable by which a program chooses which of the GPUs of its container CUDA sees."""

OWN_NAMES = frozenset({
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DISABLE_CONTROL",
    "CUDA_REDIRECT",
    "CUDA_TASK_PRIORITY",
    "GPU_CORE_UTILIZATION_POLICY",
})  # fmt: skip
"""The names of variables with which a pod overrides its share; `admission.pods` of the chart has the same list."""
OWN_PREFIXES = ("CUDA_DEVICE_MEMORY_", "CUDA_DEVICE_SM_LIMIT", "CUDA_MPS_", "NVIDIA_GPU_MEMORY_")
"""The beginnings of names of further such variables."""

_CHOSEN = "NVIDIA_VISIBLE_DEVICES"
_NONE_CHOSEN = frozenset({"", "none", "void"})
"""Values that choose no GPU; the CDI specifications of NVIDIA's container toolkit set `void` in every container."""
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
LIST = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""The variable with the memory limits of an MPS client, as a list of GPUs and limits."""
_MPS_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_HAMI_PERCENTAGE = "CUDA_DEVICE_SM_LIMIT"
_OF_HAMI = (
    "CUDA_DEVICE_MEMORY_",
    "CUDA_DISABLE_CONTROL",
    "CUDA_REDIRECT",
    "CUDA_TASK_PRIORITY",
    "GPU_CORE_UTILIZATION_POLICY",
)
_PERCENTAGE = re.compile(r"[1-9][0-9]*(\.[0-9]+)?", re.ASCII)
"""A percentage that limits. HAMi-core takes 0, a negative number and what it cannot read for no limit (strtoul(3))."""

_ENTRY = re.compile(r"([\w-]+)=([1-9][0-9]{0,9})([MG])B?", re.ASCII)
"""A GPU with its limit in a list."""
_MIB = {"M": 1, "G": 1024}

Escapes = Callable[[Sequence[str], Variables, Variables], Iterator[str]]
"""Yields the escapes of a process, in words that follow "process 1 has".

Takes the UUIDs of the GPUs of the container, the variables that the container was given, and the variables of the
process.
"""


def is_watched(name: str) -> bool:
    """Return whether the variable `name` matters for a limit."""
    return name == VISIBLE_DEVICES or name in OWN_NAMES or name.startswith(OWN_PREFIXES)


def mps_escapes(gpus: Sequence[str], given: Variables, found: Variables) -> Iterator[str]:
    """Yield the escapes from limits by MPS; see `Escapes`. Of a list, the names of GPUs count before the sizes."""
    yield from namespace_escapes(gpus, given, found)
    yield from _raised(_MPS_PERCENTAGE, given.get(_MPS_PERCENTAGE), given, found)


def namespace_escapes(gpus: Sequence[str], given: Variables, found: Variables) -> Iterator[str]:
    """Yield the escapes of a client whose percentage MPS itself holds; see `Escapes`.

    That is a client in a namespace of protocol 3, or one whose percentage is the default of the MPS control daemon.
    """
    yield from _chosen(given, found)
    yield from _changed(_PIPE, given, found)
    if names_unseen_gpu(found.get(LIST, ""), gpus, found.get(VISIBLE_DEVICES)):
        yield f"a {LIST} that names a GPU which it does not see by {VISIBLE_DEVICES}, so CUDA drops all limits"
    elif LIST in given and not _within(found.get(LIST, ""), given[LIST]):
        # Without a list in `given` the limit is MPS' own, which a list of the process can only lower.
        yield from _changed(LIST, given, found)


def granted_percent(given: Variables) -> int | None:
    """Return the compute in percent of each GPU to which the variables of a container limit it; None for no limit."""
    percent = min(_percent(given.get(name)) for name in (_MPS_PERCENTAGE, _HAMI_PERCENTAGE))
    return int(percent) if isfinite(percent) else None


def holds_threads(default: int | None, grants: Iterable[Variables]) -> bool:
    """Return whether MPS holds clients to the granted percentage by its default, whatever variables they set.

    Seen with driver 580: a client that removes or raises its percentage gets the default of the MPS control daemon.
    """
    percentages = [_percent(grant[_MPS_PERCENTAGE]) for grant in grants if _MPS_PERCENTAGE in grant]
    return default is not None and all(default <= each for each in percentages)


def driver_escapes(gpus: Sequence[str], given: Variables, found: Variables) -> Iterator[str]:  # noqa: ARG001 - see Escapes
    """Yield the variables by which NVIDIA's hook sets other limits for the driver than promised; see `Escapes`."""
    for name in sorted(given.keys() | found.keys()):
        if name.startswith("NVIDIA_GPU_MEMORY_"):
            yield from _changed(name, given, found)


def hami_escapes(gpus: Sequence[str], given: Variables, found: Variables) -> Iterator[str]:  # noqa: ARG001 - see Escapes
    """Yield the escapes from limits by HAMi's library, which counts every GPU by itself; see `Escapes`."""
    yield from _chosen(given, found)
    for name in sorted(given.keys() | found.keys()):
        if name.startswith(_OF_HAMI):
            yield from _changed(name, given, found)
    # The variable of one GPU, such as CUDA_DEVICE_SM_LIMIT_0, counts before the variable of all GPUs.
    for name in (_HAMI_PERCENTAGE, *sorted(each for each in found if each.startswith(f"{_HAMI_PERCENTAGE}_"))):
        yield from _raised(name, given.get(_HAMI_PERCENTAGE), given, found)


def _chosen(given: Variables, found: Variables) -> Iterator[str]:
    if _CHOSEN in given and found.get(_CHOSEN, "") not in _NONE_CHOSEN:
        yield from _changed(_CHOSEN, given, found)


def _changed(name: str, given: Variables, found: Variables) -> Iterator[str]:
    if given.get(name) != found.get(name):
        if name not in found:
            yield f"no {name}, which its container was given"
        else:
            yield f"another {name} than its container was given" if name in given else f"a {name} of its own"


def _raised(name: str, most: str | None, given: Variables, found: Variables) -> Iterator[str]:
    """Yield the change of a percentage, unless `most`, the granted percentage, still holds; None without one."""
    if most is not None and not _percent(found.get(name)) <= _percent(most):
        yield from _changed(name, given, found)


def _percent(text: str | None) -> float:
    """Return a percentage that limits; infinity for any other text, such as 0."""
    return float(text) if text is not None and _PERCENTAGE.fullmatch(text) else inf


# ---------------------------------------------------------------------- lists of GPUs


def _within(limits: str, granted: str) -> bool:
    """Return whether a list limits the same GPUs as the granted one, and none to more memory."""
    found, most = _amounts(limits), _amounts(granted)
    return (
        found is not None
        and most is not None
        and found.keys() == most.keys()
        and all(found[gpu] <= most[gpu] for gpu in most)
    )


def _amounts(limits: str) -> Mapping[str, int] | None:
    """Return the limits of a list in MiB, by the name of the GPU; None for a list of another form."""
    entries = [_ENTRY.fullmatch(entry) for entry in limits.split(",")]
    amounts = {each[1]: int(each[2]) * _MIB[each[3]] for each in entries if each}
    return amounts if len(amounts) == len(entries) else None


def names_unseen_gpu(limits: str, gpus: Sequence[str], visible: str | None) -> bool:
    """Return whether a list of limits names a GPU that the process does not see.

    `gpus` are the UUIDs of the GPUs of the container, `visible` is the value of CUDA_VISIBLE_DEVICES, None where not
    set. A name that is neither a number nor the beginning of a UUID counts as seen.
    """
    seen = _seen(gpus, visible)
    named = {entry.partition("=")[0].strip() for entry in limits.split(",") if "=" in entry}
    numbers = {int(each) for each in named if _is_number(each)}
    uuids = {each for each in named if each.startswith("GPU-")}
    by_uuid = [each for each in seen if each is not None]
    strange = len(by_uuid) == len(seen) and any(not any(one.startswith(each) for one in by_uuid) for each in uuids)
    return any(number >= len(seen) for number in numbers) or len(uuids) > len(seen) or strange


def _seen(gpus: Sequence[str], visible: str | None) -> list[str | None]:
    """Return the GPUs that a process sees, None for a GPU known by number only.

    The numbers are those of CUDA, whose order need not be the order of `gpus`. A process that uses a GPU sees one at
    least, whatever its variable says.
    """
    if visible is None:
        return list(gpus)
    seen: dict[str, str | None] = {}
    for name in (each.strip() for each in visible.split(",")):
        if _is_number(name) and int(name) < len(gpus):
            seen[name] = gpus[0] if len(gpus) == 1 else None
        elif matching := [gpu for gpu in gpus if name and gpu.startswith(name)]:
            seen[matching[0]] = matching[0]
        else:
            break
    return list(seen.values()) or [None]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len("9999")
