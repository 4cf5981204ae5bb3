"""Prometheus' own programs."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

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


async def result(ask: Ask, query: str, **more: str) -> list[dict[str, Any]]:
    """Return the series that a query comes to; fails for one that Prometheus cannot evaluate."""
    answer = await ask("query", query=query, **more)
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def as_grafana_asks(query: str, node: str = ".*") -> str:
    """Return a query of the dashboard for a node, by default for all, as Grafana asks it."""
    for variable, value in {"$node": node, "$namespace": ".*", "$__rate_interval": "1m"}.items():
        query = query.replace(variable, value)
    return query
