"""A proxy that says who looks at the pages: over a connection that only the proxy can make."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict

from gpushare_plugin.observe.http.certificates import Certificates
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.web.credentials import TrustedProxy
from tests.unit.kube.certificates import Authority
from tests.unit.web.visited import ALICE, OLGA, a_cluster, visited

OF_ALICE = {"X-Remote-User": "alice"}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with pods of two namespaces, and users of whom it has no token."""
    async with ApiServer() as running:
        a_cluster(running)
        running.people.tokens = {"token-of-olga": OLGA}
        running.people.by_name = {"alice": ALICE}
        yield running


class Visitors:
    """Who connects to the pages, each with or without a certificate."""

    def __init__(self, folder: Path) -> None:
        """Make the certificates of the server, of its authority for proxies, and of another authority."""
        self.folder = folder
        self.pages, self.proxies, self.others = (Authority(name) for name in ("pages", "proxies", "others"))
        self.pages.server(folder)
        pair = folder / "server.pem"
        self.certificates = Certificates(pair, pair, self.proxies.write(folder / "proxies.crt"), clients_optional=True)
        self.address = ""

    def certificate(self, authority: Authority, name: str) -> Path:
        """Return the file of a client's certificate."""
        return authority.client(self.folder / "client.pem", name)

    async def ask(self, client: Path | None, *headers: tuple[str, str]) -> tuple[int, str]:
        """Ask for the page of a node, and return status and text of the answer."""
        context = ssl.create_default_context(cafile=self.pages.write(self.folder / "pages.crt"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if client is not None:
            context.load_cert_chain(client)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.address}/nodes/gpu-1", ssl=context, headers=CIMultiDict(headers)) as answer,
        ):
            return answer.status, await answer.text()


@pytest.fixture
async def visitors(server: ApiServer, tmp_path: Path) -> AsyncIterator[Visitors]:
    """Show the cluster, by HTTPS, to a proxy with the common name `front`."""
    found = Visitors(tmp_path)
    async with visited(server, tmp_path, certificates=found.certificates, proxy=TrustedProxy(("front",))) as address:
        found.address = address
        yield found


async def test_a_proxy_with_a_certificate_says_who_asks(server: ApiServer, visitors: Visitors) -> None:
    """The rights of the user are reviewed with the groups that the proxy names, and with that of everybody."""
    proxy = visitors.certificate(visitors.proxies, "front")
    groups = ("X-Remote-Group", "team-red"), ("X-Remote-Group", "staff")
    status, page = await visitors.ask(proxy, ("X-Remote-User", "alice"), *groups)
    assert (status, "red-pod" in page, "blue" in page) == (200, True, False)
    assert {tuple(each["groups"]) for each in server.people.reviewed} == {("team-red", "staff", "system:authenticated")}
    status, text = await visitors.ask(proxy, ("X-Remote-User", "nobody"))
    assert (status, text.startswith("nobody may not see these pages: ")) == (403, True)


async def test_headers_of_a_proxy_mean_nothing_without_its_certificate(visitors: Visitors) -> None:
    """Neither from a client without one, nor from one with another name; a token counts for both."""
    for client in (None, visitors.certificate(visitors.proxies, "someone")):
        assert (await visitors.ask(client, *OF_ALICE.items()))[0] == 401
        status, page = await visitors.ask(client, *OF_ALICE.items(), ("Authorization", "Bearer token-of-olga"))
        assert (status, "blue-pod" in page) == (200, True)


async def test_a_certificate_of_another_authority_is_refused(visitors: Visitors) -> None:
    """Already by the handshake."""
    with pytest.raises(aiohttp.ClientError):
        await visitors.ask(visitors.certificate(visitors.others, "front"), *OF_ALICE.items())


@pytest.mark.parametrize(
    "headers",
    [
        (("X-Remote-User", ""),),
        (("X-Remote-User", "alice"), ("X-Remote-User", "olga")),
        (("X-Remote-User", "a" * 1025),),
        (("X-Remote-User", "alice\u202e"),),
        (("X_Remote_User", "alice"),),
        (("X-Remote-User", "alice"), ("X-Remote-Group", "")),
        (("X-Remote-User", "alice"), ("X-Remote-Group", "g\u200b")),
    ],
)
async def test_a_proxy_that_names_nobody_for_certain_lets_nobody_in(
    visitors: Visitors, headers: tuple[tuple[str, str], ...]
) -> None:
    """No name, two names, or one that people could not read."""
    proxy = visitors.certificate(visitors.proxies, "front")
    assert (await visitors.ask(proxy, *headers))[0] == 401
