"""What the daemon says of the limits of programs under MPS, compared with what the programs get."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from gpushare_plugin.observe.node.report import LimitEffect, Use
from real_gpus.containers import Answer, RunningContainer
from real_gpus.findings import Finding, check, measured
from real_gpus.node import Node, node
from real_gpus.steps import MEMORY, MIB_PER_UNIT, SHARED, WHOLE, Subject, no_mps_usage
from real_gpus.steps.mps import BEYOND_MIB, FEWEST, PERCENTAGE, lifted, multiprocessors
from real_gpus.steps.shared import said

PROGRAMS = 8
"""So many programs run at once, each in a container of its own: one changes nothing, and each other one something."""
Start = Callable[[str], Awaitable[RunningContainer]]
"""Starts a container of this name, with its share of the GPU."""
_SAID_WITHIN = 30.0
"""Seconds for the daemon to know the clients of MPS, for which `gpushare mps` asks every fifteen seconds."""
_AS_IT_IS = "leaves its environment alone"
_NOTHING, _IN_EFFECT, _NOT_PROVEN = "nothing", "in effect", ("not in effect", "unknown")


def no_effects(subject: Subject) -> str | None:
    """Return why the daemon cannot know here which limits of MPS are in effect, or has too little memory to share."""
    if subject.gib < PROGRAMS:
        return f"the GPU has {subject.gib} GiB, and {PROGRAMS} programs at once need {PROGRAMS}"
    return no_mps_usage(subject)


async def limits(subject: Subject) -> AsyncIterator[Finding]:
    """Give an eighth of the GPU to each container, with the limit in its environment."""
    all_ = await multiprocessors(subject)
    share = subject.gib // PROGRAMS
    async with subject.by_memory("mps") as made:
        async for finding in compared(
            subject, made, lambda name: made.start(name, {MEMORY: share}), Most(share * MIB_PER_UNIT, all_)
        ):
            yield finding


async def replicas(subject: Subject) -> AsyncIterator[Finding]:
    """Share the GPU in eight replicas, whose limits are the defaults of the MPS control daemon."""
    all_ = await multiprocessors(subject)
    shared = {"name": WHOLE, "devices": [subject.gpu.index], "replicas": PROGRAMS, "rename": SHARED}
    units = subject.units({SHARED: PROGRAMS})
    async with node(subject.machine, {"mps": {"resources": [shared]}}, units, mps=True) as made:
        async for finding in compared(
            subject, made, lambda name: made.start(name, {SHARED: 1}), Most(subject.memory_mib // PROGRAMS, all_)
        ):
            yield finding


class Most(NamedTuple):
    """The most that a program may get."""

    mib: int
    """The limit of memory in MiB."""
    all_multiprocessors: int
    """The multiprocessors of the GPU, of which a container has a percentage."""

    def exceeded(self, container: RunningContainer, look: Answer, filled: Answer) -> str:
        """Return in words by how much a program got more than its container was given; empty for not more."""
        percent = int(container.environment.get(PERCENTAGE, "100"))
        most = max(FEWEST, self.all_multiprocessors * percent // 100)
        memory, worked = filled.get("mib", 0), look.get("worked", 0)
        more = [f"{memory} MiB"] if memory > self.mib else []
        more += [f"{worked} multiprocessors"] if worked > most else []
        limit = f"its limit of {self.mib} MiB and {most} multiprocessors"
        return f"gets more than {limit}: {' and '.join(more)}" if more else ""


async def compared(subject: Subject, made: Node, start: Start, most: Most) -> AsyncIterator[Finding]:
    """Start all programs, wait for what the daemon says of each, and only then let each take what it gets."""
    tried = {_AS_IT_IS: {}, **lifted(subject, most.mib)}
    containers = [await start(f"program-{number}") for number in range(len(tried))]
    programs = [await each.start(changes) for each, changes in zip(containers, tried.values(), strict=True)]
    looks = [await program.ask("look") for program in programs]
    uses = await asyncio.gather(*(made.use(name, _is_known, _SAID_WITHIN) for name in made.containers))
    for what, container, program, look, use in zip(tried, containers, programs, looks, uses, strict=True):
        if "error" in look:
            yield measured(f"a program that {what}", said(look))
            continue
        filled = await program.ask("fill", mib=most.mib + BEYOND_MIB)
        more = most.exceeded(container, look, filled)
        yield judged(what, more, None if use is None else use.limit_effect)


def _is_known(use: Use) -> bool:
    return use.limit_effect is not None and use.limit_effect.state != "unknown"


def judged(what: str, more: str, effect: LimitEffect | None) -> Finding:
    """Return the finding of what the daemon says of the limit of a program that does `what`.

    `more` says how the program gets more than its limit, empty if it does not.
    """
    state = effect.state if effect else _NOTHING
    found = f"{effect.words}: {effect.reason}" if effect and effect.reason else effect.words if effect else _NOTHING
    statement = f"the daemon says of the limit of a program that {what} and {more or 'gets no more than its limit'}"
    if more:
        return check(statement, expected=" or ".join(_NOT_PROVEN), found=found, holds=state in _NOT_PROVEN)
    if what == _AS_IT_IS:
        return check(statement, expected=_IN_EFFECT, found=found, holds=state == _IN_EFFECT)
    return measured(statement, found)
