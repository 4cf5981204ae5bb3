"""The two sockets of a DRA plugin: their names, and what is removed that dead processes left behind.

The names of one process are never used again by another process. So a kubelet that failed to reach a dead process does
not put off the registration of the next one: the kubelet waits for up to two minutes before it tries a path again
(kubernetes: pkg/util/goroutinemap/exponentialbackoff). And two processes can serve side by side during an update.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.socket_path import why_too_long
from gpushare_plugin.kubelet.serving.own_socket import answers

REGISTRY, PLUGINS = "plugins_registry", "plugins"
"""The directories, below the root of the kubelet, with the sockets at which plugins register and are called."""

_PROCESS = "~{}"
"""Names a process in the names of sockets; no name of a DRA driver has this character."""


class SocketPaths:
    """The paths of the sockets of one process."""

    def __init__(self, kubelet_root: Path, driver: str) -> None:
        """Name the sockets of the DRA driver `driver`; raises GpushareError if a path is too long for a socket."""
        self._driver = driver
        process = _PROCESS.format(secrets.token_hex(2))
        self.registration = kubelet_root / REGISTRY / f"{driver}{process}-reg.sock"
        """Where the kubelet asks who serves."""
        self.endpoint = kubelet_root / PLUGINS / driver / f"dra{process}.sock"
        """Where the kubelet calls for claims."""
        # The other path is always shorter.
        if reason := why_too_long(self.registration.parent, self.registration.name, "the kubelet's registry directory"):
            raise GpushareError(
                f"{reason}, and the socket is called {self.registration.name}: choose a shorter name for the DRA "
                "driver (`dra.driver`), or a shorter root directory for the kubelet (`--root-dir`)"
            )

    def sweep(self) -> None:
        """Remove the sockets of dead processes of this DRA driver: a kubelet removes none."""
        for path in self._others():
            if not answers(path):
                with contextlib.suppress(OSError):  # removed by another process, or the directory is read-only
                    path.unlink()

    def _others(self) -> Iterator[Path]:
        registration = re.compile(rf"{re.escape(self._driver)}~[0-9a-f]+-reg\.sock")
        endpoint = re.compile(r"dra~[0-9a-f]+\.sock")
        for own, name in ((self.registration, registration), (self.endpoint, endpoint)):
            with contextlib.suppress(OSError):  # the directory does not exist yet
                yield from (path for path in list(own.parent.iterdir()) if path != own and name.fullmatch(path.name))
