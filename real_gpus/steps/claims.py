"""A GPU given by claim: what containers get by the CDI specifications that the daemon writes, and what comes back."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager

from gpushare_plugin.testing.claims import AllocationError
from real_gpus.claims import ClaimNode, claim_node
from real_gpus.findings import Finding, between, check, equal, measured
from real_gpus.node import Config
from real_gpus.steps import MEMORY, MIB_PER_UNIT, Subject
from real_gpus.steps.effects import PROGRAMS, Most, compared
from real_gpus.steps.mps import LIMIT, OVERHEAD_MIB, PERCENTAGE, PIPE, limited, multiprocessors

_SOON = 15.0
"""Seconds for the daemon to follow a change of its config."""
_MOMENT = 3.0
"""Seconds in which what must not happen would happen."""
_PARTS = {"an eighth": 8, "a quarter": 4}
"""The parts of the GPU that two claims ask for, rounded up to GiB."""


def _by_claim(subject: Subject, sharing: Config, *, mps: bool = False) -> AbstractAsyncContextManager[ClaimNode]:
    """Run a node that gives the GPU by claim, and offers the others whole."""
    return claim_node(subject.machine, sharing, _given(subject), subject.units({}), mps=mps)


def _given(subject: Subject) -> Config:
    return {"devices": [subject.gpu.index]}


def _memory(gib: int) -> Mapping[str, str]:
    return {"memory": f"{gib}Gi"}


async def mps(subject: Subject) -> AsyncIterator[Finding]:
    """Give an eighth and a quarter of the GPU by claim to pods whose own `env` asks for all of it, at once."""
    all_ = await multiprocessors(subject)
    own = {LIMIT: f"0={subject.memory_mib}M", PERCENTAGE: "100", PIPE: "/nowhere"}
    sizes = {name: -(-subject.gib // part) for name, part in _PARTS.items()}
    more = subject.gib - sum(sizes.values()) + 1
    async with _by_claim(subject, subject.sharing_by_memory("mps"), mps=True) as made:
        for name, gib in sizes.items():
            container = await made.start_by_claim(name.replace(" ", "-"), _memory(gib), own)
            yield overridden(name, own, container.environment)
            async for finding in limited(name, container, gib * MIB_PER_UNIT, all_, keep=True):
                yield finding
        made.ask("more", _memory(more), {})
        yield _allocated(made, "more", "a claim for more than is left", expected=False)
        for name in sizes:
            await made.end_by_claim(name.replace(" ", "-"))
        yield _nothing_left(made)
        yield _allocated(made, "more", "the claim for more than was left, after the pods have ended", expected=True)


def overridden(name: str, own: Mapping[str, str], environment: Mapping[str, str]) -> Finding:
    """Return the finding that a container has another value than its pod set for each variable in `own`."""
    kept = [each for each, value in own.items() if environment.get(each, value) == value]
    statement = f"{name}: variables that limit the container, and have the value that the env of the pod sets"
    return equal(statement, "none", ", ".join(kept) or "none")


def _nothing_left(made: ClaimNode) -> Finding:
    found = ", ".join(made.left) or "none"
    return equal("records and CDI specifications of claims after the end of all pods", "none", found)


def _allocated(made: ClaimNode, name: str, statement: str, *, expected: bool) -> Finding:
    words = {True: "allocated", False: "not allocated"}
    try:
        made.schedule(name)
    except AllocationError as error:
        return check(statement, expected=words[expected], found=f"{words[False]}: {error}", holds=not expected)
    return check(statement, expected=words[expected], found=words[True], holds=expected)


async def effects(subject: Subject) -> AsyncIterator[Finding]:
    """Give an eighth of the GPU by claim to each container, and compare what the daemon says of the limits."""
    all_ = await multiprocessors(subject)
    share = subject.gib // PROGRAMS
    async with _by_claim(subject, subject.sharing_by_memory("mps"), mps=True) as made:
        most = Most(share * MIB_PER_UNIT, all_)
        async for finding in compared(subject, made, lambda name: made.start_by_claim(name, _memory(share)), most):
            yield finding


async def whole(subject: Subject) -> AsyncIterator[Finding]:
    """Give the GPU to one claim that asks for no size, without limits."""
    all_ = await multiprocessors(subject)
    async with _by_claim(subject, {}) as made:
        container = await made.start_by_claim("whole")
        yield _its_card(subject, "NVIDIA_VISIBLE_DEVICES", [container.environment.get("NVIDIA_VISIBLE_DEVICES")])
        program = await container.start()
        look = await program.must("look")
        yield _its_card(subject, "GPUs that a program sees", look["gpus"])
        yield equal("multiprocessors that a program uses", all_, look["worked"])
        told = await program.must("ask_nvml")
        yield measured("memory that CUDA and NVML tell a program, MiB", f"{look['total_mib']}, {told['total_mib']}")
        filled = await program.ask("fill", mib=subject.memory_mib)
        least = subject.memory_mib - OVERHEAD_MIB
        yield between("memory that a program gets", least, filled.get("mib", 0), subject.memory_mib, "MiB")
        made.ask("second", {}, {})
        yield _allocated(made, "second", "a second claim", expected=False)
        await made.end_by_claim("whole")
        yield _nothing_left(made)
        yield _allocated(made, "second", "the second claim, after the pod has ended", expected=True)


def _its_card(subject: Subject, statement: str, gpus: object) -> Finding:
    """Return the finding of GPUs that are expected to be the claimed GPU alone; without its UUID, where they are."""
    alone = gpus == [subject.gpu.uuid]
    return check(statement, expected="its own", found="its own" if alone else gpus, holds=alone)


async def hand_over(subject: Subject) -> AsyncIterator[Finding]:
    """Let the config give the GPU by claim while a pod holds units, and by units again while a pod holds a claim.

    That units come back 30 s after the last claim is not waited for.
    """
    sharing, units = subject.sharing_by_memory("none"), subject.units({MEMORY: subject.gib})
    async with claim_node(subject.machine, sharing, None, units) as made:
        await made.start("units", {MEMORY: subject.share})
        made.configure(sharing, dra=_given(subject))
        await made.kubelet.wait_for(lambda seen: seen.allocatable() != units, within=_SOON)
        yield equal(
            "a claim can get the GPU while a pod holds units", expected=False, found=await made.offers(1, _MOMENT)
        )
        made.kubelet.delete(made.pods["units"])
        began = time.monotonic()
        yield equal("a claim can get the GPU when the pod has ended", expected=True, found=await made.offers(1))
        yield measured("seconds until then", f"{time.monotonic() - began:.1f}")
        await made.start_by_claim("claim", _memory(subject.share))
        made.configure(sharing)
        yield equal(
            "no further claim can get the GPU when the config says so", expected=True, found=await made.offers(0)
        )
        yield equal("units while a pod holds a claim", 0, made.kubelet.allocatable().get(MEMORY, 0))
        await made.end_by_claim("claim")
