"""Certificate authorities, as bare as those of many managed clusters, and what they vouch for."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_A_DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority without key identifiers."""

    def __init__(self, name: str) -> None:
        """Sign a certificate of its own."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        is_authority = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._signed(self._name, self._key.public_key(), is_authority, critical=True)

    def write(self, file: Path) -> Path:
        """Write the certificate where clients look for it."""
        file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        return file

    def server(self, folder: Path, lasts: dt.timedelta = _A_DAY) -> ssl.SSLContext:
        """Return what a server at 127.0.0.1 proves with who it is; its certificate ends when it has lasted so long."""
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._pair(folder / "server.pem", x509.Name([]), names, critical=True, lasts=lasts))
        return context

    def client(self, file: Path, name: str) -> Path:
        """Write a key, and the certificate with which a client of this common name proves who it is."""
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return self._pair(
            file, subject, x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )

    def _pair(
        self,
        file: Path,
        subject: x509.Name,
        extension: x509.ExtensionType,
        *,
        critical: bool,
        lasts: dt.timedelta = _A_DAY,
    ) -> Path:
        """Write a new key and its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(subject, key.public_key(), extension, critical=critical, lasts=lasts)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
        return file

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extension: x509.ExtensionType,
        *,
        critical: bool,
        lasts: dt.timedelta = _A_DAY,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder(
            self._name, subject, key, x509.random_serial_number(), now - _A_DAY, now + lasts
        )
        return builder.add_extension(extension, critical=critical).sign(self._key, hashes.SHA256())
