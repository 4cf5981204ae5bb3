"""The certificates of the server, which are read again when their files change, and when they end."""

import ssl
from pathlib import Path

import structlog

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.programs.scheduler.tls.expiry import first_end

_log = structlog.get_logger()

_Version = tuple[tuple[int, int, int] | None, ...]
"""Of each file: its inode, modification time and size, None where it is missing."""


class Certificates(Struct, frozen=True):
    """What the server proves who it is with; with `client_authority`, clients have to, too. Files in PEM."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(file for file in (self.certificate, self.key, self.client_authority) if file is not None)

    def context(self) -> ssl.SSLContext:
        """Read the files; raises GpushareError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Who resumed a session would not have to prove to the authority of now who it is.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_authority is not None:
                context.load_verify_locations(self.client_authority)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(map(str, self.files))
            raise GpushareError(f"cannot use the certificates in {files}: {error}; expected PEM files") from error
        return context

    def end(self) -> float | None:
        """Return when the first certificate of the chain ends, in seconds since 1970; None where that is not known."""
        try:
            return first_end(self.certificate.read_bytes())
        except OSError:
            return None


class RenewedCertificates:
    """Certificates as their files are when a client connects; files that cannot be used leave the last ones in use.

    A kubelet replaces the files of a Secret by exchanging one symbolic link, so the files themselves cannot be watched.
    To look at them costs a connection three calls of stat(), and kube-scheduler keeps its connections.
    """

    def __init__(self, files: Certificates) -> None:
        """Read the files; raises GpushareError."""
        self._files = files
        self._version = self._found()
        self._newest, self._end = files.context(), files.end()
        self.context = files.context()
        """What a server has to be given."""
        self.context.sni_callback = self._choose

    def end(self) -> float | None:
        """Return when the first certificate of the chain in use ends, in seconds since 1970; None if not known.

        The files are looked at for it: clients that keep their connections do not make them be read again.
        """
        self._renew()
        return self._end

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Give a connection the newest certificates, whatever name its client asks for; called for each one."""
        self._renew()
        connection.context = self._newest

    def _renew(self) -> None:
        # Before the files are read: what changes meanwhile is seen the next time.
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
