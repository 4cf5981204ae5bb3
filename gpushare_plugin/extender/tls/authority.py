"""Certificates signed by the extender: authorities, its own certificate, and the certificate of kube-scheduler.

The only importer of `cryptography`. Facts: RFC 5280, sections 4.2.1.3 (key usage), 4.2.1.9 (authorities) and 4.2.1.12
(purposes of a certificate). When verifying names, Go and OpenSSL look at alternative names alone (RFC 6125).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import in_words

AUTHORITY_LASTS = timedelta(days=3650)
"""The validity of an authority: ten years."""
BELIEVED_BEFORE = timedelta(days=730)
"""The time before the end of an authority from which on the next authority is believed: two years."""
SIGNS_BEFORE = timedelta(days=365)
"""The time before the end of an authority from which on the next authority signs: a year.

kube-scheduler reads authorities only at its start. A restart within the year between belief and first signature is
enough.
"""

SIGNED_LASTS = timedelta(days=90)
"""The validity of a certificate signed by an authority."""
RENEWED_BEFORE = timedelta(days=30)
"""The time before the end of a signed certificate from which on a new certificate is made."""

_SLOW_CLOCKS = timedelta(hours=1)
"""The time from the start of validity of a certificate until its making, for peers with slow clocks."""


class UnusableError(GpushareError):
    """A certificate or its key cannot be read, or certificate and key do not belong together."""


class Signed(Struct, frozen=True):
    """A certificate and its key."""

    certificate: bytes
    """The certificate in PEM."""
    key: bytes
    """The private key in PEM."""

    @property
    def end(self) -> datetime:
        """The end of the certificate; raises UnusableError."""
        return self._read()[0].not_valid_after_utc

    def check(self) -> None:
        """Raise UnusableError unless certificate and key can be read and belong together."""
        self._read()

    def serves(self, authority: "Signed", now: datetime) -> bool:
        """Return whether the certificate can stay in use: readable, signed by `authority`, and valid long enough."""
        try:
            certificate, _ = self._read()
            certificate.verify_directly_issued_by(authority._read()[0])  # noqa: SLF001 - `authority` is of this class
        except (UnusableError, ValueError, TypeError, InvalidSignature):
            return False
        return certificate.not_valid_after_utc - now > RENEWED_BEFORE

    def _read(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate)
            key = serialization.load_pem_private_key(self.key, password=None)
        except (ValueError, TypeError) as error:
            raise UnusableError(f"a certificate and its key in PEM expected: {in_words(error)}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise UnusableError("the key is not that of the certificate; expected the ECDSA key that belongs to it")
        return certificate, key

    def sign(self, name: str, now: datetime, host: str | None = None) -> "Signed":
        """Return a certificate signed by this authority, for a server at `host` or a client; raises UnusableError."""
        authority, key = self._read()
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH if host is None else ExtendedKeyUsageOID.SERVER_AUTH
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([purpose]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False),
        ]
        if host is not None:
            extensions.append((x509.SubjectAlternativeName([x509.DNSName(host)]), False))
        return _signed(_name(name), now + SIGNED_LASTS, now, extensions, (authority.subject, key))


def renewed(authorities: Sequence[Signed], now: datetime) -> tuple[Signed, ...]:
    """Return the authorities to believe, the oldest first: without ended authorities, and with the next if due."""
    kept = [each for each in authorities if each.end > now]
    if not kept or kept[-1].end - now < BELIEVED_BEFORE:
        kept.append(_new_authority(now))
    return tuple(kept)


def signer(authorities: Sequence[Signed], now: datetime) -> Signed:
    """Return the signing authority: the oldest authority valid for long enough, or the last authority."""
    return next((each for each in authorities if each.end - now > SIGNS_BEFORE), authorities[-1])


def _new_authority(now: datetime) -> Signed:
    # Different names let every verifier tell authorities apart.
    name = _name(f"gpushare-extender {now:%Y-%m-%d} {x509.random_serial_number() % 2**32:08x}")
    extensions = [(x509.BasicConstraints(ca=True, path_length=0), True), (_usage(signs_certificates=True), True)]
    return _signed(name, now + AUTHORITY_LASTS, now, extensions)


def _signed(
    name: x509.Name,
    end: datetime,
    now: datetime,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    authority: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
) -> Signed:
    """Return a new key and its certificate, signed by `authority` or, without an authority, by the new key."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, signing = authority or (name, key)
    builder = x509.CertificateBuilder(
        issuer, name, key.public_key(), x509.random_serial_number(), now - _SLOW_CLOCKS, end
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Signed(builder.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), secret)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
