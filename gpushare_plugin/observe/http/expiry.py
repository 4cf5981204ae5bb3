"""The end of certificates; Python's `ssl` tells the end of verified certificates only, not of a server's own.

Facts: RFC 7468 (PEM); RFC 5280, sections 4.1 (the fields of a certificate) and 4.1.2.5 (its times); X.690 (DER).
"""

import re
from binascii import a2b_base64
from collections.abc import Iterator
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END ", re.DOTALL)
"""A certificate in PEM, under each of the names accepted by OpenSSL."""

_VERSION, _UTC_TIME = 0xA0, 0x17
_LONG_LENGTH = 0x80
_TIMES = 3
"""The place of the times among the fields without the version: after serial number, algorithm and issuer."""


def first_end(pem: bytes) -> float | None:
    """Return the first end of a certificate in a file, in seconds since 1970; None without a readable certificate.

    A chain becomes invalid with the first end of a certificate in the chain.
    """
    try:
        return min(map(_end, (a2b_base64(body) for body in _PEM.findall(pem))), default=None)
    except (ValueError, IndexError):
        return None


def _end(certificate: bytes) -> float:
    """Return the end of a certificate in DER, in seconds since 1970; raises ValueError or IndexError."""
    (_, whole), *_ = _elements(certificate)
    (_, signed), *_ = _elements(whole)
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    _, (tag, text) = _elements(fields[_TIMES])
    time = text.decode()
    if tag == _UTC_TIME:  # with two digits for the year
        time = ("19" if time >= "5" else "20") + time
    return datetime.strptime(time, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each DER element."""
    while der:
        tag, length, start = der[0], der[1], 2
        if length & _LONG_LENGTH:
            start += length - _LONG_LENGTH
            length = int.from_bytes(der[2:start])
        yield tag, der[start : start + length]
        der = der[start + length :]
