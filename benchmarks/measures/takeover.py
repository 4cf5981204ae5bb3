"""Who stands by takes over: from when the Lease is free until the next extender or partitioner does its work."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import aiohttp

from benchmarks.cluster.extender import Cluster, cluster
from benchmarks.cluster.wire import decoded
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, single
from benchmarks.processes import MeasuredProcess, python
from gpushare_plugin.kube.lease import leases
from gpushare_plugin.kube.names import EXTENDER_LEASE, PARTITIONER_LEASE
from gpushare_plugin.testing.ports import claim_port

_NODES = 5000
_LOOK_EVERY = 0.01


class _Program(NamedTuple):
    """A program; the page that shows that one that stands by has listed everything, and what is in it then."""

    command: str
    lease: str
    page: str
    listed: str
    ready: str
    """What it logs when it does its work."""


_PROGRAMS = (
    _Program("extender", EXTENDER_LEASE, "/metrics", "gpushare_extender_cache_age_seconds ", "extender_ready"),
    _Program("partition", PARTITIONER_LEASE, "/readyz", "ok", "partitioner_ready"),
)


async def measure(effort: Effort) -> list[Figure]:
    """Kill the leader of three, then end the next one: beside a large cluster where pods come and go."""
    async with cluster(effort.times(_NODES)) as of:
        with of.busy():
            found = await asyncio.gather(*(_taken_over(of, program) for program in _PROGRAMS))
    return [figure for figures in found for figure in figures]


async def _taken_over(of: Cluster, program: _Program) -> list[Figure]:
    async with (
        _following(of, program, "first") as first,
        _following(of, program, "second") as second,
        _following(of, program, "third") as third,
    ):
        await first.outlives(_ready(first, program))
        first.process.kill()
        await first.process.wait()
        run_out = await _runs_out(of, program)
        # Either of the two may be the faster one.
        next_, last = await _who_leads(second, third, program)
        killed = (datetime.now(UTC) - run_out).total_seconds()
        began = datetime.now(UTC)
        next_.process.send_signal(signal.SIGTERM)
        await last.outlives(_ready(last, program))
        ended = (datetime.now(UTC) - began).total_seconds()
    name, nodes = program.command, f"{len(of.names):,} nodes"
    goal = Goal("worst", 2)
    return [
        single(f"{name}: killed, Lease over -> the next one works, {nodes}", "s", killed, goal),
        single(f"{name}: SIGTERM -> the next one works, {nodes}", "s", ended, goal),
    ]


@contextlib.asynccontextmanager
async def _following(of: Cluster, program: _Program, name: str) -> AsyncIterator[MeasuredProcess]:
    """Run a program from when it has listed everything."""
    probes = claim_port()
    options = ["--kubeconfig", str(of.kubeconfig), "--probe-address", f"127.0.0.1:{probes}"]
    if program.command == "extender":
        options += ["--listen-address", f"127.0.0.1:{claim_port()}"]
    output = of.folder / f"{program.command}-{name}.log"
    async with python("-m", "gpushare_plugin", program.command, *options, output=output) as process:
        await process.outlives(_listed(f"http://127.0.0.1:{probes}{program.page}", program.listed))
        yield process


async def _listed(page: str, listed: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                async with session.get(page) as response:
                    if listed in await response.text():
                        return
            await asyncio.sleep(_LOOK_EVERY)


async def _ready(process: MeasuredProcess, program: _Program) -> None:
    while program.ready not in process.output.read_text():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(_LOOK_EVERY)


async def _who_leads(
    one: MeasuredProcess, other: MeasuredProcess, program: _Program
) -> tuple[MeasuredProcess, MeasuredProcess]:
    """Return the first of two that does its work, then the other one."""
    works = {asyncio.create_task(each.outlives(_ready(each, program))): each for each in (one, other)}
    done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    for task in works.keys() - done:
        task.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    first = works[next(iter(done))]
    return first, other if first is one else one


async def _runs_out(of: Cluster, program: _Program) -> datetime:
    """Return when the Lease of a leader that does not renew it any more runs out."""
    spec = decoded(await of.client.request("GET", f"{leases('kube-system')}/{program.lease}"))["spec"]
    return datetime.fromisoformat(spec["renewTime"]) + timedelta(seconds=spec["leaseDurationSeconds"])
