"""The certificates of extender and kube-scheduler, made and renewed by the extender.

A Secret with the authorities is read by extenders only; a second Secret has the certificates for kube-scheduler. Every
extender makes missing certificates, also on standby. If two extenders write a Secret at the same time, the API server
accepts the first write, and the second extender reads the Secret again. Each extender serves with a certificate of its
own, which never leaves its memory.
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

from gpushare_plugin.base.text import in_words
from gpushare_plugin.extender.tls import authority
from gpushare_plugin.extender.tls.authority import Signed, UnusableError
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.scheduling.secrets import Secrets
from gpushare_plugin.observe.http.certificates import Certificates

_log = structlog.get_logger()

_EXTENDER, _KUBE_SCHEDULER = "gpushare-extender", "kube-scheduler"
"""The subjects of certificates, for people only: peers verify the extender's host and kube-scheduler's authority."""

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""The keys in the client's Secret, with the names of Kubernetes and cert-manager."""

AT_ONCE = 3
"""The number of immediate attempts to write a Secret that another process keeps changing; later attempts wait."""

_KEPT = "none is needed: this extender writes the authority that it has in memory again"
"""The remedy for unusable authorities in a Secret, once this extender serves and has an authority in memory."""
_REPLACED = "restart kube-scheduler: this extender makes another authority, which kube-scheduler reads when it starts"
"""The remedy for unusable authorities in a Secret, before this extender serves."""

_Values = Mapping[str, bytes]


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class OwnCertificateSettings:
    """The settings of the certificates made by the extender."""

    name: str
    """The name of the Secret with the authorities."""
    host: str
    """The host name of the extender in kube-scheduler's requests."""
    every: float = 3600.0
    """Seconds between two checks for certificates near their end."""
    now: Callable[[], datetime] = field(default=_now)
    """A function that returns the current time."""

    @property
    def client(self) -> str:
        """The name of the Secret with the certificate, key and authorities for kube-scheduler."""
        return f"{self.name}-client"


class CertificateKeeper:
    """Makes and renews the certificates in the Secrets of a namespace, and a certificate for the server."""

    def __init__(self, client: Client, namespace: str, own: OwnCertificateSettings) -> None:
        """Make no certificate yet."""
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
        """The files of the server's certificates, empty until `make` has ended."""
        return Certificates(self._pair.path, self._pair.path, self._believed.path)

    def problems(self) -> list[str]:
        """Return why the server has no certificates; empty once made, even if a renewal fails."""
        return [] if self._made else [f"this extender has no certificates yet: {self._failure}"]

    async def make(self) -> None:
        """Make certificates missing or near their end; repeats until success."""
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
        """Renew certificates before their end; runs until cancelled."""
        while True:
            await asyncio.sleep(self._own.every)
            await self.make()

    def close(self) -> None:
        """Free the memory of the key and the certificates."""
        self._pair.close()
        self._believed.close()

    async def _renew(self) -> None:
        """Make certificates missing or near their end; raises ClusterError."""
        now = self._own.now()

        def renewed(found: _Values) -> _Values:
            self._authorities = authority.renewed(self._read_authorities(found) or self._authorities, now)
            return _written(self._authorities)

        await self._decide(self._own.name, renewed)
        signer = authority.signer(self._authorities, now)
        believed = b"".join(each.certificate for each in self._authorities)
        # The extender believes an authority before any client has a certificate of the authority.
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
        """Write the content that `decide` returns for the current content of a Secret; raises ClusterError.

        If another process changes the Secret meanwhile, read the Secret and decide again.
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
        """Return the authorities in the content of a Secret, empty for unusable authorities."""
        numbers = takewhile(lambda number: _certificate(number) in found, count(1))
        try:
            read = [Signed(found[_certificate(number)], found[_key(number)]) for number in numbers]
            for each in read:
                each.check()
        except (KeyError, UnusableError) as error:
            reason = f"{in_words(error)} in Secret {self._own.name}"
            # kube-scheduler cannot know an authority made and not yet written.
            remedy = _REPLACED if self._served is None else _KEPT
            _log.warning("certificates_rejected", reason=reason, remedy=remedy)
            return []
        return read


def _written(authorities: Sequence[Signed]) -> _Values:
    """Return the content of a Secret with the given authorities."""
    pairs = enumerate(authorities, start=1)
    return {
        key: value for n, each in pairs for key, value in ((_certificate(n), each.certificate), (_key(n), each.key))
    }


def _certificate(number: int) -> str:
    return f"authority-{number}.crt"


def _key(number: int) -> str:
    return f"authority-{number}.key"


class _MemoryFile:
    """A file in memory only, because `ssl` reads keys from files only."""

    def __init__(self, name: str) -> None:
        """Make an empty file."""
        self._file = open(os.memfd_create(name), "wb")  # noqa: PTH123, SIM115 - a descriptor, closed by `close`
        self.path = Path(f"/proc/self/fd/{self._file.fileno()}")

    def write(self, content: bytes) -> None:
        """Replace the content, unless equal."""
        if self.path.read_bytes() != content:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(content)
            self._file.flush()

    def close(self) -> None:
        """Free the memory."""
        self._file.close()
