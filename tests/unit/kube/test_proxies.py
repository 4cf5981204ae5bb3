"""Tests of `gpushare_plugin.kube.client` where the environment names a proxy."""

import asyncio
from pathlib import Path

import pytest

from gpushare_plugin.kube.client import NODES, Client, asked_directly
from gpushare_plugin.testing.cluster import ApiServer


@pytest.mark.parametrize(
    ("server", "no_proxy", "directly"),
    [
        ("https://127.0.0.1:6443", "", True),
        ("https://[::1]:6443", "", True),
        ("http://localhost:8001", "", True),
        ("https://10.96.0.1:443", "", False),
        ("https://10.96.0.1:443", "example.com, 10.96.0.0/12", True),
        ("https://10.96.0.1:443", "10.112.0.0/12,not/a/network,fd00::/8", False),
        ("https://[fd00::1]:443", "10.96.0.0/12,fd00::/8", True),
        ("https://kubernetes.example.com", "10.96.0.0/12", False),
        ("", "10.96.0.0/12", False),
    ],
)
def test_this_machine_and_networks_of_no_proxy_are_asked_directly(server: str, no_proxy: str, directly: bool) -> None:  # noqa: FBT001 - what is expected
    """This machine, and what NO_PROXY names as a network; for names, aiohttp looks itself."""
    assert asked_directly(server, {"NO_PROXY": no_proxy}) == directly
    assert asked_directly(server, {"no_proxy": no_proxy}) == directly


@pytest.mark.parametrize("loopback", [True, False])
async def test_a_proxy_of_the_environment_is_asked_for_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, loopback: bool
) -> None:
    """The proxy of a machine that reaches its network through one is asked for other machines, and not for this one."""
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        body = b'{"items": []}'
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(proxy, "127.0.0.1")
    async with listener, ApiServer() as server:
        server.store.create(NODES, {"metadata": {"name": "here"}})
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        if not loopback:
            kubeconfig.write_text(kubeconfig.read_text().replace("127.0.0.1", "192.0.2.1"))
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with Client(kubeconfig) as client:
            nodes, _ = await client.list(NODES)
    assert [node["metadata"]["name"] for node in nodes] == (["here"] if loopback else [])
    assert bool(asked) != loopback
