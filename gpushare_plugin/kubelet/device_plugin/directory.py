"""The kubelet's plugin directory: one daemon at a time serves there."""

import contextlib
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import Lock, LockedError, lock
from gpushare_plugin.base.files.socket_path import why_too_long
from gpushare_plugin.kubelet.serving.own_socket import answers
from gpushare_plugin.kubelet.serving.watched_directory import WatchedDirectory

KUBELET_SOCKET = "kubelet.sock"
"""Name of the kubelet's own socket."""
SOCKET_PREFIX = "gpushare-"
"""Prefix of the names of all our sockets."""
SECOND = "~2"
"""Ends the names of the sockets of a daemon that follows a daemon with names without this end.

Plugins of one resource need sockets of different names while one follows another (kubernetes#135437): from 1.37 on, a
kubelet knows by the name whose stream has ended. No name of a resource has this character.
"""

_LONGEST_NAME = f"gpushare-0123456789abcdef-01234567{SECOND}.sock"


def refuse_long_path(directory: Path) -> None:
    """Raise GpushareError if the path of a socket in `directory` would be too long."""
    if reason := why_too_long(directory, _LONGEST_NAME, "the plugin directory"):
        raise GpushareError(f"{reason}: mount it elsewhere")


class PluginDirectory(WatchedDirectory):
    """The directory with the sockets of the kubelet and its plugins."""

    def __init__(self, path: Path) -> None:
        """Look at `path`, which need not exist yet."""
        super().__init__(path)
        self._claim: Lock | None = None
        self._swept = False
        self._left = False
        self.ending = ""
        """Ends the names of our sockets, before `.sock`: SECOND beside a daemon that answers at sockets without."""

    def claim(self) -> None:
        """Claim this directory, until `close`, so that no other daemon serves it.

        Raises AlreadyServedError if another daemon has the claim, or is to have the claim since `leave`, and OSError if
        the directory is missing or unusable.
        """
        if self._left:
            raise AlreadyServedError(f"another gpushare takes {self.path} over from this one")
        if self._claim is None or not self._claim.stands:
            self.close()
            self._claim = claim(self.path)
            self._sweep()

    def _sweep(self) -> None:
        """Remove, once, the sockets of a killed daemon: no other program makes sockets of these names."""
        if self._swept:
            return
        self._swept = True
        for path in self.path.glob(f"{SOCKET_PREFIX}*.sock"):
            if not answers(path):
                with contextlib.suppress(OSError):  # a directory that is read-only by now
                    path.unlink()
            elif not path.stem.endswith(SECOND):
                self.ending = SECOND

    def leave(self) -> None:
        """Give the claim up for good, to a daemon that takes over; our sockets stay."""
        self._left = True
        self.close()

    def close(self) -> None:
        """Give the claim up."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None


LOCK_FILE = "gpushare.lock"
"""Name of the locked file. The file is never removed: a starting kubelet removes only sockets."""


class AlreadyServedError(GpushareError):
    """Another gpushare has claimed the plugin directory; the message names both, and the remedy."""


def claim(directory: Path) -> Lock:
    """Claim the plugin directory for this process.

    Raises AlreadyServedError if another daemon, or another part of this process, has the claim, and OSError like
    `lock`.
    """
    try:
        return lock(directory / LOCK_FILE)
    except LockedError as error:
        raise AlreadyServedError(
            f"another gpushare{error.holder} serves {directory}, and there can be only one; stop it first "
            "(during a rolling update, wait until the old pod has ended)"
        ) from None
