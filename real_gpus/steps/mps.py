"""A GPU shared under MPS: limits of memory and compute, what a program can do about its limits, and faults."""

import asyncio
import math
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Literal

from gpushare_plugin.mps.control import Control
from real_gpus.containers import Answer, Program, ProgramEndedError, RunningContainer
from real_gpus.findings import Finding, between, check, measured, skipped
from real_gpus.node import Node, node
from real_gpus.steps import MEMORY, MIB_PER_UNIT, SHARED, USER, WHOLE, Subject
from real_gpus.steps.shared import events, rates, refused, said, used

OVERHEAD_MIB = 1024
"""At most so much of its limit a program cannot allocate: its context and its code."""
BEYOND_MIB = 2048
"""MiB beyond its limit that a program tries to take."""
_LEAST_NOMINAL = 8
"""The least nominal size in GB whose eighth is a slice."""
_ROUNDED = 4
"""At most so many multiprocessors fewer than its percentage a program gets: they come in groups."""
FEWEST = 8
"""So many multiprocessors a program got at least, whatever its percentage (H100, driver 580)."""
_SOON = 15.0
"""Seconds within which something is expected, and for which a program computes that is ended meanwhile."""
_KILLS = 3
"""How often each way to end a program is tried."""
_TERMINATE = "terminate_client and SIGKILL"
LIMIT, PIPE, PERCENTAGE = (
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)


async def limits(subject: Subject) -> AsyncIterator[Finding]:
    """Give a quarter and a half of the GPU to two containers under MPS."""
    all_ = await multiprocessors(subject)
    async with subject.by_memory("mps") as made:
        parts = {"smallest": 1, "quarter": subject.gib // 4, "half": subject.gib // 2}
        containers = {name: await made.start(name, {MEMORY: count}) for name, count in parts.items()}
        for name, container in containers.items():
            async for finding in limited(name, container, parts[name] * MIB_PER_UNIT, all_):
                yield finding
        yield await refused(made, subject.gib - sum(parts.values()) + 1)
        programs = [await containers[name].start() for name in ("quarter", "half")]
        async for finding in rates(programs, "of its rate alone that each gets beside the other", 0.8, 1.1):
            yield finding


async def multiprocessors(subject: Subject) -> int:
    """Return the multiprocessors of the GPU; to be asked before MPS has the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        outside = RunningContainer.of_no_pod(subject.gpu.uuid, Path(folder), subject.machine.gpus)
        try:
            found = await (await outside.start()).must("look")
        finally:
            await outside.end()
    return int(found["multiprocessors"])


async def limited(
    name: str, container: RunningContainer, limit: int, all_: int, *, keep: bool = False
) -> AsyncIterator[Finding]:
    """Return how much a program gets of a GPU with `all_` multiprocessors, whose limit of memory is `limit` MiB.

    With `keep`, the program runs on, and keeps its memory.
    """
    program = await container.start()
    look = await program.ask("look")
    if "error" in look:
        yield check(f"{name}: a program", expected="works", found=look["error"], holds=False)
        return
    yield measured(f"{name}: memory that CUDA tells a program, MiB", look["total_mib"])
    percent = int(container.environment.get(PERCENTAGE, "100"))
    most = all_ * percent // 100
    statement = f"{name}: part of the GPU that computes, limit {percent} %"
    if most < FEWEST:
        yield measured(statement, f"{look['worked']} multiprocessors")
    else:
        yield between(statement, most - _ROUNDED, look["worked"], most, "multiprocessors")
    yield measured(f"{name}: multiprocessors that CUDA tells a program", look["multiprocessors"])
    filled = await program.ask("fill", mib=limit + BEYOND_MIB, keep=keep)
    statement = f"{name}: memory that a program gets before {filled.get('refusal') or 'a refusal'}"
    yield between(statement, limit - OVERHEAD_MIB, filled.get("mib", 0), limit, "MiB")
    if not keep:
        await program.end()


async def slices(subject: Subject) -> AsyncIterator[Finding]:
    """Cut the GPU into two slices of an eighth and one of a quarter of its nominal size."""
    nominal = math.ceil(subject.memory_mib / MIB_PER_UNIT)
    if nominal < _LEAST_NOMINAL:
        yield skipped("slices", f"the GPU has a nominal size of {nominal}gb, and an eighth is less than 1gb")
        return
    all_ = await multiprocessors(subject)
    sizes = {nominal // 8: 2, nominal // 4: 1}
    entry = {
        "slices": [{"size": f"{size}gb", "count": count} for size, count in sizes.items()],
        "devices": [subject.gpu.index],
    }
    units = {f"nvidia.com/gpu-{size}gb": count for size, count in sizes.items()}
    async with node(subject.machine, {"mps": {"sizes": [entry]}}, subject.units(units), mps=True) as made:
        for size in sizes:
            name = f"slice-{size}gb"
            container = await made.start(name, {f"nvidia.com/gpu-{size}gb": 1})
            async for finding in limited(name, container, subject.memory_mib * size // nominal, all_):
                yield finding


async def replicas(subject: Subject) -> AsyncIterator[Finding]:
    """Share the GPU in four replicas under MPS, whose limits are the defaults of the control daemon."""
    all_ = await multiprocessors(subject)
    sharing = {"mps": {"resources": [{"name": WHOLE, "devices": [subject.gpu.index], "replicas": 4, "rename": SHARED}]}}
    async with node(subject.machine, sharing, subject.units({SHARED: 4}), mps=True) as made:
        container = await made.start("replica", {SHARED: 1})
        limit = subject.memory_mib // 4
        async for finding in limited("replica", container, limit, all_):
            yield finding
        async for finding in _escapes(container, limit, lifted(subject, limit)):
            yield finding


async def escapes(subject: Subject) -> AsyncIterator[Finding]:
    """Let programs change their own environment under MPS, where each container has a limit of its own."""
    async with subject.by_memory("mps") as made:
        container = await made.start("eighth", {MEMORY: subject.share})
        limit = subject.share * MIB_PER_UNIT
        first = await container.start()
        kept = await first.ask("fill", mib=limit + BEYOND_MIB, keep=True)
        yield measured("MiB that a first process of the container keeps", kept.get("mib"))
        async for finding in _escapes(container, limit, {"is a second process": {}, **lifted(subject, limit)}):
            yield finding
        await first.end()
        program = await container.start()
        managed = await program.ask("manage", mib=limit + BEYOND_MIB)
        yield measured(
            f"a program that takes {limit + BEYOND_MIB} MiB of managed memory, limit {limit} MiB", said(managed)
        )


async def usage(subject: Subject) -> AsyncIterator[Finding]:
    """Compare what the daemon says that a client of MPS uses with what the client took."""
    async with subject.by_memory("mps") as made:
        first, second = [
            await (await made.start(name, {MEMORY: subject.share})).start() for name in ("first", "second")
        ]
        yield await used(made, "first", first, subject.share * MIB_PER_UNIT // 4)
        yield await used(made, "second", second, subject.share * MIB_PER_UNIT // 2)


async def users(subject: Subject, protocol: Literal[2, 3] = 2) -> AsyncIterator[Finding]:
    """Let programs of two users use MPS at once, as pods with different `runAsUser` do."""
    async with subject.by_memory("mps", protocol) as made:
        first = await (await made.start("root", {MEMORY: subject.share})).start()
        yield measured("a program of root", said(await first.ask("look")))
        container = await made.start("user", {MEMORY: subject.share})
        second = await container.start(user=USER)
        most = subject.share * MIB_PER_UNIT
        await second.order("fill", mib=most + BEYOND_MIB)
        try:
            async with asyncio.timeout(_SOON):
                answer = await second.answer("fill")
        except TimeoutError:
            yield measured(f"a program of user {USER} beside the program of root", f"waits, for {_SOON:g} s now")
            await first.end()
            answer = await second.answer("fill")
        statement = f"memory that the program of user {USER} gets before {answer.get('refusal') or 'a refusal'}"
        yield between(statement, most - OVERHEAD_MIB, answer.get("mib", 0), most, "MiB")


def lifted(subject: Subject, limit: int) -> Mapping[str, Mapping[str, str | None]]:
    """Return what a program can try to get more than `limit` MiB, by its name in words."""
    own, absent = subject.gpu.uuid, "GPU-00000000-0000-0000-0000-000000000000"
    return {
        "removes its limit of memory": {LIMIT: None},
        "doubles its limit of memory": {LIMIT: f"0={2 * limit}M"},
        "names a GPU that it does not see": {LIMIT: f"0={limit}M,1={limit}M"},
        "names a GPU that it does not see, by UUID": {LIMIT: f"{own}={limit}M,{absent}={limit}M"},
        "removes its limit of compute": {PERCENTAGE: None},
        "raises its limit of compute": {PERCENTAGE: "100"},
        "leaves MPS": {PIPE: None},
    }


async def _escapes(
    container: RunningContainer, limit: int, tried: Mapping[str, Mapping[str, str | None]]
) -> AsyncIterator[Finding]:
    for what, changes in tried.items():
        program = await container.start(changes)
        look = await program.ask("look")
        if "error" in look:
            yield measured(f"a program that {what}", f"fails: {look['error']}")
            continue
        filled = await program.ask("fill", mib=limit + BEYOND_MIB)
        escaped = "gets more than its limit" if filled.get("mib", 0) > limit else "is limited"
        found = f"{escaped}: {filled.get('mib')} MiB, limit {limit} MiB; {look['worked']} multiprocessors"
        yield measured(f"a program that {what}", found)
        await program.end()


async def fault(subject: Subject) -> AsyncIterator[Finding]:
    """Let one client of MPS write where no memory is, and look at its neighbour."""
    async with subject.by_memory("mps") as made:
        faulty, neighbour = [await made.start(name, {MEMORY: subject.share}) for name in ("faulty", "neighbour")]
        first, second = await faulty.start(), await neighbour.start()
        await second.ask("look")
        yield measured("the client that writes where no memory is", said(await asked(first, "fault")))
        yield measured("its neighbour", said(await asked(second, "work", seconds=1)))
        yield measured("a new client beside the neighbour", said(await asked(await faulty.start(), "look")))
        async for finding in events(made):
            yield finding
        yield await _after_all_ended(made, faulty)


async def kill(subject: Subject) -> AsyncIterator[Finding]:
    """Kill a client while it computes, and look at its neighbour; several times, also once MPS has ended its work."""
    async with subject.by_memory("mps") as made:
        killed, neighbour = [await made.start(name, {MEMORY: subject.share}) for name in ("killed", "neighbour")]
        for how, end in {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, _TERMINATE: signal.SIGKILL}.items():
            for number in range(1, _KILLS + 1):
                first, second = await killed.start(), await neighbour.start()
                await first.ask("look")
                await second.ask("look")
                await first.order("work", seconds=_SOON)
                await asyncio.sleep(1)
                told = await _terminate(made, first.pid) if how == _TERMINATE else ""
                await first.kill(end)
                found = said(await asked(second, "work", seconds=1))
                yield measured(f"a client computed and ended by {how}, time {number}: its neighbour", found + told)
                yield await _after_all_ended(made, killed)


async def _terminate(made: Node, client: int) -> str:
    """Let the MPS control daemon end the work of a client; return what the daemon answered, in words."""
    control = Control(made.mps.pipe, made.mps.log)
    servers = (await control.ask("get_server_list")).split()
    answers = [await control.ask(f"terminate_client {server} {client}") for server in servers]
    return "".join(f"; the MPS control daemon answered {answer!r}" for answer in answers if answer)


async def restart(subject: Subject) -> AsyncIterator[Finding]:
    """End `gpushare mps` while a program computes, and start `gpushare mps` again."""
    units = subject.units({MEMORY: subject.gib})
    async with subject.by_memory("mps") as made:
        container = await made.start("client", {MEMORY: subject.share})
        program = await container.start()
        await program.ask("look")
        await program.order("work", seconds=_SOON)
        await asyncio.sleep(1)
        await made.end_agent()
        await made.kubelet.wait_for(lambda seen: seen.allocatable()[MEMORY] == 0, within=_SOON)
        yield measured("a program that computes when gpushare mps ends", said(await asked_before(program, "work")))
        await program.end()
        await made.start_agent()
        await made.kubelet.wait_for(lambda seen: seen.allocatable() == units, within=_SOON)
        answer = await asked(await container.start(), "look")
        statement = "a new program after the next start of gpushare mps"
        yield check(statement, expected="works", found=said(answer), holds="error" not in answer)


async def _after_all_ended(made: Node, container: RunningContainer) -> Finding:
    """End all clients; return whether a new one works, and the GPU was served all the time."""
    for each in made.containers.values():
        await each.end()
    answer = await asked(program := await container.start(), "look")
    await program.end()
    unserved = [event["reason"] for event in made.events("gpu_not_served_by_mps")]
    found = "; ".join([said(answer), *unserved])
    return check("a new client after all others have ended", expected="works", found=found, holds=found == "works")


async def asked(program: Program, do: str, **details: float) -> Answer:
    """Return the answer of a program, with `error` also where the program has ended or does not answer."""
    await program.order(do, **details)
    return await asked_before(program, do)


async def asked_before(program: Program, do: str) -> Answer:
    """Return the answer to an order given before, as `asked` does."""
    try:
        return await program.answer(do)
    except ProgramEndedError as error:
        return {"error": str(error)}
