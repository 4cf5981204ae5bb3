"""Certificates that are renewed while the extender runs, as Kubernetes renews the files of a Secret."""

import shlex
import shutil
import ssl
import subprocess
from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from gpushare_plugin.observe.http.certificates import Certificates
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import answer
from tests.unit.extender.extenders import extender
from tests.unit.kube.certificates import Authority

END = "gpushare_extender_certificate_expiration_timestamp_seconds "
Log = list[MutableMapping[str, Any]]

AUTHORITY, PAIR = "ca.crt", "tls.pem"
PAGE = Path(__file__).parents[3] / "docs" / "scheduling.md"


class Secret:
    """A Secret that is mounted: links to files of one version, all of which one more link exchanges at once."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Mount the first version."""
        self.folder = folder
        self._versions = 0
        folder.mkdir()
        self.write(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")
        self.certificates = Certificates(folder / PAIR, folder / PAIR, folder / AUTHORITY)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Exchange all files for another version."""
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
        new = self.folder / "..data_tmp"
        new.symlink_to(version.name)
        new.replace(self.folder / "..data")


class Party:
    """An authority, what it lets a server prove, and a client that believes in it and is known to it."""

    def __init__(self, folder: Path, lasts: timedelta = timedelta(days=1)) -> None:
        """Sign all of it; the certificate ends when it has lasted so long."""
        folder.mkdir()
        authority = Authority(folder.name)
        file = authority.write(folder / "authority.pem")
        authority.server(folder, lasts)
        pair = folder / "server.pem"
        self.secret = {AUTHORITY: file.read_bytes(), PAIR: pair.read_bytes()}
        self.end = x509.load_pem_x509_certificate(self.secret[PAIR]).not_valid_after_utc.timestamp()
        self._context = ssl.create_default_context(cafile=file)
        self._context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._context.load_cert_chain(pair)

    async def is_answered(self, port: int) -> bool:
        """Connect anew; return whether both sides believe each other."""
        connector = aiohttp.TCPConnector(ssl=self._context)
        async with aiohttp.ClientSession(connector=connector) as http:
            try:
                async with http.get(f"https://127.0.0.1:{port}/version") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False


@pytest.fixture
def parties(tmp_path: Path) -> tuple[Party, Party]:
    """Return those whose certificates are used first, and those of another authority."""
    return Party(tmp_path / "before"), Party(tmp_path / "after")


async def test_renewed_certificates_are_used(
    parties: tuple[Party, Party], server: ApiServer, tmp_path: Path, log: Log
) -> None:
    """Certificate, key and the authority of clients are those of the files: without a restart, for all that connect."""
    before, after = parties
    secret = Secret(tmp_path / "secret", before.secret)
    async with extender(server, tmp_path, wait=False, certificates=secret.certificates) as asking:
        assert (await before.is_answered(asking.port), await after.is_answered(asking.port)) == (True, False)
        secret.write(after.secret)
        assert (await before.is_answered(asking.port), await after.is_answered(asking.port)) == (False, True)
        # The two parts are renewed each by itself where only one changes.
        secret.write({**after.secret, AUTHORITY: before.secret[AUTHORITY]})
        assert (await before.is_answered(asking.port), await after.is_answered(asking.port)) == (False, False)
    renewed = [each for each in log if each["event"] == "certificates_renewed"]
    assert [each["path"] for each in renewed] == [str(secret.certificates.certificate)] * 2


@pytest.fixture
def of_the_page(tmp_path: Path) -> None:
    """Run the commands in `docs/scheduling.md` that make certificates."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    lines = [line.strip() for line in PAGE.read_text().splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("openssl ")]
    assert [command[-1] for command in commands] == ["ca.crt", "server.crt", "client.crt"]
    for command in commands:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.usefixtures("of_the_page")
async def test_certificates_made_as_the_page_says_are_used(server: ApiServer, tmp_path: Path) -> None:
    """Extender and kube-scheduler believe each other, and the extender believes nobody without a certificate."""
    files = Certificates(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "ca.crt")
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    stranger = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    for each in (context, stranger):
        each.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    async with extender(server, tmp_path, wait=False, certificates=files) as asking, aiohttp.ClientSession() as http:
        address, name = f"https://127.0.0.1:{asking.port}/version", "gpushare-extender.kube-system.svc"
        async with http.get(address, ssl=context, server_hostname=name) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await http.get(address, ssl=stranger, server_hostname=name)


@pytest.mark.parametrize("broken", [{PAIR: b"no certificate"}, {AUTHORITY: b""}, "other key", "gone"])
async def test_broken_certificates_leave_the_last_ones_in_use(
    parties: tuple[Party, Party], server: ApiServer, tmp_path: Path, log: Log, broken: str | dict[str, bytes]
) -> None:
    """Files that are no certificates, do not fit their key or are missing are logged once, with what is wrong."""
    before, after = parties
    secret = Secret(tmp_path / "secret", before.secret)
    async with extender(server, tmp_path, wait=False, certificates=secret.certificates) as asking:
        match broken:
            case "gone":
                secret.write({AUTHORITY: after.secret[AUTHORITY]})
            case "other key":
                key, _, _ = before.secret[PAIR].partition(b"-----BEGIN CERTIFICATE")
                _, begin, certificate = after.secret[PAIR].partition(b"-----BEGIN CERTIFICATE")
                secret.write({**after.secret, PAIR: key + begin + certificate})
            case dict():
                secret.write({**after.secret, **broken})
        for _ in range(2):
            assert (await before.is_answered(asking.port), await after.is_answered(asking.port)) == (True, False)
        secret.write(after.secret)
        assert (await before.is_answered(asking.port), await after.is_answered(asking.port)) == (False, True)
    events = [each for each in log if each["event"].startswith("certificates_")]
    assert [each["event"] for each in events] == ["certificates_rejected", "certificates_renewed"]
    assert str(secret.certificates.key) in events[0]["reason"]


async def test_a_scrape_shows_the_end_of_the_served_certificate(server: ApiServer, tmp_path: Path) -> None:
    """A scrape shows renewed files although nobody connects anew; broken ones leave the end of what is in use."""
    before, after = Party(tmp_path / "before"), Party(tmp_path / "after", timedelta(days=90))
    secret, probes = Secret(tmp_path / "secret", before.secret), claim_port()

    async def end() -> float:
        _, page = await answer(probes, "/metrics")
        (line,) = (line for line in page.splitlines() if line.startswith(END))
        return float(line.removeprefix(END))

    address = f"127.0.0.1:{probes}"
    async with extender(server, tmp_path, wait=False, certificates=secret.certificates, probe_address=address):
        assert await end() == before.end
        secret.write(after.secret)
        assert await end() == after.end
        secret.write({**after.secret, PAIR: b"no certificate"})
        assert await end() == after.end


async def test_an_extender_over_plain_http_has_no_metric_of_certificates(server: ApiServer, tmp_path: Path) -> None:
    """An extender without certificates has no such metric, so that no alert waits for it."""
    probes = claim_port()
    async with extender(server, tmp_path, wait=False, probe_address=f"127.0.0.1:{probes}"):
        assert f"\n{END}" not in (await answer(probes, "/metrics"))[1]
