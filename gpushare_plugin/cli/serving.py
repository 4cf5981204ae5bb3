"""Options of programs that serve HTTP or HTTPS to others, and what these options must not be together."""

from ipaddress import ip_address
from pathlib import Path

import click

from gpushare_plugin.cli.options import A_PATH, option
from gpushare_plugin.observe.http.address import parse_address
from gpushare_plugin.observe.http.certificates import Certificates

tls_certificate_option = option("--tls-certificate", "Certificate for HTTPS, in PEM.", metavar="FILE", type=A_PATH)
tls_key_option = option("--tls-key", "Key of the certificate, in PEM.", metavar="FILE", type=A_PATH)


def certificates_of(certificate: Path | None, key: Path | None, authority: Path | None) -> Certificates | None:
    """Return the files of a server's certificates, None for plain HTTP; raise click.UsageError for a part of them."""
    if certificate is not None and key is not None:
        return Certificates(certificate, key, authority)
    if certificate is not None or key is not None or authority is not None:
        raise click.UsageError("HTTPS needs both --tls-certificate and --tls-key")
    return None


def check_addresses(listen_address: str, probe_address: str | None) -> None:
    """Reject the same port for both: the process could serve one address, and would retry the other again and again."""
    if probe_address is None:
        return
    (host, port), (probe_host, probe_port) = parse_address(listen_address), parse_address(probe_address)
    if port == probe_port != 0 and (host == probe_host or None in {host, probe_host}):
        raise click.UsageError(
            f"--listen-address {listen_address} and --probe-address {probe_address} are the same port; expected two "
            "ports, such as :32766 and :9400"
        )


def is_loopback(address: str) -> bool:
    """Return whether only programs of the same host, or of the same pod, can reach an address to listen at."""
    host, _ = parse_address(address)
    try:
        return host == "localhost" or (host is not None and ip_address(host).is_loopback)
    except ValueError:
        return False
