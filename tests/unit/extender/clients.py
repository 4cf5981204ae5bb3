"""Clients of an extender that makes its certificates: a kube-scheduler with the Secret made for it, and others."""

import asyncio
import base64
import ssl
from itertools import count
from pathlib import Path
from typing import Any

from gpushare_plugin.extender.tls.own import OwnCertificateSettings
from gpushare_plugin.testing.cluster import ApiServer

SECRETS = "/api/v1/namespaces/kube-system/secrets"
HOST = "gpushare-extender.kube-system.svc"
NAME = "gpushare-extender-tls"


def own(**options: Any) -> OwnCertificateSettings:
    """Return where certificates are made."""
    return OwnCertificateSettings(NAME, HOST, **options)


def secret(server: ApiServer, name: str) -> dict[str, bytes]:
    """Return what a Secret has, nothing where there is none."""
    return {
        key: base64.b64decode(text) for each in server.store.find(SECRETS, name) for key, text in each["data"].items()
    }


class KubeScheduler:
    """A client with the files of its Secret, as the kubelet mounts them."""

    def __init__(self, server: ApiServer, folder: Path, numbers: "count[int]" = count()) -> None:  # noqa: B008 - goes on
        """Read the Secret once, as kube-scheduler does when it starts."""
        files = folder / f"mounted-{next(numbers)}"
        files.mkdir()
        self.values = secret(server, f"{NAME}-client")
        for key, value in self.values.items():
            (files / key).write_bytes(value)
        self.context = ssl.create_default_context(cafile=files / "ca.crt")
        self.context.verify_flags |= ssl.VERIFY_X509_STRICT
        self.context.load_cert_chain(files / "tls.crt", files / "tls.key")


async def served(port: int, context: ssl.SSLContext | None, host: str | None = HOST) -> bytes:
    """Connect anew, have one page answered, and return the certificate of the server; raises OSError where not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    try:
        writer.write(b"GET /version HTTP/1.1\r\nHost: extender\r\n\r\n")
        if not (await reader.readline()).startswith(b"HTTP/1.1 200 "):
            raise ConnectionAbortedError
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found
    finally:
        writer.transport.abort()
