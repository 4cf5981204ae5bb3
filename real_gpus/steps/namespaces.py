"""A GPU shared under MPS by protocol 3: the server holds the limits of each container in a namespace of its own.

What is expected is said by NVIDIA's documentation "Multi-Process Service", r615, "MPS v3 Namespaces"; that a list with
a GPU that a process does not see drops the limits of memory, by the documentation of NVIDIA Dynamo, "Per-GPU Compute
and Memory Limits with MPS".
"""

from collections.abc import AsyncIterator, Mapping

from real_gpus.containers import RunningContainer
from real_gpus.findings import Finding, check, equal, measured
from real_gpus.steps import MEMORY, MIB_PER_UNIT, Subject, mps
from real_gpus.steps.mps import BEYOND_MIB, OVERHEAD_MIB
from real_gpus.steps.shared import refused

_LIST, _VISIBLE, _PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"
_Changes = Mapping[str, Mapping[str, str | None]]


async def limits(subject: Subject) -> AsyncIterator[Finding]:
    """Give a quarter and a half of the GPU to two containers, whose environment has no limit of memory."""
    all_ = await mps.multiprocessors(subject)
    async with subject.by_memory("mps", 3) as made:
        parts = {"quarter": subject.gib // 4, "half": subject.gib // 2}
        for name, units in parts.items():
            container = await made.start(name, {MEMORY: units})
            yield equal(f"{name}: limit of memory in the environment", None, container.environment.get(_LIST))
            async for finding in mps.limited(name, container, units * MIB_PER_UNIT, all_):
                yield finding
        yield await refused(made, subject.gib - sum(parts.values()) + 1)


async def escapes(subject: Subject) -> AsyncIterator[Finding]:
    """Let programs change their own environment, of which only a list of their own is known to drop their limit."""
    own, absent = subject.gpu.uuid, "GPU-00000000-0000-0000-0000-000000000000"
    limit = subject.share * MIB_PER_UNIT
    held: _Changes = {
        "changes nothing": {},
        "narrows the GPUs that it sees": {_VISIBLE: own},
        "lists a higher limit": {_LIST: f"0={2 * limit}M"},
    }
    tried: _Changes = {
        "lists a limit of a GPU that it does not see": {_LIST: f"{own}={limit}M,{absent}={limit}M"},
        "leaves MPS": {_PIPE: None},
    }
    async with subject.by_memory("mps", 3) as made:
        container = await made.start("eighth", {MEMORY: subject.share})
        for what, changes in held.items():
            got = await _got(container, changes, limit)
            holds = isinstance(got, int) and limit - OVERHEAD_MIB <= got <= limit
            yield check(f"a program that {what}", expected=f"at most {limit} MiB", found=f"{got} MiB", holds=holds)
        for what, changes in tried.items():
            yield measured(f"MiB that a program gets that {what}, limit {limit}", await _got(container, changes, limit))
        first = await container.start()
        kept = await first.ask("fill", mib=limit + BEYOND_MIB, keep=True)
        yield measured("MiB that a first process of the container keeps", kept.get("mib"))
        yield measured("MiB that a second process gets besides", await _got(container, {}, limit))


async def _got(container: RunningContainer, changes: Mapping[str, str | None], limit: int) -> int | str:
    """Return how many MiB a program gets that asks for more than `limit`, or its error."""
    program = await container.start(changes)
    filled = await program.ask("fill", mib=limit + BEYOND_MIB)
    await program.end()
    found: int | str = filled.get("mib", filled.get("error"))
    return found


async def users(subject: Subject) -> AsyncIterator[Finding]:
    """Let programs of two users use MPS at once."""
    async for finding in mps.users(subject, 3):
        yield finding
