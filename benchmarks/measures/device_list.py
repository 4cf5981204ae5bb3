"""The whole device list: what building and sending it costs the daemon, and how long it is."""

from benchmarks.daemon import Answers, Node, Serving, bare_server, memory, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.measures.allocate import RECOVERABLE_XID
from benchmarks.plugin import Lists, milliseconds, undisturbed

_CARDS = 16
"""As many as the stand-in has room for: each can fail once, and each failure makes one list."""


async def measure(effort: Effort) -> list[Figure]:
    """Measure a long list and the longest, and the length of one of memory units."""
    return [*await _cost(8000, effort), *await _cost(60_000, effort), await _memory_units()]


async def _cost(units: int, effort: Effort) -> list[Figure]:
    # Nobody looks at the cards meanwhile, so they stay unhealthy and nothing else is counted.
    with node(replicas(units, _CARDS, probeSeconds=3600, rescanSeconds=3600), _CARDS) as gpus:
        async with serving(gpus) as daemon:
            opened = await _first_lists(daemon, effort.times(10))
            alone, doubled = await _changes(gpus, daemon, effort)
            answers = Answers(devices=daemon.first_list)
        async with bare_server(gpus, answers, "--events") as floor:
            least_opened = await _first_lists(floor, effort.times(10))
            least_alone, least_doubled = await _changes(gpus, floor, effort)
    name = f"list of {units:,} units"
    more, least_more = _median(doubled) - _median(alone), _median(least_doubled) - _median(least_alone)
    return [
        Figure(
            f"{name}, first on a new stream",
            "ms",
            Summary.of(opened),
            Summary.of(least_opened),
            note=f"{len(daemon.first_list):,} bytes",
        ),
        Figure(
            f"{name}, built and sent again: CPU",
            "ms",
            Summary.of(alone),
            Summary.of(least_alone),
            (Goal("median", 2.0, of_floor=True),),
            note="the floor serialises once and sends",
        ),
        single(
            f"{name}, a second stream: CPU more",
            "ms",
            more,
            Goal("median", 1.25, of_floor=True),
            floor=least_more,
            note="the floor sends the same bytes; differences of medians",
        ),
    ]


async def _first_lists(served: Serving, times: int) -> list[float]:
    taken = []
    with undisturbed():
        for _ in range(times):
            stream: list[Lists] = []

            async def opened(stream: list[Lists] = stream) -> None:
                stream.append(served.plugin.lists())
                await stream[0].next()

            taken.append(await milliseconds(opened))
            await stream[0].close()
    return taken


async def _changes(gpus: Node, served: Serving, effort: Effort) -> tuple[list[float], list[float]]:
    """Return the CPU milliseconds of each of some lists sent to one stream, and of each sent to two."""
    each = effort.times(_CARDS // 2)
    alone = [await _change(gpus, served, gpu, [served.lists]) for gpu in range(each)]
    second = served.plugin.lists()
    await second.next()
    doubled = [await _change(gpus, served, each + gpu, [served.lists, second]) for gpu in range(each)]
    await second.close()
    return alone, doubled


async def _change(gpus: Node, served: Serving, gpu: int, streams: list[Lists]) -> float:
    before = served.process.cpu_seconds()
    gpus.nvml.raise_event(gpu, data=RECOVERABLE_XID)
    for stream in streams:
        await stream.next()
    return (served.process.cpu_seconds() - before) * 1000


def _median(samples: list[float]) -> float:
    return Summary.of(samples).median


async def _memory_units() -> Figure:
    """Measure a node that says where its cards are: the stand-in's NUMA nodes come from a file."""
    with node(memory("64MiB")) as gpus:
        file = gpus.folder / "gpus.yaml"
        file.write_text("gpus:\n- {memory: 80GiB, count: 4, numaNode: 0}\n- {memory: 80GiB, count: 4, numaNode: 1}\n")
        async with serving(gpus, "--simulate", str(file)) as daemon:
            return single(
                "list of 10,240 memory units with NUMA node: length",
                "bytes",
                len(daemon.first_list),
                Goal("worst", 400_000),
            )
