"""A GPU shared without isolation: who gets what, who uses what, turns, and what a fault of one does to another."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from gpushare_plugin.testing.kubelet import AdmissionError
from real_gpus.containers import Program
from real_gpus.findings import Finding, between, check, equal, measured
from real_gpus.node import Node, node, until
from real_gpus.steps import MEMORY, MIB_PER_UNIT, SHARED, WHOLE, Subject

_HELD_MIB = 2048
"""MiB that a program takes beyond its limit."""
_CONTEXT_MIB = 1024
"""At most so much a program takes for itself: its context and its code."""
_TOLD_WITHIN = 5.0
"""Seconds for an event of the driver to reach the log of the daemon."""
_SECONDS = 3.0
"""Seconds for which the rate of a program is measured."""


async def memory(subject: Subject) -> AsyncIterator[Finding]:
    """Give a quarter and a half of the GPU to two containers, and ask for more than is left."""
    async with subject.by_memory("none") as made:
        quarter, half = subject.gib // 4, subject.gib // 2
        container = await made.start("quarter", {MEMORY: quarter})
        await made.start("half", {MEMORY: half})
        limit = quarter * MIB_PER_UNIT
        yield equal("limit in the environment, MiB", str(limit), container.environment.get("GPUSHARE_MEMORY_LIMIT_MIB"))
        granted = container.environment.get("NVIDIA_VISIBLE_DEVICES")
        yield _its_own(subject, "NVIDIA_VISIBLE_DEVICES", [granted])
        program = await container.start()
        look = await program.must("look")
        yield _its_own(subject, "GPUs that a program sees", look.get("gpus"))
        yield measured("memory that CUDA tells a program, MiB", look.get("total_mib"))
        wanted = limit + _HELD_MIB
        filled = await program.ask("fill", mib=wanted)
        yield equal(f"MiB that a program gets of {wanted}, limit {limit}: nothing limits it", wanted, filled.get("mib"))
        yield await refused(made, subject.gib - quarter - half + 1)


def _its_own(subject: Subject, statement: str, gpus: object) -> Finding:
    """Return the finding of GPUs that are expected to be the shared GPU alone; without its UUID, where they are."""
    alone = gpus == [subject.gpu.uuid]
    return check(statement, expected="its own", found="its own" if alone else gpus, holds=alone)


async def refused(made: Node, units: int) -> Finding:
    """Return the finding of one more pod that asks for `units`, one more than there are."""
    statement = "a container that asks for more than is left"
    try:
        await made.start("too-much", {MEMORY: units})
    except AdmissionError as error:
        return check(statement, expected="refused", found=str(error), holds=True)
    return check(statement, expected="refused", found="admitted", holds=False)


async def usage(subject: Subject) -> AsyncIterator[Finding]:
    """Compare what the daemon says of the use of the GPU with what programs do."""
    async with subject.by_memory("none") as made:
        first = await (await made.start("first", {MEMORY: subject.share})).start()
        second = await (await made.start("second", {MEMORY: 2 * subject.share})).start()
        held = subject.share * MIB_PER_UNIT // 2
        yield await used(made, "first", first, held)
        yield await used(made, "second", second, 2 * held)
        await first.ask("hold", mib=2 * held)
        use = await made.use("first", lambda use: use.over_limit)
        over = use is not None and use.over_limit
        statement = "the daemon says that the container exceeds its limit"
        yield check(statement, expected="yes", found="yes" if over else "no", holds=over)
        effect = "no use" if use is None else use.limit_effect.words if use.limit_effect else "nothing"
        yield equal("what the daemon says of a limit that nothing enforces", "nothing", effect)
        outside = await made.start_outside(subject.gpu.uuid)
        await outside.ask("hold", mib=held)
        found = await made.foreign(outside.pid)
        told = "" if found is None else f"{found.whose}, {found.memory_used_mib} MiB"
        yield check(
            "a program that is in no pod", expected="a foreign process", found=told or "unknown", holds=bool(told)
        )


async def used(made: Node, name: str, program: Program, mib: int) -> Finding:
    """Let `program`, the only one in the container `name`, take `mib` MiB; compare with what the daemon says."""
    answer = await program.ask("hold", mib=mib)
    use = await made.use(name, lambda use: (use.memory_used_mib or 0) >= mib)
    found = (use and use.memory_used_mib) or 0
    statement = f"memory that the daemon says a container uses that took {mib} MiB"
    if "error" in answer:
        return check(statement, expected=f"{mib} MiB", found=answer["error"], holds=False)
    return between(statement, mib, found, mib + _CONTEXT_MIB, "MiB")


async def turns(subject: Subject) -> AsyncIterator[Finding]:
    """Let two containers compute alone and at once."""
    shared = {"name": WHOLE, "devices": [subject.gpu.index], "replicas": 2, "rename": SHARED}
    sharing = {"timeSlicing": {"resources": [shared]}}
    async with node(subject.machine, sharing, subject.units({SHARED: 2})) as made:
        programs = [await (await made.start(name, {SHARED: 1})).start() for name in ("one", "two")]
        async for finding in rates(programs, "of its rate alone that each of two programs gets at once", 0.4, 0.6):
            yield finding
        for program in programs:
            await program.order("work", seconds=3 * _SECONDS)
        use = await made.use("one", lambda use: bool(use.utilization))
        for program in programs:
            await program.answer("work")
        found = "unknown" if use is None or use.utilization is None else f"{use.utilization:.2f}"
        yield measured("utilization that the daemon says one of two containers has, both compute", found)


async def rates(programs: list[Program], statement: str, least: float, most: float) -> AsyncIterator[Finding]:
    """Compare the rate of each program alone and beside the others."""
    for program in programs:
        await program.must("look")
    alone = [(await program.must("work", seconds=_SECONDS))["rate"] for program in programs]
    together = await asyncio.gather(*(program.must("work", seconds=_SECONDS) for program in programs))
    for one, both in zip(alone, together, strict=True):
        yield between(f"part {statement}", least, round(both["rate"] / one, 2), most, f"(alone {one:.1f} a second)")


async def fault(subject: Subject) -> AsyncIterator[Finding]:
    """Let one program write where no memory is, and look at its neighbour and at the events."""
    async with subject.by_memory("none") as made:
        faulty = await (await made.start("faulty", {MEMORY: 1})).start()
        neighbour = await (await made.start("neighbour", {MEMORY: 1})).start()
        await neighbour.ask("look")
        yield measured("what the program that writes where no memory is gets", (await faulty.ask("fault")).get("error"))
        yield measured("its neighbour afterwards", said(await neighbour.ask("work", seconds=1)))
        yield measured("a new program afterwards", said(await (await made.containers["neighbour"].start()).ask("look")))
        async for finding in events(made):
            yield finding


def said(answer: object) -> str:
    """Return an answer of a program in words."""
    error = answer.get("error") if isinstance(answer, dict) else answer
    return f"fails: {error}" if error else "works"


async def events(made: Node) -> AsyncIterator[Finding]:
    """Wait for an event of the driver, and return what the daemon made of it."""

    async def look() -> tuple[bool, list[Mapping[str, Any]]]:
        told = list(made.events("gpu_event"))
        return bool(told), told

    found = await until(look, _TOLD_WITHIN)
    xids = ", ".join(str(event.get("xid")) for event in found)
    yield check("XIDs that the daemon was told of", expected="at least one", found=xids or "none", holds=bool(xids))
    verdicts = ", ".join(sorted({str(event.get("verdict")) for event in found}))
    yield equal("what the daemon makes of an application's fault", "ignore", verdicts)
    yield equal("GPUs unhealthy because of it", 0, len(list(made.events("gpu_unhealthy"))))
