"""Driver limits: the limits of GPU memory for each cgroup, which drivers have from 615 on (nvml.h of CUDA 13.4).

What is expected is said by NVIDIA's documentation "Multi-Process Service", r615, "MPS v3 Memory Partitioning".
"""

import ctypes
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from gpushare_plugin.core.driver_limits import FIRST_DRIVER, has_driver_limits
from real_gpus.containers import Program, RunningContainer
from real_gpus.findings import Finding, between, check, equal, measured
from real_gpus.limited import NONE, REFUSED, SET, LimitedCgroup
from real_gpus.limits_hook import run_hook, why_no_hook
from real_gpus.node import until
from real_gpus.steps import MEMORY, MIB_PER_UNIT, Subject, no_cuda, no_mps
from real_gpus.steps.mps import BEYOND_MIB, OVERHEAD_MIB
from real_gpus.steps.shared import said

_CALL = "nvmlDeviceSetMemoryLimits_v1"
_FREED_WITHIN = 10.0
"""Seconds for the driver to free the memory of a program that has ended."""
_LIST, _VISIBLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_VISIBLE_DEVICES"


def no_limits(subject: Subject) -> str | None:
    """Return why the memory of no cgroup can be limited here."""
    driver, cgroups = subject.machine.driver, subject.machine.cgroups
    if not has_driver_limits(driver):
        return f"driver {driver} has no driver limits, which drivers have from {FIRST_DRIVER} on: expected absent"
    if os.geteuid() != 0:
        return "only root can set driver limits"
    return cgroups.why_none or cgroups.why_not_counted or no_cuda(subject)


def no_limits_by_hook(subject: Subject) -> str | None:
    """Return why NVIDIA's hook can limit the memory of no cgroup here."""
    return no_limits(subject) or why_no_hook()


def no_limits_under_mps(subject: Subject) -> str | None:
    """Return why the memory of no client of MPS can be limited by its cgroup here."""
    return no_limits(subject) or no_mps(subject)


async def library(subject: Subject) -> AsyncIterator[Finding]:
    """Look whether the library has the call."""
    driver = subject.machine.driver
    there = hasattr(ctypes.CDLL("libnvidia-ml.so.1"), _CALL)
    yield equal(f"{_CALL} in the library of driver {driver}", has_driver_limits(driver), there)


def _cgroup(subject: Subject) -> AbstractAsyncContextManager[LimitedCgroup]:
    return LimitedCgroup.made(subject.machine, subject.gpu.uuid)


def _limit(subject: Subject) -> int:
    """Return the limit of the steps in MiB."""
    return subject.share * MIB_PER_UNIT


async def memory(subject: Subject) -> AsyncIterator[Finding]:
    """Limit a cgroup, and let a program in the cgroup take what it gets."""
    limit = _limit(subject)
    async with _cgroup(subject) as made:
        yield measured("the driver counts the memory of cgroups by", subject.machine.cgroups.counted_by)
        yield equal(f"a limit of {limit} MiB", SET, await made.set(limit))
        yield equal("the limit that the driver then tells, MiB", str(limit), (await made.read())[0])
        program = await made.programs.start()
        look = await program.must("look")
        yield measured("memory of the limit that the context of a program takes, MiB", (await made.read())[1])
        yield equal("memory that CUDA tells a program, MiB", limit, look["total_mib"])
        told = await program.ask("ask_nvml")
        yield measured("memory that NVML tells a program, MiB", told.get("total_mib", told.get("error")))
        filled = await program.must("fill", mib=limit + BEYOND_MIB, keep=True)
        statement = f"memory that a program gets before {filled['refusal'] or 'a refusal'}"
        yield between(statement, limit - OVERHEAD_MIB, filled["mib"], limit, "MiB")
        used = (await made.read())[1]
        yield between("memory that the driver says the cgroup uses", filled["mib"], used, limit, "MiB")
        await program.end()
        yield equal("memory that the driver says the cgroup uses afterwards, MiB", 0, await _freed(made))
        yield equal("removing the limit", SET, await made.remove())
        yield equal("the limit that the driver then tells", NONE, (await made.read())[0])
        yield await _gets_more("a program after that", await made.programs.start(), limit)


async def _freed(made: LimitedCgroup) -> int:
    """Wait until nothing in the cgroup uses memory; return the MiB that the driver says last."""

    async def look() -> tuple[bool, int]:
        _, used = await made.read()
        return used == 0, used

    return await until(look, _FREED_WITHIN)


async def _gets_more(who: str, program: Program, limit: int) -> Finding:
    """Return whether a program gets all that it asks for beyond `limit` MiB."""
    filled = await program.ask("fill", mib=limit + BEYOND_MIB)
    await program.end()
    return equal(f"{who} gets more than {limit} MiB", limit + BEYOND_MIB, filled.get("mib"))


async def processes(subject: Subject) -> AsyncIterator[Finding]:
    """Let several programs have memory under one limit, and change the limit meanwhile."""
    limit = _limit(subject)
    async with _cgroup(subject) as made:
        yield equal(f"a limit of {limit} MiB", SET, await made.set(limit))
        first, second = [await made.programs.start() for _ in range(2)]
        kept = (await first.must("fill", mib=limit // 2, keep=True))["mib"]
        rest = (await second.must("fill", mib=limit, keep=True))["mib"]
        statement = f"memory that a second program of the cgroup gets, after the first took {kept} MiB"
        yield between(statement, max(0, limit - kept - 2 * OVERHEAD_MIB), rest, limit - kept, "MiB")
        yield equal("a lower limit than the use", REFUSED, await made.set(limit // 2))
        yield equal("the limit after that, MiB", str(limit), (await made.read())[0])
        yield equal("a higher limit", SET, await made.set(limit + BEYOND_MIB))
        more = (await second.must("fill", mib=BEYOND_MIB))["mib"]
        yield between("memory that the second program gets more", BEYOND_MIB - OVERHEAD_MIB, more, BEYOND_MIB, "MiB")


async def uncounted(subject: Subject) -> AsyncIterator[Finding]:
    """Let programs have memory that NVIDIA's documentation says is not limited, or says nothing of."""
    limit = _limit(subject)
    async with _cgroup(subject) as made, _cgroup(subject) as other:
        yield equal(f"a limit of {limit} MiB", SET, await made.set(limit))
        program = await made.programs.start()
        managed = await program.ask("manage", mib=limit + BEYOND_MIB)
        yield measured(f"a program that takes {limit + BEYOND_MIB} MiB of managed memory", said(managed))
        exporter = await other.programs.start()
        exported = await exporter.ask("export", mib=limit)
        imported = await program.ask("import_", handle=exported.get("handle", ""))
        found = said({**exported, **imported})
        yield measured(f"a program that imports {limit} MiB of a cgroup without a limit", found)
        filled = await program.ask("fill", mib=limit)
        yield measured("memory that the program gets besides, MiB", filled.get("mib", filled.get("error")))
        yield equal("the limit of the cgroup that exports", NONE, (await other.read())[0])


async def above(subject: Subject) -> AsyncIterator[Finding]:
    """Limit the cgroup of a pod alone, and make the cgroup of a container again at the same path."""
    limit = _limit(subject)
    async with _cgroup(subject) as made:
        pod = made.cgroup.parent
        yield equal(f"a limit of {limit} MiB on the cgroup of the pod", SET, await made.set(limit, pod))
        program = await made.programs.start()
        look = await program.must("look")
        yield measured("memory that CUDA tells a program of its container, MiB", look["total_mib"])
        filled = await program.must("fill", mib=limit + BEYOND_MIB)
        yield between("memory that the program gets", limit - OVERHEAD_MIB, filled["mib"], limit, "MiB")
        await program.end()
        yield equal("removing the limit", SET, await made.remove(pod))
        await made.set(limit)
        subject.machine.cgroups.make_again(made.cgroup)
        yield measured("the limit of a cgroup whose directory was made again", (await made.read())[0])


async def escapes(subject: Subject) -> AsyncIterator[Finding]:
    """Let programs change their own environment; no variable is part of the limit."""
    limit = _limit(subject)
    async with _cgroup(subject) as made:
        yield equal(f"a limit of {limit} MiB", SET, await made.set(limit))
        async for finding in _tried(subject, made.programs, limit):
            yield finding


async def hook(subject: Subject) -> AsyncIterator[Finding]:
    """Let NVIDIA's hook set the limit of a cgroup, by the variables that `isolation: driver` gives, and by others."""
    limit = _limit(subject)
    both = {"NVIDIA_GPU_MEMORY_REQUEST": "0", "NVIDIA_GPU_MEMORY_LIMIT": str(limit)}
    only_limit = {"NVIDIA_GPU_MEMORY_LIMIT": str(limit)}
    for what, variables in {"both variables": both, "only the limit": only_limit, "no variable": {}}.items():
        async with _cgroup(subject) as made:
            program = await made.programs.start()
            await program.must("nothing")  # now the program is in its cgroup, and has no memory yet
            with tempfile.TemporaryDirectory() as bundle:
                said = await run_hook(subject.gpu.uuid, program.pid, variables, Path(bundle))
            found = said or (await made.read())[0]
            statement = f"the limit that the hook sets with {what}, MiB"
            if variables is not both:
                yield measured(statement, found)
                continue
            yield equal(statement, str(limit), found)
            filled = await program.must("fill", mib=limit + BEYOND_MIB)
            yield between("memory that a program gets then", limit - OVERHEAD_MIB, filled["mib"], limit, "MiB")


async def under_mps(subject: Subject) -> AsyncIterator[Finding]:
    """Limit the cgroup of a client of MPS to half of the client's own limit."""
    async with subject.by_memory("mps") as node, _cgroup(subject) as driver:
        container = await node.start("client", {MEMORY: subject.share})
        limit = _limit(subject) // 2
        yield equal(f"a limit of {limit} MiB", SET, await driver.set(limit, Path(container.cgroup)))
        async for finding in _tried(subject, container, limit):
            yield finding
        await container.end()
        yield equal("removing the limit", SET, await driver.remove(Path(container.cgroup)))


async def _tried(subject: Subject, programs: RunningContainer, limit: int) -> AsyncIterator[Finding]:
    """Yield for each change of its environment whether a program is held to `limit` MiB."""
    own, absent = subject.gpu.uuid, "GPU-00000000-0000-0000-0000-000000000000"
    tried: Mapping[str, Mapping[str, str | None]] = {
        "changes nothing": {},
        "narrows the GPUs that it sees": {_VISIBLE: own, _LIST: f"0={limit}M,1={limit}M"},
        "lists limits of GPUs that it does not see": {_LIST: f"{own}={4 * limit}M,{absent}={limit}M"},
        "removes the variables of its limit": {"NVIDIA_GPU_MEMORY_LIMIT": None, "NVIDIA_GPU_MEMORY_REQUEST": None},
    }
    for what, changes in tried.items():
        program = await programs.start(changes)
        filled = await program.ask("fill", mib=limit + BEYOND_MIB)
        found = filled.get("error") or f"{filled['mib']} MiB"
        held = "error" not in filled and limit - OVERHEAD_MIB <= filled["mib"] <= limit
        yield check(f"a program that {what}", expected=f"at most {limit} MiB", found=found, holds=held)
        await program.end()
