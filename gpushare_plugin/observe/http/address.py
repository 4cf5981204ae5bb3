"""The address for probes and scrapes, as given in an option."""

import ipaddress
import re

from gpushare_plugin.base.errors import GpushareError

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^][]+)]|(?P<host>[A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})")


def parse_address(text: str) -> tuple[str | None, int]:
    """Return host and port of `host:port`, `[IPv6]:port`, or `:port`; no host means all interfaces.

    Port 0 stands for any free port. Raises GpushareError for an invalid address.
    """
    match = _ADDRESS.fullmatch(text)
    if match is not None and (port := int(match["port"])) <= 65535 and _is_ipv6(match["ipv6"] or "::"):  # noqa: PLR2004
        return match["ipv6"] or match["host"] or None, port
    raise GpushareError(
        f"{text!r} is not an address to serve HTTP at; expected HOST:PORT, [IPV6]:PORT, or :PORT for all interfaces, "
        "with a port of at most 65535, such as 127.0.0.1:9400, [::1]:9400 or :9400"
    )


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
