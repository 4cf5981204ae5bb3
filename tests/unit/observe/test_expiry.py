"""Tests of `gpushare_plugin.observe.http.expiry`, against certificates that `cryptography` makes."""

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare_plugin.observe.http.expiry import first_end

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = dt.datetime(1950, 1, 1, tzinfo=dt.UTC)
LAST_OF_TWO_DIGITS = dt.datetime(2049, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
NEVER = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
"""What RFC 5280 has for a certificate that does not end."""


def certificate(end: dt.datetime, issuer: str = "ca", serial: int = 1) -> bytes:
    """Return one in PEM that ends then."""
    by, of = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in (issuer, "us"))
    made = x509.CertificateBuilder(by, of, KEY.public_key(), serial, BEGIN, end).sign(KEY, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


@given(
    st.datetimes(dt.datetime(1950, 1, 2), dt.datetime(9999, 12, 31), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    st.text("abc", min_size=1, max_size=64),
    st.integers(1, 2**159 - 1),
)
@example(LAST_OF_TWO_DIGITS, "ca", 1)
@example(LAST_OF_TWO_DIGITS + dt.timedelta(seconds=1), "ca", 1)
@example(NEVER, "ca", 1)
def test_the_end_of_any_certificate_is_read(end: dt.datetime, issuer: str, serial: int) -> None:
    """Whatever the year, and however long the fields before it are."""
    whole = end.replace(microsecond=0)
    assert first_end(certificate(whole, issuer, serial)) == whole.timestamp()


def test_a_chain_ends_with_its_first_certificate_to_end() -> None:
    """Also where the file has keys and text beside, and whatever OpenSSL calls a certificate."""
    late, early = (certificate(dt.datetime(year, 2, 3, tzinfo=dt.UTC)) for year in (2031, 2030))
    trusted = late.replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE")
    key = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    found = first_end(b"a text\n" + key + trusted + early + late)
    assert found == dt.datetime(2030, 2, 3, tzinfo=dt.UTC).timestamp()


def test_half_a_certificate_has_no_end() -> None:
    """A text that is cut off is no error."""
    first, second, *_, last = certificate(NEVER).splitlines(keepends=True)
    assert first_end(first + second + last) is None


@given(st.binary())
def test_a_text_without_a_certificate_has_no_end(content: bytes) -> None:
    """No file makes the reader fail."""
    assert first_end(content) is None
    first_end(b"-----BEGIN CERTIFICATE-----\n" + content + b"\n-----END CERTIFICATE-----\n")
