"""Prometheus' own programs."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml

from gpushare_plugin.testing.ports import claim_port
from tests.waiting import until

LIFETIME = 150
"""Seconds after which Prometheus ends in any case."""

Ask = Callable[..., Awaitable[Any]]
"""Asks Prometheus' API: the path below `/api/v1/`, and the query; returns the answer."""


def tool(name: str) -> str:
    """Return the path of a program of Prometheus; without it, skip the test, or fail it in continuous integration."""
    path = shutil.which(name)
    if path is None:
        message = f"there is no {name}: install Prometheus 2.42 or newer (Debian, Ubuntu: apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    """Return what `promtool` prints; fails the test where it is not content."""
    done = subprocess.run([tool("promtool"), *arguments], input=given, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert not done.stderr, done.stderr.decode()
    return done.stdout.decode()


@asynccontextmanager
async def prometheus(folder: Path, **config: object) -> AsyncIterator[Ask]:
    """Run Prometheus with its data in `folder`, where some can be already, and with a config; yield what asks it."""
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{claim_port()}"
    arguments = (
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    )
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "timeout", str(LIFETIME), tool("prometheus"), *arguments, stdout=log, stderr=log
        )
    try:
        async with aiohttp.ClientSession(f"http://{address}") as http:

            async def ask(path: str, **query: str) -> Any:
                async with http.get(f"/api/v1/{path}", params=query) as response:
                    return await response.json()

            async def answered() -> bool:
                assert process.returncode is None, f"Prometheus has ended: {(folder / 'log').read_text()}"
                with suppress(aiohttp.ClientError):
                    async with http.get("/-/ready") as response:
                        return response.status == 200
                return False

            await until(answered)
            yield ask
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class Simulated(NamedTuple):
    """A Prometheus with the samples of the simulated clusters, and the time of the last of them."""

    ask: Ask
    end: float


async def result(ask: Ask, query: str, **more: str) -> list[dict[str, Any]]:
    """Return the series that a query comes to; fails for one that Prometheus cannot evaluate."""
    answer = await ask("query", query=query, **more)
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


async def with_recorded(folder: Path, rules: Mapping[str, str], start: float, end: float, every: int) -> None:
    """Add to Prometheus' data in `folder` what recording rules would have recorded between two times, in seconds.

    `promtool tsdb create-blocks-from rules` does the same, at times that depend on the name of the file.
    """
    span = {"start": f"{start}", "end": f"{end}", "step": f"{every}"}
    written = []
    async with prometheus(folder) as ask:
        for name, promql in rules.items():
            for each in (await ask("query_range", query=promql, **span))["data"]["result"]:
                written += [f"{name}{braced(each['metric'])} {value} {at}" for at, value in each["values"]]
    with_samples(folder, written)


def with_samples(folder: Path, written: Iterable[str]) -> None:
    """Add samples to Prometheus' data in `folder`, as lines of OpenMetrics with times."""
    (folder / "samples").write_text("\n".join((*written, "# EOF\n")))
    promtool("tsdb", "create-blocks-from", "openmetrics", folder / "samples", folder / "data")


def braced(labels: Mapping[str, str]) -> str:
    """Return labels as Prometheus writes them."""
    return f"{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


VARIABLES = ("cluster", "node", "model", "gpu", "namespace")
"""The variables of the dashboard with which people choose what it shows."""


def as_grafana_asks(query: str, **chosen: str) -> str:
    """Return a query of the dashboard as Grafana asks it, with values of variables; what is not chosen is All."""
    times = {"$__rate_interval": "1m", "$__range": "5m", "$__interval_ms": "15000", "$__interval": "15s"}
    names = {f"${name}": chosen.get(name, ".*") for name in VARIABLES}
    for variable, value in {**names, "$piece": chosen.get("piece", "16"), **times}.items():
        query = query.replace(variable, value)
    return query
