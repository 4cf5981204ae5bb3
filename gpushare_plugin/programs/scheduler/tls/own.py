"""The certificates of the extender and of kube-scheduler where the extender makes them, and renews them.

Two Secrets: one with the authorities, which only extenders read, and one with what kube-scheduler needs. Every extender
makes what is missing, also while it stands by; of two at a time the API server lets one write, and the other one
reads again. The certificate that an extender serves with is its own, and never leaves its memory.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import count, takewhile
from pathlib import Path

import structlog

from gpushare_plugin.adapters.cluster.client import Client, ClusterError
from gpushare_plugin.adapters.cluster.scheduling.secrets import Secrets
from gpushare_plugin.foundation.text import in_words
from gpushare_plugin.programs.scheduler.tls import authority
from gpushare_plugin.programs.scheduler.tls.authority import Signed, UnusableError
from gpushare_plugin.programs.scheduler.tls.certificates import Certificates

_log = structlog.get_logger()

_EXTENDER, _KUBE_SCHEDULER = "gpushare-extender", "kube-scheduler"
"""Whom certificates are of, for people: what is verified is the host of the one, and the authority of the other."""

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""The keys of the client's Secret, as Kubernetes and cert-manager name them."""

AT_ONCE = 3
"""So often a Secret that others write meanwhile is decided on at once; then after a wait, as after other failures."""

_KEPT = "none is needed: this extender writes the authority that it has in memory again"
_REPLACED = "restart kube-scheduler: this extender makes another authority, which kube-scheduler reads when it starts"
"""What people have to do where the authorities of a Secret cannot be used."""

_Values = Mapping[str, bytes]


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """Where they are: the Secret `name` has the authorities, `<name>-client` what kube-scheduler needs.

    `host` is the name by which kube-scheduler reaches the extender. What ends soon is looked for after `every` seconds.
    """

    name: str
    host: str
    every: float = 3600.0
    now: Callable[[], datetime] = field(default=_now)

    @property
    def client(self) -> str:
        """The name of the Secret for kube-scheduler."""
        return f"{self.name}-client"


class CertificateKeeper:
    """Makes and renews certificates in the Secrets of a namespace, and serves with one of its own."""

    def __init__(self, client: Client, namespace: str, own: OwnCertificates) -> None:
        """Make nothing yet."""
        self._client = client
        self._secrets = Secrets(client, namespace)
        self._own = own
        self._backoff = client.timing.backoff()
        self._deciding = own.name
        self._made = False
        self._failure = f"Secret {own.name} is not known; the API server has not answered yet"
        self._authorities: tuple[Signed, ...] = ()
        self._served: Signed | None = None
        self._pair, self._believed = _MemoryFile("served"), _MemoryFile("believed")

    @property
    def certificates(self) -> Certificates:
        """What the server uses, once it was made."""
        return Certificates(self._pair.path, self._pair.path, self._believed.path)

    def problems(self) -> list[str]:
        """Return why there is nothing to serve with; nothing once that was made, also where it cannot be renewed."""
        return [] if self._made else [f"this extender has no certificates yet: {self._failure}"]

    async def make(self) -> None:
        """Make what is missing, or ends soon; tries until it is done."""
        while True:
            try:
                await self._renew()
            except ClusterError as error:
                self._failure = f"Secret {self._deciding} cannot be read or written: {error}"
                if error.lacks_right:
                    self._failure += "; its role must permit it to create Secrets, and to get and update this one"
                consequence = "no certificate is made or renewed"
                await self._client.wait_out(error, self._backoff, f"{self._secrets.path}/{self._deciding}", consequence)
            else:
                self._backoff.reset()
                self._made = True
                return

    async def keep(self) -> None:
        """Renew before anything ends; runs until cancelled."""
        while True:
            await asyncio.sleep(self._own.every)
            await self.make()

    def close(self) -> None:
        """Forget the key."""
        self._pair.close()
        self._believed.close()

    async def _renew(self) -> None:
        """Make what is missing, or ends soon; raises ClusterError."""
        now = self._own.now()

        def renewed(found: _Values) -> _Values:
            self._authorities = authority.renewed(self._read_authorities(found) or self._authorities, now)
            return _written(self._authorities)

        await self._decide(self._own.name, renewed)
        signer = authority.signer(self._authorities, now)
        believed = b"".join(each.certificate for each in self._authorities)
        # The extender believes an authority before anyone has a certificate of it.
        self._believed.write(believed)
        if self._served is None or not self._served.serves(signer, now):
            self._served = signer.sign(_EXTENDER, now, self._own.host)
            self._pair.write(self._served.certificate + self._served.key)

        def of_client(found: _Values) -> _Values:
            signed = Signed(found.get(CERTIFICATE, b""), found.get(KEY, b""))
            if not signed.serves(signer, now):
                signed = signer.sign(_KUBE_SCHEDULER, now)
            return {CERTIFICATE: signed.certificate, KEY: signed.key, AUTHORITY: believed}

        await self._decide(self._own.client, of_client)

    async def _decide(self, name: str, decide: Callable[[_Values], _Values]) -> None:
        """Write what a Secret has to have by what it has; where another one writes it meanwhile, decide again.

        Raises ClusterError.
        """
        self._deciding = name
        for _ in range(AT_ONCE):
            found, version = await self._secrets.read(name)
            wanted = decide(found)
            if wanted == found:
                return
            if await self._secrets.write(name, wanted, version):
                _log.info("certificates_made", secret=name)
                return
        others = f"others wrote Secret {name} {AT_ONCE} times between a look at it and its change"
        raise ClusterError(others, HTTPStatus.CONFLICT)

    def _read_authorities(self, found: _Values) -> list[Signed]:
        """Return the authorities that a Secret has, none where they cannot be used."""
        numbers = takewhile(lambda number: _certificate(number) in found, count(1))
        try:
            read = [Signed(found[_certificate(number)], found[_key(number)]) for number in numbers]
            for each in read:
                each.check()
        except (KeyError, UnusableError) as error:
            reason = f"{in_words(error)} in Secret {self._own.name}"
            # What was made and not written yet is of no use to kube-scheduler.
            remedy = _REPLACED if self._served is None else _KEPT
            _log.warning("certificates_rejected", reason=reason, remedy=remedy)
            return []
        return read


def _written(authorities: Sequence[Signed]) -> _Values:
    """Return what a Secret with these authorities has."""
    pairs = enumerate(authorities, start=1)
    return {
        key: value for n, each in pairs for key, value in ((_certificate(n), each.certificate), (_key(n), each.key))
    }


def _certificate(number: int) -> str:
    return f"authority-{number}.crt"


def _key(number: int) -> str:
    return f"authority-{number}.key"


class _MemoryFile:
    """A file that no file system has: `ssl` reads keys from files only."""

    def __init__(self, name: str) -> None:
        """Make it, empty."""
        self._file = open(os.memfd_create(name), "wb")  # noqa: PTH123, SIM115 - a descriptor, closed by `close`
        self.path = Path(f"/proc/self/fd/{self._file.fileno()}")

    def write(self, content: bytes) -> None:
        """Replace what it has, unless it has that already."""
        if self.path.read_bytes() != content:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(content)
            self._file.flush()

    def close(self) -> None:
        """Give its memory back."""
        self._file.close()
