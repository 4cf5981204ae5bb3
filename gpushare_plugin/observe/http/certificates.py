"""The certificates of the server, read again when the files change."""

import ssl
from pathlib import Path

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.observe.http.expiry import first_end

_log = structlog.get_logger()

_Version = tuple[tuple[int, int, int] | None, ...]
"""The inode, modification time and size of each file, None for a missing file."""


class Certificates(Struct, frozen=True):
    """The files of a server's certificates, in PEM."""

    certificate: Path
    """The certificate of the server, with its chain."""
    key: Path
    """The key of the certificate."""
    client_authority: Path | None = None
    """The authorities of clients; None if clients need no certificate."""
    clients_optional: bool = False
    """Whether clients without a certificate are served, too; a certificate of another authority is never accepted."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All files in use."""
        return tuple(file for file in (self.certificate, self.key, self.client_authority) if file is not None)

    def context(self) -> ssl.SSLContext:
        """Return a TLS context from the files; raises GpushareError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # From 3.13 on, Python rejects authorities without key identifiers ("ssl.create_default_context" in its
        # documentation), such as those of many clusters and of plain openssl commands. Go, and so Kubernetes, does not.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        # No sessions: a resumed session would skip verifying the client against the current authorities.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_authority is not None:
                context.load_verify_locations(self.client_authority)
                context.verify_mode = ssl.CERT_OPTIONAL if self.clients_optional else ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(map(str, self.files))
            raise GpushareError(f"cannot use the certificates in {files}: {error}; expected PEM files") from error
        return context

    def end(self) -> float | None:
        """Return the first end of a certificate in the chain, in seconds since 1970; None if not known."""
        try:
            return first_end(self.certificate.read_bytes())
        except OSError:
            return None


class RenewedCertificates:
    """Certificates read again at the first connection after a change of their files; unusable files change nothing.

    A kubelet replaces the files of a Secret by exchanging a symbolic link, and a watch of the files would miss the
    exchange. Checking the files costs three calls of stat() per connection, and kube-scheduler keeps its connections.
    """

    def __init__(self, files: Certificates) -> None:
        """Read the files; raises GpushareError."""
        self._files = files
        self._version = self._found()
        self._newest, self._end = files.context(), files.end()
        self.context = files.context()
        """The TLS context for the server."""
        self.context.sni_callback = self._choose

    def end(self) -> float | None:
        """Return the first end of a certificate in the chain in use, in seconds since 1970; None if not known.

        The method checks the files, because clients with lasting connections do not cause a check.
        """
        self._renew()
        return self._end

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Give a connection the newest certificates, whatever the requested name; called for each connection."""
        self._renew()
        connection.context = self._newest

    def _renew(self) -> None:
        # Before reading: the next check then finds a change made while the files are read.
        version = self._found()
        if version != self._version:
            self._version = version
            self._read()

    def _read(self) -> None:
        try:
            self._newest, self._end = self._files.context(), self._files.end()
        except GpushareError as error:
            _log.warning("certificates_rejected", reason=str(error), remedy="correct the files")
        else:
            _log.info("certificates_renewed", path=str(self._files.certificate))

    def _found(self) -> _Version:
        return tuple(_version(file) for file in self._files.files)


def _version(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
