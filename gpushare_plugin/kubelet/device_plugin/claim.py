"""The claim on a plugin directory: one daemon at a time serves the directory."""

from pathlib import Path

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import Lock, LockedError, lock

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
