"""Certificates that the extender makes and renews itself."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from gpushare_plugin.extender.service import ExtenderSettings, serve
from gpushare_plugin.extender.tls import authority
from gpushare_plugin.extender.tls.authority import Signed
from gpushare_plugin.extender.tls.own import AT_ONCE, CertificateKeeper
from gpushare_plugin.kube.client import Client
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.ports import claim_port
from tests.logs import logged
from tests.unit.extender.clients import NAME, SECRETS, KubeScheduler, own, secret, served
from tests.unit.extender.extenders import extender
from tests.unit.kube.cluster import QUICK
from tests.waiting import until

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


async def test_renewal_is_taken_up_without_a_restart(server: ApiServer, tmp_path: Path) -> None:
    """30 days before their end the certificates of both sides are made anew; connections that begin then use them."""
    now = NOW - authority.SIGNED_LASTS + 29 * DAY
    async with extender(server, tmp_path, wait=False, certificates=own(every=0.01, now=lambda: now)) as asking:
        before = KubeScheduler(server, tmp_path)
        former = await served(asking.port, before.context)
        now = NOW
        await until(lambda: secret(server, f"{NAME}-client") != before.values)
        after = KubeScheduler(server, tmp_path)
        assert after.values["ca.crt"] == before.values["ca.crt"]
        assert after.values["tls.crt"] != before.values["tls.crt"]
        newer = await served(asking.port, after.context)
        assert newer != former
        assert await served(asking.port, before.context) == newer


async def test_successive_authorities_overlap(server: ApiServer, tmp_path: Path) -> None:
    """A kube-scheduler that started a year before the next authority signs believes it, and is believed, throughout."""
    now = NOW
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        keeper = CertificateKeeper(client, "kube-system", own(now=lambda: now))
        await keeper.make()
        assert secret(server, NAME).keys() == {"authority-1.crt", "authority-1.key"}
        first = secret(server, f"{NAME}-client")
        now = NOW + authority.AUTHORITY_LASTS - authority.BELIEVED_BEFORE + DAY
        await keeper.make()
        both = secret(server, f"{NAME}-client")
        assert both["ca.crt"].startswith(first["ca.crt"])
        assert both["ca.crt"].count(b"BEGIN CERTIFICATE") == 2
        old, new = (
            Signed(secret(server, NAME)[f"authority-{n}.crt"], secret(server, NAME)[f"authority-{n}.key"])
            for n in (1, 2)
        )
        assert Signed(both["tls.crt"], both["tls.key"]).serves(old, now)
        now = NOW + authority.AUTHORITY_LASTS - authority.SIGNS_BEFORE + DAY
        await keeper.make()
        switched = secret(server, f"{NAME}-client")
        assert switched["ca.crt"] == both["ca.crt"]
        assert Signed(switched["tls.crt"], switched["tls.key"]).serves(new, now)
        now = NOW + authority.AUTHORITY_LASTS + DAY
        await keeper.make()
        assert secret(server, f"{NAME}-client")["ca.crt"] == new.certificate
        keeper.close()


async def test_extenders_agree_on_one_authority(server: ApiServer, tmp_path: Path) -> None:
    """Of several that start at a time one makes it; each serves what kube-scheduler believes."""
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        keepers = [CertificateKeeper(client, "kube-system", own()) for _ in range(5)]
        await asyncio.gather(*(keeper.make() for keeper in keepers))
        found = secret(server, NAME)
        for keeper in keepers:
            assert keeper.certificates.client_authority is not None
            assert keeper.certificates.client_authority.read_bytes() == found["authority-1.crt"]
            keeper.close()
        assert len({each.status for each in server.asked if each.verb == "create"}) == 2


@pytest.mark.parametrize(("status", "refusals", "waits"), [(404, 3, 3), (409, AT_ONCE - 1, 0), (409, 2 * AT_ONCE, 2)])
async def test_a_secret_that_cannot_be_created_is_waited_for(
    server: ApiServer, tmp_path: Path, status: int, refusals: int, waits: int
) -> None:
    """Without the namespace each attempt is logged and waited after; so are conflicts that do not end at once."""
    refused = Refusal(status, verb="create", resource="secrets", times=refusals)
    server.refusals.append(refused)
    with logged() as events:
        async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
            keeper = CertificateKeeper(client, "kube-system", own())
            await keeper.make()
            keeper.close()
    failures = [each for each in events if each["event"] == "api_request_failed"]
    assert (len(failures), refused.times) == (waits, 0)
    assert all(each["path"] == f"{SECRETS}/{NAME}" for each in failures)
    assert secret(server, NAME)


@pytest.mark.parametrize(
    ("permitted", "named"), [("", NAME), ("get", NAME), ("get create update", f"{NAME}-client"), (None, NAME)]
)
async def test_readiness_names_the_secret_that_is_missing(
    server: ApiServer, tmp_path: Path, permitted: str | None, named: str
) -> None:
    """Before an extender has certificates, `/readyz` says which Secret is missing and why, and not who leads.

    Without an answer of the API server (None) it says that; where there is one, what it refuses, and what to do.
    """
    server.silent = permitted is None
    verbs = (permitted or "").split()
    server.permissions = [Permission(verb, "secrets", "kube-system", NAME) for verb in verbs if verb != "create"]
    server.permissions += [Permission("create", "secrets", "kube-system")] if "create" in verbs else []
    probes = claim_port()

    async def readiness() -> str:
        try:
            async with aiohttp.request("GET", f"http://127.0.0.1:{probes}/readyz") as response:
                return await response.text()
        except aiohttp.ClientConnectionError:
            return ""

    async def as_expected() -> bool:
        said = await readiness()
        refused = "has not answered" if permitted is None else "403: cannot "
        remedy = "its role must permit it to create Secrets" if permitted is not None else ""
        begins = said.startswith(f"this extender has no certificates yet: Secret {named}")
        return begins and refused in said and remedy in said and "Lease" not in said

    made = ExtenderSettings(
        "127.0.0.1:0",
        "kube-system",
        probe_address=f"127.0.0.1:{probes}",
        certificates=own(),
        kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"),
        client_timing=QUICK,
    )
    serving = asyncio.create_task(serve(made))
    try:
        await until(as_expected)
        if permitted is not None:
            server.permissions = None
            await until(lambda: server.asked and server.asked[-1].resource != "secrets")
            assert "no certificates" not in await readiness()
    finally:
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.parametrize(
    "kept",
    [{}, {"authority-1.crt": "bm9uZQ==", "authority-1.key": "bm9uZQ=="}, {"authority-1.crt": "bm9uZQ==", "more": ""}],
)
async def test_a_secret_that_is_gone_or_broken_is_written_again(
    server: ApiServer, tmp_path: Path, kept: dict[str, str]
) -> None:
    """An extender that has the authorities in memory writes these, and kube-scheduler needs no others."""
    async with extender(server, tmp_path, wait=False, certificates=own(every=0.01)) as asking:
        kube_scheduler = KubeScheduler(server, tmp_path)
        before = secret(server, NAME)
        server.store.delete(SECRETS, f"{NAME}-client")
        server.store.patch(SECRETS, NAME, {"data": {**dict.fromkeys(before), **kept}})
        await until(lambda: secret(server, NAME) == before)
        await until(lambda: secret(server, f"{NAME}-client").get("ca.crt") == kube_scheduler.values["ca.crt"])
        assert await served(asking.port, kube_scheduler.context)


async def test_the_log_says_what_a_broken_secret_requires(server: ApiServer, tmp_path: Path) -> None:
    """Nothing of an extender that has the authority in memory; a restart of kube-scheduler where another is made."""
    broken = {"data": dict.fromkeys(("authority-1.crt", "authority-1.key"), "bm9uZQ==")}
    remedies = []
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        running, fresh = (CertificateKeeper(client, "kube-system", own()) for _ in range(2))
        await running.make()
        before = secret(server, NAME)
        for keeper, same in ((running, True), (fresh, False)):
            server.store.patch(SECRETS, NAME, broken)
            # It looks twice, and says the same.
            server.refusals.append(Refusal(409, verb="update", resource="secrets", times=1))
            with logged() as events:
                await keeper.make()
            assert (secret(server, NAME) == before) == same
            remedies += [each["remedy"] for each in events if each["event"] == "certificates_rejected"]
            keeper.close()
    kept = "none is needed: this extender writes the authority that it has in memory again"
    new = "restart kube-scheduler: this extender makes another authority, which kube-scheduler reads when it starts"
    assert remedies == [kept, kept, new, new]
